//! Measures the cost of a raw message through a live NIC and its unit, compared with the same without them.
//!
//! ```text
//! cargo run --release -p midplane-benches -- nic
//! ```

mod callers;
mod dispatch;
mod relay;
mod stream;
mod void;

use crate::claims::Medians;
use crate::pingpong::one_way_us;
use crate::pingpong::raw::End;
use crate::processes;
use crate::report::{self, Failure, progress};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane_kit::clock::now;
use serde::Serialize;
use serde_json::json;

/// Bytes of every message.
const BYTES: usize = 64;

const EXAMPLES: &str = "\
Examples:
  lab nic                          every row
  lab nic --only raw,rate --json   two of them, as JSON

Rounds of ours and theirs alternate. Numbers are medians over the rounds; the ratio is ours divided by theirs, and spread
the range of the rounds' ratios over it. \"Reach\" is the target.
All processes busy-poll, and need a core each: three in the row daemon, at most two in the others. In the row udp, ours
busy-polls for up to 200 us, its default, and tokio's sockets sleep. The row sandboxed needs a build with --features wasm.

Exit code: 0 it ran; 1 a process was lost, or messages did not arrive; 2 bad input.";

/// Measure a raw message of 64 bytes through a live NIC and its unit
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Rows, separated by commas; default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Row>,
    /// Rounds, from 1 to 1000; each measures every row once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Approximate milliseconds of each measurement, from 10 to 10000
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    milliseconds: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Part of a process that a row starts
    #[arg(long, hide = true, value_enum, requires = "place")]
    part: Option<Part>,
    /// Names or addresses by which that process finds the others
    #[arg(long, hide = true)]
    place: Option<String>,
}

/// A row of the report.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Row {
    /// One way between two processes over shared memory, compared with the bare slots
    Raw,
    /// One way between two clients of a NIC daemon, compared with a process that relays slots
    Daemon,
    /// Messages a second in one direction over shared memory, 64 in flight, compared with the bare slots
    Rate,
    /// A call of an empty handler of a native extension, for a frame
    Dispatch,
    /// A call of an empty handler of a sandboxed extension, for a frame
    #[cfg(feature = "wasm")]
    Sandboxed,
    /// Requests a second of 8 callers over UDP, compared with tokio's sockets and batched system calls
    Udp,
}

/// A process that a row starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Part {
    Daemon,
    Client,
    Relay,
    Slots,
    Receiver,
    BareReceiver,
    Echo,
    SocketEcho,
}

display!(Row, Part);

/// Ours and, if the row compares, theirs.
type Sample = (f64, Option<f64>);

impl Row {
    /// Returns the unit and the target.
    const fn terms(self) -> (&'static str, &'static str) {
        match self {
            Self::Raw => ("us", "ratio <= 2.2"),
            Self::Daemon => ("us", "ratio <= 1.5"),
            Self::Rate => ("million/s", "ours >= 10"),
            Self::Dispatch => ("ns", "ours <= 10"),
            #[cfg(feature = "wasm")]
            Self::Sandboxed => ("ns", "ours <= 60"),
            Self::Udp => ("thousand/s", "ratio >= 0.8"),
        }
    }

    /// Measures the row once.
    fn sample(self, milliseconds: u32) -> Result<Sample, String> {
        let time = Duration::from_millis(milliseconds.into());
        Ok(match self {
            Self::Raw => {
                (one_way_us("raw", milliseconds)?, Some(one_way_us("slots", milliseconds)?))
            }
            Self::Daemon => (relay::daemon_us(milliseconds)?, Some(relay::slots_us(milliseconds)?)),
            Self::Rate => (stream::messages(time)?, Some(stream::slots(time)?)),
            Self::Dispatch => (dispatch::native_ns(time), None),
            #[cfg(feature = "wasm")]
            Self::Sandboxed => (dispatch::sandboxed_ns(time), None),
            Self::Udp => (callers::ours(time)?, Some(callers::sockets(time)?)),
        })
    }
}

#[derive(Debug, Serialize)]
struct Run {
    what: String,
    unit: &'static str,
    #[serde(flatten)]
    medians: Medians,
    reach: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let done = match (arguments.part, &arguments.place) {
        (Some(part), Some(place)) => play(part, place, arguments.milliseconds),
        _ => measure(arguments).map(|runs| {
            report::print_tables(arguments.json, &json!({"runs": runs}));
        }),
    };
    done.map(|()| 0).map_err(Failure::of_run)
}

/// Runs a process that a row has started, until it has done its part or its parent exits.
fn play(part: Part, place: &str, milliseconds: u32) -> Result<(), String> {
    processes::end_with_parent();
    match part {
        Part::Daemon => relay::serve(place),
        Part::Client => relay::answer(place, milliseconds),
        Part::Relay => relay::relay(place),
        Part::Slots => relay::answer_slots(place, milliseconds),
        Part::Receiver => stream::receive(place),
        Part::BareReceiver => stream::receive_slots(place),
        Part::Echo => callers::echo(place),
        Part::SocketEcho => callers::echo_socket(place),
    }
}

/// Starts a part as a process.
fn start(part: Part, place: &str, milliseconds: u32) -> Result<processes::Peer, String> {
    let words = [
        "nic".into(),
        format!("--part={part}"),
        format!("--place={place}"),
        format!("--milliseconds={milliseconds}"),
    ];
    processes::Peer::start(&words, &[])
}

fn measure(arguments: &Arguments) -> Result<Vec<Run>, String> {
    let all = Row::value_variants().iter().copied();
    let is_chosen = |row: &Row| arguments.only.is_empty() || arguments.only.contains(row);
    let rows: Vec<Row> = all.filter(is_chosen).collect();
    let bar = progress(arguments.rounds as usize * rows.len(), "{bar:30} {pos}/{len} {msg}");
    let mut samples = vec![Vec::new(); rows.len()];
    for _ in 0..arguments.rounds {
        for (row, samples) in rows.iter().zip(&mut samples) {
            bar.set_message(row.to_string());
            let sample = row.sample(arguments.milliseconds);
            samples.push(sample.map_err(|what| format!("row {row}: {what}"))?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows.iter().zip(samples).map(|(row, samples)| summary(*row, &samples)).collect())
}

/// Returns the report of a row.
fn summary(row: Row, samples: &[Sample]) -> Run {
    let value = row.to_possible_value().expect("no row is hidden");
    let help = value.get_help().map(ToString::to_string).unwrap_or_default();
    let (unit, reach) = row.terms();
    Run { what: format!("{row}: {help}"), unit, medians: Medians::of(samples), reach }
}

/// Creates firmware with the message service alone.
fn unit() -> Unit {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).expect("the unit is empty");
    unit
}

/// Opens a port of `host`, the node 0 or 1, for messages to and from the other, and posts `buffers` buffers.
fn open(host: &impl Host, buffers: usize) -> Result<End, String> {
    let (port, other) = (PortId(1), NodeId(1 - host.node().0));
    End::open(host, port, (other, port), (BYTES, buffers))
}

/// Returns a name that no other process uses.
fn name(purpose: &str) -> String {
    format!("lab-nic-{purpose}-{}", std::process::id())
}
