//! Queues by name, linked through the entries of somebody else's table.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::key::Common;

/// Empty queues that stay in the table: a program that goes round a few tags neither adds nor
/// removes any.
const KEPT_EMPTY: usize = 64;

/// The end of a queue.
pub(super) const NONE: u32 = u32::MAX;

/// An entry's neighbours in one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) previous: u32,
    pub(super) next: u32,
}

impl Link {
    pub(super) const LONE: Self = Self { previous: NONE, next: NONE };
}

/// Where the links are: the table of entries, as the queues of one shape see it.
pub(super) trait Linked {
    fn link(&mut self, entry: u32) -> &mut Link;
    /// Older entries have smaller stamps.
    fn stamp(&self, entry: u32) -> u64;
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE };
}

/// The queues of one shape: first in, first out, save for what leaves from the middle.
#[derive(Debug)]
pub(super) struct Queues {
    by_name: HashMap<Common, Queue, FixedState>,
    /// Entries in all of them.
    len: usize,
}

impl Queues {
    pub(super) fn new(seed: u64) -> Self {
        Self { by_name: HashMap::with_hasher(FixedState::with_seed(seed)), len: 0 }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn head(&self, name: Common) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        self.by_name.get(&name).map(|queue| queue.head).filter(|head| *head != NONE)
    }

    #[inline]
    pub(super) fn push(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let queue = self.by_name.entry(name).or_insert(Queue::EMPTY);
        *entries.link(entry) = Link { previous: queue.tail, next: NONE };
        match queue.tail {
            NONE => queue.head = entry,
            tail => entries.link(tail).next = entry,
        }
        queue.tail = entry;
        self.len += 1;
    }

    /// Puts an entry where its stamp belongs.
    pub(super) fn insert(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let stamp = entries.stamp(entry);
        let mut next = self.head(name).unwrap_or(NONE);
        while next != NONE && entries.stamp(next) < stamp {
            next = entries.link(next).next;
        }
        if next == NONE {
            return self.push(name, entry, entries);
        }
        let previous = entries.link(next).previous;
        *entries.link(entry) = Link { previous, next };
        entries.link(next).previous = entry;
        match previous {
            NONE => {
                let queue = self.by_name.get_mut(&name).expect("it has a head");
                queue.head = entry;
            }
            previous => entries.link(previous).next = entry,
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, name: Common, entry: u32, entries: &mut impl Linked) {
        let Link { previous, next } = *entries.link(entry);
        self.len -= 1;
        if previous != NONE && next != NONE {
            entries.link(previous).next = next;
            entries.link(next).previous = previous;
            return;
        }
        let keep = self.by_name.len() <= KEPT_EMPTY;
        let Entry::Occupied(mut found) = self.by_name.entry(name) else {
            unreachable!("a linked entry's queue is in the table");
        };
        let queue = found.get_mut();
        match previous {
            NONE => queue.head = next,
            previous => entries.link(previous).next = next,
        }
        match next {
            NONE => queue.tail = previous,
            next => entries.link(next).previous = previous,
        }
        if queue.head == NONE && !keep {
            found.remove();
        }
    }
}
