//! Stages from probes that travel a limited number of hops and return, as pathchar's with a time to
//! live (section 6).

use super::line::{FitError, Line, fit};
use crate::stage::{Pipeline, Stage};

/// A path that answers probes with a limited number of hops.
pub trait HopPath {
    /// Returns the microseconds until a probe of `bytes` has arrived `hops` hops away (from 1).
    /// Returns `None` if nothing answers.
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64>;
}

/// Estimates the stages of a path from probes to each hop, as the differences of neighbouring hops'
/// lines.
///
/// A hop that does not answer is merged with the next one that does. To every hop go `repeats`
/// probes of each of 16 sizes from `low` to `high` bytes. The fastest of equal probes counts,
/// because queues only add time.
///
/// # Errors
///
/// [`FitError`] if no hop answers, or if the sizes do not span a range.
pub fn hops(
    path: &mut impl HopPath,
    count: usize,
    (low, high): (f64, f64),
    repeats: usize,
) -> Result<Pipeline, FitError> {
    const SIZES: usize = 16;
    let mut stages: Vec<Stage> = Vec::new();
    let mut before = Line { overhead_us: 0.0, us_per_byte: 0.0, error: 0.0 };
    for hop in 1..=count {
        let mut timings = Vec::with_capacity(SIZES);
        for index in 0..SIZES {
            let bytes = low + (high - low) * index as f64 / (SIZES - 1) as f64;
            let probes = (0..repeats.max(1)).filter_map(|_| path.probe(bytes, hop));
            let fastest = probes.fold(f64::INFINITY, f64::min);
            if fastest.is_finite() {
                timings.push((bytes, fastest));
            }
        }
        if timings.len() < 2 {
            continue;
        }
        let line = fit(&timings)?;
        stages.push(difference(&line, &before, 0.5 * (low + high)));
        before = line;
    }
    Pipeline::new(stages).map_err(|_| FitError::TooFew(0))
}

/// Returns the stage between two neighbouring hops. The lines' errors at `bytes` add up, and weigh
/// more the smaller the difference is.
fn difference(to: &Line, from: &Line, bytes: f64) -> Stage {
    let overhead = (to.overhead_us - from.overhead_us).max(0.0);
    let per_byte = (to.us_per_byte - from.us_per_byte).max(0.0);
    let us = to.error * to.at(bytes) + from.error * from.at(bytes);
    let error = if us > 0.0 { us / per_byte.mul_add(bytes, overhead) } else { 0.0 };
    Stage::clamped(overhead, per_byte, error)
}
