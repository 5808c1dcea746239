//! Hop limits: a switch returns the header of a frame whose hop limit has expired.

use super::event_queue::EventQueue;
use super::network::Network;
use crate::drops::DropCause;
use crate::time::{Instant, Serializer};
use crate::topology::{LinkId, SwitchId};

impl Network {
    /// Returns whether the frame's hop limit expires at the switch at the end of `link`. The frame's first piece
    /// decrements the hop limit there.
    pub(super) fn ends_at(&mut self, link: LinkId, key: u32, index: u16) -> bool {
        let frame = self.frames.at(key);
        if index == 0 {
            match frame.header.hop_limit.checked_sub(1) {
                Some(left) => frame.header.hop_limit = left,
                None => frame.ends_at = Some(link),
            }
        }
        frame.ends_at == Some(link)
    }

    /// Drops a piece of a frame whose hop limit has expired at a switch. With the last piece, returns the header to the
    /// sender if all pieces arrived.
    pub(super) fn end(&mut self, queue: &mut EventQueue, now: Instant, switch: SwitchId, key: u32) {
        let frame = self.frames.at(key);
        let is_last = frame.outstanding == 1;
        let is_whole = is_last && frame.lost.is_none_or(|cause| cause == DropCause::HopLimit);
        let (header, origin) = (frame.header, frame.origin);
        self.drop_piece(key, DropCause::HopLimit);
        let back = is_whole.then(|| header.returned(now.as_nanos())).flatten();
        let Some(back) = back else { return };
        let line = Serializer::new(self.uplinks[origin.index()].rate());
        let key = self.frames.allocate(origin, back, line);
        let pieces = self.pieces(0).1 as u16;
        let frame = self.frames.at(key);
        frame.payload.clear();
        (frame.pieces, frame.outstanding) = (pieces, pieces);
        (frame.sent, frame.preemptions) = (now, 0);
        self.watch.sent(frame);
        self.traffic.sent += 1;
        let route = &self.routes[usize::from(switch.0)];
        let output = route.get(back.destination.index()).copied().flatten();
        for index in 0..pieces {
            match output {
                Some(out) => self.enqueue(queue, now, out, key, index, index + 1 == pieces),
                None => self.drop_piece(key, DropCause::NoRoute),
            }
        }
    }
}
