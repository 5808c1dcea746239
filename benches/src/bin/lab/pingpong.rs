//! One-way times of messages between two processes: ours on every layer, compared with the kernel's.
//!
//! ```text
//! cargo run --release -p midplane-benches -- pingpong
//! ```

pub(crate) mod arguments;
mod baseline;
mod fabric;
pub(crate) mod layers;
mod libraries;
pub(crate) mod measure;
pub(crate) mod slots;
mod writes;

use crate::{lam_table, processes, report};
use std::process::ExitCode;

use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub(crate) use arguments::Arguments;
use arguments::Contest;
use measure::Figures;

/// One row of the report.
#[derive(Clone, Debug, Serialize)]
struct Run {
    fabric: String,
    layer: String,
    /// Registration of the memory, for layers with tagged messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    registration: Option<String>,
    wait: String,
    bytes: usize,
    median_us: f64,
    /// NaN (null in JSON), like the next field, if a library does not report it.
    p99_us: f64,
    gb_per_s: f64,
    /// The published number, for simulated rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    published_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Document {
    /// Peers that are not installed here, and contestants that lost messages.
    skipped: Vec<String>,
    runs: Vec<Run>,
}

pub(crate) fn main(mut arguments: Arguments) -> ExitCode {
    arguments.fill();
    if let Err(what) = arguments.check() {
        return report::fail(&what, report::BAD_INPUT);
    }
    if let Some(place) = &arguments.child {
        processes::end_with_parent();
        return match fabric::answer(&arguments, place) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => report::fail(&what, report::FAILED),
        };
    }
    let mut skipped = Vec::new();
    arguments.peer.retain(|peer| match libraries::missing(*peer) {
        Some(what) => {
            eprintln!("skipped: {what}");
            skipped.push(peer.to_string());
            false
        }
        None => true,
    });
    match contest(&arguments, &mut skipped) {
        Ok(runs) => finish(&arguments, skipped, runs),
        Err(what) => report::fail(&what, report::FAILED),
    }
}

/// Returns the microseconds of one way of a message of 64 bytes over shared memory, while both processes busy-poll.
#[cfg(target_os = "linux")]
pub(crate) fn one_way_us(layer: &str, milliseconds: u32) -> Result<f64, String> {
    let words = [
        "pingpong".into(),
        "--wait=poll".into(),
        "--sizes=64".into(),
        format!("--layer={layer}"),
        format!("--milliseconds={milliseconds}"),
    ];
    let arguments = Arguments::parse_from(words);
    let figures = fabric::ask(&arguments, &arguments.contests()[0])?;
    Ok(figures[0].median_us)
}

/// Measures every contestant at every size; rounds of the contestants alternate, so that other work on the machine
/// slows all of them. Contestants that lose messages, as datagrams may, are skipped by name.
fn contest(arguments: &Arguments, skipped: &mut Vec<String>) -> Result<Vec<Run>, String> {
    let mut contests = arguments.contests();
    let steps = contests.len() * arguments.rounds as usize;
    let bar = ProgressBar::new(steps as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a constant"));
    let mut figures: Vec<Vec<Vec<Figures>>> = vec![Vec::new(); contests.len()];
    for _ in 0..arguments.rounds {
        let mut at = 0;
        while let Some(contest) = contests.get(at) {
            bar.set_message(contest.name());
            bar.inc(1);
            match fabric::ask(arguments, contest) {
                Ok(played) => {
                    figures[at].push(played);
                    at += 1;
                }
                Err(what) if contest.may_lose() && what == layers::lost() => {
                    bar.suspend(|| eprintln!("skipped: {}: {what}", contest.name()));
                    skipped.push(contest.name());
                    contests.remove(at);
                    figures.remove(at);
                }
                Err(what) => return Err(what),
            }
        }
    }
    bar.finish_and_clear();
    let rows = contests.iter().zip(figures);
    Ok(rows.flat_map(|(contest, rounds)| rows_of(arguments, contest, &rounds)).collect())
}

/// Returns a contestant's rows: the medians over the rounds.
fn rows_of(arguments: &Arguments, contest: &Contest, rounds: &[Vec<Figures>]) -> Vec<Run> {
    let row = |(at, bytes): (usize, &usize)| {
        let median = |figure: fn(&Figures) -> f64| {
            measure::median(rounds.iter().map(|round| figure(&round[at])).collect())
        };
        Run {
            fabric: contest.fabric(),
            layer: contest.layer(),
            registration: contest.registration().map(|how| how.to_string()),
            wait: contest.wait().to_string(),
            bytes: *bytes,
            median_us: median(|figures| figures.median_us),
            p99_us: median(|figures| figures.p99_us),
            gb_per_s: median(|figures| figures.gb_per_s),
            published_us: match contest {
                Contest::Simulated(column) => lam_table::published(*column, *bytes),
                _ => None,
            },
        }
    };
    arguments.sizes.iter().enumerate().map(row).collect()
}

/// Largest deviation of a simulated number from the published one, as a fraction.
const TOLERANCE: f64 = 0.1;

impl Run {
    /// Returns the deviation from the published number, as a fraction.
    fn deviation(&self) -> Option<f64> {
        self.published_us.map(|published| self.median_us / published - 1.0)
    }
}

fn finish(arguments: &Arguments, skipped: Vec<String>, runs: Vec<Run>) -> ExitCode {
    let holds = runs.iter().all(|run| run.deviation().is_none_or(|far| far.abs() <= TOLERANCE));
    if arguments.json {
        report::print_json(&Document { skipped, runs });
    } else {
        report::print(&table(&runs));
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::from(report::FAILED) }
}

/// Formats a number that not every library reports.
fn known(figure: f64) -> String {
    if figure.is_nan() { "-".into() } else { format!("{figure:.3}") }
}

fn table(runs: &[Run]) -> String {
    let compares = runs.iter().any(|run| run.published_us.is_some());
    let more = if compares { "    paper us  deviation" } else { "" };
    let mut text = format!(
        "{:<10}{:<9}{:<11}{:<7}{:>9}{:>12}{:>12}{:>10}{more}\n",
        "fabric", "layer", "memory", "wait", "bytes", "one way us", "p99 us", "GB/s"
    );
    for run in runs {
        let more = run
            .published_us
            .zip(run.deviation())
            .map_or(String::new(), |(paper, far)| format!("{paper:>12.0}{:>10.1}%", 100.0 * far));
        text += &format!(
            "{:<10}{:<9}{:<11}{:<7}{:>9}{:>12.3}{:>12}{:>10}{more}\n",
            run.fabric,
            run.layer,
            run.registration.as_deref().unwrap_or(""),
            run.wait,
            run.bytes,
            run.median_us,
            known(run.p99_us),
            known(run.gb_per_s)
        );
    }
    text
}
