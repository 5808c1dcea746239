//! The greedy ramp, on any number of stages: sizes rise towards the fragment that keeps the
//! bottleneck busy longest, and fall again.
//!
//! A generalisation of Theorems 4 and 5 for one chosen bottleneck. Forward from the first fragment,
//! each next one is the largest that reaches the bottleneck before it falls idle. Backward from the
//! last fragment, the same rule applies to the reversed chain (Theorem 2). The plan takes the
//! smaller of the two sizes at every position. The search is over the first and the last size, the
//! number of fragments and the bottleneck. On two stages and on fast-slow-fast chains the result is
//! the optimum.

mod ends;
mod pass;

use crate::fixed::{self, BestCut};
use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Problem, Request};
use crate::stage::{Pipeline, Stage};

use ends::{Precision, Ramp};

/// The most fragments for which ramps are tried. The ends of a longer message hardly matter: equal
/// sizes are within a fraction of a percent.
const MAX_FRAGMENTS: usize = 512;

/// Bottlenecks that are tried. With two, plans are 0.2 % above the optimum; with three, 0.07 %; a
/// fourth adds nothing.
const BOTTLENECKS: usize = 3;

/// A rough ramp within this factor of the best plan is searched exactly. The error of a rough
/// search is 1e-5.
const CLOSE: f64 = 1.001;

/// The most timings that are spent on moving single units between fragments after rounding to
/// units.
const MOVES: usize = 1500;

/// Plans by the greedy ramp; never slower than the best equal fragments.
///
/// Without limits its latency is within 0.1 % of the linear program's optimum on average. With
/// limits, the sizes are clamped to their bounds, rounded to units and then improved by moving
/// single units.
///
/// # Errors
///
/// See [`PlanError`].
pub fn ramp(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let sizes = sizes(&problem);
    Ok(problem.plan(Family::Ramp, sizes))
}

/// Returns the best ramp of a checked problem.
pub(crate) fn sizes(problem: &Problem<'_>) -> Vec<f64> {
    let equal = fixed::sizes(problem);
    let count = equal.len();
    let mut best = BestCut::new(problem);
    best.offer(equal);
    let stages = problem.pipeline.stages();
    if stages.len() > 1 && count <= MAX_FRAGMENTS && !problem.limits.equal_but_last {
        let mut climbers: Vec<Climber<'_, '_>> = bottlenecks(stages, count, problem.bytes)
            .into_iter()
            .map(|at| Climber::new(problem, at, count))
            .collect();
        for climber in &mut climbers {
            climber.climb(&mut best);
        }
        for climber in &mut climbers {
            climber.refine(&mut best);
        }
    }
    let limited = problem.cut.unit().is_some();
    let sizes = best.take().unwrap_or_else(|| fixed::fallback(problem));
    if limited { move_units(problem, sizes) } else { sizes }
}

/// Returns the stages that are busy longest when `count` equal fragments cross them.
fn bottlenecks(stages: &[Stage], count: usize, bytes: f64) -> Vec<usize> {
    let busy =
        |index: &usize| (count as f64).mul_add(stages[*index].g(), bytes * stages[*index].c());
    let mut order: Vec<usize> = (0..stages.len()).collect();
    order.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    order.truncate(BOTTLENECKS);
    order
}

/// The search for the best number of fragments with one bottleneck.
#[derive(Debug)]
struct Climber<'a, 'p> {
    problem: &'a Problem<'p>,
    ramp: Ramp,
    /// A lower bound of the latency without the later fragments' overheads, and the bottleneck's
    /// overhead.
    floor: (f64, f64),
    counts: (usize, usize),
    count: usize,
    latency: f64,
    /// Numbers of fragments tried roughly, with their latencies.
    rough: Vec<(usize, f64)>,
}

impl<'a, 'p> Climber<'a, 'p> {
    fn new(problem: &'a Problem<'p>, bottleneck: usize, count: usize) -> Self {
        let stages = problem.pipeline.stages();
        let base = problem
            .bytes
            .mul_add(stages[bottleneck].c(), stages.iter().map(Stage::least_overhead).sum());
        let (fewest, most) = problem.cut.counts;
        Self {
            problem,
            ramp: Ramp::new(stages, bottleneck, problem.bytes),
            floor: (base, stages[bottleneck].g()),
            counts: (fewest.max(2), most.min(MAX_FRAGMENTS)),
            count,
            latency: f64::INFINITY,
            rough: Vec::new(),
        }
    }

