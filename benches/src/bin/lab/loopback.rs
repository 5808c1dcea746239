//! Messages over this host's loopback, from application to application: ours, compared with tokio's TCP.
//!
//! ```text
//! cargo run --release -p midplane-benches -- loopback
//! ```
//!
//! Both sides of a contestant are tasks of single-threaded tokio runtimes, on the same thread or on two. The rounds
//! of the contestants alternate, so that other work on the machine slows all of them.

mod ours;
mod tcp;
mod udp;

use crate::{claims, report};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use claims::{Compared, Verdict, Watch, median};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Bytes of a short message.
pub(crate) const SHORT: usize = 64;
/// Bytes of a long message.
pub(crate) const LONG: usize = 64 << 10;

const EXAMPLES: &str = "\
Numbers are medians over the rounds. The ratio is the median of the rounds' ratios; above 1 ours is faster. TCP
runs with TCP_NODELAY and writes each message by itself; in the row \"buffered\", which is not judged, it gathers
8 KiB. Runs of fewer than 3 rounds, and builds without optimization, are not judged.

Exit code: 0 every judged row reaches its least ratio; 1 one does not, or messages were lost; 2 bad input; 3 one
does not or is unclear, and the machine was too busy to judge it (standard error says why).";

/// Measure messages over this host's loopback: ours, compared with tokio's TCP
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Rounds, from 1 to 1000; each measures every row once
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Milliseconds of each measurement, from 10 to 10000
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    milliseconds: u32,

    /// Seal our frames
    #[arg(long)]
    sealed: bool,

    /// Only rows whose name contains this
    #[arg(long, value_name = "WORD", default_value = "")]
    only: String,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Placement of the two sides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Placement {
    /// Both are tasks of one runtime, on one thread.
    OneThread,
    /// Each has a runtime of its own.
    TwoThreads,
}

/// Quantity to measure between a pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// Microseconds of half a round trip of short messages.
    OneWay,
    /// Messages per second, of so many bytes, back to back.
    Stream(usize),
}

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) question: Question,
    pub(crate) placement: Placement,
    pub(crate) time: Duration,
    /// True if ours seals frames; true if TCP gathers messages before it writes them.
    pub(crate) sealed: bool,
    pub(crate) buffered: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    tokio_tcp: f64,
    /// Bare datagrams between two sockets: the layer below ours.
    tokio_udp: Option<f64>,
    #[serde(flatten)]
    compared: Compared,
    /// Least ratio that passes; `None` for TCP that gathers messages, which is not judged.
    wanted: Option<f64>,
    verdict: Option<Verdict>,
}

#[derive(Debug, Serialize)]
struct Document {
    rounds: u32,
    milliseconds: u32,
    sealed: bool,
    rows: Vec<Row>,
}

/// A row: name, unit, quantity, placement, and whether TCP may gather messages.
type Case = (&'static str, &'static str, Question, Placement, bool);

const CASES: [Case; 7] = {
    use Placement::{OneThread, TwoThreads};
    use Question::{OneWay, Stream};
    [
        ("one way, 64 B, one thread", "us", OneWay, OneThread, false),
        ("one way, 64 B, two threads", "us", OneWay, TwoThreads, false),
        ("64 B, one thread", "messages/s", Stream(SHORT), OneThread, false),
        ("64 B, two threads", "messages/s", Stream(SHORT), TwoThreads, false),
        ("64 B, two threads, buffered", "messages/s", Stream(SHORT), TwoThreads, true),
        ("64 KiB, one thread", "GB/s", Stream(LONG), OneThread, false),
        ("64 KiB, two threads", "GB/s", Stream(LONG), TwoThreads, false),
    ]
};

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let cases: Vec<Case> =
        CASES.into_iter().filter(|case| case.0.contains(&arguments.only)).collect();
    if cases.is_empty() {
        let names: Vec<&str> = CASES.iter().map(|case| case.0).collect();
        let what = format!("--only {:?}: no row is called so; {names:?} are", arguments.only);
        return report::fail(&what, report::BAD_INPUT);
    }
    let watch = Watch::start();
    match measure(&arguments, &cases) {
        Ok(rows) => finish(&arguments, rows, &watch),
        Err(error) => report::fail(&format!("the loopback failed: {error}"), report::FAILED),
    }
}

