//! Sets of numbers as ordered ranges; mostly empty or of one range.

use std::collections::VecDeque;

/// A set of numbers: disjoint ranges that do not touch, from a first number to one past the last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ranges(VecDeque<(u64, u64)>);

impl Ranges {
    /// Adds `from..to`; returns how many of its numbers are new.
    pub(crate) fn insert(&mut self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        if let Some(last) = self.0.back_mut() {
            // Most numbers arrive in order.
            if from == last.1 {
                last.1 = to;
                return to - from;
            }
        }
        let first = self.0.partition_point(|range| range.1 < from);
        let past = self.0.partition_point(|range| range.0 <= to);
        if first == past {
            self.0.insert(first, (from, to));
            return to - from;
        }
        let held: u64 = self.0.range(first..past).map(|range| range.1 - range.0).sum();
        let joined = (from.min(self.0[first].0), to.max(self.0[past - 1].1));
        self.0[first] = joined;
        self.0.drain(first + 1..past);
        joined.1 - joined.0 - held
    }

    /// Removes `from..to`.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let mut at = self.0.partition_point(|range| range.1 <= from);
        while let Some(&(begin, end)) = self.0.get(at) {
            if begin >= to {
                return;
            }
            match (begin < from, end > to) {
                (true, true) => {
                    self.0[at].1 = from;
                    self.0.insert(at + 1, (to, end));
                    return;
                }
                (true, false) => {
                    self.0[at].1 = from;
                    at += 1;
                }
                (false, true) => {
                    self.0[at].0 = to;
                    return;
                }
                (false, false) => {
                    self.0.remove(at);
                }
            }
        }
    }

    /// Removes up to `most` numbers of the first range; returns them.
    pub(crate) fn take_first(&mut self, most: u64) -> Option<(u64, u64)> {
        let first = self.0.front_mut()?;
        let taken = (first.0, first.1.min(first.0 + most));
        first.0 = taken.1;
        if first.0 == first.1 {
            self.0.pop_front();
        }
        Some(taken)
    }

    /// Removes and returns the first range.
    pub(crate) fn pop_first(&mut self) -> Option<(u64, u64)> {
        self.0.pop_front()
    }

    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.0.front().copied()
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        if self.0.back().is_none_or(|last| last.1 <= number) {
            return false;
        }
        let at = self.0.partition_point(|range| range.1 <= number);
        self.0.get(at).is_some_and(|range| range.0 <= number)
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the ranges, the last first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().rev().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set(steps in proptest::collection::vec((0_u8..3, 0_u64..60, 0_u64..20), 1..80)) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (what, from, bytes) in steps {
                match what {
                    0 | 1 => {
                        let new = (from..from + bytes).filter(|number| model.insert(*number)).count();
                        prop_assert_eq!(ranges.insert(from, from + bytes), new as u64);
                    }
                    _ => {
                        ranges.remove(from, from + bytes);
                        model.retain(|number| !(from..from + bytes).contains(number));
                    }
                }
                for number in 0..90 {
                    prop_assert_eq!(ranges.contains(number), model.contains(&number));
                }
                let all: Vec<_> = ranges.newest_first().collect();
                prop_assert!(all.windows(2).all(|pair| pair[1].1 < pair[0].0));
            }
        }
    }
}
