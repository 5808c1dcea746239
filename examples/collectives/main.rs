//! Collective operations between NICs, beside the same ones between hosts.

mod arguments;
#[path = "../common/command_line.rs"]
mod command_line;
mod fabrics;
mod member;
#[path = "../common/plot.rs"]
mod plot;
#[expect(dead_code, reason = "all members are tasks of one process")]
#[path = "../common/processes.rs"]
mod processes;
#[path = "../common/report.rs"]
mod report;

use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::time::Instant;
use serde::Serialize;

use arguments::{Arguments, Fabric, Operation, Where};
use member::Plan;

/// How far a barrier may be from the model, as a fraction.
const TOLERANCE: f64 = 0.1;
/// The paper's ways: from coprocessor to coprocessor, and from application to application.
const NICS_US: f64 = 18.0;
const HOSTS_US: f64 = 60.0;

#[derive(Clone, Debug, Serialize)]
struct Run {
    operation: Operation,
    nodes: u16,
    #[serde(rename = "where")]
    place: Where,
    fabric: Fabric,
    bytes: u32,
    skew_us: u64,
    rounds: u32,
    median_us: f64,
    p99_us: f64,
    /// What a member's host spends in a round, on the average.
    host_time_us: f64,
    /// How many times as long it takes by hosts; 1 for those.
    ratio: f64,
    /// How many times as long hosts are busy by hosts.
    host_time_ratio: f64,
    /// What the model says, for simulated barriers.
    model_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
    holds: bool,
}

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Err(what) = check(&arguments) {
        return report::fail(&what, report::BAD_INPUT);
    }
    let runs = match measure(&arguments) {
        Ok(runs) => runs,
        Err(error) => return report::fail(&error, report::DID_NOT_HOLD),
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
        report::say(&table(&runs));
    }
    ExitCode::from(if holds { 0 } else { report::DID_NOT_HOLD })
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
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Vec<Run>, String> {
    use Operation::{AllGather, AllReduce, Barrier, Broadcast, Reduce};
    let operations = if arguments.operation.is_empty() {
        vec![Barrier, Broadcast, Reduce, AllReduce, AllGather]
    } else {
        arguments.operation.clone()
    };
    let bar = ProgressBar::new((operations.len() * arguments.nodes.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta}").expect("a constant"));
    let mut runs = Vec::new();
    for operation in operations {
        for nodes in arguments.nodes.iter().copied() {
            if operation == AllGather && nodes > 256 {
                continue;
            }
            let of = |place| {
                let plan = Plan {
                    operation,
                    place,
                    nodes,
                    rounds: arguments.rounds,
                    bytes: arguments.bytes as usize,
                    skew: Duration::from_micros(arguments.skew_us),
                };
                let log = fabrics::run(arguments.fabric, plan, arguments.seed)?;
                Ok::<_, String>(summary(arguments, plan, &log))
            };
            let (host, mut nic) = (of(Where::Host)?, of(Where::Nic)?);
            nic.ratio = host.median_us / nic.median_us;
            nic.host_time_ratio = host.host_time_us / nic.host_time_us;
            runs.extend([host, nic]);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(runs)
}

fn summary(arguments: &Arguments, plan: Plan, log: &[Vec<(Instant, Instant)>]) -> Run {
    let us = |from: Instant, to: Instant| to.nanos_since(from) as f64 / 1e3;
    let whole = |round: &Vec<(Instant, Instant)>| {
        let begun = round.iter().map(|times| times.0).min().expect("a group has members");
        let ended = round.iter().map(|times| times.1).max().expect("a group has members");
        us(begun, ended)
    };
    let mut times: Vec<f64> = log.iter().map(whole).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let spent: f64 = log.iter().flatten().map(|(begun, ended)| us(*begun, *ended)).sum();
    let rounds = f64::from(plan.nodes).log2().ceil();
    let modelled = plan.operation == Operation::Barrier
        && arguments.fabric == Fabric::Sim
        && plan.skew.is_zero();
    let model = match plan.place {
        Where::Host => rounds * HOSTS_US,
        Where::Nic => HOSTS_US - NICS_US + rounds * NICS_US,
    };
    Run {
        operation: plan.operation,
        nodes: plan.nodes,
        place: plan.place,
        fabric: arguments.fabric,
        bytes: arguments.bytes,
        skew_us: arguments.skew_us,
        rounds: plan.rounds,
        median_us: at(0.5),
        p99_us: at(0.99),
        host_time_us: spent / (f64::from(plan.nodes) * f64::from(plan.rounds)),
        ratio: 1.0,
        host_time_ratio: 1.0,
        model_us: modelled.then_some(model),
    }
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<11}{:>6}{:>6}{:>12}{:>12}{:>8}{:>12}{:>8}{:>10}\n",
        "operation", "nodes", "", "median us", "p99 us", "ratio", "host us", "ratio", "model us"
    );
    for run in runs {
        let place = if run.place == Where::Nic { "nic" } else { "host" };
        let model = run.model_us.map_or(String::new(), |model| format!("{model:.0}"));
        text += &format!(
            "{:<11}{:>6}{place:>6}{:>12.1}{:>12.1}{:>8.2}{:>12.1}{:>8.2}{model:>10}\n",
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
