//! A receive buffer for several messages, one after another.

use std::ffi::c_int;

use super::Receive;
use crate::memory::Buffer;

/// A buffer whose next part each message takes.
#[derive(Debug)]
pub(crate) struct Multi {
    buffer: Buffer,
    /// Bytes taken by messages.
    used: usize,
    /// Number of messages that have a part and have not completed.
    messages: usize,
    /// True if the buffer accepts no more messages.
    is_retired: bool,
    pub(crate) context: usize,
    /// The buffer's receive and its error, if it failed while messages used the buffer.
    pub(crate) failed: Option<(Receive, c_int)>,
}

impl Multi {
    pub(crate) const fn new(buffer: Buffer, context: usize) -> Self {
        Self { buffer, used: 0, messages: 0, is_retired: false, context, failed: None }
    }

    /// Returns the part for a message of `length` bytes, if it fits or the buffer is empty. Also returns whether the
    /// buffer accepts no more: fewer than `least` bytes are left.
    pub(super) fn take(&mut self, length: usize, least: usize) -> (Option<Buffer>, bool) {
        let left = self.buffer.len() - self.used;
        if length > left && self.used > 0 {
            self.is_retired = true;
            return (None, true);
        }
        let part = self.buffer.slice(self.used, length.min(left));
        self.used += part.len();
        self.messages += 1;
        self.is_retired = self.buffer.len() - self.used < least.max(1);
        (Some(part), self.is_retired)
    }

    pub(super) const fn is_released(&self) -> bool {
        self.is_retired && self.messages == 0
    }

    /// Completes a message; returns whether this releases the buffer.
    pub(super) const fn leave(&mut self) -> bool {
        self.messages -= 1;
        self.is_released()
    }

    /// Accepts no more messages from now on, because the receive has failed. Returns whether this releases the buffer.
    pub(super) const fn retire(&mut self, receive: Receive, error: c_int) -> bool {
        self.is_retired = true;
        self.failed = Some((receive, error));
        self.is_released()
    }
}
