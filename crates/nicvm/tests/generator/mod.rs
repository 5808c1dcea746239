//! Generates modules from bytes. Any bytes give a module that starts; its handlers end within their fuel or trap, and
//! call all functions with arbitrary arguments.

use std::fmt::Write as _;

use midplane_nicvm::control::Address;
use midplane_nicvm::extension::{Epoch, FIRST_USER_EXTENSION};
use midplane_nicvm::sandbox::{Code, Engine, Limits, MAX_FUEL, Sandbox};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::hardware::Firmware as _;
use midplane_simhw::id::{NodeId, PortId, TimerId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;

use crate::harness::{Effect, Harness, Peer, command, memory};

const PORT: PortId = PortId(0);
const PEER: NodeId = NodeId(2);

const HEAD: &str = r#"(module
  (import "nic" "send_control" (func $send_control (param i32 i32 i32) (result i32)))
  (import "nic" "send_data" (func $send_data (param i32 i32 i32 i32) (result i32)))
  (import "nic" "set_timeout" (func $set_timeout (param i32 i32 i64) (result i32)))
  (import "nic" "cancel_timeout" (func $cancel_timeout (param i32) (result i32)))
  (import "nic" "complete" (func $complete (param i32 i32 i64 i64 i64) (result i32)))
  (import "nic" "write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "nic" "now" (func $now (result i64)))
  (import "nic" "node" (func $node (result i32)))
  (import "nic" "random" (func $random (result i64)))
  (memory (export "memory") 1)
  (global (export "nicvm") i32 (i32.const 1))
  (global (export "mailbox") i32 (i32.const 0))
  (global (export "state") i32 (i32.const 1024))
  (global (export "state_bytes") i32 (i32.const 16))
  (global $kept (mut i32) (i32.const 0))
"#;

/// Maximum nesting depth of expressions and blocks.
const DEEPEST: u32 = 4;

struct Writer<'a> {
    bytes: std::slice::Iter<'a, u8>,
    text: String,
    /// Number of this handler's locals that count rounds of loops.
    loops: u32,
}

impl Writer<'_> {
    /// Returns the next byte; 0 at the end, which ends every construct.
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    fn put(&mut self, text: &str) {
        self.text += text;
    }

    fn expression(&mut self, depth: u32) {
        let kind = if depth == 0 { self.byte() % 4 } else { self.byte() % 16 };
        match kind {
            0 => {
                let number = i8::from_le_bytes([self.byte()]);
                let _ = write!(self.text, "(i32.const {number})");
            }
            1 => {
                let wide = [self.byte(), self.byte(), self.byte(), self.byte()];
                let _ = write!(self.text, "(i32.const {})", i32::from_le_bytes(wide));
            }
            2 => {
                let local = self.byte() % 2;
                let _ = write!(self.text, "(local.get {local})");
            }
            3 => self.put("(global.get $kept)"),
            4 => self.put("(call $node)"),
            5 => self.put("(i32.wrap_i64 (call $now))"),
            6 => self.put("(i32.wrap_i64 (call $random))"),
            7 | 8 => {
                self.put("(i32.load8_u (i32.and (i32.const 65535) ");
                self.expression(depth - 1);
                self.put("))");
            }
            9 => self.operation("i32.load", 1, depth),
            10 => self.operation("i32.add", 2, depth),
            11 => self.operation("i32.mul", 2, depth),
            12 => self.operation("i32.xor", 2, depth),
            13 => self.operation("i32.rem_u", 2, depth),
            14 => self.operation("i32.lt_s", 2, depth),
            _ => self.operation("i32.div_s", 2, depth),
        }
    }

    fn operation(&mut self, name: &str, operands: usize, depth: u32) {
        let _ = write!(self.text, "({name} ");
        for _ in 0..operands {
            self.expression(depth - 1);
        }
        self.put(")");
    }

    fn call(&mut self, name: &str, wide: &[bool]) {
        let _ = write!(self.text, "(global.set $kept (call ${name} ");
        for wide in wide {
            if *wide {
                self.put("(i64.extend_i32_s ");
            }
            self.expression(2);
            if *wide {
                self.put(")");
            }
        }
        self.put("))\n");
    }

    fn statement(&mut self, depth: u32) {
        match self.byte() % 16 {
            0 => {}
            1 | 2 => {
                let local = self.byte() % 2;
                let _ = write!(self.text, "(local.set {local} ");
                self.expression(3);
                self.put(")\n");
            }
            3 => {
                self.put("(i32.store ");
                self.expression(2);
                self.expression(2);
                self.put(")\n");
            }
            4 => {
                self.put("(i32.store (i32.add (i32.const 1024) (i32.and (i32.const 15) ");
                self.expression(1);
                self.put("))");
                self.expression(2);
                self.put(")\n");
            }
            5 => self.call("send_control", &[false; 3]),
            6 => self.call("send_data", &[false; 4]),
            7 => self.call("set_timeout", &[false, false, true]),
            8 => self.call("cancel_timeout", &[false]),
            9 => self.call("complete", &[false, false, true, true, true]),
            10 => {
                // A call that is often valid: it uses the ticket of this command.
                self.put("(global.set $kept (call $complete (local.get 0) (i32.const 0) (i64.const 1) (i64.const 2) (i64.const 3)))\n");
            }
            11 => self.call("write", &[false; 4]),
            12 if depth > 0 => {
                self.put("(if ");
                self.expression(2);
                self.put(" (then\n");
                self.block(depth - 1);
                self.put("))\n");
            }
            13 if depth > 0 => self.rounds(depth - 1),
            14 => {
                self.put("(global.set $kept (memory.grow (i32.and (i32.const 3) ");
                self.expression(1);
                self.put(")))\n");
            }
            _ => {
                self.put("(if (i32.eq (i32.const 77) ");
                self.expression(1);
                self.put(") (then (unreachable)))\n");
            }
        }
    }

    /// Writes a loop that ends after a few rounds.
    fn rounds(&mut self, depth: u32) {
        let (counter, rounds) = (6 + self.loops, self.byte() % 6);
        self.loops += 1;
        let _ =
            write!(self.text, "(local.set {counter} (i32.const {rounds}))\n(loop $loop{counter}\n");
        self.block(depth);
        let _ = write!(
            self.text,
            "(local.set {counter} (i32.sub (local.get {counter}) (i32.const 1)))\n(br_if $loop{counter} (i32.gt_s (local.get {counter}) (i32.const 0))))\n"
        );
    }

    fn block(&mut self, depth: u32) {
        for _ in 0..self.byte() % 5 {
            self.statement(depth);
        }
    }

    fn handler(&mut self, name: &str, parameters: usize) {
        self.loops = 0;
        let start = std::mem::take(&mut self.text);
        self.block(DEEPEST);
        let body = std::mem::replace(&mut self.text, start);
        let parameters = vec!["i32"; parameters].join(" ");
        let taken = parameters.split_whitespace().count();
        let locals = vec!["i32"; 6 - taken + self.loops as usize].join(" ");
        let _ = write!(
            self.text,
            "  (func (export \"{name}\") (param {parameters}) (local {locals})\n{body})\n"
        );
    }
}

