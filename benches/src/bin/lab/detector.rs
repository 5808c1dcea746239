//! A failure detector on NICs, which the hosts' load does not mislead, and the same on hosts.

mod extension;
mod hosts;

use crate::report;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::{Fault, Faults, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::World;
use midplane::simhw::time::Instant;
use serde::Serialize;

use extension::{DETECTOR, Detector};
use report::{BAD_INPUT, FAILED, fail, print, print_json};

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
    /// Heartbeat period in microseconds, from 100
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    period_us: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Share of lost frames, from 0 to 0.1
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    nodes: u16,
    period_us: u64,
    loss: f64,
    /// Suspicions of live nodes.
    false_suspicions: u64,
    /// Periods from the crash until the last member suspected the node; `None` if a member never did.
    found_within_periods: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
    holds: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    if !(0.0..=0.1).contains(&arguments.loss) {
        return fail(&format!("--loss {}: a share from 0 to 0.1", arguments.loss), BAD_INPUT);
    }
    let runs = vec![on_nics(&arguments), hosts::run(&arguments)];
    let nic = &runs[0];
    let holds = nic.false_suspicions == 0
        && nic.found_within_periods.is_some_and(|periods| periods <= WITHIN);
    if arguments.json {
        print_json(&Document { runs, holds });
    } else {
        let line = |run: &Run| {
            let found = run.found_within_periods;
            let found = found
                .map_or_else(|| "not found by all".into(), |p| format!("found in {p:.2} periods"));
            format!(
                "{:<5} {:>4} false suspicions, crash {found}\n",
                run.place, run.false_suspicions
            )
        };
        print(&runs.iter().map(line).collect::<String>());
    }
    ExitCode::from(if holds { 0 } else { FAILED })
}

/// Returns the node that crashes, and when.
fn crash(arguments: &Arguments) -> (NodeId, Instant) {
    let periods = STALL * (u32::from(arguments.nodes) + 2);
    let at = Instant::ZERO + Duration::from_micros(arguments.period_us) * periods;
    // Not aligned with any member's heartbeat.
    (NodeId(1), at.plus_nanos(arguments.period_us * 370))
}

/// Creates a cluster in which one host after another stalls.
fn world(arguments: &Arguments) -> World<Unit> {
    let machine = Machine::ETHERNET_25G;
    let (nodes, period) = (arguments.nodes, Duration::from_micros(arguments.period_us));
    let mut world =
        World::new(&machine.topology(nodes), machine.nic, arguments.seed, move |_, _| {
            let mut unit = Unit::default();
            let members = (0..nodes).map(NodeId).collect();
            unit.install(MESSAGES, Messages::new()).expect("the number is free");
            unit.install(DETECTOR, Detector::new(members, period)).expect("the number is free");
            unit
        });
    world.set_hosts(machine.host);
    let mut faults = Faults::NONE;
    faults.loss = arguments.loss;
    world.set_faults(faults);
    for node in 0..nodes {
        let at = Instant::ZERO + period * STALL * (u32::from(node) + 1);
        world.schedule(Incident {
            at,
            lasts: period * STALL,
            fault: Fault::Pause { node: NodeId(node) },
        });
    }
    world
}

fn on_nics(arguments: &Arguments) -> Run {
    let mut world = world(arguments);
    let (dead, at) = crash(arguments);
    let period = Duration::from_micros(arguments.period_us);
    world.run_until(at);
    let known = |world: &World<Unit>, node: u16| {
        let unit = world.firmware(NodeId(node));
        unit.extension::<Detector>(DETECTOR).expect("it is installed").known.clone()
    };
    let others: Vec<u16> = (0..arguments.nodes).filter(|node| *node != dead.0).collect();
    world.crash(dead);
    world.run_until(at + period * 10);
    let mut false_suspicions = 0;
    let mut found = Some(0.0_f64);
    for node in others {
        for (of, known) in known(&world, node).iter().enumerate() {
            false_suspicions += known.mistakes;
            if of == dead.index() {
                let periods = known
                    .suspected_at
                    .map(|suspected| suspected.nanos_since(at) as f64 / period.as_nanos() as f64);
                found = found.zip(periods).map(|(most, periods)| most.max(periods));
            } else {
                false_suspicions += u64::from(known.suspected_at.is_some());
            }
        }
    }
    run("nic", arguments, false_suspicions, found)
}

fn run(
    place: &'static str,
    arguments: &Arguments,
    false_suspicions: u64,
    found_within_periods: Option<f64>,
) -> Run {
    let Arguments { nodes, period_us, loss, .. } = *arguments;
    Run { place, nodes, period_us, loss, false_suspicions, found_within_periods }
}
