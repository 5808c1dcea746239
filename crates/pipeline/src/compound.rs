//! Compound stages: groups of stages that receive whole fragments, cut them finer inside, and pass
//! on whole ones.

use std::ops::Range;

use crate::fixed::Signature;
use crate::stage::{Pipeline, Stage};
use crate::timing::{Recurrence, Row};
use crate::unit::Micros;

/// An invalid division of a chain into groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupingError {
    /// A group is empty.
    #[error("groups[{0}] is empty")]
    Empty(usize),
    /// A group does not continue where the one before ended.
    #[error("groups[{group}] must continue with stage {expected}")]
    Gap {
        /// Index of the group.
        group: usize,
        /// The stage that must come next.
        expected: usize,
    },
    /// The groups end before or behind the last stage.
    #[error("groups cover {covered} of {stages} stages")]
    Uncovered {
        /// Number of stages that the groups cover.
        covered: usize,
        /// Number of stages of the chain.
        stages: usize,
    },
}

/// A division of a chain into groups of neighbouring stages, each a compound stage (section 4.3.1).
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Grouping {
    ends: Vec<usize>,
}

impl Grouping {
    /// Creates groups from their stages; they must cover stages `0..stages` in order.
    ///
    /// # Errors
    ///
    /// [`GroupingError`] if a group is empty, out of order, overlapping or beyond the last stage,
    /// or if a stage is in no group.
    pub fn new<G: AsRef<[usize]>>(stages: usize, groups: &[G]) -> Result<Self, GroupingError> {
        let mut ends = Vec::with_capacity(groups.len());
        let mut expected = 0;
        for (group, members) in groups.iter().enumerate() {
            if members.as_ref().is_empty() {
                return Err(GroupingError::Empty(group));
            }
            for &stage in members.as_ref() {
                if stage != expected {
                    return Err(GroupingError::Gap { group, expected });
                }
                expected += 1;
            }
            ends.push(expected);
        }
        if expected != stages || stages == 0 {
            return Err(GroupingError::Uncovered { covered: expected, stages });
        }
        Ok(Self { ends })
    }

    /// Creates three groups: one slow stage, the stages before it and the stages after it.
    #[must_use]
    pub fn around(stages: usize, slow: usize) -> Self {
        let mut ends = vec![slow, slow + 1, stages];
        ends.retain(|&end| end > 0 && end <= stages);
        ends.dedup();
        Self { ends }
    }

    /// Creates groups that end with the stages for which `border` returns true, and with the last
    /// one.
    pub(crate) fn at(stages: usize, border: impl Fn(usize) -> bool) -> Self {
        Self {
            ends: (0..stages)
                .filter(|&stage| stage + 1 == stages || border(stage))
                .map(|stage| stage + 1)
                .collect(),
        }
    }

    /// Returns the groups as ranges of stages.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }

    /// Returns the number of groups.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if no group has more than one stage, so that nothing can refragment.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.ranges().all(|range| range.len() == 1)
    }

    /// Returns true if the groups end with the last of `stages` stages.
    pub(crate) fn covers(&self, stages: usize) -> bool {
        self.ends.last() == Some(&stages)
    }
}

/// Returns the exact latency of a plan that refragments, in microseconds.
///
/// Inside a group the pieces follow each other as in any chain, also across the borders of
/// top-level fragments: a group's first stages work on the next fragment while its last ones
/// finish. A group starts on a top-level fragment when all of its pieces have left the group
/// before. If `rows` is given, it receives every piece's stay; `fragment` then counts top-level
/// fragments.
pub(crate) fn latency(
    pipeline: &Pipeline,
    levels: &[crate::plan::Level],
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

impl crate::plan::Plan {
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
pub fn approximate(inside: &Pipeline, low: f64, high: f64, points: usize) -> Approximation {
    let signature = Signature::new(inside);
    let points = points.max(2);
    let most = crate::limits::MAX_FRAGMENTS;
    let samples: Vec<(f64, f64)> = (0..points)
        .map(|index| low + (high - low) * index as f64 / (points - 1) as f64)
        .map(|size| (size, signature.latency(size, signature.count(size, 1, most) as f64).get()))
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
    Approximation { stage: Stage::clamped(base, slope), deviation, mean: Micros::of(mean_y) }
}
