//! Compound stages: groups of stages that receive whole fragments, cut them finer inside, and pass
//! on whole ones.

use crate::fixed::Signature;
pub use crate::grouping::{Grouping, GroupingError};
use crate::limits::MAX_FRAGMENTS;
use crate::problem::{Level, Plan};
use crate::stage::{Pipeline, Stage};
use crate::timing::{Recurrence, Row};
use crate::unit::Micros;

/// Returns the exact latency of a plan that refragments, in microseconds.
///
/// Inside a group the pieces follow each other as in any chain, also across the borders of
/// top-level fragments: a group's first stages work on the next fragment while its last ones
/// finish. A group starts on a top-level fragment when all of its pieces have left the group
/// before. If `rows` is given, it receives every piece's stay; `fragment` then counts top-level
/// fragments.
pub(crate) fn latency(
    pipeline: &Pipeline,
    levels: &[Level],
    credits: Option<usize>,
    mut rows: Option<&mut Vec<Row>>,
) -> f64 {
    let count = levels.first().map_or(0, |level| level.fragments.len());
    let mut groups: Vec<Recurrence<'_>> = levels
        .iter()
        .map(|level| Recurrence::new(&pipeline.stages()[level.stages.clone()], None))
        .collect();
    let mut exits = vec![0.0; count];
    for fragment in 0..count {
        let mut at = credits
            .filter(|&credits| fragment >= credits)
            .map_or(0.0, |credits| exits[fragment - credits]);
        for (level, clock) in levels.iter().zip(&mut groups) {
            let arrival = at;
            for (piece, &bytes) in level.fragments[fragment].iter().enumerate() {
                at = clock.push(arrival, bytes);
                if let Some(rows) = rows.as_deref_mut() {
                    let stages = &pipeline.stages()[level.stages.clone()];
                    let is_first = fragment == 0 && piece == 0;
                    for ((offset, stage), &end) in stages.iter().enumerate().zip(clock.left_at()) {
                        let stay = if is_first { stage.first_us(bytes) } else { stage.us(bytes) };
                        let start = Micros::of((end - stay).max(0.0));
                        let stage = level.stages.start + offset;
                        rows.push(Row { stage, fragment, bytes, start, end: Micros::of(end) });
                    }
                }
            }
        }
        exits[fragment] = at;
    }
    exits.last().copied().unwrap_or(0.0)
}

impl Plan {
    /// Returns every piece's stay in every stage under this plan, refragmenting or not, on the
    /// chain that it was made for.
    #[must_use]
    pub fn rows(&self, pipeline: &Pipeline, max_in_flight: Option<usize>) -> Vec<Row> {
        if self.levels.is_empty() {
            return pipeline.rows(&self.fragments, max_in_flight);
        }
        let mut rows = Vec::new();
        latency(
            pipeline,
            &self.levels,
            max_in_flight.map(|credits| credits.max(1)),
            Some(&mut rows),
        );
        rows
    }
}

/// A simple stage fitted to a compound one, by least squares over the latencies of equal fragments
/// inside it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct Approximation {
    /// The fitted stage.
    pub stage: Stage,
    /// Standard deviation of the fit's errors.
    pub deviation: Micros,
    /// Mean of the latencies to which the stage was fitted.
    pub mean: Micros,
}

/// Fits a simple stage to a chain seen as one compound stage (section 4.3.1).
///
/// The fit covers fragment sizes from `low` to `high` bytes at `points` equal steps, at least two.
/// If `low` equals `high`, the stage has no overhead.
#[must_use]
#[doc(hidden)]
pub fn approximate(inside: &Pipeline, low: f64, high: f64, points: usize) -> Approximation {
    let signature = Signature::new(inside);
    let points = points.max(2);
    let samples: Vec<(f64, f64)> = (0..points)
        .map(|index| low + (high - low) * index as f64 / (points - 1) as f64)
        .map(|size| {
            (size, signature.latency(size, signature.count(size, 1, MAX_FRAGMENTS) as f64).get())
        })
        .collect();
    let n = points as f64;
    let mean_x = samples.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = samples.iter().map(|(_, y)| y).sum::<f64>() / n;
    let spread: f64 = samples.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let along: f64 = samples.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let (slope, base) = if spread > 0.0 {
        (along / spread, mean_y - along / spread * mean_x)
    } else {
        (mean_y / mean_x, 0.0)
    };
    let errors: f64 = samples.iter().map(|(x, y)| (y - slope.mul_add(*x, base)).powi(2)).sum();
    let deviation = Micros::of((errors / n).sqrt());
    Approximation {
        stage: Stage::clamped(base, slope, inside.error()),
        deviation,
        mean: Micros::of(mean_y),
    }
}
