//! The receiving halves of a NIC's links. Those whose peers send are polled in every turn, the others in turn.

use super::lane::Receiver;
use crate::id::NodeId;

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct Inlet {
    pub(super) from: NodeId,
    pub(super) receiver: Receiver,
    /// Polls without a frame since the last that found one.
    vain: u32,
}

/// Most inlets that are all polled in every turn: choosing among so few would take as long.
const FEW: usize = 8;
/// Polls without a frame after which an inlet of many is polled in turn with other quiet ones.
const BUSY_POLLS: u32 = 64;
/// Quiet inlets that a turn without a frame polls; a turn with frames polls one.
const QUIET_POLLS: usize = 4;

/// The inlets of one NIC.
#[derive(Debug, Default)]
pub(super) struct Inlets {
    /// Those that are polled in every turn stand first.
    all: Vec<Inlet>,
    busy: usize,
    /// Position of the quiet inlet that is polled next.
    next: usize,
}

impl Inlets {
    /// Adds an inlet, which is polled in every turn at first.
    pub(super) fn add(&mut self, from: NodeId, receiver: Receiver) {
        self.all.push(Inlet { from, receiver, vain: 0 });
        self.promote(self.all.len() - 1);
    }

    /// Removes the inlet of a peer.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<Inlet> {
        let at = self.all.iter().position(|inlet| inlet.from == node)?;
        let removed = self.all.remove(at);
        self.busy -= usize::from(at < self.busy);
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Inlet> {
        self.all.iter()
    }

    /// Returns whether any inlet has a frame; the next turn polls that one.
    pub(super) fn has_frame(&mut self) -> bool {
        let found = self.all.iter().position(|inlet| inlet.receiver.has_frame());
        found.into_iter().for_each(|at| self.promote(at));
        found.is_some()
    }

    /// Calls `receive` with each inlet that has a frame, as far as this turn polls them. Returns whether any has.
    #[inline]
    pub(super) fn poll(&mut self, mut receive: impl FnMut(&mut Inlet)) -> bool {
        let mut was_any = false;
        let may_rest = self.all.len() > FEW;
        let mut at = 0;
        while let Some(inlet) = self.all[..self.busy].get_mut(at) {
            at += 1;
            if inlet.receiver.has_frame() {
                inlet.vain = 0;
                was_any = true;
                receive(inlet);
            } else if may_rest {
                inlet.vain += 1;
                if inlet.vain >= BUSY_POLLS {
                    at -= 1;
                    self.busy -= 1;
                    self.all.swap(at, self.busy);
                }
            }
        }
        was_any | (self.busy < self.all.len() && self.poll_quiet(was_any, receive))
    }

    /// Polls the next of the quiet inlets; one that has a frame is polled in every turn from now on.
    fn poll_quiet(&mut self, was_any: bool, mut receive: impl FnMut(&mut Inlet)) -> bool {
        let polls = if was_any { 1 } else { QUIET_POLLS };
        let mut has_found = false;
        for _ in 0..polls.min(self.all.len() - self.busy) {
            let quiet = self.busy..self.all.len();
            let at = if quiet.contains(&self.next) { self.next } else { quiet.start };
            self.next = at + 1;
            if self.all[at].receiver.has_frame() {
                self.promote(at);
                has_found = true;
                receive(&mut self.all[self.busy - 1]);
            }
        }
        has_found
    }

    /// Has an inlet polled in every turn.
    fn promote(&mut self, at: usize) {
        self.all[at].vain = 0;
        if at >= self.busy {
            self.all.swap(at, self.busy);
            self.busy += 1;
        }
    }
}

#[cfg(all(test, not(midplane_loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::frame::Header;
    use crate::segment::{Segment, View};
    use crate::shm::lane::{Sender, Shape};

    const SHAPE: Shape = Shape { slots: 8, areas: 2, mtu: 64 };
    /// Turns within which a turn with only quiet inlets has polled each of 40.
    const ROUND: usize = 40;

    fn link(inlets: &mut Inlets, node: u16) -> Sender {
        let segment = Arc::new(Segment::private(SHAPE.lane_bytes()));
        inlets.add(NodeId(node), Receiver::new(Arc::clone(&segment), 0, SHAPE));
        Sender::new(segment, 0, SHAPE)
    }

    fn send(sender: &mut Sender) -> bool {
        let sent = sender.stage(&Header::default().emit(), View::from(&[][..])).is_ok();
        sender.publish();
        sent
    }

    proptest! {
        #[test]
        fn every_frame_is_received_within_a_round_of_the_quiet_inlets(
            peers in 1_u16..40,
            ops in proptest::collection::vec((0_u16..60, any::<bool>()), 0..600),
        ) {
            let mut inlets = Inlets::default();
            let mut senders: Vec<_> = (0..peers).map(|node| link(&mut inlets, node)).collect();
            let mut owed = vec![(0, 0); senders.len()];
            for (peer, is_left) in ops {
                let at = usize::from(peer);
                if let Some(sender) = senders.get_mut(at) {
                    if is_left && owed[at].0 == 0 && peer % 5 == 0 {
                        prop_assert!(inlets.remove(NodeId(peer)).is_some());
                        *sender = link(&mut inlets, peer);
                    }
                    owed[at].0 += usize::from(send(sender));
                }
                let was_any = inlets.poll(|Inlet { from, receiver, .. }| {
                    let (count, waited) = &mut owed[from.index()];
                    (*count, *waited) = (*count - 1, 0);
                    receiver.give_back(0);
                });
                prop_assert!(was_any || owed.iter().all(|(count, _)| *count == 0) || peers > 8);
                for (count, waited) in &mut owed {
                    *waited += usize::from(*count > 0);
                    prop_assert!(*waited <= ROUND);
                }
            }
            while inlets.has_frame() {
                let was_any = inlets.poll(|Inlet { from, receiver, .. }| {
                    owed[from.index()].0 -= 1;
                    receiver.give_back(0);
                });
                prop_assert!(was_any, "the inlet that was found is polled");
            }
            prop_assert!(owed.iter().all(|(count, _)| *count == 0));
        }
    }

    #[test]
    fn a_turn_with_many_quiet_peers_polls_a_few_of_them() {
        let mut inlets = Inlets::default();
        let mut senders: Vec<_> = (0..1_000).map(|node| link(&mut inlets, node)).collect();
        for _ in 0..BUSY_POLLS {
            assert!(!inlets.poll(|_| {}));
        }
        assert_eq!(inlets.busy, 0);
        assert!(send(&mut senders[999]));
        assert!(inlets.has_frame());
        assert_eq!(inlets.busy, 1);
        assert!(inlets.poll(|inlet| assert_eq!(inlet.from, NodeId(999))));
    }
}
