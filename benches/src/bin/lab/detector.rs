//! Measures a failure detector on NICs, which the hosts' load does not mislead, and the same on hosts.

mod extension;
mod hosts;

use std::time::Duration;

use clap::Parser;
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::{Fault, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::World;
use midplane::simhw::time::Instant;
use serde::Serialize;
use serde_json::json;

use crate::report::{self, Failure};

use extension::{DETECTOR, Detector};

/// Interval between two heartbeats of a member.
const PERIOD: Duration = Duration::from_millis(1);
/// Periods for which each host stalls in turn, and after which one node crashes.
const STALL: u32 = 10;
/// Periods within which a crash must be detected.
const WITHIN: f64 = 3.0;

/// Measure a failure detector on simulated NICs, and the same on hosts
///
/// Each member sends all others a heartbeat once a period, and suspects a member that was silent for two and a half
/// periods. Hosts stall for ten periods, one after another; then a node crashes.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 NICs suspected no live node, and detected the crash within 3 periods; 1 they did not; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Members, from 3 to 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(3..=64))]
    nodes: u16,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    nodes: u16,
    period_us: u128,
    /// Suspicions of live nodes.
    false_suspicions: u64,
    /// Periods from the crash until the last member suspected the node; `None` if a member never did.
    found_within_periods: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let runs = vec![measure(arguments, "nic"), measure(arguments, "host")];
    let nic = &runs[0];
    let holds = nic.false_suspicions == 0
        && nic.found_within_periods.is_some_and(|periods| periods <= WITHIN);
    Ok(report::conclude(arguments.json, &json!({"runs": runs, "holds": holds}), holds))
}

/// Returns the node that crashes, and when.
fn crash(arguments: &Arguments) -> (NodeId, Instant) {
    let periods = STALL * (u32::from(arguments.nodes) + 2);
    // Not aligned with any member's heartbeat.
    (NodeId(1), Instant::ZERO + PERIOD * periods + PERIOD * 37 / 100)
}

/// Creates a cluster in which one host after another stalls.
fn world(arguments: &Arguments) -> World<Unit> {
    let (machine, nodes) = (Machine::ETHERNET_25G, arguments.nodes);
    let mut world =
        World::new(&machine.topology(nodes), machine.nic, arguments.seed, move |_, _| {
            let mut unit = Unit::default();
            let members = (0..nodes).map(NodeId).collect();
            unit.install(MESSAGES, Messages::new()).expect("the number is free");
            unit.install(DETECTOR, Detector::new(members, PERIOD)).expect("the number is free");
            unit
        });
    world.set_hosts(machine.host);
    for node in 0..nodes {
        let at = Instant::ZERO + PERIOD * STALL * (u32::from(node) + 1);
        world.schedule(Incident {
            at,
            lasts: PERIOD * STALL,
            fault: Fault::Pause { node: NodeId(node) },
        });
    }
    world
}

fn measure(arguments: &Arguments, place: &'static str) -> Run {
    let nodes = arguments.nodes;
    let mut world = world(arguments);
    let (dead, at) = crash(arguments);
    let hosts = (place == "host").then(|| hosts::start(&mut world, nodes, PERIOD));
    world.run_until(at);
    world.crash(dead);
    world.run_until(at + PERIOD * 10);
    let known = |node: u16| match &hosts {
        Some(table) => {
            table.lock().expect("no task panics with it locked")[usize::from(node)].clone()
        }
        None => {
            let unit = world.firmware(NodeId(node));
            unit.extension::<Detector>(DETECTOR).expect("it is installed").known.clone()
        }
    };
    let (mut false_suspicions, mut found_within_periods) = (0, Some(0.0_f64));
    for node in (0..nodes).filter(|node| *node != dead.0) {
        for (of, known) in known(node).iter().enumerate() {
            false_suspicions += known.mistakes;
            if of == dead.index() {
                let periods = known
                    .suspected_at
                    .map(|found| found.nanos_since(at) as f64 / PERIOD.as_nanos() as f64);
                let most = found_within_periods.zip(periods);
                found_within_periods = most.map(|(most, periods)| most.max(periods));
            } else {
                false_suspicions += u64::from(known.suspected_at.is_some());
            }
        }
    }
    Run { place, nodes, period_us: PERIOD.as_micros(), false_suspicions, found_within_periods }
}
