//! Hostile and failing modules: none harms its neighbour, on either engine.
//!
//! The first line of each file in `hostile/` names the expected outcome.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Effect, Harness, Peer, command};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane_nicvm::sandbox::{Code, Engine, Limits, LoadError, Sandbox};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::Packet;
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion};
use proptest::prelude::*;

const HOSTILE: ExtensionId = FIRST_USER_EXTENSION;
const NEIGHBOUR: ExtensionId = ExtensionId(17);
const PORT: PortId = PortId(0);
const PEER: NodeId = NodeId(2);

/// A well-behaved extension that uses all services, and logs all its events.
struct Neighbour {
    log: Arc<Mutex<Vec<String>>>,
}

impl Neighbour {
    fn note(&self, nic: &Context<'_>, what: &str) {
        self.log.lock().unwrap().push(format!("{}: {what}", nic.now()));
    }
}

impl Extension for Neighbour {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        nic.set_timeout(TimeoutId(0), Service::Exact, Duration::from_micros(50));
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        self.note(nic, &format!("command {}", command.cookie));
        nic.send_control(PEER, b"neighbour").unwrap();
        nic.send_packet(&Packet::to(PEER)).unwrap();
        nic.complete(PORT, &Completion { cookie: 1_000, ..Completion::default() });
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.note(nic, &format!("{message:?} of {from}"));
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        self.note(nic, &format!("{} bytes of {from}", frame.payload.len()));
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        self.note(nic, &format!("timeout {}", timeout.0));
        nic.set_timeout(TimeoutId(0), Service::Exact, Duration::from_micros(50));
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.note(nic, "deactivated");
    }
}

/// The trace of a run.
#[derive(Debug, PartialEq)]
struct Trace {
    /// The events of the neighbour, and its effects.
    neighbour: (Vec<String>, Vec<String>),
    /// All effects.
    all: Vec<String>,
    traps: u64,
}

fn describe(effect: &Effect) -> Option<(ExtensionId, String)> {
    match effect {
        Effect::Sent(header) if header.length == 0 && header.extension == ExtensionId(0) => None,
        Effect::Sent(header) => {
            let Header { extension, kind, length, port, .. } = header;
            Some((*extension, format!("{extension:?} sends {kind:?} of {length} to {port:?}")))
        }
        Effect::Written(to, bytes) => Some((HOSTILE, format!("written {to:?} {bytes:?}"))),
        Effect::Completed(_, done) => {
            let of = if done.cookie == 1_000 { NEIGHBOUR } else { HOSTILE };
            Some((of, format!("completed {done:?}")))
        }
    }
}

/// Gives both extensions, or the neighbour alone, the same events.
fn run(hostile: Option<Sandbox>) -> Trace {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut unit = Unit::default();
    let is_there = hostile.is_some();
    if let Some(sandbox) = hostile {
        unit.install(HOSTILE, sandbox).unwrap();
    }
    unit.install(NEIGHBOUR, Neighbour { log: Arc::clone(&log) }).unwrap();
    let mut harness = Harness::new(unit);
    let mut peer = Peer::new(PEER);
    let mut effects = Vec::new();
    for round in 0..4 {
        for number in [HOSTILE, NEIGHBOUR] {
            if number == HOSTILE && !is_there {
                continue;
            }
            harness.post(PORT, command(number, round + 1));
            effects.extend(peer.send(&mut harness, number.into(), &[round; 20]));
            let header = Header {
                extension: number,
                source: PEER,
                destination: NodeId(1),
                ..Header::default()
            };
            harness.frame(header, &[round; 64]);
            effects.extend(harness.take());
        }
        harness.pass(120_000);
        effects.extend(peer.exchange(&mut harness));
    }
    harness.turn(|unit, hw| unit.deactivate(hw));
    effects.extend(peer.exchange(&mut harness));
    let all: Vec<_> = effects.iter().filter_map(describe).collect();
    let asked = all.iter().filter(|(of, _)| *of == NEIGHBOUR).map(|(_, what)| what.clone());
    let neighbour = (std::mem::take(&mut *log.lock().unwrap()), asked.collect());
    let all = all.into_iter().map(|(_, what)| what).collect();
    Trace { neighbour, all, traps: harness.unit.counters().traps }
}

fn load(engine: Engine, bytes: &[u8]) -> Result<Sandbox, LoadError> {
    Sandbox::new(&Code::new(engine, bytes)?, Limits::default())
}

fn corpus() -> Vec<(String, String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let read = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().next().unwrap().strip_prefix(";; expect: ").unwrap().to_owned();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), expected, text)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn no_module_of_the_corpus_touches_its_neighbour_and_the_engines_agree() {
    let alone = run(None);
    assert!(alone.neighbour.0.len() > 15 && alone.neighbour.1.len() > 10, "{alone:?}");
    let corpus = corpus();
    assert!(corpus.len() >= 35, "{}", corpus.len());
    for (name, expected, text) in corpus {
        let traces = Engine::ALL.map(|engine| {
            let loaded = load(engine, text.as_bytes());
            assert_eq!(loaded.is_err(), expected == "refused", "{name} on {engine:?}: {loaded:?}");
            loaded.ok().map(|sandbox| run(Some(sandbox)))
        });
        assert_eq!(traces[0], traces[1], "{name}");
        let [Some(trace), _] = traces else { continue };
        assert_eq!(trace.neighbour, alone.neighbour, "{name}");
        let traps = u64::from(expected == "quarantined" || name == "trap_in_deactivate");
        assert_eq!(trace.traps, traps, "{name}");
        let down = trace.all.iter().filter(|what| what.contains("ExtensionDown")).count();
        assert_eq!(down > 0, traps > 0, "{name}: {:?}", trace.all);
        let ends = trace.all.iter().filter(|what| what.starts_with("completed"));
        let ends = ends.filter(|what| !what.contains("cookie: 1000")).count();
        assert_eq!(ends, 4, "{name}: every command ends once: {:?}", trace.all);
    }
}

