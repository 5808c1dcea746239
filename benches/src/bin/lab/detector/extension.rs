//! A failure detector on one page: NICs exchange heartbeats without their hosts.

use std::time::Duration;

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane::nicvm::timeout::Service;
use midplane::nicvm::transmit::Packet;
use midplane::simhw::frame::Frame;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::time::Instant;

pub(crate) const DETECTOR: ExtensionId = FIRST_USER_EXTENSION;

/// Silence after which a member is suspected, in tenths of a period: two lost heartbeats are tolerated.
const PATIENCE_TENTHS: u32 = 25;

/// State of another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) heard_at: Instant,
    pub(crate) suspected_at: Option<Instant>,
    /// Suspicions of a live node.
    pub(crate) mistakes: u64,
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
        let never = Known { heard_at: Instant::ZERO, suspected_at: None, mistakes: 0 };
        Self { known: vec![never; members.len()], members, period }
    }
}

impl Extension for Detector {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        for known in &mut self.known {
            known.heard_at = nic.now();
        }
        nic.set_timeout(TimeoutId(0), Service::Exact, self.period);
        Ok(())
    }

    /// Completes with the suspected members: bit i for member i.
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let suspected = self.known.iter().enumerate().filter(|(_, k)| k.suspected_at.is_some());
        let bits = suspected.fold(0_u64, |bits, (at, _)| bits | 1 << (at % 64));
        let (cookie, args) = (command.cookie, [bits, 0, 0, 0]);
        nic.complete(command.region.port, &Completion { cookie, args, ..Completion::default() });
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, _: &Frame<'_>) {
        if let Some(at) = self.members.iter().position(|member| *member == from) {
            let known = &mut self.known[at];
            known.heard_at = nic.now();
            known.mistakes += u64::from(known.suspected_at.take().is_some());
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, _: TimeoutId) {
        let own = nic.node();
        for (at, member) in self.members.iter().enumerate().filter(|(_, m)| **m != own) {
            // A heartbeat that could not be sent counts as a lost one.
            let _ = nic.send_packet(&Packet::to(*member));
            let known = &mut self.known[at];
            if nic.now() > known.heard_at + self.period * PATIENCE_TENTHS / 10 {
                known.suspected_at.get_or_insert_with(|| nic.now());
            }
        }
        nic.set_timeout(TimeoutId(0), Service::Exact, self.period);
    }

    fn deactivate(&mut self, _: &mut Context<'_>) {}
}
