//! The time of a freeze over numbers of nodes and arities of the tree.

use std::path::Path;
use std::time::Duration;

use midplane::gang::daemon::Mode;
use midplane::gang::scheduler::Phases;
use midplane::gang::tree::Tree;
use serde::Serialize;

use super::arguments::Arguments;
use super::cluster::{self, Program, Setting};
use super::{report, slowdown};
use midplane_kit::plot::{self, Axis, Line, Panel, Scale};

#[derive(Serialize)]
struct Row {
    nodes: u16,
    arity: u16,
    depth: u32,
    median_freeze_us: f64,
    machine: &'static str,
}

/// Growth of a freeze with the nodes, for one arity: `start_us + step_us * log(nodes)`, to the base of the arity, by
/// least squares.
#[derive(Serialize)]
struct Growth {
    arity: u16,
    start_us: f64,
    step_us: f64,
    /// Share of the variance that the fit explains, from 0 to 1.
    explained: f64,
}

#[derive(Serialize)]
struct Document {
    freezes: Vec<Row>,
    growth: Vec<Growth>,
}

const SIZES: [u16; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096];
const ARITIES: [u16; 6] = [2, 4, 8, 16, 32, 64];

fn growth(arity: u16, rows: &[Row]) -> Growth {
    let point =
        |row: &Row| (f64::from(row.nodes).ln() / f64::from(arity).ln(), row.median_freeze_us);
    let points: Vec<(f64, f64)> = rows.iter().filter(|row| row.arity == arity).map(point).collect();
    let mean =
        |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(&|it| it.0), mean(&|it| it.1));
    let (xx, xy) = (mean(&|it| (it.0 - x).powi(2)), mean(&|it| (it.0 - x) * (it.1 - y)));
    let step_us = xy / xx;
    let rest = mean(&|it| (it.1 - y - step_us * (it.0 - x)).powi(2));
    let explained = 1.0 - rest / mean(&|it| (it.1 - y).powi(2));
    Growth { arity, start_us: y - step_us * x, step_us, explained }
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

/// Draws the measured freezes of each arity, and the fitted line.
fn draw(file: &Path, rows: &[Row], growth: &[Growth]) -> Result<(), String> {
    let panel = |growth: &Growth| {
        let arity = f64::from(growth.arity);
        let its = rows.iter().filter(|row| row.arity == growth.arity);
        let measured: Vec<(f64, f64)> =
            its.map(|row| (f64::from(row.nodes), row.median_freeze_us)).collect();
        let on_line = |nodes: f64| (nodes, growth.start_us + growth.step_us * nodes.log(arity));
        let fitted = measured.iter().map(|(nodes, _)| on_line(*nodes)).collect();
        let label = format!("{:.0} us + {:.0} us x log(nodes)", growth.start_us, growth.step_us);
        let lines = vec![
            Line { label: "measured".into(), points: measured },
            Line { label, points: fitted },
        ];
        Panel { title: format!("arity {}", growth.arity), lines }
    };
    let panels: Vec<Panel> = growth.iter().map(panel).collect();
    let nodes = Axis { label: "nodes", scale: Scale::Binary };
    plot::draw(file, nodes, "freeze (us)", &panels)
}

pub(crate) fn run(arguments: &Arguments) -> bool {
    let each = |nodes: &u16| ARITIES.map(|arity| (*nodes, arity));
    let wanted: Vec<(u16, u16)> = SIZES.iter().flat_map(each).collect();
    let bar = slowdown::progress(wanted.len());
    let mut freezes = Vec::new();
    for (nodes, arity) in wanted {
        bar.set_message(format!("{nodes} nodes, arity {arity}"));
        freezes.push(freeze(arguments, nodes, arity));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let growth: Vec<Growth> = ARITIES.iter().map(|arity| growth(*arity, &freezes)).collect();
    if let Some(file) = &arguments.plot
        && let Err(error) = draw(file, &freezes, &growth)
    {
        report::fail(&error, report::FAILED);
        return false;
    }
    if arguments.json {
        report::print_json(&Document { freezes, growth });
        return true;
    }
    let mut text = format!("{:>6} {:>6} {:>6} {:>12}\n", "nodes", "arity", "depth", "freeze");
    for Row { nodes, arity, depth, median_freeze_us, .. } in &freezes {
        text += &format!("{nodes:>6} {arity:>6} {depth:>6} {median_freeze_us:>9.0} us\n");
    }
    text += "\nfitted over the nodes, with the logarithm to the base of the arity\n";
    for Growth { arity, start_us, step_us, explained } in &growth {
        text += &format!(
            "arity {arity:>2}: {start_us:>6.1} us + {step_us:>6.1} us x log(nodes), which explains {:.1} %\n",
            100.0 * explained
        );
    }
    report::print(&text);
    true
}
