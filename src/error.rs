//! The error type of nodes.

use std::fmt;
use std::io;

/// Classifies an error by what to do about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration, or the type of a value, is invalid. Change the setting or the type that the text names; a
    /// repeated attempt fails as well.
    Config,
    /// Another node, or another listener, has the name or address. Choose another one, or stop the other process.
    InUse,
    /// No node that was asked offers the service. The text names those nodes, and the places that did not answer. Start
    /// one, or wait longer for one: [`NodeBuilder::connect_timeout`].
    ///
    /// [`NodeBuilder::connect_timeout`]: crate::NodeBuilder::connect_timeout
    NoService,
    /// Nodes offer the service, but none has accepted: too many streams wait there, or they do not answer in time. Try
    /// again later, after a pause; if it persists, start another node.
    Busy,
    /// The only node found speaks a version that this one does not understand. Run adjacent versions in one cluster:
    /// update the older side first.
    Version,
    /// The keys of two nodes do not fit. The text names them: give all nodes of a cluster the same key file
    /// ([`NodeBuilder::key_file`]); a node whose name or place belongs to another key needs another name, or its former
    /// identity file ([`NodeBuilder::identity_file`]).
    ///
    /// [`NodeBuilder::key_file`]: crate::NodeBuilder::key_file
    /// [`NodeBuilder::identity_file`]: crate::NodeBuilder::identity_file
    Key,
    /// The peer was restarted, or the connection to it was lost. Bytes that it had not received are lost. Try again:
    /// the next attempt reaches the restarted peer. Repeat only operations that may be done twice.
    Reset,
    /// A value is longer than the limit, or there are too many of them: the text names the limit. Send less at once, or
    /// use a stream, which has no limit.
    TooLarge,
    /// The node was shut down, or dropped. Keep a clone of it as long as it is used.
    Closed,
    /// The system refused a call: the source has its error. Change the system's settings, or try again.
    System,
}

/// An error of a node: a [kind](Error::kind) to match on, a text to read, and a source where there is one.
///
/// Its `Debug` text is readable as well: `main` may return it.
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    pub(crate) fn system(doing: &str, source: io::Error) -> Self {
        let in_use = source.kind() == io::ErrorKind::AddrInUse;
        let kind = if in_use { ErrorKind::InUse } else { ErrorKind::System };
        Self { kind, text: format!("{doing}: {source}"), source: Some(source) }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.text, self.kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::Config => io::ErrorKind::InvalidInput,
            ErrorKind::InUse => io::ErrorKind::AddrInUse,
            ErrorKind::NoService => io::ErrorKind::NotFound,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::Version => io::ErrorKind::Unsupported,
            ErrorKind::Key => io::ErrorKind::PermissionDenied,
            ErrorKind::Reset => io::ErrorKind::ConnectionReset,
            ErrorKind::TooLarge => io::ErrorKind::InvalidInput,
            ErrorKind::Closed => io::ErrorKind::NotConnected,
            ErrorKind::System => error.source.as_ref().map_or(io::ErrorKind::Other, Self::kind),
        };
        Self::new(kind, error)
    }
}
