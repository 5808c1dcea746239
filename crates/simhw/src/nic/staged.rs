//! The effects that a turn has requested and not committed, except its frames to other nodes.

use std::ops::Range;

use crate::hardware::{Dma, TIMERS};
use crate::id::{DmaId, PortId};
use crate::region::RegionRef;
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Staged {
    pub(super) writes: Vec<(RegionRef, Stored)>,
    /// Bytes of writes that are not from the frame that is being handled.
    pub(super) bytes: Vec<u8>,
    pub(super) copies: Vec<(DmaId, Dma)>,
    /// Ports with completions in unpublished slots.
    pub(super) completed: Vec<PortId>,
    pub(super) looped: Vec<Vec<u8>>,
    pub(super) timers: Option<[Instant; TIMERS]>,
    /// True if anything at all is staged.
    pub(super) is_any: bool,
}

/// The place of bytes that the commit writes.
#[derive(Debug)]
pub(super) enum Stored {
    /// A range of the memory of the frame that is being handled.
    Current(Range<usize>),
    /// A range of the staged bytes.
    Staged(Range<usize>),
}

impl Staged {
    /// Discards all effects, except completions.
    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.bytes.clear();
        self.copies.clear();
        self.looped.clear();
        self.timers = None;
    }
}
