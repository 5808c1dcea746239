//! The bytes of a session over TCP, between its frames and the task that moves them.

use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use midplane_simhw::lock::lock;

use super::frame::PIECE;
use crate::wire::pipe::chunks::{CHUNK_BYTES, Chunks};

/// Most bytes that wait to be sent; then writers wait for room.
const MAX_OUTGOING: usize = 256 * 1024;
/// Most bytes that wait to be read; then no more are received.
const MAX_INCOMING: usize = 256 * 1024;

/// The bytes of a session over TCP, in both directions.
#[derive(Debug, Default)]
pub(super) struct Line {
    buffers: Mutex<Buffers>,
    /// The task that moves the bytes.
    mover: AtomicWaker,
}

/// The bytes that wait in each direction.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes that were neither sent nor sealed.
    pub(super) outgoing: ByteQueue,
    /// True if the system has not taken all sealed bytes.
    pub(super) has_sealed: bool,
    /// Received bytes that were not read.
    pub(super) incoming: ByteQueue,
    /// True if a writer has found less room than the longest frame needs.
    is_short: bool,
    is_closing: bool,
    /// True if the system has taken nothing for a second although bytes wait.
    pub(super) is_stuck: bool,
}

impl Line {
    pub(super) fn buffers(&self) -> MutexGuard<'_, Buffers> {
        lock(&self.buffers)
    }

    /// Registers the waker of the task that moves the bytes.
    pub(super) fn register(&self, waker: &Waker) {
        self.mover.register(waker);
    }

    /// Wakes the task that moves the bytes.
    pub(super) fn wake(&self) {
        self.mover.wake();
    }

    /// Wakes the task if there are written bytes.
    pub(super) fn flush(&self) {
        if !self.buffers().outgoing.is_empty() {
            self.wake();
        }
    }

    /// Ends the connection after all written bytes.
    pub(super) fn close(&self) {
        self.buffers().is_closing = true;
        self.wake();
    }
}

impl Buffers {
    /// Returns the bytes that may be written.
    pub(super) fn room(&mut self) -> usize {
        let room = MAX_OUTGOING.saturating_sub(self.outgoing.len());
        self.is_short |= room < 2 * PIECE;
        room
    }

    /// Appends a frame's head and payload.
    pub(super) fn write(&mut self, head: &[u8], parts: &[IoSlice<'_>]) {
        self.outgoing.write(head);
        parts.iter().for_each(|part| self.outgoing.write(part));
    }

    /// Consumes bytes that were sent. Returns whether a writer has waited for the room that there is now.
    pub(super) fn has_sent(&mut self, bytes: usize) -> bool {
        self.outgoing.consume(bytes);
        let has_room = self.outgoing.len() + 2 * PIECE <= MAX_OUTGOING;
        has_room && std::mem::take(&mut self.is_short)
    }

    /// Returns whether the system has taken all written bytes.
    pub(super) const fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && !self.has_sealed
    }

    /// Returns whether this process has ended the session.
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns whether more may be received.
    pub(super) const fn wants_more(&self) -> bool {
        self.incoming.len() < MAX_INCOMING
    }

    /// Consumes received bytes. Returns whether more may be received now and could not before.
    pub(super) fn consume(&mut self, bytes: usize) -> bool {
        let was_full = !self.wants_more();
        self.incoming.consume(bytes);
        was_full && self.wants_more()
    }

    /// Releases the memory in reserve.
    pub(super) fn trim(&mut self) {
        self.outgoing.trim();
        self.incoming.trim();
    }
}

/// Bytes in order, in chunks of 64 KiB.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    chunks: Chunks,
    /// Bytes that were consumed, and one past the last byte.
    begin: u64,
    end: u64,
}

impl ByteQueue {
    pub(super) const fn len(&self) -> usize {
        (self.end - self.begin) as usize
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.end == self.begin
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.chunks.write(self.end, bytes);
        self.end += bytes.len() as u64;
    }

    /// Returns memory for the next bytes: part of a chunk, at least one byte. [`ByteQueue::add`] appends them.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.chunks.piece_mut(self.end)
    }

    /// Appends the first `bytes` bytes of the room.
    pub(super) const fn add(&mut self, bytes: usize) {
        self.end += bytes as u64;
    }

    /// Returns the first bytes, as far as they are contiguous in memory; empty if there are none.
    pub(super) fn readable(&self) -> &[u8] {
        self.chunks.piece(self.begin, self.end)
    }

    /// Returns the first bytes: up to `N` pieces, of which the last ones may be empty.
    pub(super) fn pieces<const N: usize>(&self) -> [IoSlice<'_>; N] {
        let mut at = self.begin;
        std::array::from_fn(|_| {
            let piece = self.chunks.piece(at, self.end);
            at += piece.len() as u64;
            IoSlice::new(piece)
        })
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.begin += bytes as u64;
        if self.is_empty() {
            // The next bytes begin at a chunk, so that one read fills it.
            self.begin = self.begin.next_multiple_of(CHUNK_BYTES as u64);
            self.end = self.begin;
        }
        self.chunks.release(self.begin);
    }

    fn trim(&mut self) {
        self.chunks.trim(true, self.is_empty());
    }
}
