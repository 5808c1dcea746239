//! Times every way of cutting in alternating rounds, and compares the plan with them.

use std::fs::File;
use std::time::Duration;

use indicatif::ProgressBar;
use midplane_kit::clock::now;
use serde::Serialize;

use crate::claims::{Verdict, median};
use crate::report::{print_document, progress, table};
use crate::transfer::Arguments;
use midplane_benches::transfer::observe::{Observed, Real, Timings};
use midplane_benches::transfer::wire::Connection;

/// Bytes of the file: the largest message.
pub(crate) const FILE: usize = 4 << 20;

/// Compared messages: 4 KiB to 4 MiB.
const MESSAGES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Smallest of the compared fixed fragment sizes, and their number: each is twice as long as the one before.
const LEAST_FIXED: u64 = 4 << 10;
const FIXED: u32 = 10;

/// Rounds of observation.
const OBSERVED: u64 = 16;

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
    fn new(message: u64, seen: &Observed) -> Result<Self, String> {
        let plan =
            seen.plan(message).map_err(|problem| format!("planning {message} bytes: {problem}"))?;
        let equal = |size: u64| vec![size; (message / size) as usize];
        let mut ways = vec![("whole".to_owned(), vec![message])];
        let sizes = (0..FIXED).map(|power| LEAST_FIXED << power).filter(|&size| size < message);
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
pub(crate) async fn run(
    arguments: &Arguments,
    connection: &Connection,
    file: &File,
) -> Result<Verdict, String> {
    let real = Real { connection, file };
    let mut all = observe(&real).await?;
    compare(&real, arguments, &mut all).await?;
    let results: Vec<Compared> =
        all.iter().map(|(message, seen, ways)| Compared::new(*message, ways, seen)).collect();
    Ok(report(arguments, results))
}

/// Creates the progress bar of a phase.
fn bar(rounds: u64, what: &'static str) -> ProgressBar {
    progress(rounds as usize, "{msg} [{bar:30}] {pos}/{len} rounds, {eta} left").with_message(what)
}

/// Observes all sizes in turns, so that a slow second of the machine affects a few timings of each.
async fn observe(real: &Real<'_>) -> Result<Vec<(u64, Observed, Ways)>, String> {
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
        let seen = Observed::new(timings)?;
        let ways = Ways::new(message, &seen)?;
        Ok((message, seen, ways))
    });
    planned.collect()
}

/// Times all sizes and ways in turns, until rounds or time are used up.
async fn compare(
    real: &Real<'_>,
    arguments: &Arguments,
    all: &mut [(u64, Observed, Ways)],
) -> Result<(), String> {
    let bar = bar(u64::from(arguments.rounds), "comparing");
    let end = now() + Duration::from_secs(arguments.seconds);
    for round in 0..arguments.rounds as usize {
        for (_, _, ways) in &mut *all {
            // Each round starts at another way, so that no way always follows the same one.
            let count = ways.all.len();
            for turn in 0..count {
                let way = &mut ways.all[(turn + round) % count];
                way.times.push(real.time(&way.sizes).await?.us);
            }
        }
        bar.inc(1);
        if now() > end {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Comparison for one message size; times are medians.
#[derive(Debug, Serialize)]
struct Compared {
    bytes: u64,
    family: String,
    fragments: usize,
    predicted_us: f64,
    median_planned_us: f64,
    prediction_error: f64,
    median_whole_us: f64,
    median_64_kib_us: f64,
    median_best_fixed_us: f64,
    best_fixed: String,
    /// Median over the rounds of the plan's time over the fastest fixed size's in the same round.
    planned_over_best_fixed: f64,
    #[serde(skip)]
    rounds: usize,
    /// The whole file's longest time over its shortest one: how steady the machine was.
    #[serde(skip)]
    whole_spread: f64,
}

impl Compared {
    fn new(bytes: u64, ways: &Ways, seen: &Observed) -> Self {
        let (whole, planned) = (&ways.all[0], &ways.all[ways.planned]);
        let fixed = || ways.all[..ways.fixed].iter();
        let best = fixed().min_by(|a, b| a.median().total_cmp(&b.median())).unwrap_or(whole);
        let at_64 = fixed().find(|way| way.name == "64 KiB").unwrap_or(whole);
        let ratios = planned.times.iter().zip(&best.times).map(|(ours, theirs)| ours / theirs);
        let (predicted_us, median_planned_us) = (seen.promise(&planned.sizes), planned.median());
        Self {
            bytes,
            family: ways.family.clone(),
            fragments: planned.sizes.len(),
            predicted_us,
            median_planned_us,
            prediction_error: (predicted_us / median_planned_us - 1.0).abs(),
            median_whole_us: whole.median(),
            median_64_kib_us: at_64.median(),
            median_best_fixed_us: best.median(),
            best_fixed: best.name.clone(),
            planned_over_best_fixed: median(ratios.collect()),
            rounds: whole.times.len(),
            whole_spread: whole.spread(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Document {
    rounds: usize,
    messages: Vec<Compared>,
    mean_prediction_error: f64,
    worst_planned_over_best_fixed: f64,
    beats_whole_file: bool,
    anchor_spread: f64,
    verdict: Verdict,
}

fn report(arguments: &Arguments, messages: Vec<Compared>) -> Verdict {
    let most = |of: fn(&Compared) -> f64| messages.iter().map(of).fold(0.0, f64::max);
    let errors = messages.iter().map(|message| message.prediction_error);
    let error = errors.sum::<f64>() / messages.len() as f64;
    let worst = most(|message| message.planned_over_best_fixed);
    // If the plan is one fragment, the two are the same and differ by noise alone.
    let beats = |r: &Compared| r.fragments == 1 || r.median_planned_us < r.median_whole_us;
    let beats_whole_file = messages.iter().all(beats);
    let rounds = messages.iter().map(|r| r.rounds).min().unwrap_or(0);
    let anchor_spread = most(|message| message.whole_spread);
    let verdict =
        Verdict::of(error < 0.059 && worst <= 1.02 && beats_whole_file, rounds, anchor_spread);
    let document = Document {
        rounds,
        messages,
        mean_prediction_error: error,
        worst_planned_over_best_fixed: worst,
        beats_whole_file,
        anchor_spread,
        verdict,
    };
    print_document(arguments.json, &document, text);
    verdict
}

fn text(document: &Document) -> String {
    let line = |of: &Compared| {
        let mut cells = vec![of.bytes.to_string(), of.fragments.to_string(), of.family.clone()];
        cells.extend([of.median_planned_us, of.predicted_us].map(|us| format!("{us:.1}")));
        cells.push(format!("{:.1}%", 100.0 * of.prediction_error));
        let times = [of.median_whole_us, of.median_64_kib_us, of.median_best_fixed_us];
        cells.extend(times.map(|us| format!("{us:.1}")));
        cells.extend([of.best_fixed.clone(), format!("{:.3}", of.planned_over_best_fixed)]);
        cells
    };
    let titles = "bytes, cuts, family, planned us, promised, error, whole us, 64 KiB us, best fixed us,, planned/best";
    format!(
        "{}mean prediction error {:.1} % (below 5.9), worst planned/best fixed {:.3} (at most 1.02)\n\
         planned beats the whole file: {}; {}\n",
        table(titles, document.messages.iter().map(line)),
        100.0 * document.mean_prediction_error,
        document.worst_planned_over_best_fixed,
        document.beats_whole_file,
        document.verdict.text()
    )
}
