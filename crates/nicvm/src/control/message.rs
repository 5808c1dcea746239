//! Control messages, and the events and counters about them.

use std::fmt;
use std::ops::Deref;

use midplane_simhw::frame::Header;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use thiserror::Error;

use crate::extension::Epoch;

/// Most bytes of one control message.
pub const MAX_MESSAGE: usize = 100;

/// The bytes of one message, stored inline: up to [`MAX_MESSAGE`]. Reads as a slice.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Body {
    length: u8,
    bytes: [u8; MAX_MESSAGE],
}

impl Body {
    /// Copies `bytes`; returns `None` if they are more than [`MAX_MESSAGE`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let length = u8::try_from(bytes.len()).ok()?;
        let mut body = Self { length, bytes: [0; MAX_MESSAGE] };
        body.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(body)
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The extension of the peer, and its version, that a message is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Address {
    /// The number of the extension.
    pub extension: ExtensionId,
    /// The sender's version of the extension.
    pub epoch: Epoch,
}

impl From<ExtensionId> for Address {
    fn from(extension: ExtensionId) -> Self {
        Self { extension, epoch: Epoch::FIRST }
    }
}

/// Reason for which a message was not accepted.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendError {
    /// More than [`MAX_MESSAGE`] bytes.
    #[error("a control message has at most {MAX_MESSAGE} bytes, not {length}: send it in parts")]
    TooLong {
        /// Bytes that were given.
        length: usize,
    },
    /// The peer's queue is full; retry after an acknowledgement, or after the report that it is down.
    #[error(
        "{limit} messages are under way to the peer or wait for it: send this when some have arrived"
    )]
    QueueFull {
        /// Messages under way or waiting, at most.
        limit: usize,
    },
    /// The destination is this unit: call the handler directly.
    #[error("a unit sends no control messages to itself")]
    ToItself,
}

/// An event of the protocol; take it with [`Control::poll_event`](super::Control::poll_event).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum Event {
    /// The next message of a peer.
    Message {
        /// The sender.
        from: NodeId,
        /// The extension that it is for, and the version of its sender.
        to: Address,
        /// Its bytes.
        body: Body,
    },
    /// A connection is established with a peer that was unknown or down.
    PeerUp {
        /// The peer.
        node: NodeId,
        /// The incarnation that answered.
        incarnation: Incarnation,
    },
    /// A peer that was up has restarted. Messages sent to its former incarnation and not acknowledged are dropped: they
    /// may or may not have arrived there, and are never sent to the new one.
    PeerRestarted {
        /// The peer.
        node: NodeId,
        /// The newest incarnation known to have begun.
        incarnation: Incarnation,
    },
    /// A peer did not acknowledge in time, or reports that it has declared us down. Messages sent to it and not
    /// acknowledged are dropped: they may or may not have arrived.
    PeerDown {
        /// The peer.
        node: NodeId,
    },
}

/// One frame to put on the wire now.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Transmit<'a> {
    /// The complete header; `length` is that of `body`.
    pub header: Header,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// Counts one unit's control messages since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages put on the wire for the first time.
    pub sent: u64,
    /// Messages put on the wire again.
    pub retransmitted: u64,
    /// Messages handed over to extensions.
    pub delivered: u64,
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Messages dropped because their peer restarted or went down.
    pub dropped: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Messages that arrived before an earlier one, and were kept.
    pub out_of_order: u64,
    /// Acknowledgements sent without a message.
    pub acknowledgements: u64,
    /// Hellos sent.
    pub hellos: u64,
    /// Welcomes sent.
    pub welcomes: u64,
    /// Frames from, or for, a former incarnation.
    pub stale_incarnation: u64,
    /// Peers that have restarted with an older incarnation than before, because their clock was set back. Their frames
    /// are ignored.
    pub older_restarts: u64,
    /// Frames of a former connection between the same incarnations.
    pub stale_connection: u64,
    /// Frames that no correct peer sends, or for which there was no room.
    pub refused: u64,
    /// Peers declared down.
    pub peers_down: u64,
}
