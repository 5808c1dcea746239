//! The receiving end of one stream.

use std::collections::VecDeque;

use midplane_simhw::id::ExtensionId;
use midplane_simhw::time::Instant;

use super::Body;
use super::config::MAX_WINDOW;

/// Messages after which an acknowledgement goes without waiting for company.
const ACKNOWLEDGE_EVERY: u32 = 2;

type Message = (ExtensionId, Body);

/// What became of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Taken {
    /// It is the next.
    Next,
    /// It came before its turn and is kept.
    Kept,
    /// It had come before.
    Duplicate,
    /// It is of another stream, or beyond the window.
    Stale,
}

#[derive(Debug, Default)]
pub(super) struct Receiver {
    stream: Option<u32>,
    /// Number of the next message to hand over.
    next: u32,
    /// Messages from `next` on that have come, with gaps, as far as the last that has.
    slots: VecDeque<Option<Message>>,
    /// Messages since the last acknowledgement, and when the first of them came.
    owed: u32,
    since: Option<Instant>,
    acknowledge_at: Option<Instant>,
}

impl Receiver {
    /// A stream is opened. `false` for a former one; the present one stays as it is.
    pub(super) fn open(&mut self, stream: u32) -> bool {
        match self.stream {
            Some(known) if known == stream => true,
            Some(known) if (stream.wrapping_sub(known) as i32) < 0 => false,
            _ => {
                *self = Self { stream: Some(stream), ..Self::default() };
                true
            }
        }
    }

    pub(super) const fn stream(&self) -> Option<u32> {
        self.stream
    }

    /// Takes a message in; it is acknowledged by the second of `times`, the first being now.
    pub(super) fn take(
        &mut self,
        stream: u32,
        sequence: u32,
        message: Message,
        times: (Instant, Instant),
    ) -> Taken {
        if self.stream != Some(stream) {
            return Taken::Stale;
        }
        let (now, by) = times;
        let ahead = sequence.wrapping_sub(self.next);
        let taken = if ahead as i32 >= 0 {
            if ahead >= MAX_WINDOW {
                return Taken::Stale;
            }
            let at = ahead as usize;
            if at >= self.slots.len() {
                self.slots.resize(at + 1, None);
            }
            match self.slots[at].replace(message) {
                Some(_) => Taken::Duplicate,
                None if at == 0 => Taken::Next,
                None => Taken::Kept,
            }
        } else {
            Taken::Duplicate
        };
        self.owed += 1;
        self.since.get_or_insert(now);
        // Whoever sends again, or leaves a gap, is waiting.
        let at_once = taken != Taken::Next || self.owed >= ACKNOWLEDGE_EVERY;
        let at = if at_once { now } else { by };
        self.acknowledge_at = Some(self.acknowledge_at.map_or(at, |known| known.min(at)));
        taken
    }

    /// The next message in order, if it has come.
    pub(super) fn next(&mut self) -> Option<Message> {
        let message = self.slots.front_mut()?.take()?;
        self.slots.pop_front();
        self.next = self.next.wrapping_add(1);
        Some(message)
    }

    pub(super) const fn acknowledge_at(&self) -> Option<Instant> {
        self.acknowledge_at
    }

    /// What an acknowledgement says: the stream, the next message, a bit for each after that which
    /// has come, and for how many nanoseconds it was held back.
    pub(super) fn acknowledge(&mut self, now: Instant) -> (u32, u32, u64, u64) {
        let bits = self.slots.iter().enumerate();
        let bitmap = bits.fold(0, |map, (at, slot)| map | u64::from(slot.is_some()) << at);
        let delay = self.since.take().map_or(0, |since| now.nanos_since(since));
        self.owed = 0;
        self.acknowledge_at = None;
        (self.stream.unwrap_or(0), self.next, bitmap, delay)
    }
}