#[test]
fn forged_and_stale_tickets_have_no_effect() {
    for (name, _, text) in corpus() {
        if !name.ends_with("tickets") {
            continue;
        }
        let trace = run(Some(load(Engine::Compiled, text.as_bytes()).unwrap()));
        let ended = trace.all.iter().filter(|what| what.starts_with("completed"));
        let mine: Vec<_> = ended.filter(|what| !what.contains("cookie: 1000")).collect();
        // One completion for each command, and none reports more successes than those.
        assert_eq!(mine.len(), 4, "{name}: {mine:?}");
        assert!(trace.all.iter().all(|what| !what.starts_with("written")), "{name}");
        for (count, end) in mine.iter().enumerate() {
            let length = if name.starts_with("stale") { count } else { 0 };
            assert!(end.contains(&format!("length: {length},")), "{name}: {end}");
        }
    }
}

#[test]
fn truncated_modules_are_refused() {
    let whole = include_bytes!("hostile/forged_tickets.wat");
    for length in (0..whole.len() - 3).step_by(7) {
        for engine in Engine::ALL {
            assert!(load(engine, &whole[..length]).is_err(), "{length}");
        }
    }
}

/// A statement over three locals: bounded, but free to trap.
fn statement() -> impl Strategy<Value = String> {
    let local = || prop_oneof!["0", "1", "2"].prop_map(|number| format!("(local.get $v{number})"));
    let constant = any::<i32>().prop_map(|number| format!("(i32.const {number})"));
    let leaf = prop_oneof![local(), constant];
    let expression = leaf.prop_recursive(4, 24, 2, |inner| {
        let binary = prop::sample::select(vec![
            "add", "sub", "mul", "and", "or", "xor", "shl", "shr_u", "shr_s", "rotl", "div_u",
            "div_s", "rem_u", "rem_s", "lt_s", "gt_u", "eq",
        ]);
        prop_oneof![
            (binary, inner.clone(), inner.clone())
                .prop_map(|(op, a, b)| format!("(i32.{op} {a} {b})")),
            inner.clone().prop_map(|a| format!("(i32.clz {a})")),
            inner.clone().prop_map(|a| format!("(i32.load (i32.and {a} (i32.const 0x1ffff)))")),
            inner.prop_map(|a| format!(
                "(i32.wrap_i64 (i64.mul (i64.extend_i32_s {a}) (i64.const 7919)))"
            )),
        ]
    });
    prop_oneof![
        4 => ("[012]", expression.clone()).prop_map(|(v, e)| format!("(local.set $v{v} {e})")),
        2 => (0..60_000_u32, expression.clone())
            .prop_map(|(at, e)| format!("(i32.store (i32.const {at}) {e})")),
        1 => expression.clone().prop_map(|e| format!(
            "(i32.store (i32.const 300) {e})\n(drop (call $send (i32.const 2) (i32.const 300) (i32.const 4)))"
        )),
        1 => expression.prop_map(|e| format!(
            "(if {e} (then (drop (call $timeout (local.get $v1) (i32.const 0) (i64.const 50000)))))"
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_as_modules(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend(bytes);
        for engine in Engine::ALL {
            prop_assert!(load(engine, &module).is_err());
        }
    }

    #[test]
    fn both_engines_do_the_same(
        statements in prop::collection::vec(statement(), 1..20),
        rounds in 1..20_u32,
    ) {
        let text = format!(
            r#"(module
              (import "nic" "send_control" (func $send (param i32 i32 i32) (result i32)))
              (import "nic" "set_timeout" (func $timeout (param i32 i32 i64) (result i32)))
              (memory (export "memory") 1)
              (global (export "nicvm") i32 (i32.const 1))
              (global (export "mailbox") i32 (i32.const 0))
              (func $work (param $v0 i32) (param $v1 i32) (param $v2 i32)
                (local $left i32)
                (local.set $left (i32.const {rounds}))
                (loop $again
                  {}
                  (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                  (br_if $again (local.get $left))))
              (func (export "on_control") (param i32 i32)
                (call $work (local.get 0) (local.get 1) (i32.load (i32.const 0))))
              (func (export "on_data") (param i32 i32 i32)
                (call $work (local.get 0) (local.get 1) (local.get 2)))
              (func (export "on_timeout") (param i32)
                (call $work (local.get 0) (i32.const 1) (i32.const 2))))"#,
            statements.join("\n")
        );
        let [compiled, interpreted] =
            Engine::ALL.map(|engine| run(Some(load(engine, text.as_bytes()).unwrap())));
        prop_assert_eq!(compiled, interpreted);
    }
}
