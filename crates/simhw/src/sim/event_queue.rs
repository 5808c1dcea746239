//! The event queue, ordered by time, priority and sequence.
//!
//! It is a hierarchical timing wheel: level 0 has a slot for each of the next 64 ns, and every level above has
//! slots 64 times as long. An event goes to the level of the highest digit in which its time differs from the
//! queue's. When a slot's time comes, its events move to the levels below. Scheduling, cancelling and taking
//! cost the same for any number of pending events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::{DmaId, NodeId, PortId, TimerId};
use crate::time::Instant;
use crate::topology::{LinkId, MediumId};

/// An event of the simulation. Events of a NIC carry its count of `restarts`; those of an earlier
/// incarnation are ignored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// A piece of a frame reaches the end of a link.
    Piece { link: LinkId, frame: u32, index: u16 },
    /// A switch output has sent its piece.
    OutputFree { link: LinkId },
    /// The state of a shared medium changes.
    Medium { medium: MediumId },
    /// A frame arrives from its own node.
    Looped { node: NodeId, frame: u32, restarts: u16 },
    /// A coprocessor is free for its next event.
    Coprocessor { node: NodeId, restarts: u16 },
    /// A NIC sees a doorbell.
    Doorbell { node: NodeId, port: PortId, restarts: u16 },
    /// An alarm of a NIC is due.
    Timer { node: NodeId, timer: TimerId, restarts: u16 },
    /// A DMA transfer has ended.
    DmaDone { node: NodeId, dma: DmaId, restarts: u16 },
    /// A NIC's next completion becomes visible.
    Completion { node: NodeId, restarts: u16 },
    /// A sleeping task wakes.
    Wake { slot: u32 },
    /// An incident begins, repeats or ends.
    Incident { index: u32, phase: Phase },
    /// A delayed task runs.
    Task { task: u32 },
    /// A completion's late interrupt arrives.
    Interrupt { node: NodeId, port: PortId, restarts: u16 },
}

/// The phase of an incident.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Begins,
    Repeats,
    Ends,
}

impl Event {
    /// Returns the priority: events of one instant happen in this order, arrivals before the work that they may delay.
    const fn priority(self) -> u64 {
        match self {
            Self::OutputFree { .. } | Self::Medium { .. } => 0,
            Self::Piece { .. } | Self::Looped { .. } => 1,
            Self::DmaDone { .. } | Self::Completion { .. } | Self::Interrupt { .. } => 2,
            Self::Doorbell { .. } | Self::Coprocessor { .. } => 3,
            Self::Timer { .. } | Self::Wake { .. } => 4,
            // A task that has finished its work frees the processor for the one that waits.
            Self::Task { .. } => 5,
            Self::Incident { .. } => 6,
        }
    }

    /// Returns a number for the digest.
    pub(super) const fn fingerprint(self) -> u64 {
        match self {
            Self::Piece { link, frame, index } => {
                1 | (link.0 as u64) << 4 | (frame as u64) << 24 | (index as u64) << 56
            }
            Self::OutputFree { link } => 2 | (link.0 as u64) << 4,
            Self::Medium { medium } => 14 | (medium.0 as u64) << 4,
            Self::Looped { node, frame, .. } => 13 | (node.0 as u64) << 4 | (frame as u64) << 24,
            Self::Coprocessor { node, .. } => 3 | (node.0 as u64) << 4,
            Self::Doorbell { node, port, .. } => 4 | (node.0 as u64) << 4 | (port.0 as u64) << 20,
            Self::Timer { node, timer, .. } => 5 | (node.0 as u64) << 4 | (timer.0 as u64) << 20,
            Self::DmaDone { node, dma, .. } => 6 | (node.0 as u64) << 4 | (dma.0 as u64) << 20,
            Self::Completion { node, .. } => 7 | (node.0 as u64) << 4,
            Self::Wake { slot, .. } => 8 | (slot as u64) << 4,
            Self::Incident { index, phase } => 10 | (index as u64) << 4 | (phase as u64) << 40,
            Self::Task { task } => 11 | (task as u64) << 4,
            Self::Interrupt { node, port, .. } => 12 | (node.0 as u64) << 4 | (port.0 as u64) << 20,
        }
    }
}

