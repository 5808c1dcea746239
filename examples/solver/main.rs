//! Solves linear systems by asynchronous iteration over a congested network.
//!
//! ```text
//! cargo run --release --example solver
//! cargo run --release --example solver -- --fabric sim --control warp+csend --background 0.5 --json
//! ```
//!
//! Ranks compute their unknowns from the latest received values of the others', and send the results. Without control
//! the network fills with values that are stale when they arrive. Under Warp fewer messages carry more and newer values.
//! Without `--rank` this process starts a switch and the ranks on this host. The figures are those of Heddaya and Park
//! (1994), section 5.3.

mod children;

use midplane_benches::nodes;
use midplane_benches::solver::{arguments, fabrics, figures, problem, rank, run, setting, study};
use midplane_kit::{command_line, report};
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::launch;
use midplane::warp::iterate::FixedPoint as _;
use midplane::warp::iterate::matrix::Linear;
use serde::Serialize;

use arguments::Arguments;
use nodes::{Fabric, Failure, Part};
use rank::Job;
use report::{BAD_INPUT, FAILED};
use run::Run;
use setting::{RATE_IN, Setting};

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

/// Carries out the command line; only rank 0 has runs to report.
fn conduct(arguments: &Arguments) -> Result<Outcome, Failure> {
    let part = arguments.nodes.part()?;
    if let Part::Switch(peers) = part {
        let setting = arguments.settings(arguments.ranks(), 0, 0).remove(0);
        nodes::serve(peers, |config| {
            let config = config.link(setting.link()).rate_in(RATE_IN);
            config.profile(setting.switch()).seed(setting.seed)
        })?;
        return Ok(Outcome { runs: Vec::new(), alone: false });
    }
    let problem = Arc::new(problem::read(arguments).map_err(Failure::Input)?);
    match part {
        Part::Node(place) => take_part(arguments, &place, &problem),
        _ => compare(arguments, &problem),
    }
}

/// Returns the settings of all runs, if each rank has at least one unknown.
fn settings(arguments: &Arguments, ranks: u16, problem: &Linear) -> Result<Vec<Setting>, Failure> {
    let unknowns = problem.unknowns();
    if unknowns < usize::from(ranks) {
        let what = format!("--ranks {ranks}: must be at most {unknowns}, the number of unknowns");
        return Err(Failure::Input(what));
    }
    Ok(arguments.settings(ranks, unknowns, problem::number(problem)))
}

/// Carries out all runs from this process.
fn compare(arguments: &Arguments, problem: &Arc<Linear>) -> Result<Outcome, Failure> {
    let settings = settings(arguments, arguments.ranks(), problem)?;
    let direct = problem::solve_directly(problem);
    // The bar is only drawn on a terminal.
    let bar = progress(settings.len() as u64);
    let mut runs = Vec::new();
    for (at, setting) in settings.into_iter().enumerate() {
        let load = setting.load.share;
        let (control, buffer) = (command_line::name_of(&setting.control), setting.buffer);
        bar.set_message(format!("run {}: {control} {buffer}, background {load}", at + 1));
        bar.set_length(DIGITS_DRAWN);
        let setting = Arc::new(setting);
        let job = Job {
            setting: Arc::clone(&setting),
            problem: Arc::clone(problem),
            wait: arguments.nodes.wait(),
            progress: bar.clone(),
        };
        let outcome = match setting.fabric {
            Fabric::Sim => fabrics::simulate(&job)?,
            Fabric::Udp | Fabric::Switch => children::run(arguments, &job)?,
        };
        runs.push(Run::new(&setting, problem, direct.as_deref(), outcome));
    }
    bar.finish_and_clear();
    Ok(Outcome { runs, alone: true })
}

/// Steps of the progress bar of one run.
const DIGITS_DRAWN: u64 = 1_000;

fn progress(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} % of the digits, {msg}");
    bar.set_style(style.expect("a constant"));
    bar
}

/// Carries out one run as one of its ranks.
fn take_part(
    arguments: &Arguments,
    place: &launch::ProcessGroup,
    problem: &Arc<Linear>,
) -> Result<Outcome, Failure> {
    let ranks = arguments.ranks_among(place.size()).map_err(Failure::Input)?;
    let mut settings = settings(arguments, ranks, problem)?;
    if settings.len() != 1 {
        let what = "--control: name one; across hosts there is one run";
        return Err(Failure::Input(what.into()));
    }
    let setting = Arc::new(settings.remove(0));
    let place = arguments.nodes.seat(place, setting.nodes())?;
    let bar = if place.rank == 0 { progress(DIGITS_DRAWN) } else { ProgressBar::hidden() };
    let job = Job {
        setting: Arc::clone(&setting),
        problem: Arc::clone(problem),
        wait: arguments.nodes.wait(),
        progress: bar.clone(),
    };
    let outcome = nodes::runtime()?.block_on(fabrics::take_part(job, &place))?;
    bar.finish_and_clear();
    let direct = outcome.as_ref().and_then(|_| problem::solve_directly(problem));
    let run = outcome.map(|outcome| Run::new(&setting, problem, direct.as_deref(), outcome));
    Ok(Outcome { runs: run.into_iter().collect(), alone: false })
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
        report::print(&run::table(runs));
        if arguments.study {
            report::print(&format!("\n{}", study::summary(runs)));
        }
    }
    let is_picture = arguments.is_comparison() && *alone;
    if let Some(path) = nodes.picture(is_picture.then_some("solver.svg")) {
        match figures::draw(&path, runs) {
            Err(what) => return report::fail(&what, BAD_INPUT),
            Ok(paths) if !nodes.json => {
                let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
                report::print(&format!("The pictures are in {}\n", paths.join(", ")));
            }
            Ok(_) => {}
        }
    }
    verdict(arguments, runs)
}

/// Whether all is well: an uncontrolled run that does not converge is what a comparison shows.
fn verdict(arguments: &Arguments, runs: &[Run]) -> ExitCode {
    let stuck = |run: &&Run| !run.converged;
    if let Some(run) = runs.iter().find(|run| !run.converged && !run.lost_ranks.is_empty()) {
        let what = Failure::Lost(run.lost_ranks.clone()).to_string();
        return report::fail(&what, FAILED);
    }
    match runs.iter().filter(stuck).count() {
        0 => ExitCode::SUCCESS,
        _ if arguments.is_comparison() && runs.iter().any(|run| run.converged) => ExitCode::SUCCESS,
        count => {
            let what = format!("{count} of {} runs did not converge within --seconds", runs.len());
            report::fail(&what, FAILED)
        }
    }
}
