//! A ring in a segment with one producer, one consumer, and slots of one cache line each.
//!
//! Each slot has a sequence number, stored last with release order. The fast path has no lock and no shared
//! index, so either side may stop at any instruction. The producer may stage several entries, and then publish
//! them at once or discard them. The consumer returns slots in batches.

use std::sync::Arc;

use crate::segment::{LINE, Line, Segment};
use crate::sync::Ordering;

/// Words of one entry: a cache line without the slot's sequence number.
pub(crate) const ENTRY_WORDS: usize = 7;
/// The words of one slot.
pub(crate) type Entry = [u64; ENTRY_WORDS];

/// Position of a ring: a line with the count of returned slots, then the slots.
#[derive(Clone, Debug)]
struct Place {
    segment: Arc<Segment>,
    offset: usize,
    /// Number of slots; a power of two.
    depth: u64,
}

impl Place {
    #[expect(clippy::cast_possible_truncation, reason = "below the depth, which is a usize")]
    #[inline]
    fn slot(&self, number: u64) -> &Line {
        let index = (number & (self.depth - 1)) as usize;
        self.segment.line(self.offset + LINE + index * LINE)
    }

    fn returned(&self) -> &Line {
        self.segment.line(self.offset)
    }
}

/// The producer's end of a ring.
#[derive(Debug)]
pub(crate) struct Producer {
    place: Place,
    /// Number of published entries.
    published: u64,
    /// Number of written entries, published or not.
    staged: u64,
    returned: u64,
}

/// The consumer's end of a ring.
#[derive(Debug)]
pub(crate) struct Consumer {
    place: Place,
    next: u64,
    returned: u64,
}

/// Returns the number of slots of a ring of `depth`.
pub(crate) const fn slots(depth: usize) -> usize {
    let depth = if depth < 2 { 2 } else { depth };
    depth.next_power_of_two()
}

/// Returns the bytes that a ring of `depth` takes in its segment.
pub(crate) const fn ring_bytes(depth: usize) -> usize {
    LINE + slots(depth) * LINE
}

/// Creates a ring of `depth` slots, rounded up to a power of two, at `offset` of a zeroed segment.
pub(crate) fn ring(segment: &Arc<Segment>, offset: usize, depth: usize) -> (Producer, Consumer) {
    let place = Place { segment: Arc::clone(segment), offset, depth: slots(depth) as u64 };
    (
        Producer { place: place.clone(), published: 0, staged: 0, returned: 0 },
        Consumer { place, next: 0, returned: 0 },
    )
}

impl Producer {
    /// Writes one entry, which becomes visible at [`Producer::publish`]. `Err` if there is no free slot.
    #[inline]
    pub(crate) fn stage(&mut self, entry: &Entry) -> Result<(), ()> {
        let depth = self.place.depth;
        if self.staged.wrapping_sub(self.returned) >= depth {
            // The other side may write any count: one that it cannot have reached is ignored.
            let returned = self.place.returned()[0].load(Ordering::Acquire);
            if self.published.wrapping_sub(returned) > depth
                || self.staged.wrapping_sub(returned) >= depth
            {
                return Err(());
            }
            self.returned = returned;
        }
        let slot = self.place.slot(self.staged);
        for (word, value) in slot[1..].iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        self.staged += 1;
        Ok(())
    }

    /// Publishes all staged entries, the oldest last: the consumer sees all of them or none.
    #[inline]
    pub(crate) fn publish(&mut self) {
        for number in (self.published..self.staged).rev() {
            self.place.slot(number)[0].store(number + 1, Ordering::Release);
        }
        self.published = self.staged;
    }

    /// Discards the staged entries.
    pub(crate) const fn unstage(&mut self) {
        self.staged = self.published;
    }

    /// Publishes one entry; nothing else may be staged. `Err` if there is no free slot.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry) -> Result<(), ()> {
        debug_assert_eq!(self.staged, self.published, "nothing is staged");
        self.stage(entry)?;
        self.place.slot(self.published)[0].store(self.staged, Ordering::Release);
        self.published = self.staged;
        Ok(())
    }
}

impl Consumer {
    /// Takes the next entry, if one is published.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let slot = self.place.slot(self.next);
        if slot[0].load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let entry = std::array::from_fn(|i| slot[i + 1].load(Ordering::Relaxed));
        self.next += 1;
        if self.next - self.returned >= self.place.depth.div_ceil(4) {
            self.returned = self.next;
            self.place.returned()[0].store(self.next, Ordering::Release);
        }
        Some(entry)
    }

    /// Returns the number of the ring's slots.
    pub(crate) const fn slots(&self) -> usize {
        self.place.depth as usize
    }

    /// Returns whether no published entry waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.place.slot(self.next)[0].load(Ordering::Acquire) != self.next + 1
    }
}

#[cfg(all(test, not(midplane_models)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    fn private(depth: usize) -> (Producer, Consumer) {
        ring(&Arc::new(Segment::private(64 + ring_bytes(depth))), 64, depth)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Stage(u64),
        Publish,
        Pop,
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue_of_published_entries(
            depth in 1_usize..20,
            ops in proptest::collection::vec(
                prop_oneof![any::<u64>().prop_map(Op::Stage), Just(Op::Publish), Just(Op::Pop)],
                0..300),
        ) {
            let (mut producer, mut consumer) = private(depth);
            let (mut staged, mut model) = (VecDeque::new(), VecDeque::new());
            for op in ops {
                match op {
                    Op::Stage(value) => {
                        let held = model.len() + staged.len();
                        let took = producer.stage(&[value; ENTRY_WORDS]).is_ok();
                        // The consumer returns slots in batches of a quarter: at least three quarters are
                        // usable.
                        prop_assert!(took || held + slots(depth).div_ceil(4) > slots(depth));
                        prop_assert!(!took || held < slots(depth));
                        if took {
                            staged.push_back([value; ENTRY_WORDS]);
                        }
                    }
                    Op::Publish => {
                        producer.publish();
                        model.append(&mut staged);
                    }
                    Op::Pop => {
                        prop_assert_eq!(consumer.is_empty(), model.is_empty());
                        prop_assert_eq!(consumer.pop(), model.pop_front());
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_every_entry_whole_and_in_order() {
        let (mut producer, mut consumer) = private(16);
        let total = 200_000_u64;
        let writer = std::thread::spawn(move || {
            for value in 0..total {
                while producer.push(&[value; ENTRY_WORDS]).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        for value in 0..total {
            let entry = loop {
                match consumer.pop() {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(entry, [value; ENTRY_WORDS]);
        }
        writer.join().unwrap();
    }
}
