//! Heaps that a unit provides: each version has its own, bounded, and its bytes are freed however the version ends.

use crate::harness::{Harness, command, silence_panics};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane_nicvm::heap::{DEFAULT_BYTES, VECTOR_BYTES, Vector};
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::{ExtensionId, PortId};
use midplane_simhw::port::{Command, Completion};

const MINE: ExtensionId = FIRST_USER_EXTENSION;
const NEIGHBOUR: ExtensionId = ExtensionId(MINE.0 + 1);
const PORT: PortId = PortId(0);
/// Opcode: allocates argument 0 bytes. Completes with the heap's free bytes, and with length 1 if the heap refused.
const KEEP: u8 = 1;
const REPLACE: u8 = 2;
const TRAP: u8 = 3;

#[derive(Default)]
struct Keeper(Vec<Vector<u8>>);

impl Extension for Keeper {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let mut done = Completion { cookie: command.cookie, ..Completion::default() };
        match command.opcode {
            KEEP => match nic.heap().vector(command.args[0] as usize) {
                Ok(vector) => self.0.push(vector),
                Err(_) => done.length = 1,
            },
            REPLACE => {
                let epoch = nic.epoch().next();
                nic.replace(nic.extension(), epoch, Box::new(Self::default()));
            }
            _ => panic!("on purpose"),
        }
        done.args[0] = (nic.heap().limit() - nic.heap().used()) as u64;
        nic.complete(command.region.port, &done);
    }
}

fn harness() -> Harness {
    silence_panics();
    let mut unit = Unit::default();
    unit.set_heap(MINE, 1_000);
    unit.install(MINE, Keeper::default()).unwrap();
    unit.install(NEIGHBOUR, Keeper::default()).unwrap();
    Harness::new(unit)
}

/// Allocates bytes. Returns whether the heap had room, and its free bytes.
fn keep(harness: &mut Harness, of: ExtensionId, bytes: u64) -> (bool, u64) {
    harness.post(PORT, Command { args: [bytes, 0, 0], ..command(of, KEEP) });
    let done = harness.completions()[0].1;
    (done.length == 0, done.args[0])
}

#[test]
fn each_extension_has_its_own_heap() {
    let mut harness = harness();
    let each = VECTOR_BYTES as u64;
    assert_eq!(keep(&mut harness, MINE, 900), (true, 100 - each));
    assert_eq!(keep(&mut harness, MINE, 100), (false, 100 - each));
    assert_eq!(keep(&mut harness, NEIGHBOUR, 900), (true, DEFAULT_BYTES as u64 - 900 - each));
    assert_eq!(keep(&mut harness, MINE, u64::MAX), (false, 100 - each));
    assert_eq!(harness.unit.heap(MINE).unwrap().most(), 900 + VECTOR_BYTES);
}

#[test]
fn each_version_has_its_own_heap_and_the_former_one_is_freed() {
    let mut harness = harness();
    keep(&mut harness, MINE, 900);
    let before = harness.unit.heap(MINE).unwrap().clone();
    harness.post(PORT, command(MINE, REPLACE));
    harness.take();
    assert!(keep(&mut harness, MINE, 900).0, "the new one has all of its bytes");
    assert_eq!(before.used(), 900 + VECTOR_BYTES, "the one before still hears");
    harness.pass(2_000_000_000);
    assert_eq!(before.used(), 0);
}

#[test]
fn a_failed_extension_keeps_its_memory_for_inspection() {
    let mut harness = harness();
    keep(&mut harness, MINE, 500);
    let before = harness.unit.heap(MINE).unwrap().clone();
    harness.post(PORT, command(MINE, TRAP));
    assert_eq!(harness.unit.counters().traps, 1);
    assert_eq!(before.used(), 500 + VECTOR_BYTES, "kept, to be looked at");
    drop(harness);
    assert_eq!(before.used(), 0);
}
