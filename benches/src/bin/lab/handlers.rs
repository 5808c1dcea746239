//! The cost of one call of an extension's handler through the unit, with its effects staged.

mod eight;
mod installed;
#[cfg(feature = "wasm")]
mod neighbour;
#[cfg(feature = "wasm")]
mod sandboxed;
mod void;

use crate::report;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
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
///
/// A module of 8 KiB is then installed on 64 simulated nodes, timed by this machine's clock. With the feature `wasm`,
/// handlers that never return are stopped, and the effect on a neighbour's frames is measured.
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
    installs: Vec<installed::Install>,
    /// How long handlers that never return run, until their fuel is used up.
    runaway: Vec<Runaway>,
    #[cfg(feature = "wasm")]
    neighbours: Vec<neighbour::Neighbour>,
}

#[derive(Debug, Serialize)]
struct Runaway {
    kind: &'static str,
    fuel: u64,
    /// Over 100 such handlers: time from the command to the end of the extension.
    median_us: f64,
    p99_us: f64,
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
    let document = Document {
        runs: measure(arguments.batches),
        installs: installed::all(),
        #[cfg(feature = "wasm")]
        runaway: sandboxed::runaway(),
        #[cfg(not(feature = "wasm"))]
        runaway: Vec::new(),
        #[cfg(feature = "wasm")]
        neighbours: neighbour::all(sandboxed::ENDLESS, sandboxed::FUEL),
    };
    if arguments.json {
        report::print_json(&document);
    } else {
        report::print(&table(&document));
    }
    ExitCode::SUCCESS
}

fn measure(batches: u32) -> Vec<Run> {
    let native = |completes| Box::new(move || unit(Native { completes })) as Box<dyn Fn() -> Unit>;
    #[cfg_attr(not(feature = "wasm"), expect(unused_mut, reason = "there is no more to measure"))]
    let mut rows =
        vec![("native", "nothing", native(false)), ("native", "a completion", native(true))];
    #[cfg(feature = "wasm")]
    rows.extend(sandboxed::rows());
    let mut runs = Vec::new();
    for (kind, effects, make) in rows {
        if kind == "native" || effects != "nothing" {
            let (sorted, per_second) = commands(make(), batches);
            runs.push(run(kind, "command", effects, batches, &sorted, per_second));
        }
        if effects == "nothing" {
            let (sorted, per_second) = frames(make(), batches);
            runs.push(run(kind, "frame", effects, batches, &sorted, per_second));
        }
    }
    runs
}

fn unit(extension: impl Extension + 'static) -> Unit {
    let mut unit = Unit::default();
    unit.install(MINE, extension).expect("the number is free");
    unit
}

fn run(
    kind: &'static str,
    event: &'static str,
    effects: &'static str,
    batches: u32,
    sorted: &[f64],
    per_second: f64,
) -> Run {
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
    Run { kind, event, effects, batches, median_ns: at(0.5), p99_ns: at(0.99), per_second }
}

/// Returns the nanoseconds per command of each batch, sorted, and the commands per second.
fn commands(mut unit: Unit, batches: u32) -> (Vec<f64>, f64) {
    let mut hw = Void::new();
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
    let mut hw = Void::new();
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
    let mut samples: Vec<f64> = (0..batches)
        .map(|_| {
            let at = Instant::now();
            batch();
            at.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
        .collect();
    let seconds = begin.elapsed().as_secs_f64();
    samples.sort_by(f64::total_cmp);
    (samples, f64::from(batches) * f64::from(BATCH) / seconds)
}

fn table(document: &Document) -> String {
    let Document { runs, installs, runaway, .. } = document;
    let mut text = format!(
        "{:<12} {:<8} {:<13} {:>10} {:>8} {:>12}\n",
        "kind", "event", "asks for", "median", "p99", "calls/s"
    );
    for Run { kind, event, effects, median_ns, p99_ns, per_second, .. } in runs {
        text += &format!(
            "{kind:<12} {event:<8} {effects:<13} {median_ns:>7.1} ns {p99_ns:>5.1} ns {:>9.1} M\n",
            per_second / 1e6
        );
    }
    for Runaway { kind, fuel, median_us, p99_us } in runaway {
        text += &format!(
            "{kind:<12} a handler without end, {fuel} units of fuel: stopped after {median_us:.1} us, p99 {p99_us:.1} us\n"
        );
    }
    #[cfg(feature = "wasm")]
    text.extend(document.neighbours.iter().map(neighbour::Neighbour::line));
    text.extend(installs.iter().map(installed::Install::line));
    text
}
