//! The bytes of a session over TCP, between its frames and the task that moves them.

use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use super::frame::PIECE;

/// Most bytes that wait to be sent; then writers wait for room.
const MAX_OUTGOING: usize = 256 * 1024;
/// Most bytes that wait to be read; then no more are received.
const MAX_INCOMING: usize = 256 * 1024;
/// Most bytes of memory that an empty buffer keeps.
const KEPT: usize = 64 * 1024;

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
    /// Bytes that the task has not taken yet.
    outgoing: Vec<u8>,
    /// Received bytes, of which the first `read` were read.
    incoming: Vec<u8>,
    read: usize,
    /// True if a writer has found less room than the longest frame needs.
    is_short: bool,
    is_closing: bool,
    /// True if the system has taken nothing for a second although bytes wait.
    pub(super) is_stuck: bool,
}

impl Line {
    pub(super) fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.outgoing.extend_from_slice(head);
        parts.iter().for_each(|part| self.outgoing.extend_from_slice(part));
    }

    /// Moves the bytes to send into `into`, which is empty. Returns whether a writer waits for room.
    pub(super) fn take_outgoing(&mut self, into: &mut Vec<u8>) -> bool {
        into.shrink_to(KEPT);
        std::mem::swap(&mut self.outgoing, into);
        std::mem::take(&mut self.is_short)
    }

    /// Returns whether this process has ended the session.
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns whether more may be received.
    pub(super) fn wants_more(&self) -> bool {
        self.readable().len() < MAX_INCOMING
    }

    /// Returns the buffer of received bytes, to be appended to.
    pub(super) fn incoming(&mut self) -> &mut Vec<u8> {
        if self.read >= KEPT {
            self.incoming.drain(..self.read);
            self.read = 0;
        }
        &mut self.incoming
    }

    /// Returns received bytes that were not read.
    pub(super) fn readable(&self) -> &[u8] {
        &self.incoming[self.read..]
    }

    /// Consumes bytes. Returns whether more may be received now and could not before.
    pub(super) fn consume(&mut self, bytes: usize) -> bool {
        let was_full = !self.wants_more();
        self.read += bytes;
        if self.read >= self.incoming.len() {
            self.incoming.clear();
            self.incoming.shrink_to(KEPT);
            self.read = 0;
        }
        was_full && self.wants_more()
    }
}
