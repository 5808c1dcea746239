//! Queues by name, linked through the entries of somebody else's table.
//!
//! The table of names holds the number of each queue's first entry and nothing else, 4 bytes a
//! queue: it stays in the cache where the entries do not, and whoever finds a queue has touched the
//! entry that he wants. The first entry's `previous` is the last one.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::key::Common;

/// The end of a queue.
const NONE: u32 = u32::MAX;

/// An entry's neighbours in one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    pub(super) const LONE: Self = Self { previous: NONE, next: NONE };
}

/// Where the links are: the table of entries, as the queues of one shape see it.
pub(super) trait Linked {
    fn link(&self, entry: u32) -> Link;
    fn link_mut(&mut self, entry: u32) -> &mut Link;
    /// The queue that an entry belongs to.
    fn name(&self, entry: u32) -> Common;
    /// Older entries have smaller stamps.
    fn stamp(&self, entry: u32) -> u64;
}

/// The queues of one shape: first in, first out, save for what leaves from the middle.
#[derive(Debug)]
pub(super) struct Queues {
    heads: HashTable<u32>,
    hasher: FixedState,
}

fn hash(hasher: &FixedState, name: Common) -> u64 {
    let mut state = hasher.build_hasher();
    name.hash(&mut state);
    std::hash::Hasher::finish(&state)
}

impl Queues {
    pub(super) fn new(seed: u64) -> Self {
        Self { heads: HashTable::new(), hasher: FixedState::with_seed(seed) }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    pub(super) fn head(&self, name: Common, entries: &impl Linked) -> Option<u32> {
        if self.heads.is_empty() {
            return None;
        }
        let hash = hash(&self.hasher, name);
        self.heads.find(hash, |head| entries.name(*head) == name).copied()
    }

    #[inline]
    pub(super) fn push(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let hasher = &self.hasher;
        let found = self.heads.entry(
            hash(hasher, name),
            |head| entries.name(*head) == name,
            |head| hash(hasher, entries.name(*head)),
        );
        match found {
            Entry::Occupied(found) => {
                let head = *found.get();
                let tail = entries.link(head).previous;
                *entries.link_mut(entry) = Link { previous: tail, next: NONE };
                entries.link_mut(tail).next = entry;
                entries.link_mut(head).previous = entry;
            }
            Entry::Vacant(place) => {
                place.insert(entry);
                *entries.link_mut(entry) = Link { previous: entry, next: NONE };
            }
        }
    }

    /// Puts an entry where its stamp belongs.
    pub(super) fn insert(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let stamp = entries.stamp(entry);
        let head = self.head(name, entries);
        let mut next = head.unwrap_or(NONE);
        while next != NONE && entries.stamp(next) < stamp {
            next = entries.link(next).next;
        }
        if next == NONE {
            return self.push(name, entry, entries);
        }
        let previous = entries.link(next).previous;
        *entries.link_mut(entry) = Link { previous, next };
        entries.link_mut(next).previous = entry;
        if Some(next) == head {
            self.replace(name, next, entry);
        } else {
            entries.link_mut(previous).next = entry;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let Link { previous, next } = entries.link(entry);
        // The last entry leads nowhere, so that nobody comes before the first one.
        let first = entries.link(previous).next != entry;
        match (first, next) {
            (true, NONE) => {
                let hash = hash(&self.hasher, name);
                let found = self.heads.find_entry(hash, |head| *head == entry);
                found.expect("a first entry is in the table").remove();
            }
            (true, next) => {
                entries.link_mut(next).previous = previous;
                self.replace(name, entry, next);
            }
            (false, NONE) => {
                let head = self.head(name, entries).expect("it has an entry before this one");
                entries.link_mut(head).previous = previous;
                entries.link_mut(previous).next = NONE;
            }
            (false, next) => {
                entries.link_mut(previous).next = next;
                entries.link_mut(next).previous = previous;
            }
        }
    }

    /// A queue has another first entry.
    #[inline]
    fn replace(&mut self, name: Common, old: u32, new: u32) {
        let hash = hash(&self.hasher, name);
        let head = self.heads.find_mut(hash, |head| *head == old);
        *head.expect("a first entry is in the table") = new;
    }
}
