//! How long a freeze takes over numbers of nodes and arities.

use std::time::Duration;

use midplane::gang::daemon::Mode;
use midplane::gang::scheduler::Phases;
use midplane::gang::tree::Tree;
use serde::Serialize;

use super::arguments::Arguments;
use super::cluster::{self, Program, Setting};
use super::{report, slowdown};

#[derive(Serialize)]
struct Row {
    nodes: u16,
    arity: u16,
    depth: u32,
    median_freeze_us: f64,
    machine: &'static str,
}

#[derive(Serialize)]
struct Document {
    freezes: Vec<Row>,
}

fn freeze(arguments: &Arguments, nodes: u16, arity: u16) -> Row {
    let setting = Setting {
        machine: arguments.machine,
        nodes,
        arity,
        mode: Mode::Resident,
        phases: Phases::Two,
        slice: Duration::from_millis(20),
        seed: arguments.seed,
    };
    let outcome = cluster::run(setting, &[(Program::Idle(150), nodes, nodes)]);
    let mut freezes: Vec<f64> =
        outcome.switches.iter().skip(1).map(|s| s.freeze.as_secs_f64() * 1e6).collect();
    freezes.sort_by(f64::total_cmp);
    Row {
        nodes,
        arity,
        depth: Tree::new(nodes, arity).depth(),
        median_freeze_us: freezes[freezes.len() / 2],
        machine: arguments.machine.machine().name,
    }
}

pub(crate) fn run(arguments: &Arguments) -> bool {
    let sizes = [2, 4, 8, 16, 32, 64, 256, 1024, 4096];
    let arities = [2, 4, 8, 16, 32, 64];
    let mut wanted: Vec<(u16, u16)> = sizes.iter().map(|nodes| (*nodes, 16)).collect();
    for arity in arities {
        wanted.extend([64, 1024].map(|nodes| (nodes, arity)));
    }
    wanted.sort_unstable();
    wanted.dedup();
    let bar = slowdown::progress(wanted.len());
    let mut freezes = Vec::new();
    for (nodes, arity) in wanted {
        bar.set_message(format!("{nodes} nodes, arity {arity}"));
        freezes.push(freeze(arguments, nodes, arity));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if arguments.json {
        report::print_json(&Document { freezes });
        return true;
    }
    let mut text = format!("{:>6} {:>6} {:>6} {:>12}\n", "nodes", "arity", "depth", "freeze");
    for Row { nodes, arity, depth, median_freeze_us, .. } in &freezes {
        text += &format!("{nodes:>6} {arity:>6} {depth:>6} {median_freeze_us:>9.0} us\n");
    }
    report::say(&text);
    true
}