fn measure(arguments: &Arguments, cases: &[Case]) -> std::io::Result<Vec<Row>> {
    let bar = ProgressBar::new(u64::from(arguments.rounds));
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta}").expect("a constant"));
    let mut results = vec![Vec::new(); cases.len()];
    for round in 0..arguments.rounds {
        for (results, case) in results.iter_mut().zip(cases) {
            let (_, _, question, placement, buffered) = *case;
            let time = Duration::from_millis(arguments.milliseconds.into());
            let plan = Plan { question, placement, time, sealed: arguments.sealed, buffered };
            let bare = match question {
                Question::OneWay => Some(udp::run(plan)?),
                Question::Stream(_) => None,
            };
            // The order of ours and theirs alternates.
            let (ours, tcp) = if round.is_multiple_of(2) {
                let ours = ours::run(plan)?;
                (ours, tcp::run(plan)?)
            } else {
                let tcp = tcp::run(plan)?;
                (ours::run(plan)?, tcp)
            };
            results.push((ours, tcp, bare));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rows = cases.iter().zip(results).map(|(case, results)| row(case, &results));
    rows.collect::<Option<_>>().ok_or_else(|| std::io::Error::other("a round has no number"))
}

fn row(
    &(what, unit, question, _, buffered): &Case,
    results: &[(f64, f64, Option<f64>)],
) -> Option<Row> {
    let gain = |&(ours, tcp, _): &(f64, f64, Option<f64>)| match question {
        Question::OneWay => (tcp / ours, tcp),
        Question::Stream(_) => (ours / tcp, tcp),
    };
    let compared = Compared::of(&results.iter().map(gain).collect::<Vec<_>>())?;
    let wanted = (!buffered).then_some(1.0);
    let scale = match question {
        Question::Stream(LONG) => LONG as f64 / 1e9,
        _ => 1.0,
    };
    Some(Row {
        what: what.into(),
        unit,
        ours: median(results.iter().map(|result| result.0 * scale).collect()),
        tokio_tcp: median(results.iter().map(|result| result.1 * scale).collect()),
        tokio_udp: results.iter().map(|result| result.2).collect::<Option<Vec<_>>>().map(median),
        compared,
        wanted,
        verdict: wanted.map(|wanted| compared.verdict(wanted)),
    })
}

fn finish(arguments: &Arguments, rows: Vec<Row>, watch: &Watch) -> ExitCode {
    let verdicts: Vec<Verdict> = rows.iter().filter_map(|row| row.verdict).collect();
    if arguments.json {
        let Arguments { rounds, milliseconds, sealed, .. } = *arguments;
        report::print_json(&Document { rounds, milliseconds, sealed, rows });
    } else {
        let mut text = format!(
            "{:<30}{:>14}{:>14}{:>8}{:>12}{:>12}\n",
            "", "ours", "tokio TCP", "ratio", "bare UDP", ""
        );
        for Row { what, unit, ours, tokio_tcp, tokio_udp, compared, verdict, .. } in &rows {
            let digits = if *unit == "messages/s" { 0 } else { 2 };
            let bare = tokio_udp.map_or_else(|| "-".into(), |us| format!("{us:.2}"));
            let verdict = verdict.map_or("", Verdict::text);
            text += &format!(
                "{what:<30}{ours:>14.digits$}{tokio_tcp:>14.digits$}{:>8.2}{bare:>12}{unit:>12}  {verdict}\n",
                compared.ratio
            );
        }
        report::print(&text);
    }
    claims::exit(&verdicts, watch)
}

#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs the two sides at their placement; returns the first side's number.
pub(crate) fn run_sides<A, B>(placement: Placement, first: A, second: B) -> std::io::Result<f64>
where
    A: Future<Output = std::io::Result<f64>>,
    B: Future<Output = std::io::Result<f64>> + Send + 'static,
{
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match placement {
        Placement::OneThread => runtime()?.block_on(async {
            let second = tokio::spawn(second);
            let result = first.await;
            // The second side may wait for messages that never arrive.
            second.abort();
            result
        }),
        Placement::TwoThreads => {
            let (here, there) = (runtime()?, runtime()?);
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            let thread = std::thread::spawn(move || {
                there.block_on(async move {
                    tokio::select! {
                        result = second => result.map(drop),
                        _ = ended => Ok(()),
                    }
                })
            });
            let result = here.block_on(first);
            drop(end);
            match thread.join() {
                Ok(Ok(())) => result,
                Ok(Err(error)) => Err(error),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }
    }
}
