//! One version of an extension replaces another while the unit runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Effect, Harness, Peer, command, silence_panics};
use crate::waiting::HoldAllExtension;
use midplane_nicvm::context::Context;
use midplane_nicvm::control::{Address, Event};
use midplane_nicvm::extension::{
    Epoch, Extension, FIRST_USER_EXTENSION, ImportError, InitError, TimeoutId, UnitEvent,
};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::{Packet, Sent};
use midplane_nicvm::unit::{DRAIN, Unit};
use midplane_simhw::frame::Kind;
use midplane_simhw::hardware::Firmware;
use midplane_simhw::id::{DmaId, ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};

const MINE: ExtensionId = FIRST_USER_EXTENSION;
const CHANGER: ExtensionId = ExtensionId(17);
const HOLDER: ExtensionId = ExtensionId(18);
const PORT: PortId = PortId(0);
const PEER: NodeId = NodeId(2);
const HOLD: u8 = 1;
const TO_ITSELF: u8 = 2;
const TRAP: u8 = 3;
const FORWARD: u8 = 4;
/// Sends a packet with a token, and asks for the end of writes.
const SEND: u8 = 5;

type Log = Arc<Mutex<Vec<String>>>;

/// Logs its events, and holds commands until it is deactivated.
struct Version {
    name: &'static str,
    log: Log,
    count: u8,
    held: Vec<Command>,
    refuses_state: bool,
    traps: bool,
}

impl Version {
    fn new(name: &'static str, log: &Log) -> Self {
        let log = Arc::clone(log);
        Self { name, log, count: 0, held: Vec::new(), refuses_state: false, traps: false }
    }

    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{} {what}", self.name));
    }
}

impl Extension for Version {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        nic.set_timeout(TimeoutId(0), Service::Exact, Duration::from_millis(1));
        assert!(!self.traps, "on purpose");
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        self.count += 1;
        match command.opcode {
            HOLD => self.held.push(command),
            TO_ITSELF => nic.send_control(nic.node(), b"own").unwrap(),
            TRAP => panic!("on purpose"),
            SEND => {
                nic.send_packet(&Packet { token: Some(7), ..Packet::to(PEER) }).unwrap();
                nic.fence(8);
            }
            _ => nic.complete(command.region.port, &Completion::default()),
        }
        self.note("command");
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.note(&format!("{} of {from}", String::from_utf8_lossy(message)));
        if from != nic.node() {
            nic.send_control(from, b"answer").unwrap();
        }
        // Only the version that runs may do this.
        nic.set_timeout(TimeoutId(1), Service::Exact, Duration::from_millis(1));
    }

    fn on_timeout(&mut self, _: &mut Context<'_>, timeout: TimeoutId) {
        self.note(&format!("timeout {}", timeout.0));
    }

    fn on_admission(&mut self, _: &mut Context<'_>) {
        self.note("admission");
    }

    fn on_sent(&mut self, _: &mut Context<'_>, sent: Sent) {
        self.note(&format!("sent {}", sent.token));
    }

    fn on_written(&mut self, _: &mut Context<'_>, token: u64) {
        self.note(&format!("wrote {token}"));
    }

    fn export(&mut self) -> Option<Vec<u8>> {
        Some(vec![self.count])
    }

    fn import(&mut self, state: &[u8]) -> Result<(), ImportError> {
        if self.refuses_state {
            return Err(ImportError("not mine"));
        }
        self.count = state[0];
        self.note(&format!("took {}", self.count));
        Ok(())
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.held.drain(..) {
            nic.refuse(&command, Status::Cancelled);
        }
        self.note("deactivated");
    }
}

/// Installs the next version at each command, and logs the outcome.
struct Changer {
    next: Vec<(Epoch, Version)>,
    log: Log,
}

