//! Measures services in virtual time, compared with turmoil and bach: see `--help`.

mod cluster;
mod ours;
mod quic;
mod theirs;
mod web;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use midplane_kit::claims::Medians;
use midplane_kit::{command_line, report};
use serde::Serialize;
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A row of the comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum What {
    /// GET requests to an axum service on another host, 4 connections: requests a second of wall time
    Requests,
    /// Hosts whose code only waits: nanoseconds of wall time for a host's millisecond
    Idle100,
    /// The same with 1,000 hosts
    Idle1000,
    /// A round trip of 8 bytes over links of 2 us: nanoseconds of virtual time
    RoundTrip,
    /// 1,000 tasks of one host that sleep 1 to 17 ms, compared with bach: sleeps in a second of wall time
    Sleeps,
    /// 20 MB over a connection of quinn at 1 Gb/s: megabytes of payload in a second of wall time
    Quic,
    /// 100 hosts that hold keys, 10 s of requests and crashes: seconds of wall time
    Cluster,
}

/// Compares services in virtual time with turmoil, and timers with bach: how much work of a service a second of wall time tests.
///
/// Both sides run the same code of a service, on one thread. turmoil has its defaults, except that a message takes the same
/// time each time. Rows without a second number have no counterpart, or one that takes minutes.
#[derive(Parser)]
#[command(after_help = "Exit code: 0 it ran; 1 a run failed; 2 bad input.\n\n\
    Example: cargo run --release -- --what requests --rounds 5 --json")]
struct Arguments {
    /// Rows to measure; all if none is named
    #[arg(long, value_delimiter = ',')]
    what: Vec<What>,
    /// Rounds, in which the two sides take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// A row of the table.
#[derive(Serialize)]
struct Run {
    what: What,
    unit: &'static str,
    #[serde(flatten)]
    medians: Medians,
}

impl What {
    const fn unit(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_s",
            Self::Idle100 | Self::Idle1000 => "ns_per_host_ms",
            Self::RoundTrip => "virtual_ns",
            Self::Sleeps => "sleeps_per_s",
            Self::Quic => "mb_per_s",
            Self::Cluster => "s",
        }
    }

    fn ours(self) -> Result<f64, Failure> {
        match self {
            Self::Requests => rate(web::TOTAL, ours::requests),
            Self::Idle100 => ours::idle(100),
            Self::Idle1000 => ours::idle(1_000),
            Self::RoundTrip => ours::round_trip(),
            Self::Sleeps => ours::sleeps(),
            Self::Quic => Ok(rate(quic::BYTES as u64, quic::transfer)? / 1e6),
            Self::Cluster => seconds(cluster::run),
        }
    }

    fn theirs(self) -> Result<Option<f64>, Failure> {
        Ok(Some(match self {
            Self::Requests => rate(web::TOTAL, theirs::requests)?,
            Self::Idle100 => theirs::idle(100)?,
            Self::RoundTrip => theirs::round_trip()?,
            Self::Sleeps => theirs::sleeps()?,
            // turmoil takes minutes for 1,000 hosts; the others are programs for `Sim` only.
            Self::Idle1000 | Self::Quic | Self::Cluster => return Ok(None),
        }))
    }
}

/// Virtual time of the sleeps.
const NIGHT: Duration = Duration::from_secs(3);

/// Returns the times that 1,000 tasks sleep again and again.
fn naps() -> impl Iterator<Item = Duration> {
    (0..1_000_u64).map(|task| {
        Duration::from_millis(1)
            + Duration::from_micros(task.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50)
    })
}

/// Returns the seconds of wall time that a run takes.
fn seconds(run: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}

fn rate(count: u64, run: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    Ok(count as f64 / seconds(run)?)
}

/// Returns the nanoseconds of wall time for a millisecond of one of `hosts` hosts.
fn for_host_ms(hosts: u32, virtual_time: Duration, wall_seconds: f64) -> f64 {
    wall_seconds * 1e9 / f64::from(hosts) / (virtual_time.as_secs_f64() * 1e3)
}

fn main() -> ExitCode {
    command_line::main(|arguments| run(arguments).map_err(report::Failure::of_run))
}

fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let rows = if arguments.what.is_empty() { What::value_variants() } else { &arguments.what };
    let rounds = rows.len() * arguments.rounds as usize;
    let bar = report::progress(rounds, "{bar:30} {pos}/{len} rounds");
    let mut runs = Vec::new();
    for &what in rows {
        let mut rounds = Vec::new();
        for _ in 0..arguments.rounds {
            rounds.push((what.ours()?, what.theirs()?));
            bar.inc(1);
        }
        runs.push(Run { what, unit: what.unit(), medians: Medians::of(&rounds) });
    }
    bar.finish_and_clear();
    report::print_tables(arguments.json, &json!({"runs": runs}));
    Ok(0)
}
