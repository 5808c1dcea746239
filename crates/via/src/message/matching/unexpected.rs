//! Messages that came before their receive.

use slab::Slab;

use super::key::{Key, Pattern, Shape};
use super::queues::{Link, Linked, Queues};

/// Names a held message; never another one later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeldId {
    slot: u32,
    stamp: u64,
}

/// A message's place in the order of arrival.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Arrival(pub(super) u64);

/// A message that was held.
#[derive(Debug)]
pub struct Held<M> {
    /// What it is matched by.
    pub key: Key,
    /// When it came.
    pub arrival: Arrival,
    /// What was held.
    pub message: M,
}

#[derive(Debug)]
struct Entry<M> {
    key: Key,
    stamp: u64,
    links: [Link; Shape::COUNT],
    message: M,
}

/// A message stands in one queue of each shape that anybody has asked with so far: programs that
/// use no wildcard pay for none.
#[derive(Debug)]
pub(super) struct Unexpected<M> {
    entries: Slab<Entry<M>>,
    queues: [Option<Queues>; Shape::COUNT],
    seed: u64,
}

struct Seen<'a, M> {
    entries: &'a mut Slab<Entry<M>>,
    shape: Shape,
}

impl<M> Linked for Seen<'_, M> {
    #[inline]
    fn link(&mut self, entry: u32) -> &mut Link {
        &mut self.entries[entry as usize].links[self.shape.index()]
    }

    fn stamp(&self, entry: u32) -> u64 {
        self.entries[entry as usize].stamp
    }
}

impl<M> Unexpected<M> {
    pub(super) fn new(seed: u64) -> Self {
        let queues = [Some(Queues::new(seed)), None, None, None];
        Self { entries: Slab::new(), queues, seed }
    }

    #[inline]
    pub(super) fn push(&mut self, held: Held<M>) -> HeldId {
        let Held { key, arrival: Arrival(stamp), message } = held;
        let links = [Link::LONE; Shape::COUNT];
        let slot = self.entries.insert(Entry { key, stamp, links, message });
        let slot = u32::try_from(slot).expect("fewer than 2^32 messages");
        for shape in Shape::ALL {
            if let Some(queues) = &mut self.queues[shape.index()] {
                queues.push(
                    shape.common(key),
                    slot,
                    &mut Seen { entries: &mut self.entries, shape },
                );
            }
        }
        HeldId { slot, stamp }
    }

    pub(super) fn put_back(&mut self, held: Held<M>) -> HeldId {
        let Held { key, arrival: Arrival(stamp), message } = held;
        let links = [Link::LONE; Shape::COUNT];
        let slot = self.entries.insert(Entry { key, stamp, links, message }) as u32;
        for shape in Shape::ALL {
            if let Some(queues) = &mut self.queues[shape.index()] {
                let seen = &mut Seen { entries: &mut self.entries, shape };
                queues.insert(shape.common(key), slot, seen);
            }
        }
        HeldId { slot, stamp }
    }

    #[inline]
    fn first(&mut self, pattern: &Pattern) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let shape = pattern.shape();
        if self.queues[shape.index()].is_none() {
            self.open(shape);
        }
        self.queues[shape.index()].as_ref()?.head(pattern.common())
    }

    /// Somebody asks with this shape for the first time.
    fn open(&mut self, shape: Shape) {
        let mut order: Vec<_> = self
            .entries
            .iter()
            .map(|(slot, entry)| (entry.stamp, slot as u32, entry.key))
            .collect();
        order.sort_unstable();
        let mut queues = Queues::new(self.seed);
        for (_, slot, key) in order {
            queues.push(shape.common(key), slot, &mut Seen { entries: &mut self.entries, shape });
        }
        self.queues[shape.index()] = Some(queues);
    }

    #[inline]
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<Held<M>> {
        let slot = self.first(pattern)?;
        Some(self.unlink(slot))
    }

    pub(super) fn remove(&mut self, id: HeldId) -> Option<Held<M>> {
        self.entries.get(id.slot as usize).filter(|entry| entry.stamp == id.stamp)?;
        Some(self.unlink(id.slot))
    }

    #[inline]
    fn unlink(&mut self, slot: u32) -> Held<M> {
        let key = self.entries[slot as usize].key;
        for shape in Shape::ALL {
            if let Some(queues) = &mut self.queues[shape.index()] {
                let seen = &mut Seen { entries: &mut self.entries, shape };
                queues.remove(shape.common(key), slot, seen);
            }
        }
        let Entry { message, stamp, .. } = self.entries.remove(slot as usize);
        Held { key, arrival: Arrival(stamp), message }
    }

    pub(super) fn peek(&mut self, pattern: &Pattern) -> Option<(HeldId, Key, &M)> {
        let slot = self.first(pattern)?;
        let entry = &self.entries[slot as usize];
        Some((HeldId { slot, stamp: entry.stamp }, entry.key, &entry.message))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HeldId, Key, &M)> {
        self.entries.iter().map(|(slot, entry)| {
            (HeldId { slot: slot as u32, stamp: entry.stamp }, entry.key, &entry.message)
        })
    }
}