/// Returns the text of the module that some bytes encode.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut writer = Writer { bytes: bytes.iter(), text: HEAD.to_owned(), loops: 0 };
    for (name, parameters) in [
        ("on_command", 6),
        ("on_control", 2),
        ("on_timeout", 1),
        ("on_data", 3),
        ("init", 0),
        ("deactivate", 0),
        ("export", 0),
        ("import", 1),
    ] {
        writer.handler(name, parameters);
    }
    writer.text + ")"
}

/// Advances the time by `nanos`, with at most 100 alarms: a module may set a timeout of zero again and again, and the
/// harness's time does not advance meanwhile.
fn pass(harness: &mut Harness, nanos: u64) {
    let end = harness.hw.now.plus_nanos(nanos);
    for _ in 0..100 {
        let next = harness.hw.alarms[0].max(harness.hw.now);
        if next > end {
            break;
        }
        harness.hw.now = next;
        harness.hw.alarms[0] = Instant::FAR_FUTURE;
        harness.turn(|unit, hw| unit.on_timer(hw, TimerId(0)));
    }
    harness.hw.now = end;
}

/// Gives a module events of all kinds. Returns all effects, and how many handlers failed.
pub(crate) fn trace(engine: Engine, module: &[u8]) -> Option<(Vec<Effect>, u64)> {
    let mut limits = Limits::default();
    // Enough fuel for every handler, because the engines count it differently.
    limits.fuel(MAX_FUEL).effects(16).timers(4).commands(3);
    let sandbox = Sandbox::new(&Code::new(engine, module).ok()?, limits).ok()?;
    let mut unit = Unit::default();
    unit.install(FIRST_USER_EXTENSION, sandbox).expect("the number is free");
    let mut harness = Harness::new(unit);
    let mut peer = Peer::new(PEER);
    let to = Address { extension: FIRST_USER_EXTENSION, epoch: Epoch::FIRST };
    let mut effects = Vec::new();
    for round in 0..4_u8 {
        let (region, cookie) = (memory(PORT, 40), u64::from(round));
        let given = command(FIRST_USER_EXTENSION, round);
        harness.post(PORT, Command { region, cookie, node: PEER, ..given });
        effects.extend(harness.take());
        effects.extend(peer.send(&mut harness, to, &[round; 20]));
        let (extension, source) = (FIRST_USER_EXTENSION, PEER);
        let header = Header { extension, source, destination: NodeId(1), ..Header::default() };
        harness.frame(header, &[round; 64]);
        pass(&mut harness, 100_000);
        effects.extend(harness.take());
    }
    harness.turn(|unit, hw| unit.deactivate(hw));
    effects.extend(harness.take());
    Some((effects, harness.unit.counters().traps))
}
