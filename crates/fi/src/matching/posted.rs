//! Posted receives of one kind: a list of a few, or an index of many.

use std::collections::VecDeque;

use slab::Slab;

use super::index::Index;
use super::{FEW, Receive};
use crate::abi::constants::ADDR_UNSPEC;

/// Posted receives in the order in which they were posted.
#[derive(Debug)]
pub(super) struct Posted {
    few: VecDeque<Receive>,
    /// All receives and their stamps, while there are many; the list is then empty.
    many: Slab<(u64, Receive)>,
    index: Index,
    posted: u64,
}

/// The place of a posted receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Few(usize),
    Many(usize),
}

impl Posted {
    pub(super) const fn new(seed: u64) -> Self {
        Self { few: VecDeque::new(), many: Slab::new(), index: Index::new(seed), posted: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, receive: Receive) {
        if self.many.is_empty() && self.few.len() < FEW {
            return self.few.push_back(receive);
        }
        for receive in std::mem::take(&mut self.few) {
            self.add(receive);
        }
        self.add(receive);
    }

    fn add(&mut self, receive: Receive) {
        self.posted += 1;
        let key = self.many.insert((self.posted, receive));
        self.index.add_pattern(&receive.pattern, (self.posted, key));
    }

    /// Returns the place of the oldest receive that accepts a message.
    #[inline]
    pub(super) fn find(&self, tag: u64, source: u64) -> Option<(Place, Receive)> {
        if self.many.is_empty() {
            let at = self.few.iter().position(|receive| receive.pattern.wants(tag, source))?;
            return Some((Place::Few(at), self.few[at]));
        }
        let key = self.index.oldest_wanting(tag, source)?;
        Some((Place::Many(key), self.many[key].1))
    }

    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> Option<Receive> {
        match place {
            Place::Few(at) => self.few.remove(at),
            Place::Many(key) => {
                let (stamp, receive) = self.many.try_remove(key)?;
                self.index.remove_pattern(&receive.pattern, stamp);
                Some(receive)
            }
        }
    }

    /// Removes the oldest receive that was posted with this context.
    pub(super) fn cancel(&mut self, context: usize) -> Option<Receive> {
        let place = match self.few.iter().position(|receive| receive.context == context) {
            Some(at) => Place::Few(at),
            None => {
                let many = self.many.iter().filter(|(_, (_, receive))| receive.context == context);
                Place::Many(many.min_by_key(|(_, (stamp, _))| *stamp)?.0)
            }
        };
        self.remove(place)
    }

    /// Takes all receives that match only messages from `source`, the oldest first.
    pub(super) fn take_of(&mut self, source: u64) -> Vec<Receive> {
        let is_of = |receive: &Receive| source != ADDR_UNSPEC && receive.pattern.source == source;
        let mut taken: Vec<_> = self.few.iter().copied().filter(is_of).collect();
        self.few.retain(|receive| !is_of(receive));
        let many = self.many.iter().filter(|(_, (_, receive))| is_of(receive));
        let mut keys: Vec<_> = many.map(|(key, (stamp, _))| (*stamp, key)).collect();
        keys.sort_unstable();
        taken.extend(keys.into_iter().filter_map(|(_, key)| self.remove(Place::Many(key))));
        taken
    }
}
