//! The NIC's view of a context's two FIFOs.

use std::collections::VecDeque;

use crate::channel::geometry::{ByteRing, Record};

/// The send FIFO.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Messages ever put in by the process, as last read.
    pub(super) tail: u64,
    /// Number of the oldest message that still occupies the FIFO.
    pub(super) freed: u64,
    /// Records from `freed` on, and whether each message is accepted.
    pub(super) records: VecDeque<(Record, bool)>,
}

/// The receive FIFO.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) tail: u64,
    /// Messages ever consumed by the process, as last read.
    pub(super) head: u64,
    pub(super) ring: ByteRing,
    pub(super) positions: VecDeque<u64>,
}
