//! Memory for a part of a byte stream, in reusable chunks.

use std::collections::VecDeque;

use super::reserve::Reserve;
use crate::wire::buffer::{self, Buffer};

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Bytes of a stream between two offsets; a chunk exists once a byte of it was written.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    chunks: VecDeque<Option<Buffer>>,
    /// Number of the first chunk: its offset divided by its length.
    first: u64,
    spare: Reserve<Buffer>,
}

const fn place(offset: u64) -> (u64, usize) {
    (offset / CHUNK_BYTES as u64, (offset % CHUNK_BYTES as u64) as usize)
}

impl Chunks {
    /// Writes `bytes` at `offset`, which was not released.
    pub(crate) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (number, at) = place(offset);
            let count = bytes.len().min(CHUNK_BYTES - at);
            let (now, later) = bytes.split_at(count);
            buffer::copy(now, &mut self.chunk(number)[at..at + count]);
            bytes = later;
            offset += count as u64;
        }
    }

    fn chunk(&mut self, number: u64) -> &mut [u8] {
        debug_assert!(number >= self.first, "released bytes are not written");
        let index = (number - self.first) as usize;
        while self.chunks.len() <= index {
            self.chunks.push_back(None);
        }
        let spare = &mut self.spare;
        self.chunks[index]
            .get_or_insert_with(|| spare.take().unwrap_or_else(|| Buffer::new(CHUNK_BYTES)))
    }

    /// Returns the memory of the bytes from `offset` on that is contiguous: up to the end of a chunk.
    #[cfg(feature = "session")]
    pub(crate) fn piece_mut(&mut self, offset: u64) -> &mut [u8] {
        let (number, at) = place(offset);
        &mut self.chunk(number)[at..]
    }

    /// Returns the bytes from `offset` on that are contiguous in memory, up to `to`.
    pub(crate) fn piece(&self, offset: u64, to: u64) -> &[u8] {
        let (number, at) = place(offset);
        let count = (to.saturating_sub(offset)).min((CHUNK_BYTES - at) as u64) as usize;
        let index = number.checked_sub(self.first).map(|index| index as usize);
        let chunk = index.and_then(|index| self.chunks.get(index)).and_then(Option::as_deref);
        chunk.map_or(&[], |chunk| &chunk[at..at + count])
    }

    /// Appends the bytes from `offset` to `to`.
    pub(crate) fn copy_to(&self, mut offset: u64, to: u64, out: &mut Vec<u8>) {
        while offset < to {
            let piece = self.piece(offset, to);
            if piece.is_empty() {
                debug_assert!(false, "only written bytes are read");
                return;
            }
            out.extend_from_slice(piece);
            offset += piece.len() as u64;
        }
    }

    /// Returns the bytes from `offset` to `to` in place: at most a chunk's 64 KiB, so that they are in two
    /// chunks at most.
    pub(crate) fn parts(&self, offset: u64, to: u64) -> [&[u8]; 2] {
        let first = self.piece(offset, to);
        [first, self.piece(offset + first.len() as u64, to)]
    }

    /// Releases the memory of the bytes before `offset`.
    pub(crate) fn release(&mut self, offset: u64) {
        let (number, _) = place(offset);
        while self.first < number {
            let Some(chunk) = self.chunks.pop_front() else {
                self.first = number;
                return;
            };
            self.first += 1;
            if let Some(chunk) = chunk {
                self.spare.add(chunk);
            }
        }
    }

    /// Releases memory in reserve that was not needed since the last call; if `is_idle`, all of it, and then also the
    /// chunks, if `is_empty`.
    pub(crate) fn trim(&mut self, is_idle: bool, is_empty: bool) {
        self.spare.trim(is_idle);
        if is_idle && is_empty {
            self.chunks.iter_mut().for_each(|chunk| *chunk = None);
        }
    }

    /// Returns the bytes of memory in use and in reserve.
    pub(crate) fn memory_bytes(&self) -> usize {
        (self.chunks.iter().flatten().count() + self.spare.iter().len()) * CHUNK_BYTES
    }
}
