//! The outcomes of frames: delivered whole at a NIC, or dropped with a cause.

use super::{Arrival, Network};
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::link::Framing;
use crate::topology::End;

impl Network {
    pub(super) fn on_piece_at_nic(&mut self, node: NodeId, key: u32, last: bool) -> Arrival {
        if self.framing == Framing::Cells {
            self.check_merge(node, key, last);
        }
        let frame = self.frames.at(key);
        frame.arrived = true;
        frame.outstanding -= 1;
        if frame.outstanding > 0 {
            return Arrival::Nothing;
        }
        let (lost, origin, destination) = (frame.lost, frame.origin, frame.header.destination);
        match lost {
            Some(cause) => self.drop_frame(key, cause),
            None if self.is_cut(origin, node) => self.drop_frame(key, DropCause::Partition),
            None if destination != node => self.drop_frame(key, DropCause::Misrouted),
            None => return Arrival::Whole { node, frame: key },
        }
        Arrival::Nothing
    }

    /// Marks a frame as lost if AAL5 would merge it with an incomplete one. AAL5 recognizes the end of a packet
    /// by its last cell alone. If that cell is lost, the next packet of the same circuit is taken for the rest,
    /// and the checksum refuses both.
    fn check_merge(&mut self, node: NodeId, key: u32, last: bool) {
        let origin = self.frames.at(key).origin;
        let open = &mut self.unfinished[node.index()];
        match open.binary_search_by_key(&origin, |(other, _)| *other) {
            Ok(at) => {
                let unfinished = open[at].1;
                // A fault has reordered it before a frame that is still in flight and will end later.
                if unfinished != key && !self.frames.is_live(unfinished) {
                    self.frames.at(key).lost.get_or_insert(DropCause::Merged);
                }
                if last {
                    open.remove(at);
                } else {
                    open[at].1 = key;
                }
            }
            Err(at) if !last => open.insert(at, (origin, key)),
            Err(_) => {}
        }
    }

    /// Makes the NIC of `node` forget frames of which it has received a part.
    pub(in crate::sim) fn forget_parts(&mut self, node: NodeId) {
        self.unfinished[node.index()].clear();
        for frame in self.frames.partly_arrived() {
            if frame.header.destination == node {
                frame.lost = Some(DropCause::NicDown);
            }
        }
    }

    pub(in crate::sim) fn drop_piece(&mut self, key: u32, cause: DropCause) {
        let frame = self.frames.at(key);
        let cause = *frame.lost.get_or_insert(cause);
        frame.outstanding -= 1;
        if frame.outstanding == 0 {
            self.drop_frame(key, cause);
        }
    }

    /// Counts a frame as dropped and frees it.
    pub(in crate::sim) fn drop_frame(&mut self, key: u32, cause: DropCause) {
        let frame = self.frames.at(key);
        let has_pieces = frame.pieces > 1;
        let in_part = has_pieces && cause_of_piece(cause) && frame.arrived;
        let cause = if in_part { DropCause::Incomplete } else { cause };
        if has_pieces {
            self.forget_broken(key);
        }
        self.watch.dropped(cause, self.frames.at(key));
        self.traffic.drops.add(cause);
        self.frames.free(key);
    }

    /// Notifies the outputs on the frame's path that none of its pieces follow.
    fn forget_broken(&mut self, key: u32) {
        let frame = self.frames.at(key);
        let destination = frame.header.destination.index();
        let mut link = self.hosts[frame.origin.index()].0;
        while let End::Switch(switch) = self.wires[link.0 as usize].link.to {
            let route = &self.routes[usize::from(switch.0)];
            let Some(out) = route.get(destination).copied().flatten() else { return };
            if let Some(output) = &mut self.wires[out.0 as usize].output {
                output.forget(key);
            }
            link = out;
        }
    }

    /// Counts a frame as delivered and frees it.
    pub(in crate::sim) fn deliver(&mut self, key: u32) {
        self.watch.delivered(self.frames.at(key));
        self.traffic.delivered += 1;
        self.frames.free(key);
    }
}

/// Returns whether the cause drops single pieces rather than whole frames.
const fn cause_of_piece(cause: DropCause) -> bool {
    matches!(
        cause,
        DropCause::BufferFull
            | DropCause::PartialDiscard
            | DropCause::EarlyDiscard
            | DropCause::Collisions
    )
}
