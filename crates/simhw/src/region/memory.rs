//! The memory of one region.

use std::sync::Arc;

use super::Payload;
use crate::segment::Segment;

/// Where a region lies in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    segment: Arc<Segment>,
    bytes: usize,
}

impl Memory {
    /// Memory of this process, zeroed.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { segment: Arc::new(Segment::private(bytes)), bytes }
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        if offset.checked_add(length)? > self.bytes {
            return None;
        }
        self.segment.view(offset, length).map(Payload::from)
    }

    pub(crate) fn store(&self, offset: usize, from: Payload<'_>) -> Option<()> {
        if offset.checked_add(from.len())? > self.bytes {
            return None;
        }
        self.segment.store(offset, from.view())
    }
}