    /// Offers the ramp of `count` fragments. Returns its latency, infinite if there is none or if
    /// it cannot be the best.
    fn attempt(&mut self, count: usize, best: &mut BestCut<'_, '_>, precision: Precision) -> f64 {
        let floor = ((count - 1) as f64).mul_add(self.floor.1, self.floor.0);
        if count < self.counts.0 || count > self.counts.1 || floor >= best.latency() {
            return f64::INFINITY;
        }
        let Some(mut sizes) = self.ramp.shape(count, precision) else { return f64::INFINITY };
        if self.problem.limits.shapes() && !self.problem.cut.fit(&mut sizes) {
            return f64::INFINITY;
        }
        best.offer(sizes)
    }

    fn roughly(&mut self, count: usize, best: &mut BestCut<'_, '_>) -> f64 {
        if let Some(&(_, latency)) = self.rough.iter().find(|&&(tried, _)| tried == count) {
            return latency;
        }
        let latency = self.attempt(count, best, Precision::Rough);
        self.rough.push((count, latency));
        latency
    }

    /// Searches roughly, from the equal cut's number: first in strides, then one by one.
    fn climb(&mut self, best: &mut BestCut<'_, '_>) {
        self.latency = self.roughly(self.count, best);
        while self.latency.is_infinite() && self.count > self.counts.0 {
            self.count -= (self.count / 8).max(1);
            self.latency = self.roughly(self.count, best);
        }
        let mut stride = (self.count / 6).max(1);
        loop {
            let moved = self.walk(stride, true, best) || self.walk(stride, false, best);
            if stride == 1 && !moved {
                return;
            }
            stride = (stride / 3).max(1);
        }
    }

    fn walk(&mut self, stride: usize, up: bool, best: &mut BestCut<'_, '_>) -> bool {
        let mut moved = false;
        loop {
            let next =
                if up { self.count + stride } else { self.count.saturating_sub(stride).max(1) };
            let latency = self.roughly(next, best);
            if latency >= self.latency {
                return moved;
            }
            (self.count, self.latency, moved) = (next, latency, true);
        }
    }

    /// Searches exactly: the number found and its neighbours, as long as they improve.
    fn refine(&mut self, best: &mut BestCut<'_, '_>) {
        if self.latency > best.latency() * CLOSE {
            return;
        }
        let from = self.count;
        self.latency = self.attempt(from, best, Precision::Exact);
        for up in [true, false] {
            let mut next = from;
            while next > 1 || up {
                next = if up { next + 1 } else { next - 1 };
                let latency = self.attempt(next, best, Precision::Exact);
                if latency >= self.latency {
                    break;
                }
                self.latency = latency;
            }
        }
    }
}

/// Moves single units between fragments, as long as that helps and timings remain.
fn move_units(problem: &Problem<'_>, mut sizes: Vec<f64>) -> Vec<f64> {
    let Some(unit) = problem.cut.unit() else { return sizes };
    let count = sizes.len();
    let mut clock = problem.recurrence();
    let mut latency = clock.latency(&sizes);
    let mut budget = MOVES.min(200_000 / (count * problem.pipeline.stages().len()).max(1));
    let mut improved = true;
    while improved && !problem.limits.equal_but_last {
        improved = false;
        for from in 0..count {
            for to in 0..count {
                if from == to || sizes[from] <= unit {
                    continue;
                }
                if budget == 0 {
                    return sizes;
                }
                budget -= 1;
                sizes[from] -= unit;
                sizes[to] += unit;
                let moved = clock.latency(&sizes);
                if moved < latency * (1.0 - 1e-12) && problem.cut.allows(&sizes) {
                    latency = moved;
                    improved = true;
                } else {
                    sizes[from] += unit;
                    sizes[to] -= unit;
                }
            }
        }
    }
    sizes
}
