//! Arrivals for suspended ports, which the daemon learns of one after the other.

use std::collections::BTreeMap;

use midplane_nicvm::context::Context;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};

/// The watched ports, and those that data has arrived for. Each port is in one of both at most.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Tags of ports whose next arrival is to be reported.
    watched: BTreeMap<PortId, u64>,
    /// Tags of ports whose arrival is not reported yet.
    arrived: BTreeMap<PortId, u64>,
    /// The command that completes with the next arrival.
    waiting: Option<Command>,
}

impl Arrivals {
    /// Reports the next arrival for a port with this tag.
    pub(super) fn watch(&mut self, port: PortId, tag: u64) {
        self.arrived.remove(&port);
        self.watched.insert(port, tag);
    }

    /// Takes the command that completes with the next arrival. Returns false if another one waits.
    pub(super) fn wait(&mut self, nic: &mut Context<'_>, command: Command) -> bool {
        let is_free = self.waiting.is_none();
        if is_free {
            self.waiting = Some(command);
            self.report(nic);
        }
        is_free
    }

    pub(super) fn on_arrival(&mut self, nic: &mut Context<'_>, port: PortId) {
        if let Some(tag) = self.watched.remove(&port) {
            self.arrived.insert(port, tag);
            self.report(nic);
        }
    }

    /// Forgets a port that is suspended no longer.
    pub(super) fn forget(&mut self, port: PortId) {
        self.watched.remove(&port);
        self.arrived.remove(&port);
    }

    /// Forgets a closed port, and its command if it has one here.
    pub(super) fn on_port_closed(&mut self, port: PortId) {
        self.forget(port);
        self.waiting.take_if(|command| command.region.port == port);
    }

    pub(super) fn take_waiting(&mut self) -> Option<Command> {
        self.waiting.take()
    }

    /// Completes the command that waits, if there is an arrival.
    fn report(&mut self, nic: &mut Context<'_>) {
        if let Some(command) = &self.waiting
            && let Some((_, tag)) = self.arrived.pop_first()
        {
            let done = Completion::of(command, Status::Done);
            nic.complete(command.region.port, &Completion { args: [tag, 0, 0, 0], ..done });
            self.waiting = None;
        }
    }
}
