//! Requests. Each is one communication, from when it is built until its outcome is taken.
//!
//! ```text
//! Built --start--> Waiting --sent or posted--> Active --> Done --take--> Built
//! ```
//!
//! Both layers share the table: the engine advances requests; the upper layer reads their states, takes
//! outcomes and marks requests to be cancelled.

mod table;

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use thiserror::Error;

use super::engine::Pool;
use super::envelope::{Context, Peer, Tag};
use super::group::Group;
use super::matching::{Arrival, Key, Pattern, PostedId};
use super::transport::StartError;
use crate::memory::Segment;

pub use table::Requests;

/// The source in the status of a receive from [`Rank::NULL`](super::group::Rank::NULL), or of a send.
pub(crate) const NULL_PEER: Peer = Peer(u32::MAX);

/// Identifies a request; the identifier of a removed request is detected.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Request {
    slot: u32,
    generation: u32,
}

impl Request {
    /// Packs the request into a handle for an envelope; never 0.
    #[must_use]
    pub(crate) const fn to_handle(self) -> u64 {
        self.slot as u64 | (self.generation as u64) << 32
    }

    /// Unpacks a handle. Accepts any number: the table checks whether such a request exists.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(crate) const fn from_handle(handle: u64) -> Self {
        Self { slot: handle as u32, generation: (handle >> 32) as u32 }
    }
}

/// When a send completes (MPI 1.1, section 3.4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Once its bytes were copied or handed to the receiver.
    #[default]
    Standard,
    /// At once: its bytes are copied into the attached buffer.
    Buffered,
    /// Once its receive has begun.
    Synchronous,
    /// Like standard; the sender promises that the receive is posted. A broken promise is counted, without other
    /// effect.
    Ready,
}

/// The operation of a request, each time it is started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum Operation {
    /// Sends a message to a process.
    Send {
        /// Decides when the send completes.
        mode: Mode,
        /// The process that receives the message.
        to: Peer,
        /// The context of the message.
        context: Context,
        /// The tag of the message.
        tag: Tag,
    },
    /// Receives the first message that matches the pattern.
    Receive(Pattern),
    /// Receives, once, a message that a probe took out of the queue.
    Claimed(Key),
    /// A send to or a receive from [`Rank::NULL`](super::group::Rank::NULL): done as soon as it is started. The
    /// upper layer never passes such a request to the engine.
    Nothing,
}

/// The message to send or the room to receive into, passed when a request is started.
#[derive(Debug)]
pub enum Load<'a> {
    /// A message to send, copied only if it cannot leave at once.
    Copy(&'a [u8]),
    /// A message to send.
    Bytes(Bytes),
    /// Room for a message of at most `room` bytes. `storage` is used if it is large enough, so a caller that
    /// reuses one storage allocates nothing; its contents do not matter.
    Room {
        /// Most bytes that the receive accepts.
        room: usize,
        /// A buffer that may be used for the bytes.
        storage: Vec<u8>,
    },
    /// A message to send from registered memory, or room to receive into. The outcome of such a receive has no bytes:
    /// they are in the memory.
    Memory(Segment),
}

impl Load<'_> {
    /// Returns room for a message of any length; the engine allocates it.
    #[must_use]
    pub const fn anything() -> Self {
        Self::Room { room: usize::MAX, storage: Vec::new() }
    }
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum State {
    /// Not started, or its outcome was taken.
    Built,
    /// A send of which nothing has left yet.
    Waiting,
    /// A send under way, or a receive that is posted.
    Active,
    /// Ended; its outcome can be taken.
    Done,
}

/// The message that a request sent or received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// The sender of the message.
    pub source: Peer,
    /// The tag of the message.
    pub tag: Tag,
    /// Bytes that were sent, or delivered.
    pub length: usize,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// The receive got only the beginning of the message; the sender is not notified.
    #[error("the message has {length} bytes, more than the {room} there is room for")]
    Truncated {
        /// Bytes of the message.
        length: usize,
        /// Most bytes that the receive accepted.
        room: usize,
    },
    /// The request was cancelled before it matched: nothing was sent or received.
    #[error("cancelled before it matched")]
    Cancelled,
    /// The other process exited or was lost; a sent message may or may not have been received.
    #[error("process {0} exited or was lost")]
    PeerLost(Peer),
    /// The other process was killed or has ended, and was started again: this request was for the former process.
    /// Messages can be sent to the new one.
    #[error("process {0} was lost and started again; this request was for the former one")]
    PeerRestarted(Peer),
    /// The receiver's memory for unexpected messages is full, and its configuration refuses more: nothing was
    /// sent.
    #[error("process {0} has no memory left for unexpected messages; have it post receives first")]
    Refused(Peer),
    /// Another process left a collective operation before its end: the operation failed there or was dropped.
    /// This communicator can carry out no more collective operations.
    #[error(
        "another process has left the collective operation; continue with another communicator"
    )]
    Abandoned,
    /// A process has revoked the communicator, since another one was lost.
    #[error(
        "the communicator was revoked after a loss; agree and shrink it, and continue with the new one"
    )]
    Revoked,
    /// The engine was finalised first.
    #[error("the message layer was finalised")]
    Finalized,
}

