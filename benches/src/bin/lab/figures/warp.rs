//! The Warp paper: linear equations by asynchronous iteration (Figures 1 to 3).

use std::path::Path;
use std::sync::Arc;

use clap::Parser as _;
use indicatif::ProgressBar;
use midplane::warp::iterate::FixedPoint as _;
use midplane_benches::anchors::measure::Origin;

use crate::figures::rows::Row;
use crate::report::text;
use crate::solver;

use crate::solver::arguments::{Arguments, PAPER_BUFFER};
use crate::solver::rank::Job;
use crate::solver::run::Run;
use crate::solver::setting::Control;

const PAPER: &str = "warp";
/// The remark at numbers that the paper does not print.
const CURVE: &str = "the paper shows it as a curve only";

/// A quantity of both figures: its name and unit, the printed numbers without and with control, ours, and a remark.
type Quantity = (&'static str, &'static str, [f64; 2], fn(&Run) -> f64, &'static str);

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let arguments = Arguments::try_parse_from(["solver", "--fabric=sim"]);
    let runs = simulate(&arguments.map_err(|error| error.to_string())?)?;
    solver::figures::draw(&directory.join("warp-figure-1.svg"), &runs).map_err(text)?;
    let of = |control: Control| {
        let is_it = |run: &&Run| {
            let setting = &run.setting;
            setting.load.share > 0.0 && setting.control == control && setting.buffer == PAPER_BUFFER
        };
        runs.iter().find(is_it).ok_or("the run with the paper's buffer size is missing")
    };
    let (fixed, paper) = (of(Control::Static)?, of(Control::WarpPaper)?);
    let ours = of(Control::WarpCsend)?;
    let mut rows = both_figures([fixed, paper, ours]);
    rows.extend(figure_3([fixed, paper, ours]));
    let arguments = Arguments::try_parse_from(["solver", "--fabric=sim", "--iteration=jacobi"]);
    let rounds = simulate(&arguments.map_err(|error| error.to_string())?)?;
    rows.extend(synchronization_penalty(&rounds, &runs));
    Ok(rows.into_iter().map(|row| row.seed(fixed.setting.seed)).collect())
}

/// Compares the printed numbers of Figures 2 and 3: without control, under the paper's loop, and under the repaired law.
fn both_figures([fixed, paper, ours]: [&Run; 3]) -> Vec<Row> {
    let alone = "without c_send, whose flag the paper does not define";
    let quantities: [Quantity; 2] = [
        (
            "Figures 2, 3: messages",
            "",
            [8_250.0, 2_103.0],
            |run| run.messages as f64,
            "our iteration needs other numbers of messages: see the ratio",
        ),
        (
            "Figures 2, 3: updates that arrive",
            "/s",
            [139.0, 571.0],
            |run| run.updates_per_s,
            "the paper's go through Isis, some 35 messages a second, whose costs are not modelled: see the ratio",
        ),
    ];
    let mut rows = Vec::new();
    for (what, unit, published, of, note) in quantities {
        let row = |with: &str, unit, published, ours| {
            Row::new(PAPER, Origin::Predicted, format!("{what}{with}"), unit, published, ours)
        };
        rows.push(row(", buffers of 4", unit, published[0], of(fixed)).note(note));
        let ratio = published[1] / published[0];
        for (name, run) in [("the paper's loop", paper), ("the repaired law and c_send", ours)] {
            let with = format!(", {name}");
            rows.push(row(&with, unit, published[1], of(run)).note(note));
            let with = format!(": {name} over buffers of 4");
            let row = row(&with, "", ratio, of(run) / of(fixed));
            rows.push(if run.setting.control == Control::WarpPaper {
                row.note(alone)
            } else {
                row
            });
        }
    }
    let what = "Figure 1: seconds of buffers of 4 over";
    for (name, run) in [("the paper's loop", paper), ("the repaired law and c_send", ours)] {
        let times = fixed.seconds / run.seconds;
        rows.push(Row::ours(PAPER, format!("{what} {name}"), "", times, CURVE));
    }
    rows
}

/// Returns one number for each curve of Figure 3, and for that of Figure 2 under load.
fn figure_3([fixed, paper, ours]: [&Run; 3]) -> Vec<Row> {
    let mut rows = Vec::new();
    let named = [("buffers of 4", fixed), ("the paper's loop", paper), ("the repaired law", ours)];
    for (name, run) in named {
        let what = format!("Figures 2, 3, top: standard deviation of warp, {name}");
        rows.push(Row::ours(PAPER, what, "", run.traces.warp_deviation(), CURVE));
    }
    for (name, run) in [named[1], named[2]] {
        let what = format!("Figure 3, bottom: Lambda of the last message, {name}");
        let last = run.traces.lambda.last().map_or(0.0, |(_, lambda)| *lambda);
        let first = run.traces.lambda.first().map_or(0.0, |(_, lambda)| *lambda);
        let note = format!("the first has {first:.2}; {CURVE}");
        rows.push(Row::ours(PAPER, what, "", last, note));
    }
    rows
}

/// Compares synchronous rounds with the asynchronous iteration, each at its best static buffer.
fn synchronization_penalty(rounds: &[Run], asynchronous: &[Run]) -> Vec<Row> {
    let least = |runs: &[Run], is_shared: bool| {
        let is_it = |run: &&Run| {
            run.setting.control == Control::Static && run.setting.is_shared() == is_shared
        };
        runs.iter().filter(is_it).map(|run| run.seconds).fold(f64::INFINITY, f64::min)
    };
    let [idle, busy] = [false, true].map(|is| (least(rounds, is), least(asynchronous, is)));
    let note = "the paper names the synchronization penalty, without a number";
    let quantities = [
        ("seconds of rounds over asynchronous, idle cable", idle.0 / idle.1),
        ("seconds of rounds over asynchronous, background 0.5", busy.0 / busy.1),
        ("seconds with background over those without, rounds", busy.0 / idle.0),
        ("seconds with background over those without, asynchronous", busy.1 / idle.1),
    ];
    let row = |(what, ratio)| Row::ours(PAPER, format!("section 2: {what}"), "", ratio, note);
    quantities.map(row).into()
}

fn simulate(arguments: &Arguments) -> Result<Vec<Run>, String> {
    let problem = Arc::new(solver::problem::read(arguments)?);
    let system = solver::problem::number(&problem);
    let settings = arguments.settings(arguments.ranks(), problem.unknowns(), system);
    let run = |setting| {
        let job = Job::new(setting, &problem, &ProgressBar::hidden());
        let outcome = solver::fabrics::simulate(&job).map_err(|failure| failure.to_string())?;
        Ok(Run::new(&job.setting, &problem, None, outcome))
    };
    settings.into_iter().map(run).collect()
}
