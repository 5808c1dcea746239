//! Named queues, whose entries are stored and numbered by their user.
//!
//! With 100,000 waiting messages, the number of cache lines that each message touches decides the cost. The table of
//! names holds 8 bytes a queue, so that it stays in the cache: the number of the queue's first entry, and
//! enough of its name's hash that only the wanted entry is read. Links take 8 bytes an entry, densely packed,
//! so that neighbours are relinked without touching their entries.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::key::Common;

/// Marks the end of a queue.
const NONE: u32 = u32::MAX;

/// Gives the queues of one shape access to their entries.
pub(super) trait Entries {
    /// Returns the name of the queue that an entry belongs to.
    fn name(&self, entry: u32) -> Common;
    /// Returns an entry's stamp; older entries have smaller stamps.
    fn stamp(&self, entry: u32) -> u64;
}

/// The neighbours of an entry; the first entry's `previous` is the last entry.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    const NOWHERE: Self = Self { previous: NONE, next: NONE };
}

#[derive(Clone, Copy, Debug)]
struct Head {
    /// Hash of the queue's name.
    hash: u32,
    first: u32,
}

impl Head {
    #[inline]
    fn is(self, hash: u32, name: Common, entries: &impl Entries) -> bool {
        self.hash == hash && entries.name(self.first) == name
    }
}

/// The queues of one shape: first in, first out, but entries may also leave from the middle.
#[derive(Debug)]
pub(super) struct Queues {
    heads: HashTable<Head>,
    /// The links, by entry number.
    links: Vec<Link>,
    hasher: FixedState,
}

/// Widens a hash to 64 bits: the table uses the lowest and the highest bits.
#[inline]
fn wide(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Queues {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { heads: HashTable::new(), links: Vec::new(), hasher }
    }

    /// Appends an entry to the queue with this name.
    #[inline]
    pub(super) fn push(&mut self, name: Common, entry: u32, entries: &impl Entries) {
        self.make_room(entry);
        let hash = self.hash(name);
        let found = self.heads.entry(
            wide(hash),
            |head| head.is(hash, name, entries),
            |head| wide(head.hash),
        );
        match found {
            Entry::Occupied(found) => {
                let first = found.get().first;
                let last = self.link(first).previous;
                *self.link_mut(entry) = Link { previous: last, next: NONE };
                self.link_mut(last).next = entry;
                self.link_mut(first).previous = entry;
            }
            Entry::Vacant(place) => {
                place.insert(Head { hash, first: entry });
                *self.link_mut(entry) = Link { previous: entry, next: NONE };
            }
        }
    }

    /// Inserts an entry in the order of its stamp.
    pub(super) fn insert(&mut self, name: Common, entry: u32, entries: &impl Entries) {
        let stamp = entries.stamp(entry);
        let first = self.first(name, entries);
        let mut next = first.unwrap_or(NONE);
        while next != NONE && entries.stamp(next) < stamp {
            next = self.link(next).next;
        }
        if next == NONE {
            return self.push(name, entry, entries);
        }
        self.make_room(entry);
        let previous = self.link(next).previous;
        *self.link_mut(entry) = Link { previous, next };
        self.link_mut(next).previous = entry;
        if Some(next) == first {
            let hash = wide(self.hash(name));
            let head = self.heads.find_mut(hash, |head| head.first == next);
            head.expect("a first entry is in the table").first = entry;
        } else {
            self.link_mut(previous).next = entry;
        }
    }

    /// Removes the first entry and returns it.
    #[inline]
    pub(super) fn pop(&mut self, name: Common, entries: &impl Entries) -> Option<u32> {
        let hash = self.hash(name);
        let found = self.heads.find_entry(wide(hash), |head| head.is(hash, name, entries));
        let mut found = found.ok()?;
        let first = found.get().first;
        let Link { previous, next } = self.links[first as usize];
        if next == NONE {
            found.remove();
        } else {
            found.get_mut().first = next;
            self.link_mut(next).previous = previous;
        }
        Some(first)
    }

    /// Removes an entry from any position.
    #[inline]
    pub(super) fn remove(&mut self, name: Common, entry: u32, entries: &impl Entries) {
        let Link { previous, next } = self.link(entry);
        // The last entry has no `next`, so no entry's `next` is the first one.
        let is_first = self.link(previous).next != entry;
        if is_first {
            let hash = wide(self.hash(name));
            let found = self.heads.find_entry(hash, |head| head.first == entry);
            let mut found = found.expect("a first entry is in the table");
            if next == NONE {
                found.remove();
                return;
            }
            found.get_mut().first = next;
        } else {
            self.link_mut(previous).next = next;
        }
        let knows_previous = match next {
            NONE => self.first(name, entries).expect("the queue has an entry before this one"),
            next => next,
        };
        self.link_mut(knows_previous).previous = previous;
    }

    #[inline]
    pub(super) fn first(&self, name: Common, entries: &impl Entries) -> Option<u32> {
        let hash = self.hash(name);
        let head = self.heads.find(wide(hash), |head| head.is(hash, name, entries));
        head.map(|head| head.first)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    pub(super) fn hash(&self, name: Common) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    #[inline]
    fn make_room(&mut self, entry: u32) {
        if self.links.len() <= entry as usize {
            self.links.resize(entry as usize + 1, Link::NOWHERE);
        }
    }

    #[inline]
    fn link(&self, entry: u32) -> Link {
        self.links[entry as usize]
    }

    #[inline]
    fn link_mut(&mut self, entry: u32) -> &mut Link {
        &mut self.links[entry as usize]
    }
}
