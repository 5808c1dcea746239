//! A handler that panics has no effects, and its extension is quarantined.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness;
use crate::harness::{Effect, Harness, command, memory, silence_panics};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{
    Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId, TransmitEvent,
};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::{FlowId, Message};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::Payload;

const MINE: ExtensionId = FIRST_USER_EXTENSION;
const PORT: PortId = PortId(3);
/// Opcode: requests effects of all kinds.
const ALL: u8 = 1;
/// Opcode: requests effects of all kinds, then panics.
const TRAP: u8 = 2;
/// Opcode: sends a message that the gate holds.
const HELD: u8 = 3;

#[derive(Default)]
struct Probe {
    log: Arc<Mutex<Vec<String>>>,
    refuses: bool,
    traps_at_start: bool,
    steers: bool,
}

impl Probe {
    fn note(&self, what: String) {
        self.log.lock().unwrap().push(what);
    }

    fn ask_for_everything(nic: &mut Context<'_>) {
        nic.send_control(NodeId(2), b"hello").unwrap();
        nic.set_timeout(TimeoutId(1), Service::Exact, Duration::from_micros(5));
        nic.set_timeout(TimeoutId(2), Service::Coarse, Duration::from_micros(5));
        nic.write(memory(PORT, 4), Payload::from(&b"data"[..])).unwrap();
        nic.complete(PORT, &Completion { cookie: 77, ..Completion::default() });
        nic.send(message(false));
    }
}

fn message(controlled: bool) -> Message {
    Message {
        extension: MINE,
        node: NodeId(2),
        flow: FlowId(0),
        port: PORT,
        source: memory(PORT, 10),
        tag: 0,
        controlled,
        first: 0,
        completion: Some((PORT, Completion { cookie: 88, ..Completion::default() })),
    }
}

impl Extension for Probe {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        if self.steers {
            nic.control_gate().unwrap();
        }
        if self.refuses || self.traps_at_start {
            Self::ask_for_everything(nic);
            assert!(!self.traps_at_start, "on purpose");
            return Err(InitError::Refused { extension: nic.extension(), reason: "not today" });
        }
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        self.note(format!("command {}", command.opcode));
        match command.opcode {
            ALL => Self::ask_for_everything(nic),
            HELD => nic.send(message(true)),
            TRAP => {
                Self::ask_for_everything(nic);
                panic!("on purpose");
            }
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, _: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.note(format!("control of {from}: {message:?}"));
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        self.note(format!("data of {from}: {} bytes", frame.payload.len()));
        if frame.payload.to_vec() == b"trap" {
            Self::ask_for_everything(nic);
            panic!("on purpose");
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        self.note(format!("timeout {} at {}", timeout.0, nic.now()));
    }

    fn on_peer(&mut self, _: &mut Context<'_>, event: PeerEvent) {
        self.note(format!("{event:?}"));
    }

    fn on_transmit(&mut self, _: &mut Context<'_>, news: TransmitEvent) {
        self.note(format!("{news:?}"));
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.note("deactivated".into());
        nic.send_control(NodeId(2), b"bye").unwrap();
    }
}

fn harness(probe: Probe) -> Harness {
    silence_panics();
    let mut unit = Unit::default();
    unit.install(MINE, probe).unwrap();
    unit.install(MESSAGES, Messages::new()).unwrap();
    Harness::new(unit)
}

fn statuses(harness: &mut Harness) -> Vec<Status> {
    harness.completions().into_iter().map(|(_, completion)| completion.status).collect()
}

#[test]
fn a_handler_that_returns_has_all_its_effects() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Probe { log: Arc::clone(&log), ..Probe::default() });
    harness.post(PORT, command(MINE, ALL));
    let done = harness.take();
    assert!(done.iter().any(|effect| matches!(effect, Effect::Written(..))), "{done:?}");
    assert_eq!(done.iter().filter(|e| matches!(e, Effect::Sent(_))).count(), 2, "{done:?}");
    assert_eq!(done.iter().filter(|e| matches!(e, Effect::Completed(..))).count(), 2, "{done:?}");
    harness.pass(5_000_000);
    assert_eq!(log.lock().unwrap().iter().filter(|line| line.starts_with("timeout")).count(), 2);
}

#[test]
fn a_handler_that_panics_has_no_effects() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Probe { log: Arc::clone(&log), ..Probe::default() });
    harness.take();
    harness.post(PORT, command(MINE, TRAP));
    // No effect but the completion of the command itself.
    let done = harness.take();
    assert!(
        matches!(
            &done[..],
            [Effect::Completed(PORT, Completion { status: Status::ExtensionDown, cookie: 2, .. })]
        ),
        "{done:?}"
    );
    harness.pass(5_000_000_000);
    assert_eq!(harness.take(), []);
    assert_eq!(*log.lock().unwrap(), ["command 2"]);
    assert_eq!(harness.unit.counters().traps, 1);
}

