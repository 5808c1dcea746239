//! Heaps that a unit lends: each version's own, bounded, and given back however it ends.

use crate::desk::{Desk, command, hush};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane_nicvm::heap::{DEFAULT_BYTES, VECTOR_BYTES, Vector};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion};

const MINE: ExtensionId = FIRST_USER_EXTENSION;
const NEIGHBOUR: ExtensionId = ExtensionId(MINE.0 + 1);
const PORT: PortId = PortId(0);
/// Keeps so many bytes; completes with what its heap has left, or with length 1 if they are refused.
const KEEP: u8 = 1;
const REPLACE: u8 = 2;
const TRAP: u8 = 3;

#[derive(Default)]
struct Keeper(Vec<Vector<u8>>);

impl Extension for Keeper {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

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

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}
    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}
    fn deactivate(&mut self, _: &mut Context<'_>) {}
}

fn desk() -> Desk {
    hush();
    let mut unit = Unit::default();
    unit.set_heap(MINE, 1_000);
    unit.install(MINE, Keeper::default()).unwrap();
    unit.install(NEIGHBOUR, Keeper::default()).unwrap();
    Desk::new(unit)
}

/// Whether the bytes were kept, and what is left.
fn keep(desk: &mut Desk, of: ExtensionId, bytes: u64) -> (bool, u64) {
    desk.post(PORT, Command { args: [bytes, 0, 0], ..command(of, KEEP) });
    let done = desk.completions()[0].1;
    (done.length == 0, done.args[0])
}

#[test]
fn what_one_extension_takes_is_nobody_elses() {
    let mut desk = desk();
    let each = VECTOR_BYTES as u64;
    assert_eq!(keep(&mut desk, MINE, 900), (true, 100 - each));
    assert_eq!(keep(&mut desk, MINE, 100), (false, 100 - each));
    assert_eq!(keep(&mut desk, NEIGHBOUR, 900), (true, DEFAULT_BYTES as u64 - 900 - each));
    assert_eq!(keep(&mut desk, MINE, u64::MAX), (false, 100 - each));
    assert_eq!(desk.unit.heap(MINE).unwrap().most(), 900 + VECTOR_BYTES);
}

#[test]
fn each_version_has_a_heap_of_its_own_and_the_one_before_gives_its_own_back() {
    let mut desk = desk();
    keep(&mut desk, MINE, 900);
    let before = desk.unit.heap(MINE).unwrap().clone();
    desk.post(PORT, command(MINE, REPLACE));
    desk.take();
    assert!(keep(&mut desk, MINE, 900).0, "the new one has all of its bytes");
    assert_eq!(before.used(), 900 + VECTOR_BYTES, "the one before still hears");
    desk.pass(2_000_000_000);
    assert_eq!(before.used(), 0);
}

#[test]
fn one_that_has_failed_keeps_its_memory_to_be_looked_at() {
    let mut desk = desk();
    keep(&mut desk, MINE, 500);
    let before = desk.unit.heap(MINE).unwrap().clone();
    desk.post(PORT, command(MINE, TRAP));
    assert_eq!(desk.unit.counters().traps, 1);
    assert_eq!(before.used(), 500 + VECTOR_BYTES, "kept, to be looked at");
    drop(desk);
    assert_eq!(before.used(), 0);
}
