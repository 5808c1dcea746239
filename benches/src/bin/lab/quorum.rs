//! Majority decisions that do not wait for busy hosts.
//!
//! ```text
//! cargo run --release -p midplane-benches -- quorum
//! ```

mod extension;
mod nodes;

use crate::{fleet, report};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use fleet::{Fabric, Fleet};
use nodes::{Figures, Plan};

const EXAMPLES: &str = "\
Examples:
  lab quorum                                   four processes over UDP
  lab quorum --fabric shm --nodes 5 --depth 4
  lab quorum --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 proposes entries of 64 bytes, for --seconds or up to 65536 of them; the other ranks write them into their
logs. A follower's host stalls for --stall-us, once in a hundred entries. Afterwards all logs are compared with
the decided entries.

Exit code: 0 it ran, and every follower's log has every decided entry; 1 one lacks some, or a process was
lost; 2 bad input.";

/// Measure quorum acknowledgement by NICs, and the same by hosts
///
/// By NICs, the leader's host gets one completion per entry, when a majority has it. Followers' hosts do nothing:
/// their NICs write into their logs. The extension is an `async fn`.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
    /// Entries in flight at the leader, from 1 to 32
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=32))]
    depth: u64,
    /// Microseconds for which a follower's host stalls, up to 100000
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    stall_us: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    fabric: Fabric,
    nodes: u16,
    depth: u64,
    stall_us: u64,
    seconds: f64,
    decided_per_s: f64,
    decided: u64,
    median_us: f64,
    p99_us: f64,
    /// Messages and completions at the leader's host per decision.
    leader_wakes: f64,
    /// Decided entries that are missing in a follower's log.
    lacking: u64,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
    holds: bool,
}

pub(crate) fn main(mut arguments: Arguments) -> ExitCode {
    let place = match arguments.fleet.place() {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let own = [
        "quorum".into(),
        format!("--depth={}", arguments.depth),
        format!("--stall-us={}", arguments.stall_us),
    ];
    let plan = |bar| Plan {
        nodes: arguments.fleet.nodes,
        depth: arguments.depth as usize,
        stall: Duration::from_micros(arguments.stall_us),
        time: arguments.fleet.time(),
        bar,
    };
    let finish = |figures: &Vec<Figures>| finish(&arguments, figures);
    arguments.fleet.conduct(place, (&own, 2), plan, finish)
}

fn run(arguments: &Arguments, figures: &Figures) -> Run {
    let Figures { on_nic, decided, median_ns, p99_ns, at_leader, lacking, took } = *figures;
    let seconds = took.as_secs_f64();
    Run {
        place: if on_nic { "nic" } else { "host" },
        fabric: arguments.fleet.fabric,
        nodes: arguments.fleet.nodes,
        depth: arguments.depth,
        stall_us: arguments.stall_us,
        seconds,
        decided_per_s: decided as f64 / seconds,
        decided,
        median_us: median_ns as f64 / 1e3,
        p99_us: p99_ns as f64 / 1e3,
        leader_wakes: at_leader as f64 / decided.max(1) as f64,
        lacking,
    }
}

fn finish(arguments: &Arguments, figures: &[Figures]) -> ExitCode {
    let runs: Vec<Run> = figures.iter().map(|figures| run(arguments, figures)).collect();
    let holds = runs.iter().all(|run| run.decided > 0 && run.lacking == 0);
    if arguments.fleet.json {
        report::print_json(&Document { runs, holds });
    } else {
        report::print(&table(&runs));
    }
    ExitCode::from(if holds { 0 } else { report::FAILED })
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<6}{:>12}{:>12}{:>10}{:>26}{:>20}\n",
        "", "decided/s", "median us", "p99 us", "leader wakes a decision", "lacking somewhere"
    );
    for run in runs {
        text += &format!(
            "{:<6}{:>12.0}{:>12.1}{:>10.1}{:>26.2}{:>20}\n",
            run.place, run.decided_per_s, run.median_us, run.p99_us, run.leader_wakes, run.lacking
        );
    }
    text
}
