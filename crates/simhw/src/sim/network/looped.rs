//! Frames from a node to itself that stay within their host.

use super::Network;
use crate::frame::Header;
use crate::id::NodeId;
use crate::time::{Instant, Serializer};

impl Network {
    /// Allocates a frame to its own node, which bypasses the line.
    pub(in crate::sim) fn prepare_looped(
        &mut self,
        node: NodeId,
        header: Header,
        now: Instant,
    ) -> u32 {
        let line = Serializer::new(self.uplinks[node.index()].rate());
        let key = self.frames.allocate(node, header, line);
        let frame = self.frames.at(key);
        frame.pieces = 1;
        frame.outstanding = 1;
        frame.looped = true;
        frame.sent = now;
        key
    }

    /// Counts a looped frame as sent.
    pub(in crate::sim) fn launch_looped(&mut self, key: u32) {
        self.traffic.sent += 1;
        self.watch.sent(self.frames.at(key));
    }
}
