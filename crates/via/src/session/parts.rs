//! The slices of a vectored write, from which frames take bytes.

use std::io::IoSlice;

/// Slices whose bytes are taken from the front.
pub(super) struct Parts<'a> {
    parts: &'a [IoSlice<'a>],
    /// Bytes of the first slice that were taken.
    offset: usize,
    pub(super) taken: usize,
}

/// Most slices that one frame gathers.
const GATHERED: usize = 16;

impl<'a> Parts<'a> {
    pub(super) fn new(parts: &'a [IoSlice<'a>]) -> Self {
        let mut parts = Self { parts, offset: 0, taken: 0 };
        parts.skip_empty();
        parts
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn skip_empty(&mut self) {
        while let [first, rest @ ..] = self.parts
            && self.offset >= first.len()
        {
            (self.parts, self.offset) = (rest, 0);
        }
    }

    /// Takes up to `most` bytes; returns how many.
    pub(super) fn take(&mut self, most: usize, push: impl FnOnce(&[IoSlice<'_>])) -> usize {
        let mut gathered = [IoSlice::new(&[]); GATHERED];
        let (mut count, mut bytes) = (0, 0);
        while count < GATHERED && bytes < most && !self.is_empty() {
            let first: &'a [u8] = &self.parts[0];
            let piece = &first[self.offset..];
            let piece = &piece[..piece.len().min(most - bytes)];
            gathered[count] = IoSlice::new(piece);
            (count, bytes) = (count + 1, bytes + piece.len());
            self.offset += piece.len();
            self.skip_empty();
        }
        push(&gathered[..count]);
        self.taken += bytes;
        bytes
    }
}
