//! Counters of a session's streams.

use crate::wire::pipe;

/// Counters of a session's streams.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counted {
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) opened: u64,
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) moved: u64,
}

/// Counters and measurements of a session.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of streams that were sent.
    pub bytes_sent: u64,
    /// Bytes of streams that were received.
    pub bytes_received: u64,
    /// Streams that this process has opened, including refused ones.
    pub opened: u64,
    /// Streams of the peer that this process has accepted.
    pub accepted: u64,
    /// Streams of the peer that this process has refused.
    pub refused: u64,
    /// Streams that have moved to TCP connections of their own.
    pub moved: u64,
    /// Streams that are open at either end.
    pub open: usize,
    /// Statistics of the connection, over UDP.
    pub pipe: Option<pipe::Stats>,
}
