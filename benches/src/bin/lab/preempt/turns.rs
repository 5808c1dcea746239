//! Records when ranks ran, under any scheduler, and evaluates the records.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use midplane::gang::live::clock::now;
use midplane_kit::claims::median;
use serde::Serialize;
use serde_json::json;

use crate::report::{self, Failure, quantile};

/// Interval at which a rank reads the clock.
const TICK: Duration = Duration::from_micros(100);
/// Gap after which a rank may have been stopped: shorter than a slice, longer than the gaps between clock readings.
const STOPPED_NS: u64 = 20_000_000;

/// Begin and end of a time span, in nanoseconds of this machine's clock.
type Span = (u64, u64);

/// Records for `seconds` seconds when this process ran; writes the spans to `folder/SCHEDULER.JOB.RANK`.
pub(crate) fn tick(folder: &str, name: &str, seconds: f64) -> Result<(), String> {
    let begin = now().as_nanos();
    let mut spans: Vec<Span> = vec![(begin, begin)];
    while now().as_nanos() < begin + (seconds * 1e9) as u64 {
        std::thread::park_timeout(TICK);
        let at = now().as_nanos();
        match spans.last_mut() {
            Some(last) if at - last.1 < STOPPED_NS => last.1 = at,
            _ => spans.push((at, at)),
        }
    }
    let lines: String = spans.iter().map(|(from, to)| format!("{from} {to}\n")).collect();
    let file = Path::new(folder).join(name);
    std::fs::write(&file, lines).map_err(|error| format!("{}: {error}", file.display()))
}

/// A job's turn: begin of its first and last rank, and end of its first and last rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    job: usize,
    ranks: usize,
    began: Span,
    ended: Span,
}

/// Numbers on the turns of two jobs under one scheduler.
#[derive(Debug, Serialize)]
struct Row {
    scheduler: String,
    jobs: usize,
    ranks: usize,
    switches: usize,
    median_slice_ms: f64,
    /// Time from the last span of any rank of one job to the first of any rank of the next.
    shortest_gap_ms: f64,
    median_gap_ms: f64,
    /// Switches at which the next job already ran before the previous one stopped.
    overlaps: usize,
    /// Time from the first rank's begin to the last rank's.
    median_start_skew_ms: f64,
    /// 99 % of the turns begin at most as far apart.
    p99_start_skew_ms: f64,
    longest_start_skew_ms: f64,
}

/// Joins a rank's spans over pauses in which only its processor was taken by others: pauses less than half as long as
/// those that make up half of the stopped time.
fn joined(spans: &[Span]) -> Vec<Span> {
    let mut pauses: Vec<u64> = spans.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    pauses.sort_unstable_by(|a, b| b.cmp(a));
    let half = pauses.iter().sum::<u64>() / 2;
    let mut stopped = 0;
    let typical = pauses.iter().find(|pause| {
        stopped += **pause;
        stopped >= half
    });
    let shortest = typical.copied().unwrap_or(0) / 2;
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.0 - last.1 < shortest => last.1 = span.1,
            _ => joined.push(*span),
        }
    }
    joined
}

/// Returns the turns of one job, from the spans of its ranks; overlapping spans form one turn.
fn turns(job: usize, ranks: &[Vec<Span>]) -> Vec<Turn> {
    let mut spans: Vec<Span> = ranks.iter().flatten().copied().collect();
    spans.sort_unstable();
    let mut turns: Vec<Turn> = Vec::new();
    for (from, to) in spans {
        match turns.last_mut() {
            Some(turn) if from < turn.ended.1 => {
                turn.ranks += 1;
                turn.began.1 = from;
                turn.ended = (turn.ended.0.min(to), turn.ended.1.max(to));
            }
            _ => turns.push(Turn { job, ranks: 1, began: (from, from), ended: (to, to) }),
        }
    }
    turns
}

fn ms(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e6
}

/// Evaluates the turns of all ranks that a turn of another job follows.
fn row(scheduler: &str, jobs: &BTreeMap<String, Vec<Vec<Span>>>) -> Row {
    let ranks = jobs.values().next().map_or(0, Vec::len);
    let mut all: Vec<Turn> =
        jobs.values().enumerate().flat_map(|(job, ranks)| turns(job, ranks)).collect();
    all.sort_by_key(|turn| turn.began);
    let switches: Vec<&[Turn]> = all
        .windows(2)
        .filter(|pair| pair[0].job != pair[1].job && pair.iter().all(|turn| turn.ranks == ranks))
        .collect();
    let of = |value: &dyn Fn(&[Turn]) -> f64| -> Vec<f64> {
        switches.iter().map(|pair| value(pair)).collect()
    };
    let gaps = of(&|pair| ms(pair[0].ended.1, pair[1].began.0));
    let skews = of(&|pair| ms(pair[1].began.0, pair[1].began.1));
    // The first and the last turn are incomplete.
    let whole = switches.get(1..).unwrap_or_default();
    let slices: Vec<f64> = whole.iter().map(|pair| ms(pair[0].began.0, pair[1].began.0)).collect();
    Row {
        scheduler: scheduler.to_owned(),
        jobs: jobs.len(),
        ranks,
        switches: switches.len(),
        median_slice_ms: median(slices),
        shortest_gap_ms: quantile(gaps.clone(), 0.0),
        median_gap_ms: median(gaps.clone()),
        overlaps: gaps.iter().filter(|gap| **gap < 0.0).count(),
        median_start_skew_ms: median(skews.clone()),
        p99_start_skew_ms: quantile(skews.clone(), 0.99),
        longest_start_skew_ms: quantile(skews, 1.0),
    }
}

/// Spans of each rank, by scheduler and job.
type Records = BTreeMap<String, BTreeMap<String, Vec<Vec<Span>>>>;

/// Reads the records in a folder.
fn read(folder: &Path) -> Result<Records, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("--turns {}: {what}", folder.display());
    let mut all = Records::new();
    for entry in std::fs::read_dir(folder).map_err(|error| wrong(&error))? {
        let path = entry.map_err(|error| wrong(&error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let [scheduler, job, _] = name.split('.').collect::<Vec<_>>()[..] else {
            return Err(wrong(&format!("{name} is no SCHEDULER.JOB.RANK")));
        };
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
        let span = |line: &str| {
            let (from, to) = line.split_once(' ')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        };
        let spans: Option<Vec<Span>> = text.lines().map(span).collect();
        let spans = spans.ok_or_else(|| wrong(&format!("{name} has a line that is no span")))?;
        let jobs = all.entry(scheduler.to_owned()).or_default();
        jobs.entry(job.to_owned()).or_default().push(joined(&spans));
    }
    if all.is_empty() { Err(wrong(&"it has no records")) } else { Ok(all) }
}

/// Prints the evaluation of a folder's records, one row per scheduler.
pub(crate) fn run(folder: &Path, json: bool) -> Result<u8, Failure> {
    let records = read(folder)?;
    let rows: Vec<Row> = records.iter().map(|(scheduler, jobs)| row(scheduler, jobs)).collect();
    Ok(report::conclude(json, &json!({"turns": rows}), true))
}
