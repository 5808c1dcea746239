//! A rate limiter on the server's NIC, without work of its host.
//!
//! ```text
//! cargo run --release -p midplane-benches -- limiter
//! ```

mod bucket;
mod extension;
mod nodes;

use crate::{fleet, report};
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use fleet::{Fabric, Fleet};
use nodes::{Figures, Plan};

const EXAMPLES: &str = "\
Examples:
  lab limiter                                  four processes over UDP
  lab limiter --fabric shm --per-second 20000 --at-once 100
  lab limiter --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 serves. Rank 1 requests at three quarters of its limit; all other ranks request as fast as they can, with
--depth requests in flight. A second run applies the same rule on the host, which then receives every request.

Exit code: 0 no tenant got more answers than its limit, and rank 1 was never refused; 1 one of these failed, or a
process was lost; 2 bad input.";

/// Measure a rate limiter on the server's NIC, and the same one on its host
///
/// The limiter is an extension: a token bucket per tenant, filled at one rate. Refused requests do not reach the
/// host.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
    /// Requests per second that each tenant may make, from 1 to 1000000
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    per_second: u64,
    /// Burst: requests that a tenant may make at once, from 1 to 10000
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    at_once: u64,
    /// Requests in flight per impolite tenant, from 1 to 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    depth: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    fabric: Fabric,
    nodes: u16,
    per_second: u64,
    at_once: u64,
    depth: u64,
    seconds: f64,
    /// Requests of the polite tenant.
    polite_answered: u64,
    polite_refused: u64,
    median_us: f64,
    p99_us: f64,
    /// Requests of all other tenants.
    others_answered: u64,
    others_refused: u64,
    /// Their answered requests over those that their limit allows in that time: at most 1.
    others_of_limit: f64,
    /// Requests that reached the server's host.
    at_host: u64,
    holds: bool,
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
        "limiter".into(),
        format!("--per-second={}", arguments.per_second),
        format!("--at-once={}", arguments.at_once),
        format!("--depth={}", arguments.depth),
    ];
    let plan = |bar| Plan {
        per_second: arguments.per_second,
        at_once: arguments.at_once,
        depth: arguments.depth as usize,
        time: arguments.fleet.time(),
        bar,
    };
    let finish = |figures: &Vec<Figures>| finish(&arguments, figures);
    arguments.fleet.conduct(place, (&own, 2), plan, finish)
}

fn run(arguments: &Arguments, figures: &Figures) -> Run {
    let Figures { on_nic, polite, others, median_ns, p99_ns, at_host, took } = *figures;
    let fleet = &arguments.fleet;
    let seconds = took.as_secs_f64();
    let each = arguments.per_second as f64 * seconds + arguments.at_once as f64;
    let allowed = each * f64::from(fleet.nodes - 2);
    // The polite tenant has one request in flight and stays below its limit: none may be refused.
    let kept = others[0] as f64 <= allowed && polite[1] == 0 && polite[0] > 0;
    Run {
        place: if on_nic { "nic" } else { "host" },
        fabric: fleet.fabric,
        nodes: fleet.nodes,
        per_second: arguments.per_second,
        at_once: arguments.at_once,
        depth: arguments.depth,
        seconds,
        polite_answered: polite[0],
        polite_refused: polite[1],
        median_us: median_ns as f64 / 1e3,
        p99_us: p99_ns as f64 / 1e3,
        others_answered: others[0],
        others_refused: others[1],
        others_of_limit: others[0] as f64 / allowed,
        at_host,
        holds: kept && (!on_nic || at_host == others[0] + polite[0]),
    }
}

fn finish(arguments: &Arguments, figures: &[Figures]) -> ExitCode {
    let runs: Vec<Run> = figures.iter().map(|figures| run(arguments, figures)).collect();
    let holds = runs.iter().all(|run| run.holds);
    if arguments.fleet.json {
        report::print_json(&Document { runs, holds });
    } else {
        report::print(&table(&runs));
    }
    ExitCode::from(if holds { 0 } else { report::FAILED })
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<6}{:>24}{:>12}{:>10}{:>26}{:>10}{:>14}\n",
        "",
        "polite: answered/refused",
        "median us",
        "p99 us",
        "others: answered/refused",
        "of limit",
        "at the host"
    );
    for run in runs {
        let polite = format!("{}/{}", run.polite_answered, run.polite_refused);
        let others = format!("{}/{}", run.others_answered, run.others_refused);
        text += &format!(
            "{:<6}{polite:>24}{:>12.1}{:>10.1}{others:>26}{:>9.1}%{:>14}\n",
            run.place,
            run.median_us,
            run.p99_us,
            run.others_of_limit * 100.0,
            run.at_host
        );
    }
    text
}
