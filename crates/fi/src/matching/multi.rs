//! A receive buffer for several messages, one behind the other.

use crate::memory::Buffer;

/// A buffer of which each message takes the next part.
#[derive(Debug)]
pub(crate) struct Multi {
    buffer: Buffer,
    /// Bytes that messages have taken.
    used: usize,
    /// Messages that have a part and have not completed.
    messages: usize,
    /// True if it takes no more messages.
    is_retired: bool,
    pub(crate) context: usize,
}

impl Multi {
    pub(crate) const fn new(buffer: Buffer, context: usize) -> Self {
        Self { buffer, used: 0, messages: 0, is_retired: false, context }
    }

    /// Returns the part for a message of `length` bytes, if it fits or the buffer is empty, and whether the buffer
    /// takes no more: a next message must have `least` bytes.
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

    /// Completes a message; returns whether the buffer is thereby released.
    pub(super) const fn leave(&mut self) -> bool {
        self.messages -= 1;
        self.is_released()
    }

    /// Takes no more messages; returns whether the buffer is thereby released.
    pub(super) const fn retire(&mut self) -> bool {
        self.is_retired = true;
        self.is_released()
    }
}
