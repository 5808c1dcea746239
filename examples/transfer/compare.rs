//! Observing the path, planning from that, and timing every way of cutting in turns.

use std::io;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use midplane::pipeline::estimate::{BlackBox, Path, observe};
use midplane::pipeline::timing::Row;
use midplane::pipeline::{Limits, Request, fixed};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::peer::Fault;
use crate::wire::{Hand, Outcome, send};
use crate::{Arguments, gantt};

/// Bytes of the file: a stream of the largest fragments that are observed.
const FILE: usize = 16 << 20;

/// Messages compared: 4 KiB to 4 MiB.
const MESSAGES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Fixed sizes compared: powers of two from 4 KiB.
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

/// The message that is drawn.
const DRAWN: u64 = 1 << 20;

/// Unit of the plan in bytes.
const PAGE: u64 = 4096;

/// Fragments of the shortest observed stream. Streams are as long as the message otherwise: a longer one works on
/// more memory, and the caches make a byte of it dearer.
const SHORTEST: usize = 4;

/// Messages sent before anything is observed: the first ones find cold caches and sleeping processors.
const WARM_UP: usize = 50;

/// Each observation is the median of so many.
const REPEATS: usize = 3;

/// The smallest fragment observed for a message, as a part of it and in bytes.
const FINEST: (f64, f64) = (64.0, 2048.0);

/// Contents of the file: anything that does not compress.
pub(crate) fn contents() -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(FILE / 8).flatten().collect()
}

/// The connection as something that messages can be timed on.
struct Real<'a> {
    runtime: &'a Runtime,
    hand: &'a Hand,
    file: &'a FilePath,
    message: f64,
    failed: Option<io::Error>,
}

impl Real<'_> {
    fn time(&self, sizes: &[u64]) -> Result<Outcome, Fault> {
        self.runtime.block_on(async {
            tokio::select! {
                outcome = send(self.hand, self.file, sizes) => outcome.map_err(Fault::lost("the receiver")),
                _ = tokio::signal::ctrl_c() => Err(Fault::Lost("stopped".into())),
            }
        })
    }

    /// The median of some runs after an unmeasured one; 0 once anything has failed, which ends the observation soon.
    fn warm(&mut self, sizes: &[u64]) -> f64 {
        if self.failed.is_some() {
            return 0.0;
        }
        let mut times = Vec::with_capacity(REPEATS);
        for repeat in 0..=REPEATS {
            match self.time(sizes) {
                Ok(outcome) if repeat > 0 => times.push(outcome.us),
                Ok(_) => {}
                Err(Fault::Lost(problem) | Fault::Input(problem)) => {
                    self.failed = Some(io::Error::other(problem));
                    return 0.0;
                }
            }
        }
        median(&mut times)
    }

    /// What can be seen of the path for one message: whole messages and fragments around its size, because caches
    /// make no line of all sizes.
    fn observe(&mut self, message: u64) -> Result<BlackBox, Fault> {
        let high = message as f64;
        self.message = high;
        for _ in 0..WARM_UP {
            self.time(&[message])?;
        }
        let seen = observe(self, (high / FINEST.0).max(FINEST.1), high);
        if let Some(problem) = self.failed.take() {
            return Err(Fault::Lost(problem.to_string()));
        }
        seen.map_err(|problem| Fault::Lost(format!("observing the path: {problem}")))
    }
}

impl Path for Real<'_> {
    fn latency(&mut self, bytes: f64) -> f64 {
        self.warm(&[pages(bytes)])
    }

    fn interval(&mut self, bytes: f64) -> f64 {
        let count = ((self.message / bytes) as usize).max(SHORTEST);
        let one = self.warm(&[pages(bytes)]);
        let many = self.warm(&vec![pages(bytes); count]);
        ((many - one) / (count - 1) as f64).max(0.0)
    }
}

/// Whole pages where there is more than one.
fn pages(bytes: f64) -> u64 {
    let bytes = bytes as u64;
    if bytes > PAGE { bytes / PAGE * PAGE } else { bytes }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// A way of cutting a message, and what it took.
#[derive(Debug)]
struct Way {
    name: String,
    sizes: Vec<u64>,
    times: Vec<f64>,
}

impl Way {
    fn median(&self) -> f64 {
        median(&mut self.times.clone())
    }
}

/// Equal fragments in whole pages: a fragment that ends within a page makes the file system read or zero the rest.
fn planned(message: u64, seen: &BlackBox) -> Vec<u64> {
    let limits = Limits::new().align((PAGE as f64).min(message as f64));
    let size = message as f64 / seen.count(message as f64) as f64;
    let request = Request::new(message as f64).limits(limits);
    fixed(&seen.two_stages(size), &request)
        .map_or_else(|_| vec![message], |plan| plan.whole_bytes())
}

/// The ways for one message: whole, by plan, and in every fixed size below it.
fn ways(message: u64, seen: &BlackBox) -> Vec<Way> {
    let mut ways =
        vec![("whole".to_owned(), vec![message]), ("planned".to_owned(), planned(message, seen))];
    for size in FIXED.into_iter().filter(|&size| size < message) {
        ways.push((format!("{} KiB", size >> 10), vec![size; (message / size) as usize]));
    }
    ways.into_iter().map(|(name, sizes)| Way { name, sizes, times: Vec::new() }).collect()
}

/// Everything, from the first observation to the report; whether all held.
#[expect(clippy::disallowed_methods, reason = "an example measures real time")]
pub(crate) fn run(
    runtime: &Runtime,
    arguments: &Arguments,
    hand: &Hand,
    file: &FilePath,
) -> Result<bool, Fault> {
    let mut real = Real { runtime, hand, file, message: 0.0, failed: None };
    let bar = ProgressBar::new(u64::from(arguments.rounds)).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} rounds, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut all: Vec<(u64, BlackBox, Vec<Way>)> = Vec::new();
    let share = Duration::from_secs(arguments.seconds) / MESSAGES.len() as u32;
    for message in MESSAGES {
        bar.set_message(format!("{} KiB", message >> 10));
        bar.set_position(0);
        let seen = real.observe(message)?;
        let mut ways = ways(message, &seen);
        // Compared at once: what is observed now need not hold in a minute on a machine that others use.
        let end = Instant::now() + share;
        for round in 0..arguments.rounds as usize {
            // In turns, from another start each round, so that no way always follows the same one.
            let count = ways.len();
            for turn in 0..count {
                let way = &mut ways[(turn + round) % count];
                // Once unmeasured, so that every way finds the caches as it leaves them itself.
                real.time(&way.sizes)?;
                way.times.push(real.time(&way.sizes)?.us);
            }
            bar.inc(1);
            if Instant::now() > end {
                break;
            }
        }
        all.push((message, seen, ways));
    }
    bar.finish_and_clear();
    let results: Vec<Compared> =
        all.iter().map(|(message, seen, ways)| Compared::new(*message, ways, seen)).collect();
    let drawn = all.iter().find(|(message, ..)| *message == DRAWN);
    if let (Some(plot), Some((message, seen, _))) = (&arguments.plot, drawn) {
        draw(&real, plot, *message, seen)?;
    }
    Ok(report(arguments, &results))
}

