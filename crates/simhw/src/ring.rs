//! One producer, one consumer, slots of one cache line each.
//!
//! The sequence number lies in the slot and is stored last, with release; there is no lock and no
//! shared index on the fast path, so either side may stop at any instruction. The consumer gives
//! slots back in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of one entry: a cache line less its sequence number.
pub(crate) const ENTRY_WORDS: usize = 7;
/// What one slot carries.
pub(crate) type Entry = [u64; ENTRY_WORDS];

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

impl Line {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[derive(Debug)]
struct Shared {
    slots: Box<[Line]>,
    /// Entries that the consumer has given back, in its first word.
    returned: Line,
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    shared: Arc<Shared>,
    next: u64,
    returned: u64,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    shared: Arc<Shared>,
    next: u64,
    returned: u64,
}

/// A ring of `depth` slots, rounded up to a power of two.
pub(crate) fn ring(depth: usize) -> (Producer, Consumer) {
    let depth = depth.max(2).next_power_of_two();
    let slots = (0..depth).map(|_| Line::new()).collect();
    let shared = Arc::new(Shared { slots, returned: Line::new() });
    (
        Producer { shared: Arc::clone(&shared), next: 0, returned: 0 },
        Consumer { shared, next: 0, returned: 0 },
    )
}

impl Producer {
    /// Publishes one entry; gives it back where there is no free slot.
    pub(crate) fn push(&mut self, entry: &Entry) -> Result<(), ()> {
        let depth = self.shared.slots.len() as u64;
        if self.next.wrapping_sub(self.returned) >= depth {
            // The other side may write anything: what it can't have taken, it has not.
            let returned = self.shared.returned.0[0].load(Ordering::Acquire);
            if self.next.wrapping_sub(returned) >= depth {
                return Err(());
            }
            self.returned = returned;
        }
        let slot = &self.shared.slots[(self.next & (depth - 1)) as usize].0;
        for (word, value) in slot[1..].iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        self.next += 1;
        slot[0].store(self.next, Ordering::Release);
        Ok(())
    }
}

impl Consumer {
    /// Takes the next entry, if one is published.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let depth = self.shared.slots.len() as u64;
        let slot = &self.shared.slots[(self.next & (depth - 1)) as usize].0;
        if slot[0].load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let entry = std::array::from_fn(|i| slot[i + 1].load(Ordering::Relaxed));
        self.next += 1;
        if self.next - self.returned >= depth.div_ceil(4) {
            self.give_back();
        }
        Some(entry)
    }

    /// Whether an entry is published.
    pub(crate) fn is_empty(&self) -> bool {
        let depth = self.shared.slots.len() as u64;
        let slot = &self.shared.slots[(self.next & (depth - 1)) as usize].0;
        slot[0].load(Ordering::Acquire) != self.next + 1
    }

    fn give_back(&mut self) {
        self.returned = self.next;
        self.shared.returned.0[0].store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(
            depth in 1_usize..20, pushes in proptest::collection::vec(any::<Option<u64>>(), 0..300),
        ) {
            let (mut producer, mut consumer) = ring(depth);
            let mut model = VecDeque::new();
            let slots = depth.max(2).next_power_of_two();
            for push in pushes {
                match push {
                    Some(value) => {
                        let pushed = producer.push(&[value; ENTRY_WORDS]).is_ok();
                        // Slots come back in batches of a quarter: at least three quarters are there.
                        prop_assert!(pushed || model.len() + slots.div_ceil(4) > slots);
                        prop_assert!(!pushed || model.len() < slots);
                        if pushed {
                            model.push_back([value; ENTRY_WORDS]);
                        }
                    }
                    None => {
                        prop_assert_eq!(consumer.is_empty(), model.is_empty());
                        prop_assert_eq!(consumer.pop(), model.pop_front());
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_every_entry_whole_and_in_order() {
        let (mut producer, mut consumer) = ring(16);
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
