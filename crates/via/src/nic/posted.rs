//! Descriptors posted to one queue of an interface, until the application takes them back.

use std::collections::VecDeque;

use midplane_simhw::id::PortId;
use serde::{Deserialize, Serialize};

use super::WorkQueue;
use crate::descriptor::{Completed, Descriptor};
use crate::outcome::{DescriptorError, Operation};

/// The result of a descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) operation: Operation,
    pub(super) outcome: Result<(), DescriptorError>,
    pub(super) length: u32,
    pub(super) immediate: Option<u32>,
}

/// The state of a posted descriptor.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Not completed; with the scratch slot of its segment table, if it has one, and how many commands for it the NIC
    /// has yet to complete or return. Without any, the host has the descriptor.
    Pending(Option<u16>, u8),
    Ended(End),
}

/// Descriptors in the order in which they were posted and are taken back. A descriptor's number is the count of
/// those posted before it.
#[derive(Debug, Default)]
pub(super) struct PostedQueue {
    entries: VecDeque<(Descriptor, State)>,
    /// The number of the first entry.
    first: u64,
    /// The number of the first entry that is pending.
    pending: u64,
}

impl PostedQueue {
    /// Returns the number of descriptors that the application has not taken back.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of the next descriptor to be posted.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    #[inline]
    pub(super) fn push(&mut self, descriptor: Descriptor, scratch: Option<u16>) {
        self.entries.push_back((descriptor, State::Pending(scratch, 1)));
    }

    /// Adds a descriptor that the host keeps, as it has the queue.
    #[inline]
    pub(super) fn keep(&mut self, descriptor: Descriptor) {
        self.entries.push_back((descriptor, State::Pending(None, 0)));
    }

    /// Takes a descriptor back from the NIC. Returns the scratch slot of its segment table, if it had one.
    pub(super) fn take_back(&mut self, number: u64) -> Option<u16> {
        let at = self.place(number)?;
        let (_, State::Pending(scratch, commands)) = self.entries.get_mut(at)? else { return None };
        *commands = commands.saturating_sub(1);
        if *commands == 0 { scratch.take() } else { None }
    }

    /// Returns the number of the first descriptor that the host has instead of the NIC.
    pub(super) fn first_kept(&self) -> Option<u64> {
        let rest = self.entries.iter().skip((self.pending - self.first) as usize);
        let is_kept = |state: &State| matches!(state, State::Pending(_, 0));
        (self.pending..).zip(rest).find(|(_, (_, state))| is_kept(state)).map(|(number, _)| number)
    }

    /// Returns the first number, from `from` on, of a descriptor that has not completed.
    pub(super) fn next_unended(&self, from: u64) -> Option<u64> {
        let from = from.max(self.pending);
        let rest = self.entries.iter().skip((from - self.first) as usize);
        let is_pending = |state: &State| matches!(state, State::Pending(..));
        (from..).zip(rest).find(|(_, (_, state))| is_pending(state)).map(|(number, _)| number)
    }

    /// Returns how many descriptors have not completed.
    pub(super) fn unended(&self) -> usize {
        self.entries.iter().filter(|(_, state)| matches!(state, State::Pending(..))).count()
    }

    /// Restores a descriptor under its number; returns `false` if that is not the next one.
    pub(super) fn restore(
        &mut self,
        number: u64,
        descriptor: Descriptor,
        end: Option<End>,
        is_kept: bool,
    ) -> bool {
        if self.entries.is_empty() {
            (self.first, self.pending) = (number, number);
        }
        let is_next = number == self.next_number();
        if is_next {
            let state = end.map_or_else(|| State::Pending(None, u8::from(!is_kept)), State::Ended);
            self.entries.push_back((descriptor, state));
            self.skip_ended();
        }
        is_next
    }

    /// Iterates over all descriptors, with their numbers and results.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Descriptor, Option<End>)> {
        (self.first..).zip(&self.entries).map(|(number, (descriptor, state))| match state {
            State::Pending(..) => (number, descriptor, None),
            State::Ended(end) => (number, descriptor, Some(*end)),
        })
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Descriptor> {
        Some(&self.entries.get(self.place(number)?)?.0)
    }

