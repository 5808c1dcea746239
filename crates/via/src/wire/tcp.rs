//! Connections over TCP, for networks that block UDP: a handshake, and records that are sealed if there is a
//! key.
//!
//! # Handshake
//!
//! The dialer sends 72 bytes: `midplane`, the version 1, a byte that is 1 with a key, the cipher, 5 zeros, the dialer's
//! random number (8 bytes), a Noise message (48 bytes) or zeros. The acceptor answers with 80 bytes:
//! `midplane`, the version, a byte that is 0 or the reason of a refusal, the cipher, 5 zeros, the acceptor's random number
//! (8 bytes), a Noise message (56 bytes) or zeros. The first 16 bytes of both are the same in every version.
//! With a key, the dialer then sends an empty record, which proves that it has the key.
//!
//! The cipher is 1 if the dialer's processor has instructions for AES, and in the answer if both have; both then
//! use AES-256-GCM. Earlier versions send 0 and read no cipher.
//!
//! In version 2, both nodes have keys of their own, which the Noise messages carry: 96 and 104 bytes. An
//! acceptor that does not support it answers in version 1; the dialer connects again with version 1.
//!
//! In version 3, the dialer connects for one stream of a session: see `joining`.
//!
//! # Records
//!
//! Without a key, the session's bytes follow as they are. With a key, they are sent as records: the length (2
//! bytes, little-endian), then the sealed bytes. The nonce is the number of the record in its direction.

mod handshake;
mod joining;
mod records;

use midplane_simhw::seal::{Key, SecretKey};
use thiserror::Error;

pub(crate) use handshake::{Accepted, Connection, accept, accept_over, connect, connect_over};
pub(crate) use joining::{Joining, answer, join};
pub(crate) use records::Records;

use super::pipe::sealing::{Label, Secrets};

/// The label of handshakes over TCP, which keeps them apart from those over UDP.
const STREAMS: &Label = b"midplane tcp  1";

/// Configures the connections over TCP of a process.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) key: Option<Key>,
    pub(crate) own: Option<SecretKey>,
    pub(crate) has_own_connections: bool,
}

impl Config {
    /// Seals every record with a secret that all peers share; none by default.
    #[must_use]
    pub fn key(mut self, key: Option<Key>) -> Self {
        self.key = key;
        self
    }

    /// Sets this process's own key, with which it proves its identity to peers; peers with a key of their own
    /// must prove theirs: see [`Session::peer_key`](crate::session::Session::peer_key). Needs a
    /// [key](Config::key) that all peers share. None by default.
    #[must_use]
    pub fn own_key(mut self, own: Option<SecretKey>) -> Self {
        self.own = own;
        self
    }

    /// Lets a stream of a session move to a connection of its own once its writer waits with 1 MiB sent. Only without a key, and if the peer does the same. Default: no stream does.
    #[must_use]
    pub const fn own_connections(mut self) -> Self {
        self.has_own_connections = true;
        self
    }

    pub(crate) const fn moves_streams(&self) -> bool {
        self.has_own_connections && self.key.is_none()
    }

    /// Returns the secrets of handshakes, if connections are sealed.
    fn secrets(&self) -> Option<Secrets<'_>> {
        Some(Secrets::new(self.key.as_ref()?, self.own.as_ref()))
    }
}

/// Why there is no connection over TCP.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failed {
    /// The system reported an error.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The peer has not answered in time.
    #[error("no answer; is the peer running, and the port not blocked?")]
    NoAnswer,
    /// The peer is not a node, or has too many handshakes under way.
    #[error("the peer is no node, or has too many handshakes under way")]
    NoNode,
    /// The peer has another key, or one side has none.
    #[error(
        "the keys of the two nodes do not fit, or one has none: give all nodes of a cluster the same key file"
    )]
    KeyMismatch,
    /// The peer speaks another version.
    #[error("the peer speaks version {0}")]
    Version(u8),
    /// The peer refused, for another reason: 4 if it has no such stream.
    #[error("the peer refuses: reason {0}")]
    Refused(u8),
}
