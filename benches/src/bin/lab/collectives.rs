//! Collective operations run by NICs, compared with the same run by hosts.

mod arguments;
mod groups;
mod member;

use std::net::SocketAddr;

use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::time::Instant;
use midplane_kit::claims::median;
use serde::Serialize;
use serde_json::json;

use crate::fabric::Fabric;
use crate::ranks;
use crate::report::{self, Failure, quantile};
pub(crate) use arguments::Arguments;
use arguments::{Operation, Where};
use member::{BYTES, Plan, Times};

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
    rounds: u32,
    median_us: f64,
    p99_us: f64,
    /// Mean time that a member's host spends in a round.
    host_time_us: f64,
    /// The hosts' time over this one; 1 for hosts.
    ratio: f64,
    /// The same ratio of host times.
    host_time_ratio: f64,
    /// Time by the model, for simulated barriers.
    model_us: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    check(arguments)?;
    let runs = match arguments.ranks.place()? {
        None => measure(arguments).map_err(Failure::of_run)?,
        Some(place) => {
            let peers = peers(arguments, &place)?;
            let runs = measure_across(arguments, place.rank, peers).map_err(Failure::of_run)?;
            if place.rank > 0 {
                return Ok(0);
            }
            runs
        }
    };
    let near = |run: &Run| {
        run.model_us.is_none_or(|model| (run.median_us / model - 1.0).abs() <= TOLERANCE)
    };
    let holds = runs.iter().all(near);
    Ok(report::conclude(arguments.json, &json!({"runs": runs, "holds": holds}), holds))
}

fn check(arguments: &Arguments) -> Result<(), String> {
    let most = arguments.nodes.iter().max().copied().unwrap_or(0);
    if arguments.fabric != Fabric::Sim && most > 64 {
        return Err(format!("--nodes {most}: a live group in one process has up to 64"));
    }
    if arguments.bytes != BYTES as u32 && !arguments.communicator {
        return Err(format!(
            "--bytes {}: NICs and groups of hosts take {BYTES} here",
            arguments.bytes
        ));
    }
    if arguments.communicator && most > 32 {
        return Err(format!("--nodes {most}: a --communicator has up to 32 members here"));
    }
    Ok(())
}

/// Returns all members' addresses, if each member is a process.
fn peers(arguments: &Arguments, place: &ProcessGroup) -> Result<Vec<SocketAddr>, Failure> {
    if arguments.fabric != Fabric::Udp {
        return Err("--rank: hosts are joined by --fabric udp".to_owned().into());
    }
    if arguments.communicator {
        return Err("--communicator: its members are in one process here".to_owned().into());
    }
    if !(2..=256).contains(&place.size()) {
        return Err(format!("--peers: from 2 to 256 take part, not {}", place.size()).into());
    }
    ranks::addresses(place, groups::COME_UP)
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
        bytes: arguments.bytes as usize,
        rounds: arguments.rounds,
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
    let rounds = groups::run_across(rank, peers, plans.clone())?;
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
    }
}

fn measure(arguments: &Arguments) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    for operation in operations(arguments) {
        for nodes in arguments.nodes.iter().copied() {
            if operation == Operation::AllGather && nodes > 256 {
                continue;
            }
            let of = |place| {
                let plan = plan(arguments, operation, place, nodes);
                let times = groups::run(arguments.fabric, plan)?;
                Ok::<_, String>(summary(arguments, plan, rounds(&plan, &times)))
            };
            let mut pair = [of(Where::Host)?, of(Where::Nic)?];
            compare(&mut pair);
            runs.extend(pair);
        }
    }
    Ok(runs)
}

/// Times of a plan's rounds, in microseconds.
struct Rounds {
    /// Time of each round: from the first member's begin to the last one's end. Across processes: the slowest
    /// member's, by its own clock.
    times: Vec<f64>,
    /// Mean time of a member in a round.
    spent: f64,
}

fn rounds(plan: &Plan, members: &[Vec<Times>]) -> Rounds {
    let us = |from: Instant, to: Instant| to.nanos_since(from) as f64 / 1e3;
    let of_round = |round: usize| members.iter().map(move |times| times[round]);
    let rounds = 0..plan.rounds as usize;
    let whole = |round| {
        let begun = of_round(round).map(|times| times.0).min().expect("a group has members");
        let ended = of_round(round).map(|times| times.1).max().expect("a group has members");
        us(begun, ended)
    };
    let spent: f64 = members.iter().flatten().map(|(begun, ended)| us(*begun, *ended)).sum();
    let each = f64::from(plan.nodes) * f64::from(plan.rounds);
    Rounds { times: rounds.map(whole).collect(), spent: spent / each }
}

fn summary(arguments: &Arguments, plan: Plan, rounds: Rounds) -> Run {
    let Rounds { times, spent } = rounds;
    let levels = f64::from(plan.nodes).log2().ceil();
    let modelled = plan.operation == Operation::Barrier
        && arguments.fabric == Fabric::Sim
        && !arguments.communicator;
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
        rounds: plan.rounds,
        median_us: median(times.clone()),
        p99_us: quantile(times, 0.99),
        host_time_us: spent,
        ratio: 1.0,
        host_time_ratio: 1.0,
        model_us: modelled.then_some(model),
    }
}