    /// Records that a descriptor was posted to the NIC again, with the scratch slot of its segment table. Returns its
    /// former slot: the NIC returns the former command without reading it.
    pub(super) fn set_posted(&mut self, number: u64, scratch: Option<u16>) -> Option<u16> {
        let place = self.place(number).and_then(|at| self.entries.get_mut(at));
        let Some((_, State::Pending(place, commands))) = place else { return scratch };
        *commands += 1;
        std::mem::replace(place, scratch)
    }

    /// Returns the first pending descriptor and its number.
    #[inline]
    pub(super) fn pending(&self) -> Option<(u64, &Descriptor)> {
        let at = self.pending - self.first;
        Some((self.pending, &self.entries.get(at as usize)?.0))
    }

    /// Completes a pending descriptor. Returns the scratch slot of its segment table, if it had one; `None` if
    /// it was not pending.
    #[inline]
    pub(super) fn end(&mut self, number: u64, end: End) -> Option<Option<u16>> {
        let at = self.place(number)?;
        let (_, state) = self.entries.get_mut(at)?;
        let State::Pending(scratch, _) = *state else { return None };
        *state = State::Ended(end);
        if number == self.pending {
            self.skip_ended();
        }
        Some(scratch)
    }

    /// Completes the first pending descriptor. Returns the scratch slot of its segment table, if it had one; `None` if
    /// there is none.
    #[inline]
    pub(super) fn end_pending(&mut self, end: End) -> Option<Option<u16>> {
        let next = self.entries.get_mut((self.pending - self.first) as usize);
        let (_, state) = next?;
        let State::Pending(scratch, _) = *state else { return None };
        *state = State::Ended(end);
        self.skip_ended();
        Some(scratch)
    }

    #[inline]
    fn skip_ended(&mut self) {
        let next = |queue: &Self| (queue.pending - queue.first) as usize;
        while let Some((_, State::Ended(_))) = self.entries.get(next(self)) {
            self.pending += 1;
        }
    }

    /// Returns whether the first descriptor has completed.
    #[inline]
    pub(super) const fn has_ended(&self) -> bool {
        self.first < self.pending
    }

    /// Takes the first descriptor, if it has completed.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Completed> {
        if !self.has_ended() {
            return None;
        }
        let (descriptor, State::Ended(end)) = self.entries.pop_front()? else {
            unreachable!("those before the first that is pending have ended")
        };
        let End { operation, outcome, length, immediate } = end;
        self.first += 1;
        Some(Completed { descriptor, operation, outcome, length: length as usize, immediate })
    }
}

/// Returns a descriptor's cookie, by which the NIC names it: unique among those of its process that were not
/// taken back.
#[inline]
pub(super) const fn cookie(vi: PortId, queue: WorkQueue, number: u64) -> u64 {
    number << 17 | (queue as u64) << 16 | vi.0 as u64
}

/// Returns the number in its queue of the descriptor with this cookie.
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
        /// Ends the descriptor at this index behind the first, if there is one.
        End(u64),
        Take,
    }

    proptest! {
        /// Checks for any order of completions: descriptors are taken in the order of posting, each once, with
        /// its first result.
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
            a in (0_u16..3, any::<bool>(), 0_u64..3), b in (0_u16..3, any::<bool>(), 0_u64..3),
            large in (0_u16.., any::<bool>(), 0_u64..1 << 47),
        ) {
            let of = |(vi, is_send, at): (u16, bool, u64)| {
                cookie(PortId(vi), if is_send { WorkQueue::Send } else { WorkQueue::Receive }, at)
            };
            prop_assert_eq!(of(a) == of(b), a == b);
            prop_assert_eq!(number(of(large)), large.2);
        }
    }

    #[test]
    fn restored_descriptors_keep_their_numbers() {
        let mut queue = PostedQueue::default();
        assert!(queue.restore(7, Descriptor::default(), Some(end(1)), false));
        assert!(queue.restore(8, Descriptor::default(), None, false));
        assert!(!queue.restore(8, Descriptor::default(), None, false), "it is there twice");
        assert!(!queue.restore(10, Descriptor::default(), None, false), "one is missing");
        assert!(queue.take().is_some());
        assert!(queue.take().is_none());
        assert_eq!(queue.pending().map(|(number, _)| number), Some(8));
    }
}
