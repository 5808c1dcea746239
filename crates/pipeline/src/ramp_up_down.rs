//! The ramp-up-and-down algorithm for a fast, a slow and a fast stage (section 4.2, Theorem 5).

use crate::fixed::{self, BestCut};
use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Problem, Request};
use crate::ramp_up::Recurrent;
use crate::stage::Pipeline;

/// The most fragments for which every pair of a rising and a falling part is tried.
const MAX_FRAGMENTS: usize = 96;

/// Makes a plan whose sizes first rise, to keep the first two stages busy, and then fall, to keep
/// the last two busy.
///
/// Tries all pairs of part lengths, as in the paper. The two parts share their largest fragment, so
/// `k = k1 + k2 - 1`. The paper's text says `k1 + k2`; its equations 19 to 22 count the shared
/// fragment twice. The plan is optimal if the middle stage is the slowest for every size, and valid
/// on any three stages. A message whose best plan has more than 96 fragments gets 96.
///
/// # Errors
///
/// [`PlanError::NotApplicable`] unless there are three stages; otherwise see [`PlanError`].
pub fn ramp_up_down(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let sizes = sizes(&problem)?;
    Ok(problem.plan(Family::RampUpDown, sizes))
}

pub(crate) fn sizes(problem: &Problem<'_>) -> Result<Vec<f64>, PlanError> {
    let &[first, slow, last] = problem.pipeline.stages() else {
        let stages = problem.pipeline.stages().len();
        return Err(PlanError::NotApplicable {
            planner: "ramp-up-down",
            needs: "three stages",
            stages,
        });
    };
    if problem.limits.equal_but_last {
        return Ok(fixed::sizes(problem));
    }
    let mut best = BestCut::new(problem);
    let up = Recurrent::new(&first, &slow);
    let down = Recurrent::new(&slow, &last);
    let (fewest, most) = problem.cut.counts;
    let most = most.min(fewest.max(MAX_FRAGMENTS));
    let floor = problem.pipeline.lower_bound(problem.bytes).get();
    for count in fewest..=most {
        if slow.g().mul_add((count - 1) as f64, floor) > best.latency() {
            break;
        }
        for rising in 1..=count {
            let sizes = if count == 1 {
                Some(vec![problem.bytes])
            } else {
                shape(up, down, problem.bytes, rising, count)
            };
            let Some(mut sizes) = sizes else { continue };
            if !problem.limits.shapes() || problem.cut.fit(&mut sizes) {
                best.offer(sizes);
            }
        }
    }
    Ok(best.take().unwrap_or_else(|| fixed::fallback(problem)))
}

/// Returns the unique sizes of `rising` fragments up to the largest, and of the others down from
/// it.
fn shape(
    up: Option<Recurrent>,
    down: Option<Recurrent>,
    bytes: f64,
    rising: usize,
    count: usize,
) -> Option<Vec<f64>> {
    let falling = count - rising + 1;
    let (sum_up, nth) =
        if rising == 1 { ((1.0, 0.0), (1.0, 0.0)) } else { (up?.sum(rising), up?.nth(rising - 1)) };
    let sum_down = if falling == 1 { (1.0, 0.0) } else { down?.sum(falling) };
    // The sum is up(x0) + down(xc) - xc, with xc = slope x0 + offset.
    let slope = sum_up.0 + (sum_down.0 - 1.0) * nth.0;
    let offset = sum_up.1 + (sum_down.0 - 1.0) * nth.1 + sum_down.1;
    let first = (bytes - offset) / slope;
    let mut sizes: Vec<f64> = match up {
        Some(up) if rising > 1 => up.sizes(first, rising).collect(),
        _ => vec![first],
    };
    if falling > 1 {
        let largest = *sizes.last()?;
        sizes.extend(down?.sizes(largest, falling).skip(1));
    }
    let sum: f64 = sizes.iter().sum();
    let good = sizes.iter().all(|&size| size > 0.0) && (sum - bytes).abs() <= 1e-6 * bytes;
    good.then(|| sizes.into_iter().map(|size| size * (bytes / sum)).collect())
}
