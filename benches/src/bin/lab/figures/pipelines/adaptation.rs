//! Fragments that follow a change of a stage while messages flow, as section 5.1 of the paper proposes.

use std::path::Path;

use midplane_benches::anchors::adaptation::{CHANGE_US, CHANGES, Sent, optimum_us, run};

use super::PAPER;
use crate::figures::rows::Row;
use crate::plot::{self, Line, Panel};
use crate::report::text;

/// Messages of each run.
const MESSAGES: usize = 80;
/// A message within this factor of the best cut's latency has followed.
const CLOSE: f64 = 1.05;

/// Draws the latencies before and after both changes. Returns how soon and how closely they approach the best cut's.
pub(super) fn draw(directory: &Path) -> Result<Vec<Row>, String> {
    let (mut panels, mut rows) = (Vec::new(), Vec::new());
    for (what, copy) in CHANGES {
        let best = optimum_us(copy);
        let [follows, keeps] = [true, false].map(|follows| run(copy, MESSAGES, follows));
        let end = follows.last().map_or(0.0, |sent| sent.at_us / 1e3);
        let best_line = [CHANGE_US / 1e3, end].map(|at_ms| (at_ms, best));
        let lines = vec![
            line("measures and plans anew", &follows),
            line("keeps its first plan", &keeps),
            Line { label: "best cut found".to_owned(), points: best_line.into() },
        ];
        panels.push(Panel { title: format!("5.1: {what}"), lines });
        let after: Vec<f64> =
            follows.iter().filter(|sent| sent.at_us > CHANGE_US).map(|it| it.latency_us).collect();
        let late = after.iter().take_while(|us| **us > CLOSE * best).count();
        let above = |us: f64| 100.0 * (us / best - 1.0);
        let last = |run: &[Sent]| above(run.last().map_or(0.0, |sent| sent.latency_us));
        let row = |what: String, unit, value| {
            Row::ours(PAPER, what, unit, value, "the paper proposes it, without numbers")
        };
        rows.extend([
            row(
                format!(
                    "5.1, {what}: messages begun after it that are not within 5 % of the best cut"
                ),
                "",
                late as f64,
            ),
            row(format!("5.1, {what}: then above the best cut"), "%", last(&follows)),
            row(format!("5.1, {what}: the first plan above it"), "%", last(&keeps)),
        ]);
    }
    let path = directory.join("adaptation.svg");
    plot::draw(&path, "ms of virtual time", "latency of a message, us", &panels).map_err(text)?;
    Ok(rows)
}

fn line(label: &str, run: &[Sent]) -> Line {
    let points = run.iter().map(|sent| (sent.at_us / 1e3, sent.latency_us));
    Line { label: label.to_owned(), points: points.collect() }
}