/// Names one scheduled event, to cancel it. Using it after the event has no effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Scheduled {
    index: u32,
    order: u64,
}

impl Scheduled {
    /// Names no event.
    pub(super) const NEVER: Self = Self { index: END, order: 0 };
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// Priority in the top bits, then the order of scheduling; 0 if the entry is free or cancelled.
    order: u64,
    event: Event,
    previous: u32,
    next: u32,
}

/// Index that ends a list.
const END: u32 = u32::MAX;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64_usize.div_ceil(DIGIT_BITS as usize);

#[derive(Debug)]
pub(super) struct EventQueue {
    entries: Vec<Entry>,
    /// First free entry; the others follow by `next`.
    free: u32,
    /// First entry of each slot.
    heads: Box<[[u32; SLOTS]; LEVELS]>,
    /// One bit for each slot that has entries.
    occupied: [u64; LEVELS],
    /// One bit for each level that has entries.
    levels: u32,
    /// No pending event is earlier than this, and none is scheduled earlier. Those at exactly this time are in `due`.
    base: u64,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    sequence: u64,
    now: u64,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: END,
            heads: Box::new([[END; SLOTS]; LEVELS]),
            occupied: [0; LEVELS],
            levels: 0,
            base: 0,
            due: BinaryHeap::new(),
            sequence: 0,
            now: 0,
        }
    }
}

impl EventQueue {
    /// Schedules an event. One in the past happens now, and one at [`Instant::FAR_FUTURE`] never.
    // Inlined, because an event is then written once, in its place. Passed on, its parts are written one by one
    // and read back as one word, which stalls the processor.
    #[inline(always)]
    pub(super) fn schedule(&mut self, at: Instant, event: Event) -> Scheduled {
        if at == Instant::FAR_FUTURE {
            return Scheduled::NEVER;
        }
        self.sequence += 1;
        let order = event.priority() << 60 | self.sequence;
        let at = at.as_nanos().max(self.now);
        if self.free == END {
            self.grow();
        }
        let index = self.free;
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        entry.at = at;
        entry.order = order;
        entry.event = event;
        self.link(index, at, order);
        Scheduled { index, order }
    }

    /// Adds a free entry.
    #[cold]
    fn grow(&mut self) {
        let index = u32::try_from(self.entries.len()).expect("fewer events than 2^32");
        let event = Event::Wake { slot: 0 };
        self.entries.push(Entry { at: 0, order: 0, event, previous: END, next: END });
        self.free = index;
    }

    /// Cancels a scheduled event, if it has not happened.
    pub(super) fn cancel(&mut self, scheduled: Scheduled) {
        let Some(entry) = self.entries.get_mut(scheduled.index as usize) else { return };
        if entry.order != scheduled.order || entry.order == 0 {
            return;
        }
        entry.order = 0;
        if entry.at == self.base {
            // [`Self::take`] frees the entry at this instant.
            return;
        }
        let Entry { at, previous, next, .. } = *entry;
        if next != END {
            self.entries[next as usize].previous = previous;
        }
        if previous == END {
            let (level, slot) = place(at, self.base);
            self.heads[level][slot] = next;
            if next == END {
                self.vacate(level, slot);
            }
        } else {
            self.entries[previous as usize].next = next;
        }
        self.release(scheduled.index);
    }

    /// Takes the next event, if it is due by `limit`.
    pub(super) fn pop_until(&mut self, limit: Instant) -> Option<(Instant, Event)> {
        if self.base > limit.as_nanos() {
            return None;
        }
        loop {
            while let Some(Reverse((_, index))) = self.due.pop() {
                if let Some(event) = self.take(index) {
                    return Some(event);
                }
            }
            let index = self.turn(limit.as_nanos())?;
            if index != END
                && let Some(event) = self.take(index)
            {
                return Some(event);
            }
        }
    }

