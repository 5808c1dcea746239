//! Figures 1 to 3 of the paper, and the residual over time.

use std::path::{Path, PathBuf};

use super::arguments::PAPER_BUFFER;
use super::run::Run;
use super::setting::Control;
use crate::plot::{self, Line, Panel};
use midplane_kit::command_line::name_of;
use midplane_kit::report::Failure;

/// Largest drawn warp; larger ones are drawn at it.
const MAX_WARP: f64 = 20.0;

/// Draws all figures for which `runs` have data: the first at `path`, the others next to it.
///
/// # Errors
/// One line that names the file.
pub fn draw(path: &Path, runs: &[Run]) -> Result<Vec<PathBuf>, Failure> {
    let next_to = |what: &str| path.with_extension(format!("{what}.svg"));
    let figures = [
        (path.to_owned(), ("updates of a message", "seconds"), times(runs)),
        (next_to("warp"), ("message", "warp"), warps(runs)),
        (next_to("lambda"), ("message sent", "Lambda"), lambdas(runs)),
        (next_to("residual"), ("seconds", "digits"), residuals(runs)),
    ];
    let mut drawn = Vec::new();
    for (path, (x, y), panels) in figures {
        if !panels.is_empty() {
            plot::draw(&path, x, y, &panels)?;
            drawn.push(path);
        }
    }
    Ok(drawn)
}

/// Returns the distinct values, in order of appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

/// Makes a panel for each load, without empty lines.
fn by_load(runs: &[Run], title: &str, lines: impl Fn(&[&Run]) -> Vec<Line>) -> Vec<Panel> {
    let panel = |load| {
        let of_load: Vec<&Run> = runs.iter().filter(|run| run.setting.load == load).collect();
        let changes = if load.period.is_some() { ", now and then" } else { "" };
        let title = format!("{title}, background {}{changes}", load.share);
        Panel { title, lines: lines(&of_load) }
    };
    let panels = distinct(runs.iter().map(|run| run.setting.load)).into_iter().map(panel);
    panels.filter(|panel| panel.lines.iter().any(|line| !line.points.is_empty())).collect()
}

/// Makes a line for each control.
fn by_control(runs: &[&Run], points: impl Fn(&[&Run]) -> Vec<(f64, f64)>) -> Vec<Line> {
    let line = |control: Control| {
        let of: Vec<&Run> =
            runs.iter().copied().filter(|run| run.setting.control == control).collect();
        Line { label: name_of(&control), points: points(&of) }
    };
    distinct(runs.iter().map(|run| run.setting.control)).into_iter().map(line).collect()
}

/// Figure 1: time to the answer over buffer sizes.
fn times(runs: &[Run]) -> Vec<Panel> {
    by_load(runs, "Time", |runs| {
        by_control(runs, |runs| {
            runs.iter().map(|run| (f64::from(run.setting.buffer), run.seconds)).collect()
        })
    })
}

/// Returns the run with the paper's buffer size.
fn with_paper_buffer<'a>(runs: &[&'a Run]) -> Option<&'a Run> {
    let is_it = |run: &&&Run| run.setting.buffer == PAPER_BUFFER;
    runs.iter().find(is_it).or_else(|| runs.first()).copied()
}

/// Figure 2 and the top of Figure 3: the warp of each message of rank 1 to rank 0.
fn warps(runs: &[Run]) -> Vec<Panel> {
    let panel = |control: Control| {
        let of: Vec<Run> =
            runs.iter().filter(|run| run.setting.control == control).cloned().collect();
        by_load(&of, &name_of(&control), |runs| {
            let warp =
                with_paper_buffer(runs).map(|run| run.traces.warp.clone()).unwrap_or_default();
            let cut = |(message, warp): (f64, f64)| (message, warp.min(MAX_WARP));
            vec![Line { label: "warp".into(), points: warp.into_iter().map(cut).collect() }]
        })
    };
    [Control::Static, Control::WarpPaper, Control::WarpCsend].into_iter().flat_map(panel).collect()
}

/// The bottom of Figure 3: Lambda over messages.
fn lambdas(runs: &[Run]) -> Vec<Panel> {
    let adapts = |run: &&Run| {
        matches!(run.setting.control, Control::Warp | Control::WarpPaper | Control::WarpCsend)
    };
    let of: Vec<Run> = runs.iter().filter(adapts).cloned().collect();
    by_load(&of, "Lambda", |runs| {
        by_control(runs, |runs| {
            with_paper_buffer(runs).map(|run| run.traces.lambda.clone()).unwrap_or_default()
        })
    })
}

/// Digits of the residual over time.
fn residuals(runs: &[Run]) -> Vec<Panel> {
    by_load(runs, "Residual", |runs| {
        by_control(runs, |runs| {
            let trace =
                with_paper_buffer(runs).map(|run| run.traces.residual.clone()).unwrap_or_default();
            let digits = |(at, residual): (f64, f64)| (at, -residual.max(1e-300).log10());
            trace.into_iter().map(digits).collect()
        })
    })
}
