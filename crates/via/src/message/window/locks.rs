//! The lock of a process's part of a window: granted in the order of the requests.

use std::collections::{BTreeSet, VecDeque};

/// A process that waits for the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Waiting {
    pub(super) rank: u32,
    pub(super) is_exclusive: bool,
    /// The tag of the answer that grants the lock.
    pub(super) reply: u32,
}

/// The holders of a lock, and the processes that wait for it.
#[derive(Debug, Default)]
pub(super) struct Locks {
    holders: BTreeSet<u32>,
    is_exclusive: bool,
    waiting: VecDeque<Waiting>,
}

impl Locks {
    /// Queues a request; returns `false` if the process holds the lock or waits for it.
    pub(super) fn request(&mut self, waiting: Waiting) -> bool {
        let is_known = |other: &Waiting| other.rank == waiting.rank;
        if self.holders.contains(&waiting.rank) || self.waiting.iter().any(is_known) {
            return false;
        }
        self.waiting.push_back(waiting);
        true
    }

    /// Returns the process that gets the lock next, if one can get it now.
    pub(super) fn grant(&mut self) -> Option<Waiting> {
        let next = *self.waiting.front()?;
        let is_free = self.holders.is_empty() || !(self.is_exclusive || next.is_exclusive);
        if !is_free {
            return None;
        }
        self.waiting.pop_front();
        self.holders.insert(next.rank);
        self.is_exclusive = next.is_exclusive;
        Some(next)
    }

    /// Releases the lock; returns `false` if the process did not hold it.
    pub(super) fn release(&mut self, rank: u32) -> bool {
        self.holders.remove(&rank)
    }

    /// Removes processes that were lost.
    pub(super) fn forget(&mut self, was_lost: impl Fn(u32) -> bool) {
        self.holders.retain(|rank| !was_lost(*rank));
        self.waiting.retain(|waiting| !was_lost(waiting.rank));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Requests, releases and losses in any order. Readers or one writer hold the lock; it is granted in the order
        /// of requests.
        #[test]
        fn there_are_readers_or_one_writer(
            steps in prop::collection::vec((0_u32..5, 0_u8..4), 0..200),
        ) {
            let mut locks = Locks::default();
            let mut order = VecDeque::new();
            for (rank, step) in steps {
                match step {
                    0 | 1 => {
                        let waiting = Waiting { rank, is_exclusive: step == 1, reply: 1 };
                        if locks.request(waiting) {
                            order.push_back(waiting);
                        }
                    }
                    2 => {
                        locks.release(rank);
                    }
                    _ => {
                        locks.forget(|lost| lost == rank);
                        order.retain(|waiting: &Waiting| waiting.rank != rank);
                    }
                }
                while let Some(granted) = locks.grant() {
                    prop_assert_eq!(order.pop_front(), Some(granted));
                }
                prop_assert!(locks.holders.len() <= 1 || !locks.is_exclusive);
                prop_assert!(!locks.holders.is_empty() || locks.waiting.is_empty());
            }
        }
    }
}
