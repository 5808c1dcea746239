//! Modules as extensions: their events, their rights, and their limits.

use std::sync::Arc;

use crate::harness::{Effect, Harness, Peer, command, memory};
use midplane_nicvm::extension::{Extension as _, FIRST_USER_EXTENSION, ImportError};
use midplane_nicvm::sandbox::{Code, Engine, Limits, Sandbox};
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;

const MINE: ExtensionId = FIRST_USER_EXTENSION;
const PORT: PortId = PortId(0);
const PEER: NodeId = NodeId(2);
const COUNTER: &str = include_str!("modules/counter.wat");

fn start(engine: Engine, text: &str, limits: Limits) -> Sandbox {
    Sandbox::new(&Code::new(engine, text.as_bytes()).unwrap(), limits).unwrap()
}

fn harness(sandbox: Sandbox) -> Harness {
    let mut unit = Unit::default();
    unit.install(MINE, sandbox).unwrap();
    Harness::new(unit)
}

/// Returns a module with these handlers, and all imports that they need.
fn module(body: &str) -> String {
    format!(
        r#"(module
          (import "nic" "complete" (func $complete (param i32 i32 i64 i64 i64) (result i32)))
          (import "nic" "write" (func $write (param i32 i32 i32 i32) (result i32)))
          (import "nic" "now" (func $now (result i64)))
          (import "nic" "node" (func $node (result i32)))
          (import "nic" "random" (func $random (result i64)))
          (memory (export "memory") 1)
          (global (export "nicvm") i32 (i32.const 1))
          (global (export "mailbox") i32 (i32.const 0))
          {body})"#
    )
}

#[test]
fn a_module_sees_its_commands_and_messages_and_answers() {
    for engine in Engine::ALL {
        let mut harness = harness(start(engine, COUNTER, Limits::default()));
        let mut peer = Peer::new(PEER);
        peer.send(&mut harness, MINE.into(), &40_u64.to_le_bytes());
        let args = [0xDEAD_BEEF, 0, 0];
        harness.post(PORT, Command { node: PEER, args, cookie: 99, ..command(MINE, 1) });
        let effects = harness.take();
        let expected = Completion {
            opcode: 1,
            node: PEER,
            cookie: 99,
            length: 41,
            args: [0xDEAD_BEEF, 99, 0, 0],
            ..Completion::default()
        };
        assert!(effects.contains(&Effect::Completed(PORT, expected)), "{effects:?}");
        assert!(
            effects
                .iter()
                .any(|effect| matches!(effect, Effect::Sent(header) if header.length == 8))
        );
    }
}

#[test]
fn state_passes_between_versions_on_different_engines() {
    for (from, to) in [(0, 1), (1, 0)] {
        let mut harness = harness(start(Engine::ALL[from], COUNTER, Limits::default()));
        harness.post(PORT, Command { node: PEER, ..command(MINE, 1) });
        let mut old = start(Engine::ALL[from], COUNTER, Limits::default());
        old.import(&7_u64.to_le_bytes()).unwrap();
        let state = old.export().unwrap();
        assert_eq!(state, 7_u64.to_le_bytes());
        let mut new = start(Engine::ALL[to], COUNTER, Limits::default());
        new.import(&state).unwrap();
        assert_eq!(new.export(), Some(state));
        let refused = new.import(&[0; 9]).unwrap_err();
        assert_eq!(refused, ImportError("the module keeps fewer bytes of state"));
    }
}

#[test]
fn a_module_writes_into_the_region_of_its_command_and_nowhere_else() {
    let text = module(
        r#"(data (i32.const 512) "abcdefgh")
        (func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
          (drop (call $write (local.get $ticket) (i32.const 4) (i32.const 512) (i32.const 8)))
          (drop (call $complete (local.get $ticket)
            (i32.add (i32.const 1) (call $write (local.get $ticket) (i32.const 9) (i32.const 512) (i32.const 8)))
            (i64.const 0) (call $now) (i64.extend_i32_u (call $node)))))"#,
    );
    for engine in Engine::ALL {
        let mut harness = harness(start(engine, &text, Limits::default()));
        let region = memory(PORT, 16);
        harness.post(PORT, Command { region, ..command(MINE, 1) });
        let effects = harness.take();
        let at = RegionRef { offset: 4, length: 8, ..region };
        assert_eq!(effects[0], Effect::Written(at, b"abcdefgh".to_vec()));
        let Effect::Completed(_, done) = &effects[1] else { panic!("{effects:?}") };
        assert_eq!((done.status, done.args[0], done.args[1]), (Status::Done, 1_000, 1));
    }
}

