//! A failure detector on one page: NICs exchange heartbeats without their hosts.

use std::time::Duration;

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane::nicvm::timeout::Service;
use midplane::nicvm::transmit::Packet;
use midplane::simhw::frame::Frame;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Status};
use midplane::simhw::time::Instant;

pub(crate) const DETECTOR: ExtensionId = FIRST_USER_EXTENSION;

/// Silence after which a member is suspected, in tenths of a period: two lost heartbeats are tolerated.
const PATIENCE_TENTHS: u32 = 25;

/// State of another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    last_heartbeat: Instant,
    pub(crate) suspected_at: Option<Instant>,
    /// Suspicions of a live node.
    pub(crate) mistakes: u64,
}

impl Known {
    pub(crate) const NEVER: Self =
        Self { last_heartbeat: Instant::ZERO, suspected_at: None, mistakes: 0 };

    /// Records a heartbeat; an earlier suspicion was a mistake.
    pub(crate) fn on_heartbeat(&mut self, now: Instant) {
        self.last_heartbeat = now;
        self.mistakes += u64::from(self.suspected_at.take().is_some());
    }

    /// Suspects the node if it was silent for too long.
    pub(crate) fn check(&mut self, now: Instant, period: Duration) {
        if now > self.last_heartbeat + period * PATIENCE_TENTHS / 10 {
            self.suspected_at.get_or_insert(now);
        }
    }
}

/// Sends a heartbeat every period, and suspects silent members.
#[derive(Debug)]
pub(crate) struct Detector {
    members: Vec<NodeId>,
    period: Duration,
    pub(crate) known: Vec<Known>,
}

impl Detector {
    pub(crate) fn new(members: Vec<NodeId>, period: Duration) -> Self {
        Self { known: vec![Known::NEVER; members.len()], members, period }
    }
}

impl Extension for Detector {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        for known in &mut self.known {
            known.last_heartbeat = nic.now();
        }
        nic.set_timeout(TimeoutId(0), Service::Exact, self.period);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        nic.refuse(&command, Status::Invalid);
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, _: &Frame<'_>) {
        if let Some(at) = self.members.iter().position(|member| *member == from) {
            self.known[at].on_heartbeat(nic.now());
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, _: TimeoutId) {
        let own = nic.node();
        for (at, member) in self.members.iter().enumerate().filter(|(_, m)| **m != own) {
            // A heartbeat that could not be sent counts as a lost one.
            let _ = nic.send_packet(&Packet::to(*member));
            self.known[at].check(nic.now(), self.period);
        }
        nic.set_timeout(TimeoutId(0), Service::Exact, self.period);
    }
}
