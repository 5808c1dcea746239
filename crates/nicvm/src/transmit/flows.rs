//! Flows: queues by destination and extension, split into those ready to send and those held.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::time::Instant;

use super::FlowId;
use super::outgoing::Outgoing;
use crate::planted::{self, Bug};

/// The key of a flow; flows to one node are adjacent in the order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) node: NodeId,
    pub(super) controlled: bool,
    pub(super) extension: ExtensionId,
    pub(super) flow: FlowId,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) key: Key,
    pub(super) waiting: VecDeque<Outgoing>,
    /// When its admission may be asked again; far in the future if only a change of an admission can release it.
    until: Instant,
}

/// Most bytes of the NIC's memory for queued packets of one extension to one node: beyond that, a packet without a
/// token is dropped. Some 75,000 packets whose bytes are in registered memory.
pub(super) const ROOM_TO_NODE: usize = 8 << 20;
/// Most bytes of queued packets of one extension to all nodes, likewise.
pub(super) const ROOM: usize = 64 << 20;

/// The bytes of the NIC's memory that waiting packets take.
#[derive(Debug, Default, Eq, PartialEq)]
struct Occupancy {
    to_node: BTreeMap<(ExtensionId, NodeId), usize>,
    of_extension: BTreeMap<ExtensionId, usize>,
}

impl Occupancy {
    fn add(&mut self, key: &Key, bytes: usize) {
        if bytes > 0 {
            *self.to_node.entry((key.extension, key.node)).or_default() += bytes;
            *self.of_extension.entry(key.extension).or_default() += bytes;
        }
    }

    fn remove(&mut self, key: &Key, bytes: usize) {
        let to_node = self.to_node.get_mut(&(key.extension, key.node));
        let of_extension = self.of_extension.get_mut(&key.extension);
        to_node.into_iter().chain(of_extension).for_each(|taken| *taken -= bytes);
        if self.to_node.get(&(key.extension, key.node)) == Some(&0) {
            self.to_node.remove(&(key.extension, key.node));
        }
    }

    fn has_room(&self, key: &Key, bytes: usize) -> bool {
        let to_node = self.to_node.get(&(key.extension, key.node)).copied().unwrap_or(0);
        let of_extension = self.of_extension.get(&key.extension).copied().unwrap_or(0);
        to_node + bytes <= ROOM_TO_NODE && of_extension + bytes <= ROOM
    }
}

/// All flows that are not empty. Emptied queues are kept for reuse.
#[derive(Debug, Default)]
pub(super) struct Flows {
    queues: Vec<Queue>,
    by_key: BTreeMap<Key, usize>,
    /// Ready flows, in turn.
    active: VecDeque<usize>,
    /// Flows held by an admission.
    held: Vec<usize>,
    free: Vec<usize>,
    /// True if an admission's state has changed: all held flows are checked again.
    must_recheck: bool,
    occupancy: Occupancy,
}

impl Flows {
    /// Returns whether there is room for another packet whose sender does not wait for it to leave.
    pub(super) fn has_room(&self, key: &Key, outgoing: &Outgoing) -> bool {
        self.occupancy.has_room(key, outgoing.occupied())
    }

    /// Returns whether packets of an extension wait for a node.
    pub(super) fn has_packets(&self, extension: ExtensionId, node: NodeId) -> bool {
        self.occupancy.to_node.contains_key(&(extension, node))
    }

    /// Queues an entry. If its flow is held, it is checked again: the entry may leave before those of suspended ports.
    pub(super) fn push(&mut self, key: Key, outgoing: Outgoing) {
        self.occupancy.add(&key, outgoing.occupied());
        if let Some(&at) = self.by_key.get(&key) {
            self.queues[at].until = Instant::ZERO;
            self.queues[at].waiting.push_back(outgoing);
            return;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            let until = Instant::ZERO;
            self.queues.push(Queue { key, waiting: VecDeque::new(), until });
            self.queues.len() - 1
        });
        self.queues[at].key = key;
        self.queues[at].waiting.push_back(outgoing);
        self.by_key.insert(key, at);
        self.active.push_back(at);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Notes that an admission's state has changed.
    pub(super) const fn recheck(&mut self) {
        self.must_recheck = true;
    }

    /// Moves the held flows whose admission may be asked again at `now` to the ready ones. Returns the earliest such
    /// instant of the others.
    pub(super) fn wake(&mut self, now: Instant) -> Instant {
        let must_recheck = std::mem::take(&mut self.must_recheck);
        let mut next = Instant::FAR_FUTURE;
        let mut index = 0;
        while let Some(&at) = self.held.get(index) {
            let until = self.queues[at].until;
            if must_recheck || until <= now {
                self.held.remove(index);
                self.active.push_back(at);
            } else {
                next = next.min(until);
                index += 1;
            }
        }
        next
    }

    /// Returns the flow whose turn it is.
    pub(super) fn first(&self) -> Option<usize> {
        self.active.front().copied()
    }

    pub(super) fn queue(&mut self, at: usize) -> &mut Queue {
        &mut self.queues[at]
    }

    /// Removes the first entry of a flow.
    pub(super) fn pop(&mut self, at: usize) {
        let queue = &mut self.queues[at];
        if let Some(outgoing) = queue.waiting.pop_front() {
            self.occupancy.remove(&queue.key, outgoing.occupied());
        }
    }

