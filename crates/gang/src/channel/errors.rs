//! Errors of channels.

use midplane_simhw::host::OpenError;
use midplane_simhw::port::PortClosed;
use thiserror::Error;

use crate::names::Rank;

/// Errors of [`Channel::attach`](super::Channel::attach).
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AttachError {
    /// The NIC has no free port.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// Another process is attached, or the context is closed.
    #[error(
        "the context is closed, or another process is attached to it: ask its daemon for another"
    )]
    Refused,
    /// The system refuses to register a watch for messages of the host's other ranks.
    #[error("the system refuses a watch for messages of the host's other ranks: {0}")]
    System(std::io::ErrorKind),
}

/// Errors of sending a message.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendError {
    /// The send FIFO is full until its oldest message is accepted; [`Channel::room`](super::Channel::room) waits for
    /// that.
    #[error("the send FIFO is full: wait for room, or send with `send`")]
    Full,
    /// The message is too long; send it in parts.
    #[error("a message has at most {most} bytes, not {length}")]
    TooLong {
        /// The message's length, in bytes.
        length: usize,
        /// The channel's longest message, in bytes.
        most: u32,
    },
    /// The job has no such rank.
    #[error("the job has no rank {to}: it has {ranks}, numbered from 0")]
    Rank {
        /// The rank that the caller named.
        to: Rank,
        /// The number of ranks of the job.
        ranks: u16,
    },
    /// The NIC has stopped, or the context was closed.
    #[error("the channel is closed")]
    Closed,
}

/// The channel is closed: its NIC has stopped, or its context was closed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the channel is closed")]
pub struct Closed;

impl From<PortClosed> for Closed {
    fn from(_: PortClosed) -> Self {
        Self
    }
}
