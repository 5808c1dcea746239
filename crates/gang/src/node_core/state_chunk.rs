//! States of ranks and contexts of channels, in chunks, because both can be longer than a message between daemons.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Most bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// Most bytes of a state or context of one rank.
pub(crate) const LONGEST_STATE: usize = 1 << 30;

/// The contents of a [`StateChunk`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum ChunkKind {
    /// A process's state, in the program's own format.
    State,
    /// A channel's encoded context.
    Context,
}

/// A chunk of a rank's state, or of its channel's context.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct StateChunk {
    /// Kind of the data to which the chunk belongs.
    pub(crate) kind: ChunkKind,
    /// Number of bytes in the earlier chunks.
    pub(crate) at: u64,
    /// Bytes that follow those of the earlier chunks.
    pub(crate) bytes: Bytes,
    /// True for the last chunk.
    pub(crate) is_last: bool,
}

/// Splits bytes into pieces, at least one: returns the position of each, and whether it is the last.
pub(super) fn pieces(bytes: Bytes) -> impl Iterator<Item = (u64, Bytes, bool)> {
    let count = bytes.len().div_ceil(CHUNK_BYTES).max(1);
    (0..count).map(move |number| {
        let at = number * CHUNK_BYTES;
        let piece = bytes.slice(at..bytes.len().min(at + CHUNK_BYTES));
        (at as u64, piece, number + 1 == count)
    })
}

/// Splits bytes into chunks, at least one.
pub(crate) fn split(kind: ChunkKind, bytes: Bytes) -> impl Iterator<Item = StateChunk> {
    pieces(bytes).map(move |(at, bytes, is_last)| StateChunk { kind, at, bytes, is_last })
}

/// Bytes that are put together from pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Assembly {
    bytes: Vec<u8>,
    /// Bytes of all pieces, also of those that were dropped.
    length: u64,
    is_complete: bool,
}

impl Assembly {
    /// Appends a piece, or only counts it if `keep` is false. Returns false, and drops the piece, if the bytes are
    /// complete or would be too long, or if pieces before it are missing.
    pub(super) fn add(&mut self, at: u64, bytes: &[u8], is_last: bool, keep: bool) -> bool {
        let length = self.length + bytes.len() as u64;
        if self.is_complete || at != self.length || length > LONGEST_STATE as u64 {
            return false;
        }
        if keep {
            self.bytes.extend_from_slice(bytes);
        }
        (self.length, self.is_complete) = (length, is_last);
        true
    }

    /// Returns the bytes once, if they are complete.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.is_complete.then(|| std::mem::take(self).bytes)
    }
}

/// The state and context of one rank, assembled from chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankState {
    state: Assembly,
    context: Assembly,
}

impl RankState {
    /// Appends a chunk, or only counts it if `keep` is false. Returns false, and drops the chunk, if its state or context
    /// is complete or would be too long, or if chunks before it are missing.
    pub(crate) fn add(&mut self, chunk: &StateChunk, keep: bool) -> bool {
        let assembly = match chunk.kind {
            ChunkKind::State => &mut self.state,
            ChunkKind::Context => &mut self.context,
        };
        assembly.add(chunk.at, &chunk.bytes, chunk.is_last, keep)
    }

    /// Returns whether chunks before this one are missing: their sender has sent them to an earlier root.
    pub(crate) const fn lacks_before(&self, chunk: &StateChunk) -> bool {
        matches!(chunk.kind, ChunkKind::State)
            && !self.state.is_complete
            && chunk.at > self.state.length
    }

    /// Drops the bytes, but keeps what is complete.
    pub(crate) fn clear(&mut self) {
        (self.state.bytes, self.context.bytes) = (Vec::new(), Vec::new());
    }

    /// Returns the number of bytes in memory.
    pub(crate) const fn len(&self) -> u64 {
        (self.state.bytes.len() + self.context.bytes.len()) as u64
    }

    /// Returns the state once, if it is complete.
    pub(crate) fn take_state(&mut self) -> Option<Vec<u8>> {
        self.state.take()
    }

    pub(crate) const fn has_state(&self) -> bool {
        self.state.is_complete
    }

    /// Returns the encoded context, if it is complete.
    pub(crate) fn context(&self) -> Option<&[u8]> {
        self.context.is_complete.then_some(&self.context.bytes[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together_and_no_more_are_taken() {
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut state = RankState::default();
            for chunk in split(ChunkKind::State, bytes.clone().into()) {
                assert!(!state.has_state() && chunk.bytes.len() <= CHUNK_BYTES);
                assert!(!state.lacks_before(&chunk) && state.add(&chunk, true));
            }
            let (kind, at) = (ChunkKind::State, length as u64);
            let more = StateChunk { kind, at, bytes: Bytes::new(), is_last: true };
            assert!(!state.add(&more, true) && state.context().is_none());
            assert_eq!(state.take_state(), Some(bytes));
            assert_eq!(state.take_state(), None);
        }
    }
}