impl Extension for Changer {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        if command.opcode == FORWARD {
            nic.forward(Command { extension: MINE, opcode: HOLD + 10, ..command });
            return;
        }
        let (epoch, version) = self.next.remove(0);
        nic.replace(MINE, epoch, Box::new(version));
    }

    fn on_unit(&mut self, _: &mut Context<'_>, event: &UnitEvent) {
        self.log.lock().unwrap().push(format!("{event:?}"));
    }
}

/// A unit, its log, and a peer that sends control messages to it.
struct Stage {
    harness: Harness,
    log: Log,
    peer: Peer,
}

impl Stage {
    fn new(next: impl FnOnce(&Log) -> Vec<(Epoch, Version)>) -> Self {
        silence_panics();
        let log = Log::default();
        let mut unit = Unit::default();
        unit.install(MINE, Version::new("one", &log)).unwrap();
        unit.install(CHANGER, Changer { next: next(&log), log: Arc::clone(&log) }).unwrap();
        let peer = Peer::new(PEER);
        let mut stage = Self { harness: Harness::new(unit), log, peer };
        stage.receive("hello", 0);
        stage.take();
        stage
    }

    fn change(&mut self) {
        self.harness.post(PORT, command(CHANGER, 1));
    }

    /// Makes version `epoch` of the peer's extension send a message.
    fn receive(&mut self, what: &str, epoch: u16) {
        let to = Address { extension: MINE, epoch: Epoch(epoch) };
        self.peer.send(&mut self.harness, to, what.as_bytes());
    }

