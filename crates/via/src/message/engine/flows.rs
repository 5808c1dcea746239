//! Credits by class: the bytes of a receiver's window that the messages of each class occupy.
//!
//! A class is a context, or a context and a tag if no receive of that context has a wildcard tag. Each class
//! has a limit of its own, so that unreceived messages of one class leave room for other classes.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::message::envelope::{Context, Tag};

/// A set of messages that keep their order among themselves; without a tag, all messages of a context.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Class {
    pub(super) context: Context,
    pub(super) tag: Option<Tag>,
}

/// A receiver's limits on the messages of a class, in bytes of its window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// For all messages of a context.
    pub(super) context: u32,
    /// For all messages of a context and a tag.
    pub(super) stream: u32,
}

impl Limits {
    /// Packs both limits into a word of an envelope.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.context) | u64::from(self.stream) << 32
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(super) const fn of_word(word: u64) -> Self {
        Self { context: word as u32, stream: (word >> 32) as u32 }
    }
}

/// Bytes of a receiver's window that messages to it occupy, by class, until the receiver returns the credit. Has at
/// most as many entries as the window has room for messages.
#[derive(Debug)]
pub(super) struct Flows {
    taken: HashMap<Class, u64, FixedState>,
    pub(super) limits: Limits,
}

impl Default for Flows {
    fn default() -> Self {
        let taken = HashMap::with_hasher(FixedState::default());
        Self { taken, limits: Limits::default() }
    }
}

impl Flows {
    #[inline]
    pub(super) fn has_room(&self, class: Class, charge: usize) -> bool {
        let Limits { context, stream } = self.limits;
        let limit = if class.tag.is_some() { stream } else { context };
        let taken = self.taken.get(&class).copied().unwrap_or(0);
        taken.saturating_add(charge as u64) <= limit.into()
    }

    #[inline]
    pub(super) fn take(&mut self, class: Class, charge: u32) {
        *self.taken.entry(class).or_insert(0) += u64::from(charge);
    }

    /// Returns credit for messages with this context and tag; returns `false` if they occupied fewer bytes.
    pub(super) fn free(&mut self, context: Context, tag: Tag, bytes: u32) -> bool {
        // The program may have asserted meanwhile that this context has no wildcard tags, which changes the class.
        let mut rest = u64::from(bytes);
        for tag in [Some(tag), None] {
            let class = Class { context, tag };
            let Some(taken) = self.taken.get_mut(&class) else { continue };
            let freed = rest.min(*taken);
            *taken -= freed;
            rest -= freed;
            if *taken == 0 {
                self.taken.remove(&class);
            }
        }
        rest == 0
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.values().sum()
    }
}

/// Bytes of a sender's window that are free again and not yet reported to it, by context and tag.
#[derive(Debug, Default)]
pub(super) struct UnreportedCredit {
    entries: Vec<(Context, Tag, u32)>,
    /// True if a report should be sent as soon as possible.
    pub(super) due: bool,
}

/// Bytes of an entry in a packet.
const ENTRY_BYTES: usize = 12;
/// Number of entries at which the sender gets a report. Only this many of the latest entries are searched for one
/// with the same key.
const MANY: usize = 32;
/// Bytes of a packet of [`MANY`] entries.
pub(super) const PACKET_BYTES: usize = MANY * ENTRY_BYTES;

impl UnreportedCredit {
    #[inline]
    pub(super) fn add(&mut self, context: Context, tag: Tag, bytes: u32, limit: u32) {
        let first = self.entries.len().saturating_sub(MANY);
        let mut latest = self.entries[first..].iter_mut().rev();
        let sum = match latest.find(|entry| (entry.0, entry.1) == (context, tag)) {
            Some(entry) => {
                entry.2 += bytes;
                entry.2
            }
            None => {
                self.entries.push((context, tag, bytes));
                bytes
            }
        };
        self.due |= self.entries.len() >= MANY || sum >= limit / 2;
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.2)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes as many entries as a packet of `room` bytes holds; returns their number and their sum in bytes.
    pub(super) fn emit(&self, room: usize, packet: &mut Vec<u8>) -> (usize, u64) {
        let count = self.entries.len().min((room / ENTRY_BYTES).max(1));
        packet.clear();
        let mut sum = 0;
        for (context, tag, bytes) in &self.entries[..count] {
            for word in [context.0, tag.0, *bytes] {
                packet.extend_from_slice(&word.to_le_bytes());
            }
            sum += u64::from(*bytes);
        }
        (count, sum)
    }

    /// Removes the first `count` entries, which were sent.
    pub(super) fn reported(&mut self, count: usize) {
        self.entries.drain(..count);
        self.due = self.due && !self.entries.is_empty();
    }
}

/// Reads the entries of a packet; returns `None` if its length is no multiple of an entry's.
pub(super) fn parse(packet: &[u8]) -> Option<impl Iterator<Item = (Context, Tag, u32)>> {
    let (entries, []) = packet.as_chunks::<ENTRY_BYTES>() else { return None };
    Some(entries.iter().map(|entry| {
        let (words, _) = entry.as_chunks::<4>();
        let [context, tag, bytes] = [words[0], words[1], words[2]].map(u32::from_le_bytes);
        (Context(context), Tag(tag), bytes)
    }))
}
