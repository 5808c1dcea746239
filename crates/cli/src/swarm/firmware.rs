//! Firmware of every NIC: the services of nicvm, and two extensions that test them.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane::nicvm::collective::{COLLECTIVES, Collectives};
use midplane::nicvm::context::Context;
use midplane::nicvm::coordination::{COORDINATION, Coordination};
use midplane::nicvm::extension::{
    Epoch, Extension, InitError, PeerEvent, TimeoutId, TransmitEvent,
};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::timeout::Service;
use midplane::nicvm::transmit::Packet;
use midplane::nicvm::unit::Unit;
use midplane::simhw::frame::Frame;
use midplane::simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane::simhw::port::{Command, Completion, Status};
use midplane::simhw::rng::Rng;
use midplane::simhw::time::Instant;

use super::oracle::{ControlMessage, Shared};
use super::plan::Plan;

/// Extension that sends control messages, and reports received ones to the oracle.
pub(crate) const TALK: ExtensionId = ExtensionId(16);
/// Extension that fails: its handler panics, or it refuses to start.
pub(crate) const BOMB: ExtensionId = ExtensionId(17);
/// Opcodes of `TALK`: to send control messages, to do nothing, and to leave the links of coordinated senders.
pub(crate) const SEND: u8 = 0;
pub(crate) const NOTHING: u8 = 1;
pub(crate) const LEAVE: u8 = 2;
/// Most timeouts that are set at once.
const TIMEOUTS: u32 = 8;

/// Creates the firmware of one incarnation of a node.
pub(crate) fn unit(plan: &Plan, oracle: &Shared, node: NodeId, incarnation: Incarnation) -> Unit {
    let mut rng = Rng::new(plan.seed, &format!("firmware {node} {}", incarnation.0));
    let mut unit = Unit::new(plan.control);
    let refuses = rng.chance(0.2);
    let (oracle, receivers) = (oracle.clone(), plan.receivers.clone());
    let talk = Talk { oracle, receivers, epochs: BTreeMap::new(), due: BTreeMap::new(), rng };
    let installed = "no two have one number";
    unit.install(MESSAGES, Messages::new()).expect(installed);
    if let Some(config) = &plan.coordination {
        let coordination = Coordination::new(config.clone()).expect("a star fits together");
        unit.install(COORDINATION, coordination).expect(installed);
    }
    unit.install(COLLECTIVES, Collectives::new(plan.nodes().collect())).expect(installed);
    unit.install(TALK, talk).expect(installed);
    unit.install(BOMB, Bomb { refuses }).expect(installed);
    unit
}

#[derive(Debug)]
pub(crate) struct Talk {
    oracle: Shared,
    /// Destinations of coordinated messages.
    receivers: Vec<NodeId>,
    /// For each peer: the number of its losses of messages in flight, and of messages sent since the last one.
    epochs: BTreeMap<NodeId, (u32, u32)>,
    /// Times at which timeouts are due.
    due: BTreeMap<u32, Instant>,
    rng: Rng,
}

impl Talk {
    /// Returns the due time of a timeout that has not expired, if one was due before `now`.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Instant> {
        self.due.values().copied().filter(|due| *due < now).min()
    }

    fn send(&mut self, nic: &mut Context<'_>, to: NodeId) -> Status {
        let (epoch, number) = *self.epochs.entry(to).or_default();
        let message = ControlMessage { incarnation: nic.incarnation().0, epoch, number };
        if nic.send_control(to, &message.emit()).is_err() {
            return Status::Refused;
        }
        self.epochs.insert(to, (epoch, number + 1));
        self.oracle.lock().control_sent += 1;
        Status::Done
    }

    /// Sends the command's number of control messages and a packet, and sets a timeout.
    fn send_all(&mut self, nic: &mut Context<'_>, command: &Command) -> Status {
        let mut status = self.send(nic, command.node);
        for _ in 1..command.args[0] {
            status = self.send(nic, command.node);
        }
        // A packet for the known incarnation of the node: another one must not get it.
        if let Some(incarnation) = nic.peer_incarnation(command.node) {
            let _ = nic.send_packet(&Packet { incarnation, ..Packet::to(command.node) });
        }
        self.set_timeout(nic);
        status
    }

    /// Sets a random timeout, which replaces the former one of its number.
    fn set_timeout(&mut self, nic: &mut Context<'_>) {
        let which = self.rng.below(u64::from(TIMEOUTS)) as u32;
        let most = if self.rng.chance(0.1) { 600_000_000 } else { 5_000_000 };
        let after = Duration::from_nanos(self.rng.below(most));
        let service = if self.rng.chance(0.5) { Service::Exact } else { Service::Coarse };
        nic.set_timeout(TimeoutId(which), service, after);
        self.due.insert(which, nic.now() + after);
    }
}

impl Extension for Talk {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let status = match command.opcode {
            SEND => self.send_all(nic, &command),
            LEAVE => {
                let receivers = self.receivers.clone();
                nic.replace(COORDINATION, Epoch::FIRST.next(), Box::new(Departed { receivers }));
                Status::Done
            }
            _ => Status::Done,
        };
        let completion = Completion { status, cookie: command.cookie, ..Completion::default() };
        nic.complete(command.region.port, &completion);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.oracle.lock().on_control(from, nic.node(), message);
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let (meant, own) = (frame.header.destination_incarnation, nic.incarnation());
        if meant != own {
            let what =
                format!("node {}: a packet from {from} for {meant:?}, not {own:?}", nic.node());
            self.oracle.lock().complain(what);
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        let due = self.due.remove(&timeout.0);
        if due.is_none_or(|due| nic.now() < due) {
            let what = format!("node {}: a timeout at {} was due {due:?}", nic.node(), nic.now());
            self.oracle.lock().complain(what);
        }
    }

    fn on_peer(&mut self, _: &mut Context<'_>, event: PeerEvent) {
        if let PeerEvent::Restarted(node, _) | PeerEvent::Down(node) = event {
            self.oracle.lock().losses += 1;
            let (epoch, _) = self.epochs.get(&node).copied().unwrap_or_default();
            self.epochs.insert(node, (epoch + 1, 0));
        }
    }
}

/// Successor of the coordination at a node that takes part in it no more: the former version leaves its links.
struct Departed {
    receivers: Vec<NodeId>,
}

impl Departed {
    fn cancel(&self, nic: &mut Context<'_>) {
        for receiver in &self.receivers {
            nic.cancel_sends(*receiver, Status::ExtensionDown);
        }
    }
}

impl Extension for Departed {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.cancel(nic);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        nic.refuse(&command, Status::ExtensionDown);
    }

    fn on_transmit(&mut self, nic: &mut Context<'_>, _: TransmitEvent) {
        self.cancel(nic);
    }
}

struct Bomb {
    refuses: bool,
}

impl Extension for Bomb {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        let (extension, reason) = (nic.extension(), "it fails on purpose");
        if self.refuses { Err(InitError::Refused { extension, reason }) } else { Ok(()) }
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        // A handler that panics has no effects: neither of these may happen.
        nic.complete(command.region.port, &Completion::default());
        let _ = nic.send_control(NodeId(u16::from(nic.node().0 == 0)), &[0; 12]);
        panic!("it fails on purpose");
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {
        unreachable!("a handler that panics sends nothing");
    }
}
