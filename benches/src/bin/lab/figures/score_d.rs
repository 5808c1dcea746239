//! The SCore-D paper: the cost of preempting a network (Tables 2 and 3, Figures 5 and 6).

use std::path::Path;

use crate::figures::rows::Row;
use crate::plot::{self, Line, Panel};

use crate::preempt::paper::{self, RANKS};
use crate::preempt::slowdown::Run;
use crate::report::text;

const PAPER: &str = "score-d";
const KERNELS: [&str; 3] = ["ep", "ft", "cg"];

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let runs = paper::figures();
    if !runs.iter().all(|run| run.verified != Some(false) && run.same_bits) {
        return Err("a kernel's results are not the official ones".into());
    }
    draw_breakdown(directory, &runs)?;
    draw_slowdown(directory, &runs)?;
    let mut rows =
        vec![Row::missing(PAPER, "Table 1, Figures 1 to 4", "a survey and drawings, no data")];
    rows.extend(paper::tables().into_iter().map(|row| Row::of(PAPER, "", row)));
    let of_runs = figure_5(&runs).into_iter().chain(figure_6(&runs));
    rows.extend(of_runs.map(|row| row.seed(paper::SEED)));
    Ok(rows)
}

/// Returns the time of a switch, in microseconds.
fn switch_us(run: &Run) -> f64 {
    run.freeze_us + run.save_us + run.restore_us
}

/// Returns the runs with slices of 100 ms.
fn at_100_ms(runs: &[Run]) -> impl Iterator<Item = &Run> {
    runs.iter().filter(|run| run.slice_ms == 100.0)
}

fn figure_5(runs: &[Run]) -> [Row; 2] {
    let parts = runs.iter().map(|run| (run.save_us + run.restore_us) / switch_us(run));
    let least = parts.fold(1.0, f64::min) * 100.0;
    let longest_is_ft = |ranks: &&u16| {
        let of = at_100_ms(runs).filter(|run| run.ranks == **ranks);
        of.max_by(|a, b| switch_us(a).total_cmp(&switch_us(b))).is_some_and(|it| it.kernel == "ft")
    };
    let count = RANKS.iter().filter(longest_is_ft).count() as f64;
    let what = "Figure 5: numbers of processors at which ft's switch is the longest, of 4";
    [
        Row::ours(
            PAPER,
            "Figure 5: least part of saving and restoring in a switch",
            "%",
            least,
            "the paper: in most cases more than a third",
        ),
        Row::ours(PAPER, what, "", count, "the paper: all"),
    ]
}

fn figure_6(runs: &[Run]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kernel, note) in KERNELS.into_iter().zip([
        "the paper: less than 7 %; the work of daemons takes no time here",
        "the paper: less than 9 %",
        "the paper: less than 9 %, the highest of the three",
    ]) {
        let of = at_100_ms(runs).filter(|run| run.kernel == kernel);
        let most = of.map(|run| run.slowdown).fold(0.0, f64::max) * 100.0;
        let what = format!("Figure 6: most slowdown of {kernel} at 100 ms");
        rows.push(Row::ours(PAPER, what, "%", most, note));
    }
    let sum = |slice_ms| -> f64 {
        runs.iter().filter(|run| run.slice_ms == slice_ms).map(|run| run.slowdown).sum()
    };
    let what = "Figure 6: slowdown at 100 ms over that at 200 ms, all runs";
    rows.push(Row::ours(PAPER, what, "", sum(100.0) / sum(200.0), "the paper: about 2"));
    rows
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
    plot::draw(&path, "processors", "us", &KERNELS.map(panel)).map_err(text)
}

fn draw_slowdown(directory: &Path, runs: &[Run]) -> Result<(), String> {
    let panel = |kernel: &str| {
        let line = |ranks: u16| {
            let of = runs.iter().filter(|run| run.kernel == kernel && run.ranks == ranks);
            let points = of.map(|run| (run.slice_ms, run.slowdown * 100.0)).collect();
            Line { label: format!("{ranks} processors"), points }
        };
        Panel { title: kernel.into(), lines: RANKS.map(line).into() }
    };
    let path = directory.join("score-d-figure-6.svg");
    plot::draw(&path, "slice, ms", "slowdown, %", &KERNELS.map(panel)).map_err(text)
}
