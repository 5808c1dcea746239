//! Posted receives: those that wait for their message.

use slab::Slab;

use super::key::{Common, Key, Pattern, Shape};
use super::queues::{Entries, Queues};

/// Number of the latest posted receives that are kept in a list: searching so few costs less than inserting them into
/// a table and finding them there.
const LISTED: usize = 8;

/// Identifies a posted receive; never reused for another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct PostedId {
    slot: u32,
    stamp: u64,
}

impl PostedId {
    /// Returns its stamp: receives posted later have higher stamps.
    pub(in crate::message) const fn stamp(self) -> u64 {
        self.stamp
    }
}

#[derive(Debug)]
struct Entry<R> {
    pattern: Pattern,
    stamp: u64,
    /// True if the receive is in a queue, false if it is in the list.
    queued: bool,
    receive: R,
}

/// The posted receives. Those in the list were all posted after those in the queues.
#[derive(Debug)]
pub(super) struct Posted<R> {
    entries: Slab<Entry<R>>,
    list: Vec<(Pattern, u32)>,
    queues: [Queues; Shape::COUNT],
    queued: usize,
    next_stamp: u64,
}

impl<R> Entries for Slab<Entry<R>> {
    #[inline]
    fn name(&self, entry: u32) -> Common {
        self[entry as usize].pattern.common()
    }

    #[inline]
    fn stamp(&self, entry: u32) -> u64 {
        self[entry as usize].stamp
    }
}

impl<R: Copy> Posted<R> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            entries: Slab::new(),
            list: Vec::with_capacity(LISTED),
            queues: [(); Shape::COUNT].map(|()| Queues::new(seed)),
            queued: 0,
            next_stamp: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, pattern: &Pattern, receive: R) -> PostedId {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let entry = Entry { pattern: *pattern, stamp, queued: false, receive };
        let slot = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 receives");
        if self.list.len() == LISTED {
            let (oldest, slot) = self.list.remove(0);
            self.entries[slot as usize].queued = true;
            self.queued += 1;
            let queues = &mut self.queues[oldest.shape().index()];
            queues.push(oldest.common(), slot, &self.entries);
        }
        self.list.push((*pattern, slot));
        PostedId { slot, stamp }
    }

    /// Takes the receive that was posted first among those that accept `key`.
    #[inline]
    pub(super) fn take(&mut self, key: Key) -> Option<R> {
        if self.queued > 0
            && let Some((slot, shape, name)) = self.first_queued(key)
        {
            self.queues[shape.index()].pop(name, &self.entries);
            self.queued -= 1;
            return Some(self.entries.remove(slot as usize).receive);
        }
        let at = self.list.iter().position(|(pattern, _)| pattern.accepts(key))?;
        let (_, slot) = self.list.remove(at);
        Some(self.entries.remove(slot as usize).receive)
    }

    /// Returns the receive that `take` would take; it stays posted.
    pub(super) fn first(&self, key: Key) -> Option<(PostedId, R)> {
        let queued = if self.queued > 0 { self.first_queued(key) } else { None };
        let slot = queued.map(|(slot, ..)| slot).or_else(|| {
            let listed = self.list.iter().find(|(pattern, _)| pattern.accepts(key));
            listed.map(|(_, slot)| *slot)
        })?;
        let entry = &self.entries[slot as usize];
        Some((PostedId { slot, stamp: entry.stamp }, entry.receive))
    }

    fn first_queued(&self, key: Key) -> Option<(u32, Shape, Common)> {
        let mut first: Option<(u64, u32, Shape, Common)> = None;
        for (queues, &shape) in self.queues.iter().zip(&Shape::ALL) {
            if queues.is_empty() {
                continue;
            }
            let name = shape.common(key);
            let Some(slot) = queues.first(name, &self.entries) else { continue };
            let stamp = self.entries.stamp(slot);
            if first.is_none_or(|(earliest, ..)| stamp < earliest) {
                first = Some((stamp, slot, shape, name));
            }
        }
        first.map(|(_, slot, shape, name)| (slot, shape, name))
    }

    pub(super) fn remove(&mut self, id: PostedId) -> bool {
        let Some(entry) = self.entries.get(id.slot as usize).filter(|e| e.stamp == id.stamp) else {
            return false;
        };
        if entry.queued {
            let pattern = entry.pattern;
            let queues = &mut self.queues[pattern.shape().index()];
            queues.remove(pattern.common(), id.slot, &self.entries);
            self.queued -= 1;
        } else {
            self.list.retain(|(_, slot)| *slot != id.slot);
        }
        self.entries.remove(id.slot as usize);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PostedId, &Pattern, R)> {
        self.entries.iter().map(|(slot, entry)| {
            let id = PostedId { slot: slot as u32, stamp: entry.stamp };
            (id, &entry.pattern, entry.receive)
        })
    }
}
