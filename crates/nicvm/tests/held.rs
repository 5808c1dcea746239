//! An extension that is withdrawn lists the commands that it holds: each completes, once.

use crate::harness::{Harness, command, memory};
use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::collective::{self, COLLECTIVES, Collectives};
use midplane_nicvm::context::Context;
use midplane_nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane_nicvm::install::{self, INSTALLER, Installer, Policy};
use midplane_nicvm::memory::{self as space, MEMORY, Memory};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::program::{self, PROGRAMS, Programs};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Status};

const OPERATOR: ExtensionId = FIRST_USER_EXTENSION;
const PORT: PortId = PortId(3);
const PEER: NodeId = NodeId(2);
const WITHDRAW: u8 = 1;
const STOP_PORT: u8 = 2;

/// Withdraws the extension of argument 0, or suspends [`PORT`].
struct Operator;

impl Extension for Operator {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            WITHDRAW => nic.withdraw(ExtensionId(command.args[0] as u8)),
            _ => nic.suspend_port(PORT),
        }
    }
}

fn harness(number: ExtensionId, extension: impl Extension) -> Harness {
    let mut unit = Unit::default();
    unit.install(number, extension).unwrap();
    unit.install(OPERATOR, Operator).unwrap();
    Harness::new(unit)
}

/// Posts commands that the extension holds, withdraws it, and checks that each command completes once.
#[track_caller]
fn check(harness: &mut Harness, number: ExtensionId, commands: &[Command]) {
    for command in commands {
        harness.post(PORT, *command);
    }
    assert_eq!(harness.completions(), [], "the extension completed a command at once");
    check_withdrawn(harness, number, commands.iter().map(|command| command.cookie).collect());
}

#[track_caller]
fn check_withdrawn(harness: &mut Harness, number: ExtensionId, mut expected: Vec<u64>) {
    let args = [number.0.into(), 0, 0];
    harness.post(PortId(0), Command { args, ..command(OPERATOR, WITHDRAW) });
    let done = harness.completions();
    assert!(done.iter().all(|(port, one)| (*port, one.status) == (PORT, Status::ExtensionDown)));
    let mut cookies: Vec<u64> = done.iter().map(|(_, completion)| completion.cookie).collect();
    cookies.sort_unstable();
    expected.sort_unstable();
    assert_eq!(cookies, expected);
    harness.turn(|unit, hw| unit.deactivate(hw));
    assert_eq!(harness.completions(), [], "a command completed twice");
}

/// A frame of `bytes` bytes that begins a message of `total` bytes for [`PORT`].
fn begin(harness: &mut Harness, number: ExtensionId, source: u16, (bytes, total): (usize, u64)) {
    let header = Header {
        extension: number,
        source: NodeId(source),
        destination: NodeId(1),
        port: PORT,
        incarnation: Incarnation::FIRST,
        words: [7, total],
        ..Header::default()
    };
    harness.frame(header, &vec![1; bytes]);
}

fn check_buffers(number: ExtensionId, extension: impl Extension) {
    let mut harness = harness(number, extension);
    for cookie in 0..4 {
        let receive = messages::receive(memory(PORT, 100), cookie);
        harness.post(PORT, Command { extension: number, ..receive });
    }
    // One buffer takes a message that is not whole, two take messages that a suspended process has not read.
    begin(&mut harness, number, 2, (10, 30));
    harness.post(PortId(0), command(OPERATOR, STOP_PORT));
    begin(&mut harness, number, 3, (10, 10));
    begin(&mut harness, number, 4, (10, 10));
    check_withdrawn(&mut harness, number, vec![0, 1, 2, 3]);
}

#[test]
fn a_message_takes_the_buffer_of_one_whose_sender_has_died() {
    let mut harness = harness(MESSAGES, Messages::new());
    harness.post(PORT, messages::receive(memory(PORT, 100), 5));
    begin(&mut harness, MESSAGES, 2, (10, 30));
    harness.pass(50_000_000);
    begin(&mut harness, MESSAGES, 4, (10, 10));
    assert_eq!(harness.completions(), [], "the sender may live");
    harness.pass(150_000_000);
    begin(&mut harness, MESSAGES, 3, (10, 10));
    let done = harness.completions();
    let done: Vec<_> = done.iter().map(|(_, one)| (one.node, one.cookie, one.length)).collect();
    assert_eq!(done, [(NodeId(3), 5, 10)]);
    let counters = harness.unit.extension::<Messages>(MESSAGES).unwrap().counters();
    assert_eq!((counters.incomplete, counters.without_buffer), (1, 1));
}

#[test]
fn receive_buffers_complete_when_the_message_service_is_withdrawn() {
    check_buffers(MESSAGES, Messages::new());
}

#[test]
fn receive_buffers_complete_when_coordination_is_withdrawn() {
    let config = CoordinationConfig::star(&[NodeId(1)], &[PEER]);
    check_buffers(COORDINATION, Coordination::new(config.clone()).unwrap());
    let mut harness = harness(COORDINATION, Coordination::new(config).unwrap());
    // Flags and arguments that the extension ignores change nothing.
    let receive = coordination::receive(memory(PORT, 10), 8);
    let commands = [receive, Command { flags: 3, args: [1, 2, 3], cookie: 9, ..receive }];
    check(&mut harness, COORDINATION, &commands);
}

#[test]
fn accesses_complete_when_the_address_space_is_withdrawn() {
    let mut harness = harness(MEMORY, Memory::new());
    let word = Capability {
        node: PEER,
        rights: CapabilityRights::ALL,
        length: 8,
        ..Capability::default()
    };
    let all = Capability { length: 5_000, ..word };
    let commands = [
        space::access(space::READ, &word, memory(PORT, 8), 1),
        space::access(space::READ, &all, memory(PORT, 5_000), 2),
        space::access(space::WRITE, &all, memory(PORT, 5_000), 3),
    ];
    check(&mut harness, MEMORY, &commands);
}

#[test]
fn runs_waits_and_buffers_complete_when_programs_are_withdrawn() {
    let mut harness = harness(PROGRAMS, Programs::new());
    let elsewhere = Capability { node: PEER, ..Capability::default() };
    let commands = [
        program::wait(1),
        program::receive(memory(PORT, 10), 2),
        program::run(&elsewhere, 3),
        program::wait(4),
    ];
    check(&mut harness, PROGRAMS, &commands);
}

#[test]
fn operations_complete_when_the_collectives_are_withdrawn() {
    let group = || Collectives::new(vec![NodeId(1), PEER]);
    let mut one = harness(COLLECTIVES, group());
    check(&mut one, COLLECTIVES, &[collective::barrier(1), collective::barrier(2)]);
    let mut other = harness(COLLECTIVES, group());
    other.post(PORT, collective::hold(0, 2, 1));
    assert_eq!(other.completions().len(), 1);
    check(&mut other, COLLECTIVES, &[collective::start(2)]);
}

#[test]
fn a_change_completes_when_the_installer_is_withdrawn() {
    let loader = |_: &[u8]| Ok(Box::new(Operator) as Box<dyn Extension>);
    let mut harness = harness(INSTALLER, Installer::new(vec![NodeId(1), PEER], loader));
    let number = ExtensionId(OPERATOR.0 + 1);
    let install = install::install(number, Policy::Deactivate, memory(PORT, 10), 5);
    check(&mut harness, INSTALLER, &[install]);
}
