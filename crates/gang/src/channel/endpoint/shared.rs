//! State of the extension that handlers of an endpoint use.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{FlowId, Packet};
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};

use crate::channel::config::{GangConfig, GangCounters};
use crate::channel::frame::{Fields, PmFrame};
use crate::names::{ChannelAddress, ChannelId};

/// A frame to a rank of the same node, which does not use the link.
pub(crate) struct LocalFrame {
    pub(crate) frame: PmFrame,
    pub(crate) bytes: Vec<u8>,
}

/// State of the extension that handlers of an endpoint use.
pub(crate) struct Shared<'a, 'b> {
    pub(crate) nic: &'a mut Context<'b>,
    pub(crate) config: &'a GangConfig,
    pub(crate) counters: &'a mut GangCounters,
    pub(crate) local: &'a mut VecDeque<LocalFrame>,
}

impl Shared<'_, '_> {
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

    /// Sends a frame without payload to the node of its rank.
    pub(super) fn local_or_send(
        &mut self,
        places: &[ChannelAddress],
        lane: ChannelId,
        frame: &PmFrame,
    ) {
        let Some(place) = places.get(frame.to.index()) else { return };
        let frame = PmFrame { channel: place.channel, ..*frame };
        if place.node == self.nic.node() {
            self.local.push_back(LocalFrame { frame, bytes: Vec::new() });
            return;
        }
        let Fields { flags, sequence, acknowledgement, words } = frame.fields();
        let packet = Packet {
            flow: FlowId(lane.0),
            port: PortId(place.channel.0),
            flags,
            sequence,
            acknowledgement,
            words,
            ..Packet::to(place.node)
        };
        // A frame without payload is never refused.
        let _ = self.nic.send_packet(&packet);
    }
}