#[test]
fn a_module_holds_no_more_commands_than_its_limit_and_returns_them() {
    let text = module(r#"(func (export "on_command") (param i32 i32 i32 i32 i32 i32))"#);
    let mut limits = Limits::default();
    limits = limits.commands(3);
    let mut harness = harness(start(Engine::Interpreted, &text, limits));
    for cookie in 0..4 {
        harness.post(PORT, Command { cookie, ..command(MINE, 1) });
    }
    let refused: Vec<_> =
        harness.completions().into_iter().map(|(_, c)| (c.cookie, c.status)).collect();
    assert_eq!(refused, [(3, Status::Refused)]);
    harness.turn(|unit, hw| unit.deactivate(hw));
    let ended: Vec<_> =
        harness.completions().into_iter().map(|(_, c)| (c.cookie, c.status)).collect();
    assert_eq!(ended, [0, 1, 2].map(|cookie| (cookie, Status::Cancelled)));
}

/// Returns whether a handler that loops `rounds` times ends on that much fuel.
fn ends(engine: Engine, code: &Arc<Code>, rounds: u64, fuel: u64) -> bool {
    let mut limits = Limits::default();
    limits = limits.fuel(fuel);
    let mut harness = harness(Sandbox::new(code, limits).unwrap());
    harness.post(PORT, Command { args: [rounds, 0, 0], ..command(MINE, 1) });
    let completions = harness.completions();
    assert_eq!(completions.len(), 1, "{engine:?}");
    completions[0].1.status == Status::Done
}

#[test]
fn a_handler_is_stopped_at_exactly_its_limit() {
    let text = module(
        r#"(func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
          (local $left i64)
          (local.set $left (i64.load (i32.const 0)))
          (loop $again
            (local.set $left (i64.sub (local.get $left) (i64.const 1)))
            (br_if $again (i64.ne (local.get $left) (i64.const 0))))
          (drop (call $complete (local.get $ticket) (i32.const 0) (i64.const 0) (i64.const 0) (i64.const 0))))"#,
    );
    for engine in Engine::ALL {
        let code = Code::new(engine, text.as_bytes()).unwrap();
        // Finds the least fuel on which it ends, by bisection.
        let least = |rounds| {
            let (mut low, mut high) = (0, 1_000_000);
            while high - low > 1 {
                let middle = (low + high) / 2;
                if ends(engine, &code, rounds, middle) { high = middle } else { low = middle }
            }
            high
        };
        let (one, two) = (least(1), least(2));
        let a_round = two - one;
        assert!((4..=16).contains(&a_round), "{engine:?}: {a_round}");
        for rounds in [3, 10, 1_000, 50_000] {
            let exactly = one + (rounds - 1) * a_round;
            assert!(ends(engine, &code, rounds, exactly), "{engine:?}, {rounds}");
            assert!(!ends(engine, &code, rounds, exactly - 1), "{engine:?}, {rounds}");
        }
    }
}

#[test]
fn random_numbers_are_the_same_on_both_engines_and_differ_by_node() {
    let text = module(
        r#"(func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
          (drop (call $complete (local.get $ticket) (i32.const 0) (i64.const 0) (call $random) (call $random))))"#,
    );
    let [first, second] = Engine::ALL.map(|engine| {
        let mut harness = harness(start(engine, &text, Limits::default()));
        harness.post(PORT, command(MINE, 1));
        harness.completions()[0].1.args
    });
    assert_eq!(first, second);
    assert_ne!(first[0], first[1]);
}

/// Holds its commands. Opcode 2 completes the first one and traps, opcode 3 completes it and returns.
const HOLDS: &str = r#"
  (global $first (mut i32) (i32.const -1))
  (func (export "on_command") (param $ticket i32) (param $opcode i32) (param i32 i32 i32 i32)
    (if (i32.eq (global.get $first) (i32.const -1)) (then (global.set $first (local.get $ticket))))
    (if (i32.ge_u (local.get $opcode) (i32.const 2)) (then
      (drop (call $complete (global.get $first) (i32.const 0) (i64.const 5) (i64.const 0) (i64.const 0)))))
    (if (i32.eq (local.get $opcode) (i32.const 2)) (then (unreachable))))
  (func (export "export")
    (drop (call $complete (global.get $first) (i32.const 0) (i64.const 6) (i64.const 0) (i64.const 0))))"#;

#[test]
fn commands_that_a_module_holds_end_at_once_when_it_fails() {
    for engine in Engine::ALL {
        for fails in [false, true] {
            let mut harness = harness(start(engine, &module(HOLDS), Limits::default()));
            for cookie in 0..4 {
                harness.post(PORT, Command { cookie, ..command(MINE, 1) });
            }
            assert_eq!(harness.completions(), []);
            let opcode = if fails { 2 } else { 3 };
            harness.post(PORT, Command { cookie: 4, ..command(MINE, opcode) });
            if !fails {
                let done = harness.completions();
                assert_eq!((done.len(), done[0].1.cookie, done[0].1.length), (1, 0, 5));
                harness.turn(|unit, hw| unit.deactivate(hw));
            }
            let mut ended: Vec<(u64, Status)> =
                harness.completions().iter().map(|(_, done)| (done.cookie, done.status)).collect();
            ended.sort_unstable_by_key(|(cookie, _)| *cookie);
            let (first, status) =
                if fails { (0, Status::ExtensionDown) } else { (1, Status::Cancelled) };
            let expected: Vec<_> = (first..5).map(|cookie| (cookie, status)).collect();
            assert_eq!(ended, expected);
        }
    }
}
