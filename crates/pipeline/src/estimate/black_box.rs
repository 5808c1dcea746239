//! A chain seen from outside (section 5.3.2): its sums, its bottlenecks, and where they change.

use super::line::{FitError, Line, fit};
use crate::fixed::Signature;
use crate::limits::MAX_FRAGMENTS;
use crate::stage::Stage;
use crate::unit::Micros;

/// Timings of each kind; in every range of sizes for the second kind. The paper regresses over as many.
const TIMINGS: usize = 24;

/// Times that a range of sizes is halved in search of bottlenecks: five tell sizes 3 % of the range apart.
const HALVINGS: usize = 3;

/// Something that messages can be sent through and timed.
pub trait Path {
    /// Latency in microseconds of one message of `bytes` sent alone and whole.
    fn latency(&mut self, bytes: f64) -> f64;

    /// Microseconds between arrivals when messages of `bytes` are sent as fast as they are taken.
    fn interval(&mut self, bytes: f64) -> f64;
}

/// Why nothing could be learned.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlackBoxError {
    /// The sizes do not span a range.
    #[error("sizes must span a range above 0, not {low} to {high}")]
    Range {
        /// Smallest size in bytes.
        low: f64,
        /// Largest size in bytes.
        high: f64,
    },
    /// The timings give no line.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// What was seen: enough to cut messages equally, and to promise how long that takes.
#[derive(Clone, Debug, PartialEq)]
pub struct BlackBox {
    /// Sums over all stages.
    pub sum: Line,
    /// The bottlenecks that were told apart, each over the sizes where it was the slowest.
    pub bottlenecks: Vec<Line>,
    signature: Signature,
}

impl BlackBox {
    /// The best number of equal fragments.
    #[must_use]
    pub fn count(&self, bytes: f64) -> usize {
        self.signature.count(bytes, 1, MAX_FRAGMENTS.min((bytes as usize).max(1)))
    }

    /// The latency promised for so many equal fragments.
    #[must_use]
    pub fn latency(&self, bytes: f64, count: usize) -> Micros {
        self.signature.latency(bytes, count.max(1) as f64)
    }

    /// Fragment sizes at which the bottleneck moves, in bytes, descending.
    pub fn switches(&self) -> impl Iterator<Item = f64> + '_ {
        self.signature.switches()
    }
}

/// Observes a path with messages from `low` to `high` bytes.
///
/// Whole messages give the sums. Streams of messages give the bottleneck of their size; where the ends of a range
/// disagree by more than the noise, the range is halved and each half looked at again.
///
/// # Errors
///
/// See [`BlackBoxError`].
pub fn observe(path: &mut impl Path, low: f64, high: f64) -> Result<BlackBox, BlackBoxError> {
    if !(low.is_finite() && high.is_finite() && low > 0.0 && high > low) {
        return Err(BlackBoxError::Range { low, high });
    }
    let alone: Vec<(f64, f64)> = sizes(low, high, TIMINGS).map(|bytes| (bytes, path.latency(bytes))).collect();
    let sum = fit(&alone)?;
    let mut lines = Vec::new();
    search(path, (low, high), HALVINGS, &mut lines)?;
    let mut bottlenecks: Vec<Line> = lines;
    // A line that is steeper than the sum of all stages is noise; no stage is.
    for line in &mut bottlenecks {
        line.us_per_byte = line.us_per_byte.min(sum.us_per_byte);
        line.overhead_us = line.overhead_us.min(sum.overhead_us);
    }
    let stages: Vec<Stage> = bottlenecks.iter().map(Line::stage).collect();
    let signature = Signature::of_lines(sum.overhead_us, sum.us_per_byte, &stages);
    Ok(BlackBox { sum, bottlenecks, signature })
}

/// Sizes that grow evenly.
fn sizes(low: f64, high: f64, count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |index| low + (high - low) * index as f64 / (count - 1) as f64)
}

fn search(path: &mut impl Path, (low, high): (f64, f64), halvings: usize, lines: &mut Vec<Line>) -> Result<(), BlackBoxError> {
    let timings: Vec<(f64, f64)> = sizes(low, high, TIMINGS).map(|bytes| (bytes, path.interval(bytes))).collect();
    let whole = fit(&timings)?;
    let bends = halvings > 0 && bends(&timings, &whole);
    if !bends {
        lines.push(whole);
        return Ok(());
    }
    let middle = 0.5 * (low + high);
    search(path, (low, middle), halvings - 1, lines)?;
    search(path, (middle, high), halvings - 1, lines)
}

/// Whether the slowest stage changes within the range: the hull of lines is convex, so a line through a bend lies above
/// the timings in the middle and below them at both ends, by more than the noise accounts for.
fn bends(timings: &[(f64, f64)], line: &Line) -> bool {
    let third = timings.len() / 3;
    let median = |part: &[(f64, f64)]| {
        let mut errors: Vec<(f64, f64)> = part.iter().map(|(x, y)| ((y - line.at(*x)) / line.at(*x).max(1e-12), 1.0)).collect();
        super::line::weighted_median(&mut errors)
    };
    let ends = 0.5 * (median(&timings[..third]) + median(&timings[timings.len() - third..]));
    let sag = ends - median(&timings[third..timings.len() - third]);
    // The median of eight errors strays by about half an error.
    sag > 0.01 + 1.5 * line.error
}
