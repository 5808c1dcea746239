//! Runs all planners and returns the fastest plan, by the exact recurrence.

use crate::fixed;
use crate::grouping::Grouping;
use crate::hierarchical;
use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Request};
use crate::ramp;
use crate::ramp_up;
use crate::ramp_up_down;
use crate::stage::Pipeline;

/// Permission to refragment: to cut a message differently between some stages.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refragment {
    /// Every fragment crosses all stages unchanged.
    Never,
    /// Refragments at the borders of groups of stages, if that makes the plan faster.
    #[default]
    WhereItHelps,
}

/// Returns the fastest of equal, ramped and refragmenting plans.
///
/// If `groups` are given, the plan may refragment at their borders only, whatever `refragment`
/// says. Without them it tries all useful groups. If the chain's costs are too uncertain for unequal
/// fragments ([`Stage::with_error`](crate::Stage::with_error)), the plan has equal ones.
///
/// # Errors
///
/// See [`PlanError`].
pub fn auto(
    pipeline: &Pipeline,
    request: &Request,
    groups: Option<&Grouping>,
    refragment: Refragment,
) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    if let Some(groups) = groups {
        hierarchical::check(pipeline, groups)?;
    }
    let mut best = problem.plan(Family::Fixed, fixed::sizes(&problem));
    if pipeline.is_risky() {
        return Ok(best);
    }
    let mut offer = |plan: Plan| {
        if plan.latency() < best.latency() {
            best = plan;
        }
    };
    offer(problem.plan(Family::Ramp, ramp::sizes(&problem)));
    match pipeline.stages().len() {
        2 => offer(problem.plan(Family::RampUp, ramp_up::sizes(&problem)?)),
        3 => offer(problem.plan(Family::RampUpDown, ramp_up_down::sizes(&problem)?)),
        _ => {}
    }
    if let Some(groups) = groups {
        offer(hierarchical::hierarchical(pipeline, request, Some(groups))?);
    } else if refragment == Refragment::WhereItHelps
        && pipeline.stages().len() > 2
        && let Some(plan) =
            hierarchical::plan(&problem, &hierarchical::natural_groupings(&problem))?
    {
        offer(plan);
    }
    Ok(best)
}