/// One message size's comparison; times are medians in microseconds.
#[derive(Debug)]
struct Compared {
    bytes: u64,
    fragments: usize,
    predicted: f64,
    planned: f64,
    whole: f64,
    fixed_64: f64,
    best: f64,
    best_name: String,
    /// Median over the rounds of planned against best fixed in the same round.
    ratio: f64,
}

impl Compared {
    fn new(bytes: u64, ways: &[Way], seen: &BlackBox) -> Self {
        let (whole, planned) = (&ways[0], &ways[1]);
        let fixed = || ways.iter().filter(|way| way.name != "planned");
        let best = fixed().min_by(|a, b| a.median().total_cmp(&b.median())).unwrap_or(whole);
        let at_64 = fixed().find(|way| way.name == "64 KiB").unwrap_or(whole);
        let mut ratios: Vec<f64> =
            planned.times.iter().zip(&best.times).map(|(ours, theirs)| ours / theirs).collect();
        Self {
            bytes,
            fragments: planned.sizes.len(),
            predicted: seen.latency(bytes as f64, planned.sizes.len()).get(),
            planned: planned.median(),
            whole: whole.median(),
            fixed_64: at_64.median(),
            best: best.median(),
            best_name: best.name.clone(),
            ratio: median(&mut ratios),
        }
    }

    fn error(&self) -> f64 {
        (self.predicted / self.planned - 1.0).abs()
    }
}

fn report(arguments: &Arguments, results: &[Compared]) -> bool {
    let mean =
        |f: &dyn Fn(&Compared) -> f64| results.iter().map(f).sum::<f64>() / results.len() as f64;
    let error = mean(&Compared::error);
    let worst = results.iter().map(|result| result.ratio).fold(0.0, f64::max);
    // Where one fragment is the plan, the two are the same and differ by noise alone.
    let beats_whole = results.iter().all(|r| r.fragments == 1 || r.planned < r.whole);
    let holds = error < 0.059 && worst <= 1.02 && beats_whole;
    if arguments.json {
        let rows: Vec<_> = results
            .iter()
            .map(|r| {
                json!({"bytes": r.bytes, "fragments": r.fragments, "predicted_us": r.predicted, "median_planned_us": r.planned,
                    "prediction_error": r.error(), "median_whole_us": r.whole, "median_64_kib_us": r.fixed_64,
                    "median_best_fixed_us": r.best, "best_fixed": r.best_name, "planned_over_best_fixed": r.ratio})
            })
            .collect();
        println!(
            "{}",
            json!({"rounds": arguments.rounds, "sync": arguments.sync, "messages": rows, "mean_prediction_error": error,
                "worst_planned_over_best_fixed": worst, "beats_whole_file": beats_whole, "holds": holds})
        );
        return holds;
    }
    println!(
        "   bytes  cuts  planned us  promised   error   whole us  64 KiB us  best fixed us       planned/best"
    );
    for r in results {
        println!(
            "{:>8} {:>5} {:>11.1} {:>9.1} {:>6.1}% {:>10.1} {:>10.1} {:>13.1} {:<9} {:>6.3}",
            r.bytes,
            r.fragments,
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
    println!(
        "mean prediction error {:.1} % (below 5.9), worst planned/best fixed {worst:.3} (at most 1.02)",
        100.0 * error
    );
    println!("planned beats the whole file: {beats_whole}; all hold: {holds}");
    holds
}

/// A planned 1 MiB message as it went, above what was promised of it. The receiver's clock is set so that its first
/// fragment has come when the sender's first was sent.
fn draw(real: &Real<'_>, plot: &FilePath, message: u64, seen: &BlackBox) -> Result<(), Fault> {
    let sizes = planned(message, seen);
    let outcome = real.time(&sizes)?;
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
    let promised = seen.two_stages(exact[0]).rows(&exact, None);
    let charts: [(&str, &[Row]); 2] = [
        ("measured", &rows),
        (
            "promised, as seen from outside: stage 0 all but the bottleneck, stage 1 the bottleneck",
            &promised,
        ),
    ];
    let names = ["read", "send", "receive", "write"];
    gantt::write(plot, &charts, &names)
        .map_err(|problem| Fault::Input(format!("--plot {}: {problem}", plot.display())))
}
