//! What handlers of an endpoint are lent beside it.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{Lane, Packet};
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};

use crate::channel::config::{GangConfig, GangCounters};
use crate::channel::frame::{Fields, PmFrame};
use crate::names::{ChannelId, Place};

/// A frame to a rank of the same node, which never sees the wire.
pub(crate) struct Local {
    pub(crate) frame: PmFrame,
    pub(crate) bytes: Vec<u8>,
}

/// What handlers of an endpoint are lent beside it.
pub(crate) struct Desk<'a, 'b> {
    pub(crate) nic: &'a mut Context<'b>,
    pub(crate) config: &'a GangConfig,
    pub(crate) counters: &'a mut GangCounters,
    pub(crate) local: &'a mut VecDeque<Local>,
}

impl Desk<'_, '_> {
    pub(crate) fn complete(&mut self, command: &Command, status: Status, args: [u64; 4]) {
        let completion = Completion {
            status,
            opcode: command.opcode,
            flags: command.flags,
            node: command.node,
            port: command.port,
            cookie: command.cookie,
            length: 0,
            args,
        };
        self.nic.complete(command.region.port, &completion);
    }

    /// Sends a frame without bytes to where its rank is.
    pub(super) fn local_or_send(&mut self, places: &[Place], lane: ChannelId, frame: &PmFrame) {
        let Some(place) = places.get(frame.to.index()) else { return };
        let frame = PmFrame { channel: place.channel, ..*frame };
        if place.node == self.nic.node() {
            self.local.push_back(Local { frame, bytes: Vec::new() });
            return;
        }
        let Fields { flags, sequence, acknowledgement, words } = frame.fields();
        let packet = Packet {
            lane: Lane(lane.0),
            port: PortId(place.channel.0),
            flags,
            sequence,
            acknowledgement,
            words,
            ..Packet::to(place.node)
        };
        // A frame without bytes is always taken.
        let _ = self.nic.send_packet(&packet);
    }
}