    /// Frees an entry of this instant and returns its event; `None` if it was cancelled.
    fn take(&mut self, index: u32) -> Option<(Instant, Event)> {
        let entry = &mut self.entries[index as usize];
        let (order, event) = (std::mem::replace(&mut entry.order, 0), entry.event);
        entry.next = std::mem::replace(&mut self.free, index);
        (order != 0).then_some((Instant::from_nanos(self.base), event))
    }

    /// Sets the time: no event is scheduled before `now` from here on.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = now.as_nanos();
    }

    /// Returns the time of the last [`EventQueue::set_now`].
    pub(super) const fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Advances to the first slot that has entries, and moves them to lower levels. `None` if all of them are
    /// after `limit`. An entry that is alone in its slot and due is returned at once.
    fn turn(&mut self, limit: u64) -> Option<u32> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * DIGIT_BITS;
        let above = u64::MAX.checked_shl(shift + DIGIT_BITS).unwrap_or(0);
        let start = self.base & above | (slot as u64) << shift;
        if start > limit {
            return None;
        }
        let first = self.heads[level][slot];
        let Entry { at, next, .. } = self.entries[first as usize];
        let is_returned = next == END && at <= limit;
        let base = if is_returned || level == 0 { at } else { self.next_base(first, limit) };
        if base < start {
            return None;
        }
        self.heads[level][slot] = END;
        self.vacate(level, slot);
        self.base = base;
        if is_returned {
            return Some(first);
        }
        let mut index = first;
        while index != END {
            let Entry { at, order, next, .. } = self.entries[index as usize];
            self.link(index, at, order);
            index = next;
        }
        Some(END)
    }

    /// Returns how far `base` may advance if the first slot is the list from `index` on: to its earliest event if `limit`
    /// lets that one happen, else no further than `now`, from which on other events may still be scheduled.
    fn next_base(&self, mut index: u32, limit: u64) -> u64 {
        let mut earliest = u64::MAX;
        while index != END {
            let entry = &self.entries[index as usize];
            earliest = earliest.min(entry.at);
            index = entry.next;
        }
        if earliest <= limit { earliest } else { self.now.min(limit) }
    }

    fn link(&mut self, index: u32, at: u64, order: u64) {
        if at == self.base {
            self.due.push(Reverse((order, index)));
            return;
        }
        let (level, slot) = place(at, self.base);
        let head = std::mem::replace(&mut self.heads[level][slot], index);
        let entry = &mut self.entries[index as usize];
        entry.previous = END;
        entry.next = head;
        if head == END {
            self.occupied[level] |= 1 << slot;
            self.levels |= 1 << level;
        } else {
            self.entries[head as usize].previous = index;
        }
    }

    const fn vacate(&mut self, level: usize, slot: usize) {
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    fn release(&mut self, index: u32) {
        self.entries[index as usize].next = std::mem::replace(&mut self.free, index);
    }
}

