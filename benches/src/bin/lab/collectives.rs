//! Collective operations run by NICs, compared with the same run by hosts.

mod arguments;
mod fabrics;
mod hosts;
mod member;
mod world;

use crate::{plot, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::launch::Place;
use midplane::simhw::time::Instant;
use serde::Serialize;

pub(crate) use arguments::Arguments;
use arguments::{Fabric, Operation, Where};
use member::{Plan, Times};

/// Time limit for resolving names.
const COME_UP: Duration = Duration::from_secs(20);
/// Largest deviation of a barrier from the model, as a fraction.
const TOLERANCE: f64 = 0.1;
/// The DVCM paper's one-way times: from coprocessor to coprocessor, and from application to application.
const NICS_US: f64 = 18.0;
const HOSTS_US: f64 = 60.0;

#[derive(Clone, Debug, Serialize)]
struct Run {
    operation: Operation,
    nodes: u16,
    #[serde(rename = "where")]
    place: Where,
    fabric: Fabric,
    /// True if the operations are a communicator's.
    communicator: bool,
    bytes: u32,
    skew_us: u64,
    rounds: u32,
    median_us: f64,
    p99_us: f64,
    /// Mean time that a member's host spends in a round.
    host_time_us: f64,
    /// The part of it in which hosts wait for a late root of a broadcast: no design saves that.
    for_root_us: Option<f64>,
    /// The hosts' time over this one; 1 for hosts.
    ratio: f64,
    /// The same ratio of host times.
    host_time_ratio: f64,
    /// The same ratio of host times without the wait for the root.
    own_time_ratio: Option<f64>,
    /// Time by the model, for simulated barriers.
    model_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
    holds: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let place = match check(&arguments).and_then(|()| arguments.ranks.place()) {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let peers = match place.as_ref().map(|place| peers(&arguments, place)).transpose() {
        Ok(peers) => peers,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let rank = place.map_or(0, |place| place.rank);
    let measured = match peers {
        Some(peers) => measure_across(&arguments, rank, peers),
        None => measure(&arguments),
    };
    let runs = match measured {
        Ok(_) if rank > 0 => return ExitCode::SUCCESS,
        Ok(runs) => runs,
        Err(error) => return report::fail(&error, report::FAILED),
    };
    let near = |run: &Run| {
        run.model_us.is_none_or(|model| (run.median_us / model - 1.0).abs() <= TOLERANCE)
    };
    let holds = runs.iter().all(near);
    if let Some(file) = &arguments.plot
        && let Err(error) = draw(file, &runs)
    {
        return report::fail(&error, report::BAD_INPUT);
    }
    if arguments.json {
        report::print_json(&Document { runs, holds });
    } else {
        report::print(&table(&runs));
    }
    ExitCode::from(if holds { 0 } else { report::FAILED })
}

fn check(arguments: &Arguments) -> Result<(), String> {
    let only_broadcast = arguments.operation == [Operation::Broadcast];
    if arguments.bytes > 88 && !only_broadcast {
        return Err(format!("--bytes {}: only a broadcast takes more than 88", arguments.bytes));
    }
    if !arguments.bytes.is_multiple_of(8) && !only_broadcast {
        return Err(format!("--bytes {}: words have 8 bytes", arguments.bytes));
    }
    let most = arguments.nodes.iter().max().copied().unwrap_or(0);
    if arguments.fabric != Fabric::Sim && most > 64 {
        return Err(format!("--nodes {most}: a live group in one process has up to 64"));
    }
    if arguments.communicator && most > 32 {
        return Err(format!("--nodes {most}: a --communicator has up to 32 members here"));
    }
    Ok(())
}

/// Returns all members' addresses, if each member is a process.
fn peers(arguments: &Arguments, place: &Place) -> Result<Vec<SocketAddr>, String> {
    if arguments.fabric != Fabric::Udp {
        return Err("--rank: hosts are joined by --fabric udp".into());
    }
    if arguments.communicator {
        return Err("--communicator: its members are in one process here".into());
    }
    if !(2..=256).contains(&place.size()) {
        return Err(format!("--peers: from 2 to 256 take part, not {}", place.size()));
    }
    ranks::addresses(place, COME_UP)
}

fn operations(arguments: &Arguments) -> Vec<Operation> {
    use Operation::{AllGather, AllReduce, Barrier, Broadcast, Reduce};
    if arguments.operation.is_empty() {
        return vec![Barrier, Broadcast, Reduce, AllReduce, AllGather];
    }
    arguments.operation.clone()
}

fn plan(arguments: &Arguments, operation: Operation, place: Where, nodes: u16) -> Plan {
    Plan {
        operation,
        place,
        communicator: arguments.communicator,
        nodes,
        rounds: arguments.rounds,
        bytes: arguments.bytes as usize,
        skew: Duration::from_micros(arguments.skew_us),
        port: None,
    }
}

/// Takes this process's part in a group of processes; every member returns the runs.
fn measure_across(
    arguments: &Arguments,
    rank: u16,
    peers: Vec<SocketAddr>,
) -> Result<Vec<Run>, String> {
    let nodes = peers.len() as u16;
    let of = |operation| [Where::Host, Where::Nic].map(|by| (operation, by));
    let plans = operations(arguments).into_iter().flat_map(of);
    let plans: Vec<Plan> = plans.map(|(what, by)| plan(arguments, what, by, nodes)).collect();
    let rounds = hosts::take_part(rank, peers, &plans, arguments.seed)?;
    let runs = plans.iter().zip(rounds);
    let mut runs: Vec<Run> = runs.map(|(plan, rounds)| summary(arguments, *plan, rounds)).collect();
    for pair in runs.chunks_exact_mut(2) {
        compare(pair);
    }
    Ok(runs)
}

/// Computes how many times longer the first run, by hosts, takes than the second, by NICs.
fn compare(pair: &mut [Run]) {
    if let [host, nic] = pair {
        nic.ratio = host.median_us / nic.median_us;
        nic.host_time_ratio = host.host_time_us / nic.host_time_us;
        let own = |run: &Run| run.for_root_us.map(|waited| run.host_time_us - waited);
        nic.own_time_ratio = own(host).zip(own(nic)).map(|(host, nic)| host / nic);
    }
}

fn measure(arguments: &Arguments) -> Result<Vec<Run>, String> {
    let operations = operations(arguments);
    let bar = ProgressBar::new((operations.len() * arguments.nodes.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta}").expect("a constant"));
    let mut runs = Vec::new();
    for operation in operations {
        for nodes in arguments.nodes.iter().copied() {
            if operation == Operation::AllGather && nodes > 256 {
                continue;
            }
            let of = |place| {
                let plan = plan(arguments, operation, place, nodes);
                let log = fabrics::run(arguments.fabric, plan, arguments.seed)?;
                Ok::<_, String>(summary(arguments, plan, rounds(&plan, &log)))
            };
            let mut pair = [of(Where::Host)?, of(Where::Nic)?];
            compare(&mut pair);
            runs.extend(pair);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(runs)
}

/// Times of a plan's rounds, in microseconds.
struct Rounds {
    /// Time of each round: from the first member's begin to the last one's end. Across processes: the slowest
    /// member's, by its own clock.
    times: Vec<f64>,
    /// Mean time of a member in a round.
    spent: f64,
    /// The part of it in which members waited for a root that had not begun.
    for_root: Option<f64>,
}

fn rounds(plan: &Plan, log: &[Vec<Times>]) -> Rounds {
    let us = |from: Instant, to: Instant| to.nanos_since(from) as f64 / 1e3;
    let whole = |round: &Vec<Times>| {
        let begun = round.iter().map(|times| times.1).min().expect("a group has members");
        let ended = round.iter().map(|times| times.2).max().expect("a group has members");
        us(begun, ended)
    };
    let waited = |round: &Vec<Times>| {
        let root = round.iter().find(|times| times.0 == 0).expect("the root is a member");
        round.iter().map(|times| us(times.1, root.1)).sum::<f64>()
    };
    let spent: f64 = log.iter().flatten().map(|(_, begun, ended)| us(*begun, *ended)).sum();
    let each = f64::from(plan.nodes) * f64::from(plan.rounds);
    let skewed = plan.operation == Operation::Broadcast && !plan.skew.is_zero();
    let for_root = skewed.then(|| log.iter().map(waited).sum::<f64>() / each);
    Rounds { times: log.iter().map(whole).collect(), spent: spent / each, for_root }
}

fn summary(arguments: &Arguments, plan: Plan, rounds: Rounds) -> Run {
    let Rounds { mut times, spent, for_root } = rounds;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let levels = f64::from(plan.nodes).log2().ceil();
    let modelled = plan.operation == Operation::Barrier
        && arguments.fabric == Fabric::Sim
        && !arguments.communicator
        && plan.skew.is_zero();
    let model = match plan.place {
        Where::Host => levels * HOSTS_US,
        Where::Nic => HOSTS_US - NICS_US + levels * NICS_US,
    };
    Run {
        operation: plan.operation,
        nodes: plan.nodes,
        place: plan.place,
        fabric: arguments.fabric,
        communicator: arguments.communicator,
        bytes: arguments.bytes,
        skew_us: arguments.skew_us,
        rounds: plan.rounds,
        median_us: at(0.5),
        p99_us: at(0.99),
        host_time_us: spent,
        for_root_us: for_root,
        ratio: 1.0,
        host_time_ratio: 1.0,
        own_time_ratio: for_root.map(|_| 1.0),
        model_us: modelled.then_some(model),
    }
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<11}{:>6}{:>6}{:>12}{:>12}{:>8}{:>12}{:>8}{:>10}{:>13}{:>8}\n",
        "operation",
        "nodes",
        "",
        "median us",
        "p99 us",
        "ratio",
        "host us",
        "ratio",
        "model us",
        "for root us",
        "rest"
    );
    for run in runs {
        let place = if run.place == Where::Nic { "nic" } else { "host" };
        let model = run.model_us.map_or(String::new(), |model| format!("{model:.0}"));
        let waited = run.for_root_us.map_or(String::new(), |waited| format!("{waited:.1}"));
        let own = run.own_time_ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        text += &format!(
            "{:<11}{:>6}{place:>6}{:>12.1}{:>12.1}{:>8.2}{:>12.1}{:>8.2}{model:>10}{waited:>13}{own:>8}\n",
            run.operation.to_string(),
            run.nodes,
            run.median_us,
            run.p99_us,
            run.ratio,
            run.host_time_us,
            run.host_time_ratio,
        );
    }
    text
}

fn draw(file: &std::path::Path, runs: &[Run]) -> Result<(), String> {
    let mut panels: Vec<plot::Panel> = Vec::new();
    for run in runs {
        let title = run.operation.to_string();
        let at = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            let line = |label: &str| plot::Line { label: label.into(), points: Vec::new() };
            panels.push(plot::Panel { title, lines: vec![line("hosts"), line("NICs")] });
            panels.len() - 1
        });
        let line = usize::from(run.place == Where::Nic);
        panels[at].lines[line].points.push((run.nodes.into(), run.median_us));
    }
    plot::draw(file, "nodes", "microseconds", &panels)
}
