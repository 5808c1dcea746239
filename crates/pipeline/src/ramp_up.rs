//! The ramp-up algorithm for two stages (section 4.1.3, Theorem 4).

use crate::fixed::{self, BestCut};
use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Problem, Request};
use crate::stage::{Pipeline, Stage};

/// Span of numbers of fragments that are tried, from the fewest on.
pub(crate) const MAX_FRAGMENTS: usize = 1024;

/// The recurrence `x' = a x + b` that keeps a stage and the next one busy (equations 15 to 18).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recurrent {
    a: f64,
    b: f64,
}

impl Recurrent {
    /// Returns `None` if a byte costs nothing in the first stage: then no next size keeps both
    /// busy.
    pub(crate) fn new(first: &Stage, second: &Stage) -> Option<Self> {
        let (a, b) = (second.c() / first.c(), (second.g() - first.g()) / first.c());
        (a.is_finite() && b.is_finite()).then_some(Self { a, b })
    }

    /// Returns `count` sizes from `first` on.
    pub(crate) fn sizes(self, first: f64, count: usize) -> impl Iterator<Item = f64> {
        std::iter::successors(Some(first), move |size| Some(self.a.mul_add(*size, self.b)))
            .take(count)
    }

    /// Returns the `n`th size as `slope x0 + offset` (equation 17).
    pub(crate) fn nth(self, n: usize) -> (f64, f64) {
        (0..n)
            .fold((1.0, 0.0), |(slope, offset), _| (slope * self.a, self.a.mul_add(offset, self.b)))
    }

    /// Returns the sum of `count` sizes as `slope x0 + offset` (equation 18).
    pub(crate) fn sum(self, count: usize) -> (f64, f64) {
        let (mut slope, mut offset) = (0.0, 0.0);
        let mut size = (1.0, 0.0);
        for _ in 0..count {
            slope += size.0;
            offset += size.1;
            size = (size.0 * self.a, self.a.mul_add(size.1, self.b));
        }
        (slope, offset)
    }
}

/// Makes the bubble-free plan of a two-stage pipeline: the optimum (Theorem 4).
///
/// Skips numbers of fragments for which a size would be negative, which the theorem does not
/// exclude.
///
/// # Errors
///
/// [`PlanError::NotApplicable`] unless there are two stages; otherwise see [`PlanError`].
pub fn ramp_up(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let sizes = sizes(&problem)?;
    Ok(problem.plan(Family::RampUp, sizes))
}

pub(crate) fn sizes(problem: &Problem<'_>) -> Result<Vec<f64>, PlanError> {
    let &[first, second] = problem.pipeline.stages() else {
        let stages = problem.pipeline.stages().len();
        return Err(PlanError::NotApplicable { planner: "ramp-up", needs: "two stages", stages });
    };
    if problem.limits.equal_but_last {
        return Ok(fixed::sizes(problem));
    }
    let mut best = BestCut::new(problem);
    // If a byte costs nothing in the first stage, the recurrence of the reversed chain exists,
    // unless it costs nothing in both.
    let (recurrent, reversed) = match Recurrent::new(&first, &second) {
        Some(recurrent) => (Some(recurrent), false),
        None => (Recurrent::new(&second, &first), true),
    };
    let (fewest, most) = problem.cut.counts;
    let slowest = (first.g().max(second.g()), problem.bytes * first.c().max(second.c()));
    for count in fewest..=most.min(fewest.saturating_add(MAX_FRAGMENTS)) {
        if slowest.0.mul_add((count - 1) as f64, slowest.1) > best.latency() {
            break;
        }
        let sizes = if count == 1 {
            Some(vec![problem.bytes])
        } else {
            recurrent.and_then(|r| bubble_free(r, problem.bytes, count))
        };
        let Some(mut sizes) = sizes else { continue };
        if reversed {
            sizes.reverse();
        }
        if !problem.limits.shapes() || problem.cut.fit(&mut sizes) {
            best.offer(sizes);
        }
    }
    Ok(best.take().unwrap_or_else(|| fixed::fallback(problem)))
}

fn bubble_free(recurrent: Recurrent, bytes: f64, count: usize) -> Option<Vec<f64>> {
    let (slope, offset) = recurrent.sum(count);
    let first = (bytes - offset) / slope;
    let sizes: Vec<f64> = recurrent.sizes(first, count).collect();
    let sum: f64 = sizes.iter().sum();
    let good = sizes.iter().all(|&size| size > 0.0) && (sum - bytes).abs() <= 1e-6 * bytes;
    good.then(|| sizes.into_iter().map(|size| size * (bytes / sum)).collect())
}
