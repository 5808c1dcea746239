//! Broadcast frames: a cable carries one once, a switch makes a copy for each host.

use super::event_queue::{Event, EventQueue};
use super::network::Network;
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::switch::Piece;
use crate::time::{Instant, nanos};
use crate::topology::{LinkId, MediumId, SwitchId};

impl Network {
    /// Handles a piece of a broadcast frame at a switch, which copies the frame once it has all pieces. The
    /// first switch on the way makes all copies.
    pub(super) fn copy_at_switch(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        switch: SwitchId,
        key: u32,
    ) {
        if !self.is_whole(key) {
            return;
        }
        let route = |node: usize| self.routes[usize::from(switch.0)][node];
        let outputs: Vec<(NodeId, Option<LinkId>)> =
            self.all_nodes().map(|node| (node, route(node.index()))).collect();
        self.copy(key, outputs, |network, copy, output| {
            let pieces = network.frames.at(copy).pieces;
            for index in 0..pieces {
                match output {
                    Some(out) => network.enqueue(queue, now, out, copy, index, index + 1 == pieces),
                    None => network.drop_piece(copy, DropCause::NoRoute),
                }
            }
        });
    }

    /// Handles a piece of a broadcast frame that has crossed a medium; its last bit arrives at `at`.
    pub(super) fn copy_on_medium(
        &mut self,
        queue: &mut EventQueue,
        piece: Piece,
        medium: MediumId,
        at: Instant,
    ) {
        let key = piece.frame;
        if !self.is_whole(key) {
            return;
        }
        let at = at.plus_nanos(self.frames.at(key).delay);
        let heard = self.all_nodes().filter(|node| self.shared.is_on(*node, medium));
        let heard: Vec<(NodeId, ())> = heard.map(|node| (node, ())).collect();
        self.copy(key, heard, |network, copy, ()| {
            let frame = network.frames.at(copy);
            let link = network.hosts[frame.header.destination.index()].1;
            // All pieces arrive as one: earlier ones have waited for the last.
            (frame.pieces, frame.outstanding) = (1, 1);
            let late = network.rng.between(0, nanos(network.faults.jitter));
            queue.schedule(at.plus_nanos(late), Event::Piece { link, frame: copy, index: 0 });
        });
    }

    /// Counts a piece as arrived; returns whether the frame is complete. If a piece was lost, drops the frame
    /// with the last one.
    fn is_whole(&mut self, key: u32) -> bool {
        let frame = self.frames.at(key);
        frame.outstanding -= 1;
        match (frame.outstanding, frame.lost) {
            (0, None) => true,
            (0, Some(cause)) => {
                self.drop_frame(key, cause);
                false
            }
            _ => false,
        }
    }

    /// Sends a copy to each node except the sender, in place of the frame itself.
    fn copy<W>(
        &mut self,
        key: u32,
        nodes: Vec<(NodeId, W)>,
        mut send: impl FnMut(&mut Self, u32, W),
    ) {
        let origin = self.frames.at(key).origin;
        for (node, output) in nodes.into_iter().filter(|(node, _)| *node != origin) {
            let copy = self.frames.duplicate(key);
            self.frames.at(copy).header.destination = node;
            self.watch.sent(self.frames.at(copy));
            self.traffic.sent += 1;
            send(self, copy, output);
        }
        // Only the copies count as sent, because the frame itself reaches no node.
        self.traffic.sent -= 1;
        self.frames.free(key);
    }

    fn all_nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.hosts.len() as u16).map(NodeId)
    }
}
