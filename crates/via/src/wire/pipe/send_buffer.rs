//! Bytes that the application has written, until the peer acknowledges them.

use std::io::IoSlice;

use super::chunks::Chunks;
use super::ranges::Ranges;

/// Bytes written and not yet acknowledged, and the state of each.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    chunks: Chunks,
    /// Every byte before it is acknowledged.
    acknowledged: u64,
    /// Acknowledged bytes behind one that is not.
    acknowledged_later: Ranges,
    /// Every byte before it was sent.
    sent: u64,
    /// Bytes sent and lost: to be sent again, unless acknowledged late.
    lost: Ranges,
    written: u64,
}

impl SendBuffer {
    /// Copies up to `room` bytes of `parts`; returns how many.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>], room: usize) -> usize {
        let begin = self.written;
        for part in parts {
            let left = room - (self.written - begin) as usize;
            let bytes = &part[..part.len().min(left)];
            self.chunks.write(self.written, bytes);
            self.written += bytes.len() as u64;
        }
        (self.written - begin) as usize
    }

    /// Takes the next range to send, of at most `most` bytes; new bytes only up to `window`. Returns also
    /// whether it is sent again.
    pub(super) fn next(&mut self, most: usize, window: u64) -> Option<(u64, u64, bool)> {
        if let Some((from, to)) = self.lost.take_first(most as u64) {
            return Some((from, to, true));
        }
        let to = self.written.min(window).min(self.sent + most as u64);
        if to <= self.sent {
            return None;
        }
        let from = std::mem::replace(&mut self.sent, to);
        Some((from, to, false))
    }

    /// Takes the next `bytes` new bytes up to `window`, if there are more and none was lost; returns their offset.
    pub(super) fn next_of_many(&mut self, bytes: u64, window: u64) -> Option<u64> {
        let from = self.sent;
        let are_many = self.lost.is_empty() && from + bytes < self.written.min(window);
        are_many.then(|| std::mem::replace(&mut self.sent, from + bytes))
    }

    /// Appends the bytes `from..to`.
    pub(super) fn copy_to(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        self.chunks.copy_to(from, to, out);
    }

    /// Returns the bytes `from..to` of a packet, in place.
    pub(super) fn parts(&self, (from, to): (u64, u64)) -> [&[u8]; 2] {
        self.chunks.parts(from, to)
    }

    /// Handles the acknowledgement of `from..to`; returns whether memory was released.
    pub(super) fn on_acknowledged(&mut self, from: u64, to: u64) -> bool {
        if !self.lost.is_empty() {
            self.lost.remove(from, to);
        }
        if from > self.acknowledged {
            self.acknowledged_later.insert(from, to);
            return false;
        }
        if to <= self.acknowledged {
            return false;
        }
        self.acknowledged = to;
        while let Some((begin, end)) = self.acknowledged_later.first() {
            if begin > self.acknowledged {
                break;
            }
            self.acknowledged = self.acknowledged.max(end);
            self.acknowledged_later.pop_first();
        }
        self.chunks.release(self.acknowledged);
        true
    }

    /// Handles the loss of the packet with `from..to`.
    pub(super) fn on_lost(&mut self, from: u64, to: u64) {
        let from = from.max(self.acknowledged);
        self.lost.insert(from, to.max(from));
        for (begin, end) in self.acknowledged_later.newest_first() {
            if end <= from {
                break;
            }
            self.lost.remove(begin, end);
        }
    }

    /// Returns whether there are bytes that may be sent now.
    pub(super) fn has_something(&self, window: u64) -> bool {
        !self.lost.is_empty() || self.sent < self.written.min(window)
    }

    /// Returns whether every byte was sent, and none is known to be lost.
    pub(super) fn is_all_sent(&self) -> bool {
        self.sent == self.written && self.lost.is_empty()
    }

    /// Returns whether every byte is acknowledged.
    pub(super) const fn is_all_acknowledged(&self) -> bool {
        self.acknowledged == self.written
    }

    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Returns the bytes that were never sent.
    pub(super) const fn unsent_bytes(&self) -> usize {
        (self.written - self.sent) as usize
    }

    pub(super) const fn held_bytes(&self) -> usize {
        (self.written - self.acknowledged) as usize
    }

    pub(super) fn trim(&mut self, is_idle: bool) {
        self.chunks.trim(is_idle, self.is_all_acknowledged());
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.memory_bytes()
    }
}
