//! The cost of one call of an extension's handler through the unit, with its effects staged.

mod void;

use crate::report::{self, quantile};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
#[cfg(feature = "wasm")]
use midplane::nicvm::sandbox::{Code, Engine, Limits, Sandbox};
use midplane::nicvm::unit::Unit;
use midplane::simhw::frame::{Frame, Header};
use midplane::simhw::hardware::Firmware as _;
use midplane::simhw::id::{ExtensionId, NodeId, PortId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::region::Payload;
use serde::Serialize;
use void::Void;

const MINE: ExtensionId = FIRST_USER_EXTENSION;
/// Calls of one batch; percentiles are over batches.
const BATCH: u32 = 1_000;
/// Commands per doorbell: as many as a unit takes in one turn.
const PER_DOORBELL: u32 = 64;
/// Bytes of a frame.
const FRAME: usize = 64;

/// Measure one call of an extension's handler, from the unit's entry points
///
/// A call includes staging, commit and containment of failures; the NIC below does nothing.
///
/// A "command" row takes 64 commands a doorbell; a "frame" row one frame of 64 bytes a turn, with all work of a turn.
/// With the feature `wasm` there are rows of sandboxed handlers on both engines, which hold every command until they
/// complete it. Each sample is the mean of a batch of 1,000 calls.
#[derive(Debug, Parser)]
#[command(after_help = "Exit code: 0 it ran; 2 bad input.")]
pub(crate) struct Arguments {
    /// Batches of 1,000 calls per row, from 10
    #[arg(long, value_name = "COUNT", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    batches: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Run {
    kind: &'static str,
    /// Event that calls the handler: a command or a frame.
    event: &'static str,
    /// Effects that the handler requests.
    effects: &'static str,
    batches: u32,
    median_ns: f64,
    p99_ns: f64,
    per_second: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
}

/// A native extension: empty, or completing each command.
struct Native {
    completes: bool,
}

impl Extension for Native {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        if self.completes {
            let completion = Completion { cookie: command.cookie, ..Completion::default() };
            nic.complete(command.region.port, &completion);
        }
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, frame: &Frame<'_>) {
        black_box(frame.payload.len());
    }

    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}
    fn deactivate(&mut self, _: &mut Context<'_>) {}
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    report::conclude(arguments.json, &Document { runs: measure(arguments.batches) }, true)
}

/// A kind, its requested effects, and the function that makes its unit.
type Row = (&'static str, &'static str, Box<dyn Fn() -> Unit>);

/// Returns the same handlers as WebAssembly modules, on both engines.
#[cfg(feature = "wasm")]
fn sandboxed() -> Vec<Row> {
    /// A module of empty handlers, which completes each command.
    const TEXT: &str = include_str!("handlers/empty.wat");
    let mut rows: Vec<Row> = Vec::new();
    for (engine, kind) in [(Engine::Compiled, "wasm"), (Engine::Interpreted, "interpreter")] {
        for effects in ["nothing", "a completion"] {
            let make = move || {
                let code = Code::new(engine, TEXT.as_bytes()).expect("a module");
                unit(Sandbox::new(&code, Limits::default()).expect("it starts"))
            };
            rows.push((kind, effects, Box::new(make)));
        }
    }
    rows
}

#[cfg(not(feature = "wasm"))]
fn sandboxed() -> Vec<Row> {
    Vec::new()
}

fn measure(batches: u32) -> Vec<Run> {
    let native = |completes| Box::new(move || unit(Native { completes })) as Box<dyn Fn() -> Unit>;
    let mut rows =
        vec![("native", "nothing", native(false)), ("native", "a completion", native(true))];
    rows.extend(sandboxed());
    let mut runs = Vec::new();
    for (kind, effects, make) in rows {
        let mut add = |event, (samples, per_second): (Vec<f64>, f64)| {
            let median_ns = quantile(samples.clone(), 0.5);
            let p99_ns = quantile(samples, 0.99);
            runs.push(Run { kind, event, effects, batches, median_ns, p99_ns, per_second });
        };
        if kind == "native" || effects != "nothing" {
            add("command", commands(make(), batches));
        }
        if effects == "nothing" {
            add("frame", frames(make(), batches));
        }
    }
    runs
}

fn unit(extension: impl Extension + 'static) -> Unit {
    let mut unit = Unit::default();
    unit.install(MINE, extension).expect("the number is free");
    unit
}

/// Returns the nanoseconds per command of each batch, and the commands per second.
fn commands(mut unit: Unit, batches: u32) -> (Vec<f64>, f64) {
    let mut hw = Void::default();
    hw.command = Command { extension: MINE, cookie: 7, ..Command::default() };
    unit.on_start(&mut hw);
    batches_of(batches, || {
        let mut left = BATCH;
        while left > 0 {
            hw.left = left.min(PER_DOORBELL);
            left -= hw.left;
            unit.on_doorbell(&mut hw, PortId(0));
        }
    })
}

/// Returns the same for frames, one a turn.
fn frames(mut unit: Unit, batches: u32) -> (Vec<f64>, f64) {
    let mut hw = Void::default();
    unit.on_start(&mut hw);
    let bytes = [7; FRAME];
    let header = Header { extension: MINE, length: FRAME as u16, ..Header::default() };
    batches_of(batches, || {
        for _ in 0..BATCH {
            let frame = Frame { header: black_box(header), payload: Payload::from(&bytes[..]) };
            unit.on_frame(&mut hw, frame);
        }
    })
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn batches_of(batches: u32, mut batch: impl FnMut()) -> (Vec<f64>, f64) {
    for _ in 0..batches / 10 {
        batch();
    }
    let begin = Instant::now();
    let samples: Vec<f64> = (0..batches)
        .map(|_| {
            let at = Instant::now();
            batch();
            at.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
        .collect();
    let seconds = begin.elapsed().as_secs_f64();
    (samples, f64::from(batches) * f64::from(BATCH) / seconds)
}
