//! One-way times of messages between two processes: ours on every layer, compared with the kernel's.
//!
//! ```text
//! cargo run --release -p midplane-benches -- pingpong
//! ```

pub(crate) mod arguments;
mod baseline;
pub(crate) mod fabric;
mod interface;
pub(crate) mod layers;
mod libraries;
pub(crate) mod measure;
pub(crate) mod raw;
pub(crate) mod slots;

use crate::processes;
use crate::report::{self, Failure, progress};

use clap::Parser as _;
use midplane_kit::claims::median;
use serde::Serialize;

pub(crate) use arguments::Arguments;
use arguments::Contest;
use measure::Figures;

/// One row of the report.
#[derive(Clone, Debug, Serialize)]
struct Run {
    fabric: String,
    layer: String,
    wait: String,
    bytes: usize,
    median_us: f64,
    /// NaN (null in JSON), like the next field, if a library does not report it.
    p99_us: f64,
    gb_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    /// Peers that are not installed here, and contestants that lost messages.
    skipped: Vec<String>,
    runs: Vec<Run>,
}

pub(crate) fn run(mut arguments: Arguments) -> Result<u8, Failure> {
    arguments.fill();
    arguments.check()?;
    if let Some(place) = &arguments.child {
        processes::end_with_parent();
        return fabric::answer(&arguments, place).map(|()| 0).map_err(Failure::of_run);
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
    let runs = contest(&arguments, &mut skipped).map_err(Failure::of_run)?;
    report::print_document(arguments.json, &Document { skipped, runs }, text);
    Ok(0)
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
    let bar = progress(steps, "{bar:30} {pos}/{len} {msg}");
    let mut figures: Vec<Vec<Vec<Figures>>> = vec![Vec::new(); contests.len()];
    for _ in 0..arguments.rounds {
        let mut at = 0;
        while let Some(contest) = contests.get(at) {
            let name = contest.names().join(" ");
            bar.set_message(name.clone());
            bar.inc(1);
            match fabric::ask(arguments, contest) {
                Ok(measured) => {
                    figures[at].push(measured);
                    at += 1;
                }
                Err(what) if contest.may_lose() && what == layers::lost() => {
                    bar.suspend(|| eprintln!("skipped: {name}: {what}"));
                    skipped.push(name);
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
            median(rounds.iter().map(|round| figure(&round[at])).collect())
        };
        let [fabric, layer, wait] = contest.names();
        Run {
            fabric,
            layer,
            wait,
            bytes: *bytes,
            median_us: median(|figures| figures.median_us),
            p99_us: median(|figures| figures.p99_us),
            gb_per_s: median(|figures| figures.gb_per_s),
        }
    };
    arguments.sizes.iter().enumerate().map(row).collect()
}

fn text(document: &Document) -> String {
    // Not every library reports every number.
    let known = |figure: f64| if figure.is_nan() { "-".into() } else { format!("{figure:.3}") };
    let cells = |run: &Run| {
        let words = [&run.fabric, &run.layer, &run.wait, &run.bytes.to_string()].map(Clone::clone);
        let figures = [run.median_us, run.p99_us, run.gb_per_s].map(known);
        words.into_iter().chain(figures).collect()
    };
    let titles = "fabric, layer, wait, bytes, one way us, p99 us, GB/s";
    report::table(titles, document.runs.iter().map(cells))
}
