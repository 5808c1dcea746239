//! Restores the order of one sender's frames, which may complete out of order.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Most frames that wait for an earlier one; beyond that, the earlier one counts as lost.
pub(crate) const MOST: usize = 64;
/// Most frames of a stream that wait for an earlier one: its sender has fewer in flight behind an incomplete one.
#[cfg(feature = "streams")]
pub(crate) const WINDOW: usize = 2 * MOST;
/// Longest wait for an earlier frame; after that, it counts as lost.
#[cfg(feature = "nic")]
const LONGEST: std::time::Duration = std::time::Duration::from_secs(1);

/// The frames of one sender. Their numbers have 32 bits and wrap around to 0.
#[derive(Debug)]
pub(crate) struct Order<T> {
    /// The number of the next frame, which does not wrap.
    next: u64,
    held: BTreeMap<u64, T>,
    /// When the oldest held frame began to wait.
    since: Option<Instant>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { next: 0, held: BTreeMap::new(), since: None }
    }
}

impl<T> Order<T> {
    /// Adds a received frame; returns `false` if it is too late or a duplicate.
    pub(crate) fn insert(&mut self, number: u32, frame: T, now: Instant) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let ahead = number.wrapping_sub(self.next as u32);
        // Half of the numbers are ahead of the next one, and half are behind.
        if ahead > u32::MAX / 2 {
            return false;
        }
        let number = self.next + u64::from(ahead);
        if self.held.contains_key(&number) {
            return false;
        }
        self.held.insert(number, frame);
        self.since.get_or_insert(now);
        true
    }

    /// Returns the next frame, unless an earlier one may still arrive.
    #[cfg(feature = "nic")]
    pub(crate) fn next(&mut self, now: Instant) -> Option<T> {
        let (first, _) = self.held.first_key_value()?;
        let is_due = *first == self.next
            || self.held.len() > MOST
            || self.since.is_some_and(|since| now - since >= LONGEST);
        if !is_due {
            return None;
        }
        let (number, frame) = self.held.pop_first()?;
        self.next = number + 1;
        self.since = (!self.held.is_empty()).then_some(now);
        Some(frame)
    }

    /// Returns the next frame in order; never skips a frame.
    #[cfg(feature = "streams")]
    pub(crate) fn next_whole(&mut self) -> Option<T> {
        let frame = self.held.remove(&self.next)?;
        self.next += 1;
        Some(frame)
    }

    /// Returns whether more frames wait for an earlier one than any sender has in flight behind it.
    #[cfg(feature = "streams")]
    pub(crate) fn is_overfull(&self) -> bool {
        self.held.len() > WINDOW
    }

    /// Returns whether a frame before this number has not arrived.
    #[cfg(feature = "streams")]
    pub(crate) fn lacks_before(&self, number: u32) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let ahead = number.wrapping_sub(self.next as u32);
        (1..=u32::MAX / 2).contains(&ahead)
    }

    /// Returns whether frames wait for an earlier one.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    proptest! {
        #[test]
        fn frames_leave_in_order_whatever_the_order_of_their_arrival(
            start in prop_oneof![Just(0_u64), Just(u64::from(u32::MAX) - 5)],
            order in Just((0..40_u64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let now = now();
            let mut frames = Order { next: start, ..Order::default() };
            let mut out = Vec::new();
            for number in order {
                prop_assert!(frames.insert((start + number) as u32, number, now));
                while let Some(frame) = frames.next(now) {
                    out.push(frame);
                }
            }
            prop_assert_eq!(out, (0..40).collect::<Vec<_>>());
            prop_assert!(!frames.is_waiting());
            prop_assert!(!frames.insert(start as u32, 0, now), "twice");
        }

        #[test]
        fn a_receivers_memory_for_one_sender_is_bounded(numbers: Vec<u32>) {
            let now = now();
            let mut frames = Order::default();
            for number in numbers {
                frames.insert(number, (), now);
                while frames.next(now).is_some() {}
                prop_assert!(frames.held.len() <= MOST);
            }
        }
    }

    #[test]
    #[cfg(feature = "streams")]
    fn a_missing_frame_is_known_by_the_number_after_it() {
        let mut frames = Order { next: u64::from(u32::MAX), ..Order::default() };
        assert!(!frames.lacks_before(u32::MAX));
        assert!(frames.lacks_before(0));
        frames.insert(u32::MAX, 'a', now());
        assert_eq!(frames.next_whole(), Some('a'));
        assert!(!frames.lacks_before(0));
        assert!(frames.lacks_before(1));
    }

    #[test]
    fn a_lost_frame_is_awaited_for_a_while_only() {
        let start = now();
        let mut frames = Order::default();
        assert!(frames.insert(1, 'b', start));
        assert_eq!(frames.next(start + LONGEST / 2), None);
        assert_eq!(frames.next(start + LONGEST), Some('b'));
        assert!(!frames.insert(0, 'a', start), "too late");
        for number in 3..=70 {
            assert!(frames.insert(number, 'c', start));
        }
        assert_eq!(frames.next(start), Some('c'), "too many wait");
    }
}
