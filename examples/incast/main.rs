//! Measures incast: many senders to one receiver through a switch with small buffers, without and with coordination.
//!
//! ```text
//! cargo run --release --example incast
//! cargo run --release --example incast -- --fabric sim --mode none --senders 3 --json
//! ```
//!
//! Without `--rank` this process starts a switch, senders and a receiver on this host, for every mode, 1 to 3 senders and
//! messages of up to 10 KB. It prints goodput, loss and fairness of each. The figures are those of the DVCM paper's
//! section 4.

mod arguments;
mod children;
mod table;

use midplane_benches::{incast, nodes};
use midplane_kit::{command_line, plot, report};
use std::collections::BTreeMap;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::launch;
use serde::Serialize;

use arguments::Arguments;
use incast::fabrics;
use incast::run::Run;
use incast::setting::Setting;
use nodes::{Fabric, Failure, Part};
use report::{BAD_INPUT, FAILED};

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match conduct(&arguments) {
        Ok(outcome) => finish(&arguments, &outcome),
        Err(failure) => {
            let code = if failure.is_input() { BAD_INPUT } else { FAILED };
            report::fail(&failure.to_string(), code)
        }
    }
}

/// Runs that this process reports.
struct Outcome {
    runs: Vec<Run>,
    /// True if this process carried out all runs.
    alone: bool,
}

/// Carries out the command line; only the receiver has runs to report.
fn conduct(arguments: &Arguments) -> Result<Outcome, Failure> {
    let (runs, alone) = match arguments.nodes.part()? {
        Part::Switch(peers) => {
            let setting = arguments.settings(None).remove(0);
            let counters = nodes::serve(peers, |config| {
                config.link(setting.link()).profile(setting.switch()).seed(setting.seed)
            })?;
            let drops = counters.frame_drops.iter().map(|(cause, count)| (cause.name(), count));
            report::print_json(&drops.collect::<BTreeMap<&str, u64>>());
            (Vec::new(), false)
        }
        Part::Node(place) => (take_part(arguments, &place)?, false),
        Part::All => (compare(arguments)?, true),
    };
    Ok(Outcome { runs, alone })
}

/// Carries out all runs from this process.
fn compare(arguments: &Arguments) -> Result<Vec<Run>, Failure> {
    arguments.keys().map_err(Failure::Input)?;
    let settings = arguments.settings(None);
    // The bar is only drawn on a terminal.
    let bar = ProgressBar::new(settings.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}");
    bar.set_style(style.expect("a constant"));
    let mut runs = Vec::new();
    for setting in settings {
        bar.set_message(format!("{} senders, {} bytes", setting.senders, setting.message_bytes));
        runs.push(match setting.fabric {
            Fabric::Sim => fabrics::simulate(&setting)?,
            Fabric::Udp | Fabric::Switch => children::run(arguments, &setting)?,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(runs)
}

/// Carries out all runs as one of their nodes.
fn take_part(arguments: &Arguments, place: &launch::ProcessGroup) -> Result<Vec<Run>, Failure> {
    let keys = arguments.keys().map_err(Failure::Input)?;
    let senders = arguments.senders_among(place.size()).map_err(Failure::Input)?;
    let settings = arguments.settings(Some(senders));
    let place = arguments.nodes.seat(place, settings.first().map_or(0, Setting::nodes))?;
    let runtime = nodes::runtime()?;
    let mut runs = Vec::new();
    for (round, setting) in (0..).zip(&settings) {
        let part = fabrics::take_part(setting, &place, keys.clone(), round, arguments.nodes.wait());
        runs.extend(runtime.block_on(part)?);
    }
    Ok(runs)
}

#[derive(Serialize)]
struct Document<'a> {
    runs: &'a [Run],
}

/// Prints the report, and returns the exit code.
fn finish(arguments: &Arguments, Outcome { runs, alone }: &Outcome) -> ExitCode {
    if runs.is_empty() {
        return ExitCode::SUCCESS;
    }
    let nodes = &arguments.nodes;
    if nodes.json {
        report::print_json(&Document { runs });
    } else {
        report::print(&table::table(runs));
    }
    let is_picture = arguments.is_comparison() && *alone;
    if let Some(path) = nodes.picture(is_picture.then_some("incast.svg")) {
        if let Err(what) = table::plot(&path, runs) {
            return report::fail(&what, BAD_INPUT);
        }
        if !nodes.json {
            report::print(&format!("The picture is in {}\n", path.display()));
        }
    }
    let mut lost: Vec<u16> = runs.iter().flat_map(|run| run.lost_ranks.iter().copied()).collect();
    lost.sort_unstable();
    lost.dedup();
    if lost.is_empty() {
        return ExitCode::SUCCESS;
    }
    report::fail(&Failure::Lost(lost).to_string(), FAILED)
}
