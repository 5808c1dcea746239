//! The Warp paper: linear equations by asynchronous iteration (Figures 1 to 3).

use std::path::Path;
use std::sync::Arc;

use clap::Parser as _;
use indicatif::ProgressBar;
use midplane::warp::iterate::FixedPoint as _;
use midplane_benches::anchors::measure::Origin;

use crate::figures::rows::Row;
use crate::solver;

use crate::solver::arguments::{Arguments, PAPER_BUFFER};
use crate::solver::rank::Job;
use crate::solver::run::Run;
use crate::solver::setting::Control;

const PAPER: &str = "warp";

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let arguments = Arguments::try_parse_from(["solver", "--fabric=sim"]);
    let runs = simulate(&arguments.map_err(|error| error.to_string())?)?;
    solver::figures::draw(&directory.join("warp-figure-1.svg"), &runs)?;
    let of = |control: Control| {
        let is_it = |run: &&Run| {
            let setting = &run.setting;
            setting.load.share > 0.0 && setting.control == control && setting.buffer == PAPER_BUFFER
        };
        runs.iter().find(is_it).ok_or("the run with the paper's buffer size is missing")
    };
    let (fixed, ours) = (of(Control::Static)?, of(Control::WarpCsend)?);
    let note = "our iteration needs other numbers of messages: see the ratio";
    let messages = |run: &Run| run.messages as f64;
    let pair = |what: &str, unit, published: [f64; 2], measured: [f64; 2]| {
        let row = |with, at: usize| {
            let what = format!("{what}, {with}");
            Row::new(PAPER, Origin::Predicted, what, unit, published[at], measured[at]).note(note)
        };
        let what = format!("{what}: with over without");
        let ratio = [published[1] / published[0], measured[1] / measured[0]];
        [
            row("buffers of 4", 0),
            row("Warp and c_send", 1),
            Row::new(PAPER, Origin::Predicted, what, "", ratio[0], ratio[1]),
        ]
    };
    let both = [messages(fixed), messages(ours)];
    let mut rows = Vec::from(pair("Figures 2, 3: messages", "", [8_250.0, 2_103.0], both));
    let both = [fixed.updates_per_s, ours.updates_per_s];
    rows.extend(pair("Figures 2, 3: updates that arrive", "/s", [139.0, 571.0], both));
    let what = "Figure 1: seconds of buffers of 4 over Warp and c_send";
    let note = "the paper shows it as a curve only";
    rows.push(Row::ours(PAPER, what, "", fixed.seconds / ours.seconds, note));
    Ok(rows)
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