    /// Returns the versions that sent the answers.
    fn answers(&mut self) -> Vec<u16> {
        let mut epochs = Vec::new();
        while let Some(event) = self.peer.control.poll_event() {
            if let Event::Message { to, .. } = event {
                epochs.push(to.epoch.0);
            }
        }
        epochs
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[test]
fn state_passes_to_the_next_version_and_each_handles_its_own_messages() {
    let mut stage = Stage::new(|log| vec![(Epoch(1), Version::new("two", log))]);
    assert_eq!(stage.answers(), [0]);
    stage.harness.post(PORT, command(MINE, HOLD));
    stage.change();
    assert_eq!(stage.take(), ["one command", "two took 1", "Replaced(ExtensionId(16), Epoch(1))"]);
    assert_eq!(stage.harness.unit.epoch(MINE), Some(Epoch(1)));
    stage.receive("late", 0);
    stage.receive("new", 1);
    assert_eq!(stage.take(), ["one late of 2", "two new of 2"]);
    assert_eq!(stage.answers(), [0, 1]);
    stage.receive("long gone", u16::MAX);
    assert_eq!(stage.take(), [] as [&str; 0]);
    assert_eq!(stage.harness.unit.counters().other_versions, 1);
    // Commands that the first version still holds complete when it ends.
    stage.harness.take();
    stage.harness.pass(2 * DRAIN.as_nanos() as u64);
    assert_eq!(stage.take(), ["two timeout 0", "two timeout 1", "one deactivated"]);
    let statuses: Vec<_> = stage.harness.completions().into_iter().map(|(_, c)| c.status).collect();
    assert_eq!(statuses, [Status::Cancelled]);
}

#[test]
fn a_version_receives_no_reports_with_the_tokens_of_the_one_before() {
    let mut stage = Stage::new(|log| vec![(Epoch(1), Version::new("two", log))]);
    stage.harness.hw.fence = Some(DmaId(3));
    for replaces in [true, false] {
        stage.harness.hw.busy_until = stage.harness.hw.now.plus_nanos(100);
        stage.harness.post(PORT, command(MINE, SEND));
        if replaces {
            stage.change();
        }
        stage.take();
        stage.harness.pass(200);
        stage.harness.turn(|unit, hw| unit.on_dma_done(hw, DmaId(3)));
        let reports = if replaces { vec![] } else { vec!["two sent 7", "two wrote 8"] };
        assert_eq!(stage.take(), reports);
    }
}

/// Replaces the extension that holds all frames.
struct Upgrader;

impl Extension for Upgrader {
    fn on_command(&mut self, nic: &mut Context<'_>, _: Command) {
        nic.replace(HOLDER, Epoch(1), Box::new(HoldAllExtension));
    }
}

#[test]
fn a_version_with_an_admission_replaces_the_one_before_and_its_admission() {
    let mut unit = Unit::default();
    unit.install(HOLDER, HoldAllExtension).unwrap();
    unit.install(CHANGER, Upgrader).unwrap();
    let log = Log::default();
    unit.install(MINE, Version::new("one", &log)).unwrap();
    let mut harness = Harness::new(unit);
    let frames = |harness: &mut Harness| {
        let is_frame = |e: &&Effect| matches!(e, Effect::Sent(header) if header.kind == Kind::Data);
        harness.take().iter().filter(is_frame).count()
    };
    // This opens the first version's admission.
    harness.post(PORT, command(HOLDER, 1));
    harness.post(PORT, command(MINE, SEND));
    assert_eq!(frames(&mut harness), 1);
    log.lock().unwrap().clear();
    harness.post(PORT, command(CHANGER, 1));
    assert_eq!(*log.lock().unwrap(), ["one admission"]);
    assert_eq!(harness.unit.epoch(HOLDER), Some(Epoch(1)));
    harness.post(PORT, command(MINE, SEND));
    assert_eq!(frames(&mut harness), 0);
    harness.post(PORT, command(HOLDER, 1));
    assert_eq!(frames(&mut harness), 1);
}

#[test]
fn early_messages_wait_for_their_version() {
    let mut stage = Stage::new(|log| vec![(Epoch(1), Version::new("two", log))]);
    stage.receive("first", 1);
    stage.receive("second", 1);
    stage.receive("never", 2);
    assert_eq!(stage.take(), [] as [&str; 0]);
    stage.change();
    let after = ["two took 0", "two first of 2", "two second of 2"];
    assert_eq!(stage.take()[..3], after);
}

#[test]
fn a_version_that_does_not_start_changes_nothing() {
    let mut stage = Stage::new(|log| {
        let refuses = Version { refuses_state: true, ..Version::new("two", log) };
        let traps = Version { traps: true, ..Version::new("three", log) };
        vec![(Epoch(1), refuses), (Epoch(1), traps)]
    });
    stage.change();
    stage.change();
    let events = stage.take();
    assert!(events.iter().all(|event| event.starts_with("NotReplaced")), "{events:?}");
    assert_eq!(events.len(), 2);
    assert_eq!(stage.harness.unit.epoch(MINE), Some(Epoch(0)));
    stage.harness.pass(10_000_000);
    assert_eq!(stage.take(), ["one timeout 0", "one timeout 1"]);
}

#[test]
fn a_version_that_failed_is_replaced_without_its_state() {
    let mut stage = Stage::new(|log| vec![(Epoch(1), Version::new("two", log))]);
    stage.harness.post(PORT, command(MINE, TRAP));
    assert_eq!(stage.take(), ["Trapped(ExtensionId(16), Epoch(0))"]);
    assert_eq!(stage.harness.unit.epoch(MINE), None);
    stage.change();
    assert_eq!(stage.take(), ["Replaced(ExtensionId(16), Epoch(1))"]);
    stage.harness.post(PORT, command(MINE, HOLD));
    assert_eq!(stage.take(), ["two command"]);
    let counters = stage.harness.unit.extension_counters(MINE).unwrap();
    assert_eq!((counters.commands, counters.traps), (2, 1));
}

#[test]
fn a_unit_handles_its_own_messages_and_forwards_commands_between_extensions() {
    let mut stage = Stage::new(|_| Vec::new());
    stage.harness.post(PORT, command(MINE, TO_ITSELF));
    assert_eq!(stage.take(), ["one command", "one own of 1"]);
    stage.harness.take();
    stage.harness.post(PORT, command(CHANGER, FORWARD));
    assert_eq!(stage.take(), ["one command"]);
    assert_eq!(stage.harness.completions().len(), 1);
}
