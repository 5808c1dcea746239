//! The receiving halves of a NIC's links. A turn polls each whose peer sends, and a few of the quiet ones, in rotation.

use super::lane::Receiver;
use crate::id::NodeId;

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct RxLink {
    pub(super) from: NodeId,
    pub(super) receiver: Receiver,
    /// Polls without a frame since the last that found one.
    idle_polls: u32,
}

/// Most links that are all polled in every turn: choosing among so few would take as long.
const FEW: usize = 8;
/// Polls without a frame after which a link is quiet, if there are more than `FEW`.
const BUSY_POLLS: u32 = 64;
/// Quiet links that a turn without a frame polls; a turn with frames polls one.
const QUIET_POLLS: usize = 4;

/// The receiving halves of one NIC.
#[derive(Debug, Default)]
pub(super) struct RxLinks {
    /// All links; the first `busy` of them are polled in every turn.
    all: Vec<RxLink>,
    busy: usize,
    /// Position of the quiet link that is polled next.
    next: usize,
}

impl RxLinks {
    /// Adds a link, which is polled in every turn at first.
    pub(super) fn add(&mut self, from: NodeId, receiver: Receiver) {
        self.all.push(RxLink { from, receiver, idle_polls: 0 });
        self.promote(self.all.len() - 1);
    }

    /// Removes the link of a peer.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<RxLink> {
        let at = self.all.iter().position(|rx_link| rx_link.from == node)?;
        let removed = self.all.remove(at);
        self.busy -= usize::from(at < self.busy);
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RxLink> {
        self.all.iter()
    }

    /// Returns whether any link has a frame; the next turn polls that one.
    pub(super) fn has_frame(&mut self) -> bool {
        let found = self.all.iter().position(|rx_link| rx_link.receiver.has_frame());
        found.into_iter().for_each(|at| self.promote(at));
        found.is_some()
    }

    /// Calls `receive` with each link that has a frame, among those that this turn polls. Returns whether any had one.
    #[inline]
    pub(super) fn poll(&mut self, mut receive: impl FnMut(&mut RxLink)) -> bool {
        let mut was_any = false;
        let may_rest = self.all.len() > FEW;
        let mut at = 0;
        while let Some(rx_link) = self.all[..self.busy].get_mut(at) {
            at += 1;
            if rx_link.receiver.has_frame() {
                rx_link.idle_polls = 0;
                was_any = true;
                receive(rx_link);
            } else if may_rest {
                rx_link.idle_polls += 1;
                if rx_link.idle_polls >= BUSY_POLLS {
                    at -= 1;
                    self.busy -= 1;
                    self.all.swap(at, self.busy);
                }
            }
        }
        was_any | (self.busy < self.all.len() && self.poll_quiet(was_any, receive))
    }

    /// Polls the next quiet links; one that has a frame is polled in every turn from now on.
    fn poll_quiet(&mut self, was_any: bool, mut receive: impl FnMut(&mut RxLink)) -> bool {
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

    /// Makes a link one that is polled in every turn.
    fn promote(&mut self, at: usize) {
        self.all[at].idle_polls = 0;
        if at >= self.busy {
            self.all.swap(at, self.busy);
            self.busy += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::frame::Header;
    use crate::segment::{Segment, View};
    use crate::shm::lane::{Sender, Shape};

    const SHAPE: Shape = Shape { slots: 8, areas: 2, mtu: 64 };
    /// Most turns that a frame of one of 40 peers waits.
    const ROUND: usize = 40;

    fn link(rx_links: &mut RxLinks, node: u16) -> Sender {
        let segment = Arc::new(Segment::private(SHAPE.lane_bytes()));
        rx_links.add(NodeId(node), Receiver::new(Arc::clone(&segment), 0, SHAPE));
        Sender::new(segment, 0, SHAPE)
    }

    fn send(sender: &mut Sender) -> bool {
        let sent = sender.stage(&Header::default().emit(), View::from(&[][..])).is_ok();
        sender.publish();
        sent
    }

    proptest! {
        #[test]
        fn every_frame_is_received_within_a_round_of_the_quiet_links(
            peers in 1_u16..40,
            ops in proptest::collection::vec((0_u16..60, any::<bool>()), 0..600),
        ) {
            let mut rx_links = RxLinks::default();
            let mut senders: Vec<_> = (0..peers).map(|node| link(&mut rx_links, node)).collect();
            let mut owed = vec![(0, 0); senders.len()];
            for (peer, is_left) in ops {
                let at = usize::from(peer);
                if let Some(sender) = senders.get_mut(at) {
                    if is_left && owed[at].0 == 0 && peer % 5 == 0 {
                        prop_assert!(rx_links.remove(NodeId(peer)).is_some());
                        *sender = link(&mut rx_links, peer);
                    }
                    owed[at].0 += usize::from(send(sender));
                }
                let was_any = rx_links.poll(|RxLink { from, receiver, .. }| {
                    let (count, waited) = &mut owed[from.index()];
                    (*count, *waited) = (*count - 1, 0);
                    receiver.release(0);
                });
                prop_assert!(was_any || owed.iter().all(|(count, _)| *count == 0) || peers > 8);
                for (count, waited) in &mut owed {
                    *waited += usize::from(*count > 0);
                    prop_assert!(*waited <= ROUND);
                }
            }
            while rx_links.has_frame() {
                let was_any = rx_links.poll(|RxLink { from, receiver, .. }| {
                    owed[from.index()].0 -= 1;
                    receiver.release(0);
                });
                prop_assert!(was_any, "the rx_link that was found is polled");
            }
            prop_assert!(owed.iter().all(|(count, _)| *count == 0));
        }
    }

    #[test]
    fn a_turn_with_many_quiet_peers_polls_a_few_of_them() {
        let mut rx_links = RxLinks::default();
        let mut senders: Vec<_> = (0..1_000).map(|node| link(&mut rx_links, node)).collect();
        for _ in 0..BUSY_POLLS {
            assert!(!rx_links.poll(|_| {}));
        }
        assert_eq!(rx_links.busy, 0);
        assert!(send(&mut senders[999]));
        assert!(rx_links.has_frame());
        assert_eq!(rx_links.busy, 1);
        assert!(rx_links.poll(|rx_link| assert_eq!(rx_link.from, NodeId(999))));
    }
}
