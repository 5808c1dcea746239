//! The memory of one region.

use std::sync::Arc;

use super::Payload;
use crate::segment::Segment;

/// The memory of a region: a range of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    segment: Arc<Segment>,
    /// First byte of the range.
    base: usize,
    bytes: usize,
}

impl Memory {
    /// Allocates zeroed memory in this process.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { segment: Arc::new(Segment::private(bytes)), base: 0, bytes }
    }

    /// Returns a range of a segment; `None` if it exceeds the segment.
    #[cfg(target_os = "linux")]
    pub(crate) fn within(segment: Arc<Segment>, base: usize, bytes: usize) -> Option<Self> {
        segment.view(base, bytes)?;
        Some(Self { segment, base, bytes })
    }

    /// Overwrites the memory with zeroes.
    #[cfg(target_os = "linux")]
    pub(crate) fn clear(&self) {
        const ZEROES: [u8; 4_096] = [0; 4_096];
        for at in (0..self.bytes).step_by(ZEROES.len()) {
            let part = &ZEROES[..ZEROES.len().min(self.bytes - at)];
            self.store(at, Payload::from(part)).expect("within the region");
        }
    }

    /// Notifies all processes that have mapped the memory that its region is deregistered.
    #[cfg(target_os = "linux")]
    pub(crate) fn revoke(&self) {
        self.segment.revoke();
    }

    #[cfg(target_os = "linux")]
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
