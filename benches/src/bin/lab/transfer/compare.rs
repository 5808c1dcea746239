//! Times every way of cutting in alternating rounds, and compares the plan with them.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use midplane::pipeline::timing::Row;
use serde_json::json;

use crate::claims::{Verdict, median};
use crate::gantt;
use crate::report::{print, print_json};
use crate::transfer::Arguments;
use midplane_benches::transfer::Fault;
use midplane_benches::transfer::observe::{Observed, Real, Timings};
use midplane_benches::transfer::wire::Hand;

/// Bytes of the file: the largest message.
pub(crate) const FILE: usize = 4 << 20;

/// Compared messages: 4 KiB to 4 MiB.
const MESSAGES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Compared fixed fragment sizes: powers of two from 4 KiB.
const FIXED: [u64; 10] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
];

/// Rounds of observation.
const OBSERVED: u64 = 16;

/// Bytes of the drawn message.
const DRAWN: u64 = 1 << 20;

/// A way of cutting a message, with its times.
#[derive(Debug)]
struct Way {
    name: String,
    sizes: Vec<u64>,
    times: Vec<f64>,
}

impl Way {
    fn median(&self) -> f64 {
        median(self.times.clone())
    }

    /// Returns the longest time over the shortest one.
    fn spread(&self) -> f64 {
        let longest = self.times.iter().copied().fold(0.0, f64::max);
        longest / self.times.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The ways for one message: whole, every fixed size below it, and the plan, which may equal one of the others.
#[derive(Debug)]
struct Ways {
    all: Vec<Way>,
    fixed: usize,
    planned: usize,
    family: String,
}

impl Ways {
    fn new(message: u64, seen: &Observed) -> Result<Self, Fault> {
        let plan = seen
            .plan(message)
            .map_err(|problem| Fault::Lost(format!("planning {message} bytes: {problem}")))?;
        let equal = |size: u64| vec![size; (message / size) as usize];
        let mut ways = vec![("whole".to_owned(), vec![message])];
        let sizes = FIXED.into_iter().filter(|&size| size < message);
        ways.extend(sizes.map(|size| (format!("{} KiB", size >> 10), equal(size))));
        let (fixed, sizes) = (ways.len(), plan.whole_bytes());
        let planned = ways.iter().position(|(_, way)| *way == sizes).unwrap_or(fixed);
        if planned == fixed {
            ways.push(("planned".to_owned(), sizes));
        }
        let all =
            ways.into_iter().map(|(name, sizes)| Way { name, sizes, times: Vec::new() }).collect();
        Ok(Self { all, fixed, planned, family: format!("{:?}", plan.family()) })
    }
}

/// Runs everything from the first observation to the report; returns the verdict on its claims.
pub(crate) async fn run(arguments: &Arguments, hand: &Hand, file: &File) -> Result<Verdict, Fault> {
    let real = Real { hand, file, limits: arguments.limits() };
    let mut all = observe(&real).await?;
    compare(&real, arguments, &mut all).await?;
    let results: Vec<Compared> =
        all.iter().map(|(message, seen, ways)| Compared::new(*message, ways, seen)).collect();
    let drawn = all.iter().find(|(message, ..)| *message == DRAWN);
    if let (Some(plot), Some((_, seen, ways))) = (&arguments.plot, drawn) {
        draw(&real, plot, &ways.all[ways.planned].sizes, seen).await?;
    }
    Ok(report(arguments, &results))
}

fn bar(length: u64, what: &'static str) -> ProgressBar {
    ProgressBar::new(length).with_message(what).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} rounds, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// Observes all sizes in turns, so that a slow second of the machine affects a few timings of each.
async fn observe(real: &Real<'_>) -> Result<Vec<(u64, Observed, Ways)>, Fault> {
    let bar = bar(OBSERVED, "observing");
    let mut timings: Vec<Timings> = MESSAGES.into_iter().map(Timings::new).collect();
    for _ in 0..OBSERVED {
        for timings in &mut timings {
            timings.observe(real).await?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let planned = MESSAGES.into_iter().zip(&timings).map(|(message, timings)| {
        let seen = Observed::new(real, timings)?;
        let ways = Ways::new(message, &seen)?;
        Ok((message, seen, ways))
    });
    planned.collect()
}

/// Times all sizes and ways in turns, until rounds or time are used up.
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
async fn compare(
    real: &Real<'_>,
    arguments: &Arguments,
    all: &mut [(u64, Observed, Ways)],
) -> Result<(), Fault> {
    let bar = bar(u64::from(arguments.rounds), "comparing");
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    for round in 0..arguments.rounds as usize {
        for (_, _, ways) in &mut *all {
            // Each round starts at another way, so that no way always follows the same one.
            let count = ways.all.len();
            for turn in 0..count {
                let way = &mut ways.all[(turn + round) % count];
                if arguments.unlimited {
                    // A first, unmeasured run gives every way its own cache state.
                    real.time(&way.sizes).await?;
                }
                way.times.push(real.time(&way.sizes).await?.us);
            }
        }
        bar.inc(1);
        if Instant::now() > end {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Comparison for one message size; times are medians in microseconds.
#[derive(Debug)]
struct Compared {
    bytes: u64,
    family: String,
    fragments: usize,
    predicted: f64,
    planned: f64,
    whole: f64,
    fixed_64: f64,
    best: f64,
    best_name: String,
    /// Median over the rounds of the plan's time over the fastest fixed size's in the same round.
    ratio: f64,
    rounds: usize,
    /// The whole file's longest time over its shortest one: how steady the machine was.
    whole_spread: f64,
}

impl Compared {
    fn new(bytes: u64, ways: &Ways, seen: &Observed) -> Self {
        let (whole, planned) = (&ways.all[0], &ways.all[ways.planned]);
        let fixed = || ways.all[..ways.fixed].iter();
        let best = fixed().min_by(|a, b| a.median().total_cmp(&b.median())).unwrap_or(whole);
        let at_64 = fixed().find(|way| way.name == "64 KiB").unwrap_or(whole);
        let ratios: Vec<f64> =
            planned.times.iter().zip(&best.times).map(|(ours, theirs)| ours / theirs).collect();
        Self {
            bytes,
            family: ways.family.clone(),
            fragments: planned.sizes.len(),
            predicted: seen.promise(&planned.sizes),
            planned: planned.median(),
            whole: whole.median(),
            fixed_64: at_64.median(),
            best: best.median(),
            best_name: best.name.clone(),
            ratio: median(ratios),
            rounds: whole.times.len(),
            whole_spread: whole.spread(),
        }
    }

    fn error(&self) -> f64 {
        (self.predicted / self.planned - 1.0).abs()
    }
}

fn report(arguments: &Arguments, results: &[Compared]) -> Verdict {
    let mean =
        |f: &dyn Fn(&Compared) -> f64| results.iter().map(f).sum::<f64>() / results.len() as f64;
    let error = mean(&Compared::error);
    let worst = results.iter().map(|result| result.ratio).fold(0.0, f64::max);
    // If the plan is one fragment, the two are the same and differ by noise alone.
    let beats_whole = results.iter().all(|r| r.fragments == 1 || r.planned < r.whole);
    let rounds = results.iter().map(|r| r.rounds).min().unwrap_or(0);
    let spread = results.iter().map(|r| r.whole_spread).fold(0.0, f64::max);
    let verdict = Verdict::of(error < 0.059 && worst <= 1.02 && beats_whole, rounds, spread);
    if arguments.json {
        let rows: Vec<_> = results
            .iter()
            .map(|r| {
                json!({"bytes": r.bytes, "family": r.family, "fragments": r.fragments, "predicted_us": r.predicted, "median_planned_us": r.planned,
                    "prediction_error": r.error(), "median_whole_us": r.whole, "median_64_kib_us": r.fixed_64,
                    "median_best_fixed_us": r.best, "best_fixed": r.best_name, "planned_over_best_fixed": r.ratio})
            })
            .collect();
        print_json(
            &json!({"rounds": rounds, "sync": arguments.sync, "limits": limits(arguments), "messages": rows, "mean_prediction_error": error,
                "worst_planned_over_best_fixed": worst, "beats_whole_file": beats_whole, "anchor_spread": spread, "verdict": verdict}),
        );
        return verdict;
    }
    let mut text = "   bytes  cuts family planned us  promised   error   whole us  64 KiB us  best fixed us       planned/best\n"
        .to_owned();
    for r in results {
        text += &format!(
            "{:>8} {:>5} {:<6} {:>10.1} {:>9.1} {:>6.1}% {:>10.1} {:>10.1} {:>13.1} {:<9} {:>6.3}\n",
            r.bytes,
            r.fragments,
            r.family,
            r.planned,
            r.predicted,
            100.0 * r.error(),
            r.whole,
            r.fixed_64,
            r.best,
            r.best_name,
            r.ratio
        );
    }
    text += &format!(
        "mean prediction error {:.1} % (below 5.9), worst planned/best fixed {worst:.3} (at most 1.02)\n\
         planned beats the whole file: {beats_whole}; {}\n",
        100.0 * error,
        verdict.text()
    );
    print(&text);
    verdict
}

/// Returns the rates of the stages, for the report.
fn limits(arguments: &Arguments) -> Option<serde_json::Value> {
    (!arguments.unlimited).then(|| {
        json!({"disk_mbps": arguments.disk_mbps, "disk_us": arguments.disk_us, "link_mbps": arguments.link_mbps,
            "link_us": arguments.link_us})
    })
}

/// Draws a planned 1 MiB message as measured, above its prediction. The receiver's clock is shifted so that its first
/// fragment arrives when the sender has sent it.
async fn draw(real: &Real<'_>, plot: &Path, sizes: &[u64], seen: &Observed) -> Result<(), Fault> {
    let outcome = real.time(sizes).await?;
    let mut rows = outcome.sender;
    let shift = rows.iter().find(|row| row.stage == 1).map_or(0.0, |row| row.end.get())
        - outcome.receiver.first().map_or(0.0, |spans| spans[0].1 as f64 / 1000.0);
    for (fragment, spans) in outcome.receiver.iter().enumerate() {
        for (stage, &(start, end)) in (2..).zip(spans) {
            let at = |ns: u64| (ns as f64 / 1000.0 + shift).max(0.0);
            rows.extend(Row::new(stage, fragment, sizes[fragment] as f64, at(start)..at(end)));
        }
    }
    let exact: Vec<f64> = sizes.iter().map(|&size| size as f64).collect();
    let promised = seen.chain.rows(&exact, None);
    let title =
        format!("promised, but for {:.0} us until the receiver's word is back", seen.delay_us);
    let charts: [(&str, &[Row]); 2] = [("measured", &rows), (&title, &promised)];
    let names = ["read", "send", "receive", "write"];
    gantt::write(plot, &charts, &names)
        .map_err(|problem| Fault::Input(format!("--plot {}: {problem}", plot.display())))
}
