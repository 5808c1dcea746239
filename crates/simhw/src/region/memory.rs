//! The memory of one region.

use std::sync::Arc;

use super::Payload;
use crate::segment::Segment;

/// Where a region lies in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    segment: Arc<Segment>,
    /// Where it begins.
    base: usize,
    bytes: usize,
}

impl Memory {
    /// Memory of this process, zeroed.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { segment: Arc::new(Segment::private(bytes)), base: 0, bytes }
    }

    /// A part of a segment; `None` where it passes the end.
    pub(crate) fn within(segment: Arc<Segment>, base: usize, bytes: usize) -> Option<Self> {
        segment.view(base, bytes)?;
        Some(Self { segment, base, bytes })
    }

    /// Makes all of it zero.
    pub(crate) fn clear(&self) {
        const ZEROES: [u8; 4_096] = [0; 4_096];
        for at in (0..self.bytes).step_by(ZEROES.len()) {
            let part = &ZEROES[..ZEROES.len().min(self.bytes - at)];
            self.store(at, Payload::from(part)).expect("within the region");
        }
    }

    /// Tells all processes that have it mapped that it is nobody's any more.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(crate) fn revoke(&self) {
        self.segment.revoke();
    }

    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(crate) fn is_revoked(&self) -> bool {
        self.segment.is_revoked()
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        if offset.checked_add(length)? > self.bytes {
            return None;
        }
        self.segment.view(self.base + offset, length).map(Payload::from)
    }

    pub(crate) fn store(&self, offset: usize, from: Payload<'_>) -> Option<()> {
        if offset.checked_add(from.len())? > self.bytes {
            return None;
        }
        self.segment.store(self.base + offset, from.view())
    }
}
