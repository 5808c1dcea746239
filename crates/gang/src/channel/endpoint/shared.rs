//! State of the extension that handlers of an endpoint use.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_simhw::port::{Command, Completion, Status};

use crate::channel::config::{GangConfig, GangCounters};
use crate::channel::frame::PmFrame;

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
        let completion = Completion { args, ..Completion::of(command, status) };
        self.nic.complete(command.region.port, &completion);
    }
}
