//! The planner that knows all the others and takes the fastest plan, as the exact recurrence tells it.

use crate::compound::Grouping;
use crate::fixed;
use crate::hierarchical;
use crate::plan::{Family, Plan, PlanError, Request};
use crate::ramp;
use crate::ramp_up;
use crate::ramp_up_down;
use crate::stage::Pipeline;

/// Whether plans may cut a message anew between stages.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refragment {
    /// Every fragment crosses all stages as it is.
    Never,
    /// At the borders of groups around the slow stages, where it helps.
    #[default]
    WhereItHelps,
}

/// The fastest plan over equal, ramped and refragmenting ones; never above any of them.
///
/// `groups` restricts where it may refragment; without them the groups around the slowest stages are tried.
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
    let mut best = problem.plan(Family::Fixed, fixed::sizes(&problem));
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
