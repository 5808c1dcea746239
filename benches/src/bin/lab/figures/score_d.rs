//! The SCore-D paper: the cost of preempting a network (Tables 2 and 3, Figures 5 and 6).

use std::path::Path;

use crate::figures::rows::Row;
use crate::plot::{self, Line, Panel};

use crate::preempt::paper;
use crate::preempt::slowdown::Run;

const PAPER: &str = "score-d";
const KERNELS: [&str; 3] = ["ep", "ft", "cg"];

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let runs = paper::figures();
    if !runs.iter().all(|run| run.verified) {
        return Err("a kernel's results are not the official ones".into());
    }
    draw_breakdown(directory, &runs)?;
    draw_slowdown(directory, &runs)?;
    let mut rows =
        vec![Row::missing(PAPER, "Table 1, Figures 1 to 4", "a survey and drawings, no data")];
    rows.extend(paper::tables().into_iter().map(|row| Row::of(PAPER, "", row)));
    let of = |kernel: &'static str| {
        runs.iter().filter(move |run| run.kernel == kernel && run.slice_ms == 100.0)
    };
    let most = |kernel| of(kernel).map(|run| run.slowdown).fold(0.0, f64::max) * 100.0;
    for (kernel, note) in KERNELS.into_iter().zip([
        "the paper: below 7 %; class A there, S here",
        "the paper: below 9 %; class A there, S here",
        "the paper: below 9 %, the highest; class A there, S here",
    ]) {
        let what = format!("Figure 6: most slowdown of {kernel} at 100 ms");
        rows.push(Row::ours(PAPER, what, "%", most(kernel), note));
    }
    let part =
        |run: &Run| (run.save_us + run.restore_us) / (run.freeze_us + run.save_us + run.restore_us);
    let least = runs.iter().map(part).fold(1.0, f64::min) * 100.0;
    let what = "Figure 5: least part of saving and restoring in a switch";
    rows.push(Row::ours(PAPER, what, "%", least, "the paper: mostly more than a third"));
    let why = "its runs would take minutes: up to 32 are drawn";
    rows.push(Row::missing(PAPER, "Figures 5 and 6: 64 processors", why));
    Ok(rows)
}

fn draw_breakdown(directory: &Path, runs: &[Run]) -> Result<(), String> {
    let panel = |kernel: &str| {
        let of = || runs.iter().filter(|run| run.kernel == kernel && run.slice_ms == 100.0);
        let line = |label: &str, pick: fn(&Run) -> f64| Line {
            label: label.into(),
            points: of().map(|run| (f64::from(run.ranks), pick(run))).collect(),
        };
        let lines = vec![
            line("freeze", |run| run.freeze_us),
            line("save", |run| run.save_us),
            line("restore", |run| run.restore_us),
        ];
        Panel { title: format!("{kernel}, slices of 100 ms"), lines }
    };
    let path = directory.join("score-d-figure-5.svg");
    plot::draw(&path, "processors", "us", &KERNELS.map(panel))
}

fn draw_slowdown(directory: &Path, runs: &[Run]) -> Result<(), String> {
    let panel = |kernel: &str| {
        let line = |ranks: u16| {
            let of = runs.iter().filter(|run| run.kernel == kernel && run.ranks == ranks);
            let points = of.map(|run| (run.slice_ms, run.slowdown * 100.0)).collect();
            Line { label: format!("{ranks} processors"), points }
        };
        Panel { title: kernel.into(), lines: [8, 16, 32].map(line).into() }
    };
    let path = directory.join("score-d-figure-6.svg");
    plot::draw(&path, "slice, ms", "slowdown, %", &KERNELS.map(panel))
}
