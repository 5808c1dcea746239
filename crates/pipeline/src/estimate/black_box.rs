//! A chain observed from outside (section 5.3.2): its sums, its bottlenecks, and the sizes at which
//! the bottleneck changes.

use super::line::{FitError, Line, fit};
use crate::fixed::Signature;
use crate::limits::MAX_FRAGMENTS;
use crate::stage::Stage;
use crate::unit::Micros;

/// Number of timings of whole messages, and of streams in every range of sizes with its own
/// bottleneck. At 5 % noise they determine a line to about 1 %.
const TIMINGS: usize = 96;

/// The least number of timings on either side of a transition. Both sides are then timed again, so
/// that a few timings may find one. A bottleneck of less than four timings costs a plan below 2 %.
const EDGE: usize = 4;

/// Two lines explain a range better than one if they reduce the sum of squared typical errors by
/// more than this.
const WORTH: f64 = 8.0;

/// Depth to which a range of sizes is divided in search of bottlenecks. A chain rarely has more
/// than four.
const DIVISIONS: usize = 3;

/// A path through which the caller can send messages and time them.
pub trait Path {
    /// Returns the latency in microseconds of one message of `bytes`, sent alone and whole.
    fn latency(&mut self, bytes: f64) -> f64;

    /// Returns the microseconds between arrivals of messages of `bytes`, sent as fast as the path
    /// accepts them.
    fn interval(&mut self, bytes: f64) -> f64;
}

/// The reason why an observation failed.
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
    /// No line could be fitted to the timings.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// An observed path: enough to cut messages into equal fragments and to predict their latency.
#[derive(Clone, Debug, PartialEq)]
pub struct BlackBox {
    /// Sums of the overheads and the costs per byte over all stages.
    pub sum: Line,
    /// The bottlenecks that were distinguished, from small sizes to large.
    pub bottlenecks: Vec<Line>,
    signature: Signature,
}

impl BlackBox {
    /// Returns the best number of equal fragments.
    #[must_use]
    pub fn count(&self, bytes: f64) -> usize {
        self.signature.count(bytes, 1, MAX_FRAGMENTS.min((bytes as usize).max(1)))
    }

    /// Returns the predicted latency of `count` equal fragments.
    #[must_use]
    pub fn latency(&self, bytes: f64, count: usize) -> Micros {
        self.signature.latency(bytes, count.max(1) as f64)
    }

    /// Returns the fragment sizes at which the bottleneck moves, in bytes, descending.
    pub fn switches(&self) -> impl Iterator<Item = f64> + '_ {
        self.signature.switches()
    }
}

/// Observes a path with messages from `low` to `high` bytes.
///
/// Whole messages give the sums. Streams of messages of one size give the bottleneck for that size.
/// If two bottlenecks explain a range better than one, the range is divided where their lines meet,
/// and each part is observed again. The paper halves ranges whose ends disagree; dividing where the
/// lines meet takes fewer measurements.
///
/// # Errors
///
/// See [`BlackBoxError`].
pub fn observe(path: &mut impl Path, low: f64, high: f64) -> Result<BlackBox, BlackBoxError> {
    if !(low.is_finite() && high.is_finite() && low > 0.0 && high > low) {
        return Err(BlackBoxError::Range { low, high });
    }
    let alone: Vec<(f64, f64)> =
        sizes(low, high, TIMINGS).map(|bytes| (bytes, path.latency(bytes))).collect();
    let sum = fit(&alone)?;
    let mut pieces = Vec::new();
    search(path, (low, high), DIVISIONS, &mut pieces)?;
    let mut bottlenecks: Vec<Line> = in_order(pieces)?;
    // A bottleneck that costs more than the sum of all stages is noise.
    for line in &mut bottlenecks {
        line.us_per_byte = line.us_per_byte.min(sum.us_per_byte);
        line.overhead_us = line.overhead_us.min(sum.overhead_us);
    }
    let stages: Vec<Stage> = bottlenecks.iter().map(Line::stage).collect();
    let signature = Signature::of_lines(sum.overhead_us, sum.us_per_byte, &stages);
    Ok(BlackBox { sum, bottlenecks, signature })
}

/// Returns sizes that grow by one factor: small ones determine overheads, large ones costs per
/// byte.
fn sizes(low: f64, high: f64, count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |index| low * (high / low).powf(index as f64 / (count - 1) as f64))
}

/// A range of sizes with one bottleneck: its line and its timings.
#[derive(Clone, Debug)]
struct Piece {
    line: Line,
    timings: Vec<(f64, f64)>,
}

/// Times a range. If two lines explain it better than one, divides it and times each part.
fn search(
    path: &mut impl Path,
    (low, high): (f64, f64),
    divisions: usize,
    pieces: &mut Vec<Piece>,
) -> Result<(), BlackBoxError> {
    let timings: Vec<(f64, f64)> =
        sizes(low, high, TIMINGS).map(|bytes| (bytes, path.interval(bytes))).collect();
    let line = fit(&timings)?;
    match transition(&timings, &line).filter(|_| divisions > 0) {
        None => {
            pieces.push(Piece { line, timings });
            Ok(())
        }
        Some(bytes) => {
            search(path, (low, bytes), divisions - 1, pieces)?;
            search(path, (bytes, high), divisions - 1, pieces)
        }
    }
}

/// Returns the size at which the slowest stage changes, if it does: where two lines meet that
/// explain the timings better than one by more than [`WORTH`].
fn transition(timings: &[(f64, f64)], line: &Line) -> Option<f64> {
    let noise = (line.error * 1.5).max(1e-6);
    let loss = |at: &dyn Fn(f64) -> f64| -> f64 {
        let square = |&(x, y): &(f64, f64)| ((y / at(x).max(1e-9) - 1.0) / noise).powi(2).min(9.0);
        timings.iter().map(square).sum()
    };
    let mut best = (loss(&|x| line.at(x)) - WORTH, None);
    for split in (EDGE..=timings.len() - EDGE).step_by(2) {
        let (Ok(left), Ok(right)) = (fit(&timings[..split]), fit(&timings[split..])) else {
            continue;
        };
        if left.us_per_byte >= right.us_per_byte || left.overhead_us <= right.overhead_us {
            continue;
        }
        let meet = (left.overhead_us - right.overhead_us) / (right.us_per_byte - left.us_per_byte);
        let hull = loss(&|x| left.at(x).max(right.at(x)));
        let inside = meet > timings[EDGE / 2].0 && meet < timings[timings.len() - EDGE / 2].0;
        if hull < best.0 && inside {
            best = (hull, Some(meet));
        }
    }
    best.1
}

/// Joins neighbouring pieces that are noise. From small sizes to large, lines must grow steeper and
/// their overheads smaller, as on an upper hull.
fn in_order(pieces: Vec<Piece>) -> Result<Vec<Line>, BlackBoxError> {
    let mut hull: Vec<Piece> = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        while let Some(before) = hull.pop() {
            let rises = before.line.us_per_byte < piece.line.us_per_byte
                && before.line.overhead_us > piece.line.overhead_us;
            if rises {
                hull.push(before);
                break;
            }
            let timings: Vec<(f64, f64)> =
                before.timings.into_iter().chain(piece.timings).collect();
            piece = Piece { line: fit(&timings)?, timings };
        }
        hull.push(piece);
    }
    Ok(hull.into_iter().map(|piece| piece.line).collect())
}
