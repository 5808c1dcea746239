//! Memory for bytes from the system, and copies of long ranges.
//!
//! On AMD's Zen processors, `rep movsb` copies at less than a tenth of its usual speed if the destination begins up to
//! 63 bytes after the source, modulo a page. The system and the C library use it for long copies.

use std::ops::{Deref, DerefMut};

/// Bytes of a page. The system's own buffers begin at pages, those of the allocator often 16 bytes after one.
const PAGE: usize = 4_096;
/// Most distance of the two ranges, modulo a page, at which copies are slow.
const NEAR: usize = 64;
/// Bytes of a part that the C library copies without `rep movsb`, whatever the distance.
const PART: usize = 2_048;

/// Zeroed memory that begins at a page.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// At most a page longer than the memory in use.
    memory: Box<[u8]>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` of memory.
    pub(crate) fn new(bytes: usize) -> Self {
        let memory: Box<[u8]> = vec![0; bytes + PAGE].into();
        Self { start: memory.as_ptr().align_offset(PAGE), memory, bytes }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// Splits bytes that are to be copied to `to` into parts that are copied fast.
#[inline]
fn parts(from: &[u8], to: *const u8) -> std::slice::Chunks<'_, u8> {
    let distance = to.addr().wrapping_sub(from.as_ptr().addr()) % PAGE;
    let is_near = distance > 0 && distance < NEAR;
    from.chunks(if is_near { PART } else { from.len().max(1) })
}

/// Copies `from` into `to`, which is as long.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "both ranges have one length");
    let mut at = 0;
    for part in parts(from, to.as_ptr()) {
        to[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// Appends `from` to what was read.
///
/// # Panics
/// If there is less room.
#[cfg(feature = "session")]
#[inline]
pub(crate) fn append(from: &[u8], to: &mut tokio::io::ReadBuf<'_>) {
    let end = to.filled().as_ptr_range().end;
    parts(from, end).for_each(|part| to.put_slice(part));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_buffer_begins_at_a_page_and_is_zeroed() {
        for bytes in [0, 1, 4_095, 4_096, 65_536] {
            let mut buffer = Buffer::new(bytes);
            assert!(buffer.as_ptr().addr().is_multiple_of(PAGE) && buffer.len() == bytes);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(1);
        }
        assert!(Buffer::default().is_empty());
    }

    proptest! {
        #[test]
        fn copies_are_whole_at_any_distance(
            bytes in proptest::collection::vec(any::<u8>(), 0..9_000), distance in 0_usize..100,
        ) {
            let mut from = Buffer::new(bytes.len());
            from.copy_from_slice(&bytes);
            let mut to = Buffer::new(bytes.len() + distance);
            copy(&from, &mut to[distance..]);
            prop_assert_eq!(&to[distance..], &bytes[..]);
            prop_assert!(to[..distance].iter().all(|byte| *byte == 0));
        }
    }
}
