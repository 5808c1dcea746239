//! Receives that wait for their message.

use slab::Slab;

use super::key::{Common, Key, Pattern, Shape};
use super::queues::{Link, Linked, Queues};

/// Names a posted receive; never another one later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostedId {
    slot: u32,
    stamp: u64,
}

#[derive(Debug)]
struct Entry<R> {
    pattern: Pattern,
    stamp: u64,
    link: Link,
    receive: R,
}

#[derive(Debug)]
pub(super) struct Posted<R> {
    entries: Slab<Entry<R>>,
    queues: [Queues; Shape::COUNT],
    next_stamp: u64,
}

impl<R> Linked for Slab<Entry<R>> {
    #[inline]
    fn link(&mut self, entry: u32) -> &mut Link {
        &mut self[entry as usize].link
    }

    fn stamp(&self, entry: u32) -> u64 {
        self[entry as usize].stamp
    }
}

impl<R: Copy> Posted<R> {
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: Slab::new(), queues: [(); 4].map(|()| Queues::new(seed)), next_stamp: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, pattern: &Pattern, receive: R) -> PostedId {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let entry = Entry { pattern: *pattern, stamp, link: Link::LONE, receive };
        let slot = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 receives");
        let queues = &mut self.queues[pattern.shape().index()];
        queues.push(pattern.common(), slot, &mut self.entries);
        PostedId { slot, stamp }
    }

    /// The receive that was posted first among those that accept `key`.
    #[inline]
    pub(super) fn take(&mut self, key: Key) -> Option<R> {
        let mut first: Option<(u64, u32, Shape, Common)> = None;
        for shape in Shape::ALL {
            let queues = &self.queues[shape.index()];
            if queues.is_empty() {
                continue;
            }
            let name = shape.common(key);
            let Some(slot) = queues.head(name) else { continue };
            let stamp = self.entries.stamp(slot);
            if first.is_none_or(|(earliest, ..)| stamp < earliest) {
                first = Some((stamp, slot, shape, name));
            }
        }
        let (_, slot, shape, name) = first?;
        self.queues[shape.index()].remove(name, slot, &mut self.entries);
        Some(self.entries.remove(slot as usize).receive)
    }

    pub(super) fn remove(&mut self, id: PostedId) -> bool {
        let Some(entry) = self.entries.get(id.slot as usize).filter(|e| e.stamp == id.stamp) else {
            return false;
        };
        let pattern = entry.pattern;
        let queues = &mut self.queues[pattern.shape().index()];
        queues.remove(pattern.common(), id.slot, &mut self.entries);
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