/// The result of a request.
#[derive(Debug)]
pub struct Outcome {
    /// The message that the request sent or received.
    pub status: Status,
    /// Success, or why it failed.
    pub result: Result<(), Failure>,
    /// For a receive: the bytes, in the storage passed in or in another. For a send: empty.
    pub bytes: Vec<u8>,
}

/// A receive that matched a rendezvous message: `filled` of `wanted` bytes have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) peer: Peer,
    pub(super) filled: usize,
    pub(super) wanted: usize,
    /// Bytes of the whole message.
    pub(super) length: usize,
    /// The dropped receive at which the bytes arrive, if this one is its heir.
    pub(super) dropped: Option<Request>,
}

impl Transfer {
    /// Returns whether data packets from `peer` for this request belong to the transfer.
    pub(super) fn is_of(&self, peer: Peer) -> bool {
        self.peer == peer && self.dropped.is_none()
    }
}

/// The table's entry for a request.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) operation: Operation,
    pub(super) state: State,
    /// A send's message, while it may still have to be sent.
    pub(super) bytes: Bytes,
    pub(super) storage: Vec<u8>,
    /// A send's message, or a receive's room, if that is registered memory.
    pub(super) memory: Option<Segment>,
    /// True while the NIC reads a send's memory, all of which was posted.
    pub(super) in_use: bool,
    /// Bytes at the start of a receive's message that are in the caller's memory, not in `storage`.
    pub(super) delivered: usize,
    pub(super) room: usize,
    pub(super) posted: Option<PostedId>,
    pub(super) transfer: Option<Transfer>,
    pub(super) arrival: Arrival,
    pub(super) status: Status,
    pub(super) result: Result<(), Failure>,
    /// True if the outcome will not be taken.
    pub(super) orphan: bool,
    /// True if the receive was dropped while its message's bytes were arriving: the message has returned to the queue.
    pub(super) undo: bool,
    /// The receive that gets the message of this dropped one.
    pub(super) heir: Option<Request>,
    /// The processes whose messages a receive from any source can match; `None` for all.
    pub(super) group: Option<Arc<Group>>,
    /// Bytes of the attached buffer that the request occupies until it is done.
    pub(super) attached: usize,
    waker: Option<Waker>,
}

impl Record {
    /// Returns the bytes of a send's message.
    pub(super) fn message_bytes(&self) -> usize {
        self.memory.as_ref().map_or(self.bytes.len(), Segment::len)
    }

    /// Takes the room of a receive.
    #[inline]
    pub(super) fn take_room(&mut self, load: Load<'_>) -> Result<(), StartError> {
        self.delivered = 0;
        (self.room, self.storage, self.memory) = match load {
            Load::Room { room, storage } => (room, storage, None),
            Load::Memory(segment) => (segment.len(), Vec::new(), Some(segment)),
            Load::Copy(_) | Load::Bytes(_) => return Err(StartError::WrongLoad),
        };
        Ok(())
    }

    /// Resizes `storage` to hold the whole message that is being received.
    pub(super) fn store(&mut self, pool: &mut Pool) {
        let wanted = self.transfer.map_or(0, |transfer| transfer.wanted);
        if self.storage.capacity() < wanted {
            let former = std::mem::replace(&mut self.storage, pool.take(wanted));
            pool.put(former);
        }
        self.storage.resize(wanted, 0);
    }

    /// Copies bytes up to `end` to the caller's memory that are not there yet.
    pub(super) fn deliver_stored(&mut self, memory: &mut [u8], end: usize) {
        let part = self.delivered..end;
        if !part.is_empty() {
            memory[part.clone()].copy_from_slice(&self.storage[part]);
            self.delivered = end;
        }
    }
}