    /// Ends the turn of the first flow, and removes it if it is empty.
    pub(super) fn rotate(&mut self) {
        let Some(at) = self.active.pop_front() else { return };
        if self.queues[at].waiting.is_empty() {
            self.by_key.remove(&self.queues[at].key);
            self.free.push(at);
        } else {
            self.active.push_back(at);
        }
    }

    /// Holds the first flow until `until`, or until an admission's state changes.
    pub(super) fn hold(&mut self, until: Instant) {
        if let Some(at) = self.active.pop_front() {
            self.queues[at].until = until;
            self.held.push(at);
        }
    }

    /// Iterates over the flows to a node, controlled or not, in the order of their keys.
    pub(super) fn to(&self, node: NodeId, controlled: bool) -> impl Iterator<Item = &Queue> {
        let key = |extension, flow| Key { node, controlled, extension, flow };
        let first = key(ExtensionId(0), FlowId(0));
        let last = key(ExtensionId(u8::MAX), FlowId(u16::MAX));
        self.by_key.range(first..=last).map(|(_, &at)| &self.queues[at])
    }

    /// Lets `visit` change every queue, then removes those that it has emptied.
    pub(super) fn change(&mut self, mut visit: impl FnMut(&mut Queue)) {
        for &at in self.by_key.values() {
            visit(&mut self.queues[at]);
        }
        let Self { queues, by_key, active, held, free, occupancy, .. } = self;
        *occupancy = Occupancy::default();
        for &at in by_key.values() {
            let Queue { key, waiting, .. } = &queues[at];
            occupancy.add(key, waiting.iter().map(Outgoing::occupied).sum());
        }
        let is_live = |at: &usize| !queues[*at].waiting.is_empty();
        active.retain(|at| is_live(at) || planted::is(Bug::TurnSurvives));
        held.retain(is_live);
        by_key.retain(|_, at| {
            let live = is_live(at);
            if !live {
                free.push(*at);
            }
            live
        });
    }
}

#[cfg(test)]
mod tests {
    use midplane_simhw::frame::Header;
    use midplane_simhw::hardware::Source;
    use midplane_simhw::region::Payload;
    use proptest::prelude::*;

    use super::super::Packet;
    use super::*;
    use crate::extension::Epoch;

    #[derive(Clone, Debug)]
    enum Op {
        Push {
            node: u16,
            extension: u8,
            flow: u16,
            bytes: usize,
        },
        /// Sends the first entry of the flow whose turn it is.
        Pop,
        Hold,
        Recheck,
        /// Withdraws all entries for a node.
        Withdraw(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..3_u16, 0..2_u8, 0..2_u16, 0..9_000_usize).prop_map(
                |(node, extension, flow, bytes)| Op::Push { node, extension, flow, bytes }
            ),
            4 => Just(Op::Pop),
            1 => Just(Op::Hold),
            1 => Just(Op::Recheck),
            1 => (0..3_u16).prop_map(Op::Withdraw),
        ]
    }

    #[test]
    fn an_entry_has_no_other_flow_checked_again() {
        let mut flows = Flows::default();
        let push = |flows: &mut Flows, node| {
            let key = Key {
                node: NodeId(node),
                controlled: false,
                extension: ExtensionId(0),
                flow: FlowId(0),
            };
            let packet = Packet::to(NodeId(node));
            flows.push(key, Outgoing::packet(Header::default(), Epoch::FIRST, &packet));
        };
        for node in 0..3 {
            push(&mut flows, node);
            flows.hold(Instant::FAR_FUTURE);
        }
        push(&mut flows, 1);
        flows.wake(Instant::ZERO);
        assert_eq!((&flows.active, flows.held.len()), (&VecDeque::from([1]), 2));
    }

    proptest! {
        #[test]
        fn the_counted_memory_is_that_of_the_waiting_packets(
            ops in prop::collection::vec(op(), 0..200),
        ) {
            let mut flows = Flows::default();
            for op in ops {
                match op {
                    Op::Push { node, extension, flow, bytes } => {
                        let (node, extension) = (NodeId(node), ExtensionId(extension));
                        let flow = FlowId(flow);
                        let key = Key { node, controlled: false, extension, flow };
                        let bytes = vec![0; bytes];
                        let source = Source::Bytes(Payload::from(&bytes[..]));
                        let packet = Packet { source, ..Packet::to(node) };
                        flows.push(key, Outgoing::packet(Header::default(), Epoch::FIRST, &packet));
                    }
                    Op::Pop => if let Some(at) = flows.first() {
                        flows.pop(at);
                        flows.rotate();
                    },
                    Op::Hold => flows.hold(Instant::FAR_FUTURE),
                    Op::Recheck => {
                        flows.recheck();
                        flows.wake(Instant::ZERO);
                    }
                    Op::Withdraw(node) => flows.change(|queue| {
                        if queue.key.node == NodeId(node) {
                            queue.waiting.clear();
                        }
                    }),
                }
                let mut counted = Occupancy::default();
                for &at in flows.by_key.values() {
                    let Queue { key, waiting, .. } = &flows.queues[at];
                    counted.add(key, waiting.iter().map(Outgoing::occupied).sum());
                }
                flows.occupancy.of_extension.retain(|_, bytes| *bytes > 0);
                prop_assert_eq!(&flows.occupancy, &counted);
            }
        }
    }
}
