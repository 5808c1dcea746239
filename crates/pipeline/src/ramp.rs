//! The greedy ramp: sizes that rise towards the bottleneck's middle and fall again, on any number of stages.
//!
//! A generalisation of Theorems 4 and 5. Take a bottleneck. Going forward from a first fragment, the next one is the
//! largest that reaches the bottleneck before it falls idle; going backward from a last fragment, the same on the
//! reversed chain (Theorem 2). The plan takes the smaller of the two at every place. What is left to choose are the
//! two ends, the number of fragments and the bottleneck. On two stages and on fast-slow-fast this *is* the optimum.

mod ends;
mod pass;

use crate::fixed::{self, BestCut, Signature};
use crate::plan::{Family, Plan, PlanError, Problem, Request};
use crate::stage::{Pipeline, Stage};

use ends::{Precision, Ramp};

/// Fragments beyond which no ramp is tried: the ends of so long a message hardly matter, and equal sizes are
/// within a fraction of a percent.
const MOST_FRAGMENTS: usize = 1024;

/// Bottlenecks tried. A third one raises the quality from 0.2 % to 0.07 % above the optimum; a fourth adds nothing.
const BOTTLENECKS: usize = 3;

/// A rough ramp within this factor of the best plan is searched exactly.
const CLOSE: f64 = 1.002;

/// Single units moved between neighbours after rounding to units, at most this many timings.
const MOVES: usize = 1500;

/// A plan of the greedy ramp; never slower than the best equal fragments.
///
/// Without limits its latency is within 0.1 % of the linear program's optimum on average. With limits the ramp is
/// held within the bands, rounded to units and then improved by moving single units.
///
/// # Errors
///
/// See [`PlanError`].
pub fn ramp(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let sizes = sizes(&problem, &Signature::new(pipeline));
    Ok(problem.plan(Family::Ramp, sizes))
}

/// The best ramp of a checked problem.
pub(crate) fn sizes(problem: &Problem<'_>, signature: &Signature) -> Vec<f64> {
    let equal = fixed::sizes(problem, signature);
    let count = equal.len();
    let mut best = BestCut::new(problem);
    best.offer(equal);
    let stages = problem.pipeline.stages();
    if stages.len() > 1 && count <= MOST_FRAGMENTS && !problem.limits.equal_but_last {
        for bottleneck in bottlenecks(stages, count, problem.bytes) {
            climb(problem, bottleneck, count, &mut best);
        }
    }
    let limited = problem.cut.unit().is_some();
    let sizes = best.take().unwrap_or_else(|| fixed::fallback(problem));
    if limited { move_units(problem, sizes) } else { sizes }
}

/// The stages that are busy longest when `count` equal fragments cross them.
fn bottlenecks(stages: &[Stage], count: usize, bytes: f64) -> Vec<usize> {
    let busy = |index: &usize| (count as f64).mul_add(stages[*index].g(), bytes * stages[*index].c());
    let mut order: Vec<usize> = (0..stages.len()).collect();
    order.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    order.truncate(BOTTLENECKS);
    order
}

/// Climbs in the number of fragments from the equal cut's, first in strides, then one by one.
fn climb(problem: &Problem<'_>, bottleneck: usize, from: usize, best: &mut BestCut<'_, '_>) {
    let (fewest, most) = problem.cut.counts;
    let most = most.min(MOST_FRAGMENTS);
    if from > most {
        return;
    }
    let floor = floor(problem, bottleneck);
    let mut ramp = Ramp::new(problem.pipeline.stages(), bottleneck, problem.bytes);
    let mut attempt = |count: usize, best: &mut BestCut<'_, '_>, precision: Precision| {
        if floor(count) >= best.latency() {
            return f64::INFINITY;
        }
        let Some(mut sizes) = ramp.shape(count, precision) else { return f64::INFINITY };
        if problem.limits.shapes() && !problem.cut.fit(&mut sizes) {
            return f64::INFINITY;
        }
        best.offer(sizes)
    };
    let (mut at, mut here) = (from, attempt(from, best, Precision::Rough));
    while here.is_infinite() && at > fewest.max(2) {
        at -= (at / 8).max(1);
        here = attempt(at, best, Precision::Rough);
    }
    let mut stride = (from / 6).max(1);
    loop {
        let mut moved = false;
        for up in [true, false] {
            loop {
                let next = if up { at + stride } else { at.saturating_sub(stride) };
                if next < fewest.max(1) || next > most {
                    break;
                }
                let there = attempt(next, best, Precision::Rough);
                if there >= here {
                    break;
                }
                (at, here, moved) = (next, there, true);
            }
            if moved {
                break;
            }
        }
        if stride == 1 && !moved {
            break;
        }
        stride = (stride / 3).max(1);
    }
    if here > best.latency() * CLOSE {
        return;
    }
    let mut exact = attempt(at, best, Precision::Exact);
    for up in [true, false] {
        let mut next = at;
        loop {
            next = if up { next + 1 } else { next - 1 };
            if next < fewest.max(2) || next > most {
                break;
            }
            let there = attempt(next, best, Precision::Exact);
            if there >= exact {
                break;
            }
            exact = there;
        }
    }
}

/// A bound from below on every plan of `count` fragments, seen from one bottleneck.
fn floor(problem: &Problem<'_>, bottleneck: usize) -> impl Fn(usize) -> f64 + use<> {
    let stages = problem.pipeline.stages();
    let stage = stages[bottleneck];
    let fixed = problem.bytes.mul_add(stage.c(), stages.iter().map(Stage::least_overhead).sum());
    move |count| ((count - 1) as f64).mul_add(stage.g(), fixed)
}

/// Moves single units between fragments while that helps and the budget lasts.
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