#[test]
fn a_quarantined_extensions_commands_complete_at_once() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Probe { log: Arc::clone(&log), ..Probe::default() });
    harness.post(PORT, command(MINE, TRAP));
    harness.take();
    harness.post(PORT, command(MINE, ALL));
    harness.post(PORT, command(ExtensionId(99), 1));
    assert_eq!(statuses(&mut harness), [Status::ExtensionDown, Status::Invalid]);
    let header =
        Header { extension: MINE, source: NodeId(2), destination: NodeId(1), ..Header::default() };
    harness.frame(header, b"more");
    assert_eq!(log.lock().unwrap().len(), 1);
    assert_eq!(harness.unit.counters().without_extension, 3);
}

#[test]
fn queued_messages_of_a_failed_extension_end() {
    let mut harness = harness(Probe { steers: true, ..Probe::default() });
    harness.post(PORT, command(MINE, HELD));
    assert_eq!(statuses(&mut harness), []);
    harness.post(PORT, command(MINE, TRAP));
    assert_eq!(statuses(&mut harness), [Status::ExtensionDown, Status::ExtensionDown]);
}

#[test]
fn a_trap_changes_nothing_for_the_neighbours() {
    let neighbour = ExtensionId(MINE.0 + 1);
    let run = |trap: bool| {
        silence_panics();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut unit = Unit::default();
        unit.install(MINE, Probe::default()).unwrap();
        unit.install(neighbour, Probe { log: Arc::clone(&log), ..Probe::default() }).unwrap();
        let mut harness = Harness::new(unit);
        for step in 0..20_u16 {
            let header = Header {
                source: NodeId(2),
                destination: NodeId(1),
                extension: if step % 2 == 0 { MINE } else { neighbour },
                ..Header::default()
            };
            let payload = if trap && step == 6 { b"trap" } else { b"fine" };
            harness.frame(header, payload);
            if step % 5 == 0 {
                harness.post(PORT, command(neighbour, ALL));
            }
            harness.pass(2_000_000);
        }
        let log = log.lock().unwrap().clone();
        (log, harness.take(), harness.unit.counters().traps)
    };
    let (log, effects, traps) = run(false);
    let (with_trap, effects_with_trap, one) = run(true);
    assert_eq!((traps, one), (0, 1));
    assert!(log.len() > 15);
    assert_eq!(log, with_trap);
    assert_eq!(effects, effects_with_trap);
}

#[test]
fn an_extension_that_fails_to_initialise_has_no_effects_and_reports_the_reason() {
    for (refuses, traps_at_start) in [(true, false), (false, true)] {
        let mut harness =
            harness(Probe { refuses, traps_at_start, steers: true, ..Probe::default() });
        harness.pass(1_000_000_000);
        assert_eq!(harness.take(), []);
        let expected = if refuses {
            InitError::Refused { extension: MINE, reason: "not today" }
        } else {
            InitError::Trapped(MINE)
        };
        assert_eq!(harness.unit.failure(), Some(&expected));
        harness.post(PORT, command(MINE, ALL));
        assert_eq!(statuses(&mut harness), [Status::ExtensionDown]);
    }
}

#[test]
fn two_extensions_cannot_have_one_number() {
    let mut unit = Unit::default();
    unit.install(MINE, Probe::default()).unwrap();
    assert_eq!(unit.install(MINE, Probe::default()), Err(InitError::Occupied(MINE)));
}

#[test]
fn a_command_with_another_ports_memory_is_refused() {
    let mut harness = harness(Probe::default());
    let region = memory(PortId(4), 10);
    harness.post(PORT, Command { region, ..command(MINE, ALL) });
    assert_eq!(statuses(&mut harness), [Status::Region]);
}

#[test]
fn a_deactivated_extension_sends_its_last_message_and_refuses_commands() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Probe { log: Arc::clone(&log), steers: true, ..Probe::default() });
    harness.post(PORT, messages::receive(memory(PORT, 10), 5));
    harness.post(PORT, command(MINE, HELD));
    harness.take();
    harness.turn(|unit, hw| unit.deactivate(hw));
    let done = harness.take();
    assert!(done.iter().any(|effect| matches!(effect, Effect::Sent(_))), "{done:?}");
    let ended = |wanted| {
        let is_it = |e: &&Effect| matches!(e, Effect::Completed(PORT, c) if c.status == wanted);
        done.iter().filter(is_it).count()
    };
    assert_eq!((ended(Status::Cancelled), ended(Status::ExtensionDown)), (1, 1), "{done:?}");
    harness.post(PORT, command(MINE, ALL));
    harness.post(PORT, messages::receive(memory(PORT, 10), 5));
    assert_eq!(statuses(&mut harness), [Status::ExtensionDown; 2]);
    assert_eq!(log.lock().unwrap().last().map(String::as_str), Some("deactivated"));
}

#[test]
fn timeouts_are_never_early_and_late_by_no_more_than_their_service_says() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Probe { log: Arc::clone(&log), ..Probe::default() });
    harness.post(PORT, command(MINE, ALL));
    harness.pass(5_000_000);
    // Set at 1 us for 5 us later; the coarse service expires timeouts once a millisecond.
    let exact = harness::at(6_000);
    let coarse = harness::at(1_000_000);
    let log = log.lock().unwrap();
    assert!(log.contains(&format!("timeout 1 at {exact}")), "{log:?}");
    assert!(log.contains(&format!("timeout 2 at {coarse}")), "{log:?}");
}
