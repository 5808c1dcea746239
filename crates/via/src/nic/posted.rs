//! What was posted to one queue of an interface, until the application takes it back.

use std::collections::VecDeque;

use midplane_simhw::id::PortId;
use serde::{Deserialize, Serialize};

use super::WorkQueue;
use crate::descriptor::{Completed, Descriptor};
use crate::outcome::{DescriptorError, Operation};

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) operation: Operation,
    pub(super) outcome: Result<(), DescriptorError>,
    pub(super) length: u32,
    pub(super) immediate: Option<u32>,
}

/// A descriptor that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) descriptor: Descriptor,
    /// Where the table of its segments is, while the NIC needs that.
    pub(super) scratch: Option<u16>,
    pub(super) end: Option<End>,
}

/// Descriptors in the order in which they were posted and come back. A descriptor's number is how many
/// were posted before it.
#[derive(Debug, Default)]
pub(super) struct PostedQueue {
    entries: VecDeque<Posted>,
    /// The number of the first entry.
    first: u64,
    /// The number of the first that has not ended.
    pending: u64,
}

impl PostedQueue {
    /// Descriptors that the application has not taken back.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of what is posted next.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    #[inline]
    pub(super) fn push(&mut self, descriptor: Descriptor, scratch: Option<u16>) {
        self.entries.push_back(Posted { descriptor, scratch, end: None });
    }

    /// Puts one where it was before; `false` if that is not the place after the last.
    pub(super) fn restore(&mut self, number: u64, posted: Posted) -> bool {
        if self.entries.is_empty() {
            (self.first, self.pending) = (number, number);
        }
        let is_next = number == self.next_number();
        if is_next {
            self.entries.push_back(posted);
            self.skip_ended();
        }
        is_next
    }

    /// All of them, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Posted)> {
        (self.first..).zip(&self.entries)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Posted> {
        self.entries.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The first that has not ended, and its number.
    #[inline]
    pub(super) fn pending(&self) -> Option<(u64, &Descriptor)> {
        let at = self.pending - self.first;
        Some((self.pending, &self.entries.get(at as usize)?.descriptor))
    }

    /// So one has ended: once. What its table lay in, if it had one.
    #[inline]
    pub(super) fn end(&mut self, number: u64, end: End) -> Option<Option<u16>> {
        let posted = self.get_mut(number).filter(|posted| posted.end.is_none())?;
        posted.end = Some(end);
        let scratch = posted.scratch.take();
        self.skip_ended();
        Some(scratch)
    }

    #[inline]
    fn skip_ended(&mut self) {
        let ended = |posted: &Posted| posted.end.is_some();
        while self.entries.get((self.pending - self.first) as usize).is_some_and(ended) {
            self.pending += 1;
        }
    }

    /// Whether the first one has ended.
    #[inline]
    pub(super) const fn has_ended(&self) -> bool {
        self.first < self.pending
    }

    /// The first one, if it has ended.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Completed> {
        if !self.has_ended() {
            return None;
        }
        let Posted { descriptor, end, .. } = self.entries.pop_front()?;
        let End { operation, outcome, length, immediate } = end?;
        self.first += 1;
        Some(Completed { descriptor, operation, outcome, length: length as usize, immediate })
    }
}

/// What a NIC knows a descriptor by: unlike any other that its process has posted and not taken back.
#[inline]
pub(super) const fn cookie(vi: PortId, queue: WorkQueue, number: u64) -> u64 {
    number << 17 | (queue as u64) << 16 | vi.0 as u64
}

/// The number of the descriptor with this cookie, in its queue.
#[inline]
pub(super) const fn number(cookie: u64) -> u64 {
    cookie >> 17
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end(length: u32) -> End {
        End { operation: Operation::Receive, outcome: Ok(()), length, immediate: None }
    }

    fn named(value: u32) -> Descriptor {
        Descriptor::default().immediate(value)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Post,
        /// The one that stands so far behind the first, which may be none.
        End(u64),
        Take,
    }

    proptest! {
        /// Whatever order they end in, they come back in that in which they were posted, each once, as they first ended.
        #[test]
        fn descriptors_come_back_in_order_once_those_before_have_ended(
            begin in 1_u64..1 << 40,
            ops in proptest::collection::vec(
                prop_oneof![Just(Op::Post), (0_u64..6).prop_map(Op::End), Just(Op::Take)], 0..200),
        ) {
            let mut queue = PostedQueue { first: begin, pending: begin, ..PostedQueue::default() };
            let (mut ends, mut taken): (Vec<Option<u32>>, usize) = (Vec::new(), 0);
            for (step, op) in (0_u32..).zip(ops) {
                match op {
                    Op::Post => {
                        prop_assert_eq!(queue.next_number(), begin + ends.len() as u64);
                        queue.push(named(ends.len() as u32), None);
                        ends.push(None);
                    }
                    Op::End(behind) => {
                        let at = taken + behind as usize;
                        let expected = ends.get(at).is_some_and(Option::is_none);
                        prop_assert_eq!(queue.end(begin + at as u64, end(step)).is_some(), expected);
                        if expected {
                            ends[at] = Some(step);
                        }
                    }
                    Op::Take => {
                        let expected = ends.get(taken).copied().flatten();
                        prop_assert_eq!(queue.has_ended(), expected.is_some());
                        let got = queue.take().map(|it| (it.descriptor.immediate, it.length as u32));
                        prop_assert_eq!(got, expected.map(|length| (Some(taken as u32), length)));
                        taken += usize::from(expected.is_some());
                    }
                }
                prop_assert_eq!(queue.end(begin + taken as u64 - 1, end(0)), None, "taken");
                let pending = ends[taken..].iter().position(Option::is_none).map(|at| taken + at);
                let found = queue.pending().map(|(number, it)| (number, it.immediate));
                prop_assert_eq!(found, pending.map(|at| (begin + at as u64, Some(at as u32))));
            }
        }

        #[test]
        fn no_two_descriptors_have_one_cookie(
            a in (0_u16.., any::<bool>(), 0_u64..1 << 47), b in (0_u16.., any::<bool>(), 0_u64..1 << 47),
        ) {
            let of = |(vi, is_send, at): (u16, bool, u64)| {
                cookie(PortId(vi), if is_send { WorkQueue::Send } else { WorkQueue::Receive }, at)
            };
            prop_assert_eq!(of(a) == of(b), a == b);
            prop_assert_eq!(number(of(a)), a.2);
        }
    }

    #[test]
    fn what_is_restored_stands_where_it_stood() {
        let posted = |end| Posted { descriptor: Descriptor::default(), scratch: None, end };
        let mut queue = PostedQueue::default();
        assert!(queue.restore(7, posted(Some(end(1)))));
        assert!(queue.restore(8, posted(None)));
        assert!(!queue.restore(8, posted(None)), "it is there twice");
        assert!(!queue.restore(10, posted(None)), "one is missing");
        assert!(queue.take().is_some());
        assert!(queue.take().is_none());
        assert_eq!(queue.pending().map(|(number, _)| number), Some(8));
    }
}
