//! What happens next: a queue ordered by time, priority and sequence.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::id::{DmaId, NodeId, PortId, TimerId};
use crate::time::Instant;
use crate::topology::LinkId;

/// What may happen. Events of a NIC carry its life: those of a former one are void.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// A piece of a frame reaches the end of a link.
    Piece { link: LinkId, frame: u32, index: u16 },
    /// A switch output has sent its piece.
    OutputFree { link: LinkId },
    /// A coprocessor is free for its next event.
    Coprocessor { node: NodeId, life: u16 },
    /// A doorbell is seen.
    Doorbell { node: NodeId, port: PortId, life: u16 },
    /// An alarm may be due.
    Timer { node: NodeId, timer: TimerId, life: u16 },
    /// A transfer has ended.
    DmaDone { node: NodeId, dma: DmaId, life: u16 },
    /// A NIC's next completion is seen.
    Completion { node: NodeId, life: u16 },
    /// A sleeper wakes.
    Wake { slot: u32, generation: u32 },
}

impl Event {
    /// Events of one instant happen in this order: what arrives before what it may delay.
    const fn priority(self) -> u64 {
        match self {
            Self::OutputFree { .. } => 0,
            Self::Piece { .. } => 1,
            Self::DmaDone { .. } | Self::Completion { .. } => 2,
            Self::Doorbell { .. } | Self::Coprocessor { .. } => 3,
            Self::Timer { .. } | Self::Wake { .. } => 4,
        }
    }

    /// A number for the digest.
    pub(super) const fn fingerprint(self) -> u64 {
        match self {
            Self::Piece { link, frame, index } => {
                1 | (link.0 as u64) << 4 | (frame as u64) << 24 | (index as u64) << 56
            }
            Self::OutputFree { link } => 2 | (link.0 as u64) << 4,
            Self::Coprocessor { node, .. } => 3 | (node.0 as u64) << 4,
            Self::Doorbell { node, port, .. } => 4 | (node.0 as u64) << 4 | (port.0 as u64) << 20,
            Self::Timer { node, timer, .. } => 5 | (node.0 as u64) << 4 | (timer.0 as u64) << 20,
            Self::DmaDone { node, dma, .. } => 6 | (node.0 as u64) << 4 | (dma.0 as u64) << 20,
            Self::Completion { node, .. } => 7 | (node.0 as u64) << 4,
            Self::Wake { slot, .. } => 8 | (slot as u64) << 4,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// Priority in the top bits, then the order of scheduling.
    order: u64,
    event: Event,
}

impl Entry {
    const fn key(&self) -> (u64, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl EventQueue {
    pub(super) fn schedule(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        let order = event.priority() << 60 | self.sequence;
        self.heap.push(Reverse(Entry { at: at.as_nanos(), order, event }));
    }

    /// The next event, if it is due by `limit`.
    pub(super) fn pop_until(&mut self, limit: Instant) -> Option<(Instant, Event)> {
        if self.heap.peek()?.0.at > limit.as_nanos() {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        Some((Instant::from_nanos(entry.at), entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_by_time_then_priority_then_order(times in proptest::collection::vec((0_u64..20, any::<bool>()), 0..100)) {
            let mut queue = EventQueue::default();
            let mut model = Vec::new();
            for (sequence, (at, output)) in (0_u32..).zip(times) {
                let event = if output {
                    Event::OutputFree { link: LinkId(sequence) }
                } else {
                    Event::Wake { slot: sequence, generation: 0 }
                };
                queue.schedule(Instant::from_nanos(at), event);
                model.push((at, !output, sequence, event));
            }
            model.sort_by_key(|(at, late, sequence, _)| (*at, *late, *sequence));
            for (at, _, _, event) in model {
                prop_assert_eq!(queue.pop_until(Instant::FAR_FUTURE), Some((Instant::from_nanos(at), event)));
            }
            prop_assert_eq!(queue.pop_until(Instant::FAR_FUTURE), None);
        }
    }
}