/// Returns the level and slot of `at`, which is after `base`.
const fn place(at: u64, base: u64) -> (usize, usize) {
    let level = (63 - (at ^ base).leading_zeros()) / DIGIT_BITS;
    let slot = (at >> (level * DIGIT_BITS)) as usize % SLOTS;
    (level as usize, slot)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Schedule {
            after: u64,
            output: bool,
        },
        Cancel(usize),
        /// If `stays` is true and no event is due, the time stays as it is.
        PopUntil {
            after: u64,
            stays: bool,
        },
    }

    fn any_delay() -> impl Strategy<Value = u64> {
        prop_oneof![0..3_u64, 0..200_u64, 0..100_000_u64, 0..1_u64 << 40, 0..u64::MAX]
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (any_delay(), any::<bool>())
                .prop_map(|(after, output)| Op::Schedule { after, output }),
            1 => (0..50_usize).prop_map(Op::Cancel),
            3 => (any_delay(), any::<bool>())
                .prop_map(|(after, stays)| Op::PopUntil { after, stays }),
        ]
    }

    proptest! {
        #[test]
        fn events_are_ordered_by_time_then_priority_then_insertion(ops in proptest::collection::vec(any_op(), 0..200)) {
            let mut queue = EventQueue::default();
            let mut model = BTreeMap::new();
            let mut names = Vec::new();
            let mut now = 0_u64;
            for (number, op) in (0_u32..).zip(ops) {
                match op {
                    Op::Schedule { after, output } => {
                        let event = if output {
                            Event::OutputFree { link: LinkId(number) }
                        } else {
                            Event::Wake { slot: number }
                        };
                        let at = now.saturating_add(after);
                        let name = queue.schedule(Instant::from_nanos(at), event);
                        let key = (at, !output, number);
                        names.push((name, key));
                        if at < u64::MAX {
                            model.insert(key, event);
                        }
                    }
                    Op::Cancel(which) => {
                        if let Some((name, key)) = names.get(which) {
                            queue.cancel(*name);
                            model.remove(key);
                        }
                    }
                    Op::PopUntil { after, stays } => {
                        let limit = now.saturating_add(after);
                        let popped = queue.pop_until(Instant::from_nanos(limit));
                        let expected = model.first_key_value().filter(|(key, _)| key.0 <= limit);
                        let expected = expected.map(|(key, event)| (*key, *event));
                        prop_assert_eq!(popped, expected.map(|(key, event)| (Instant::from_nanos(key.0), event)));
                        now = expected.map_or(if stays { now } else { limit }, |(key, _)| key.0);
                        queue.set_now(Instant::from_nanos(now));
                        if let Some((key, _)) = expected {
                            model.remove(&key);
                        }
                    }
                }
            }
            for ((at, ..), event) in model {
                prop_assert_eq!(queue.pop_until(Instant::FAR_FUTURE), Some((Instant::from_nanos(at), event)));
            }
            prop_assert_eq!(queue.pop_until(Instant::FAR_FUTURE), None);
        }
    }

    #[test]
    fn an_event_in_the_past_happens_now() {
        let mut queue = EventQueue::default();
        queue.set_now(Instant::from_nanos(50));
        queue.schedule(Instant::from_nanos(7), Event::Wake { slot: 0 });
        let (at, _) = queue.pop_until(Instant::FAR_FUTURE).unwrap();
        assert_eq!(at.as_nanos(), 50);
    }

    #[test]
    fn an_event_before_the_limit_of_a_pop_that_found_none_is_not_late() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut queue = EventQueue::default();
        for millis in [20, 21, 5] {
            queue.schedule(at(millis), Event::Wake { slot: millis as u32 });
        }
        let pop = |queue: &mut EventQueue, until| {
            let (now, _) = queue.pop_until(at(until))?;
            queue.set_now(now);
            Some(now)
        };
        assert_eq!(pop(&mut queue, 18), Some(at(5)));
        assert_eq!(pop(&mut queue, 18), None);
        queue.schedule(at(6), Event::Wake { slot: 6 });
        assert_eq!(pop(&mut queue, 7), Some(at(6)));
        queue.schedule(at(10), Event::Wake { slot: 10 });
        for millis in [10, 20, 21] {
            assert_eq!(pop(&mut queue, 30), Some(at(millis)));
        }
    }

    #[test]
    fn cancelled_events_leave_no_memory_behind() {
        let mut queue = EventQueue::default();
        for round in 0..10_000 {
            let at = Instant::from_nanos(1_000_000_000 + round);
            let name = queue.schedule(at, Event::Wake { slot: 0 });
            queue.cancel(name);
            queue.cancel(name);
        }
        assert_eq!(queue.entries.len(), 1);
    }
}
