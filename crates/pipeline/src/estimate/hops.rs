//! Stages from probes that go so many hops and come back, as pathchar does with a time to live (section 6).

use super::line::{FitError, fit};
use crate::stage::{Pipeline, Stage};

/// A path that answers probes which are limited to a number of hops.
pub trait HopPath {
    /// Microseconds until a probe of `bytes` that goes `hops` hops (from 1) has arrived there; `None` where nothing
    /// answers.
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64>;
}

/// The stages of a path from probes to each hop: the differences of neighbouring hops' lines. Hops that do not answer
/// are merged with the next one that does.
///
/// `repeats` probes of each of 16 sizes from `low` to `high` bytes go to every hop; of equal probes the fastest
/// counts, because queues only ever add.
///
/// # Errors
///
/// No hop answers, or the sizes do not span a range; see [`FitError`].
pub fn hops(
    path: &mut impl HopPath,
    count: usize,
    (low, high): (f64, f64),
    repeats: usize,
) -> Result<Pipeline, FitError> {
    const SIZES: usize = 16;
    let mut stages: Vec<Stage> = Vec::new();
    let mut before = (0.0, 0.0);
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
        stages.push(Stage::clamped(line.overhead_us - before.0, line.us_per_byte - before.1));
        before = (line.overhead_us, line.us_per_byte);
    }
    Pipeline::new(stages).map_err(|_| FitError::TooFew(0))
}
