//! Requests to a planner, and the plans that it returns.

use crate::grouping::Grouping;
use crate::hierarchical;
use crate::limits::{Cut, Limits, MAX_FRAGMENTS};
pub use crate::plan_error::PlanError;
use crate::problem::Problem;
pub use crate::problem::{Family, Level, MAX_BYTES, Plan, Request};
use crate::stage::Pipeline;

/// Makes a plan of sizes that the caller gives, and predicts its latency.
///
/// With `groups`, the sizes are those of the top level; the fixed planner cuts them again inside
/// every group.
///
/// # Errors
///
/// [`PlanError`] if the vector is empty, has an invalid size, or does not sum to the message within
/// one part in a million.
pub fn time(
    pipeline: &Pipeline,
    request: &Request,
    vector: &[f64],
    groups: Option<&Grouping>,
) -> Result<Plan, PlanError> {
    request.check_bytes()?;
    request.limits.check(request.bytes())?;
    let (fewest, most) = (1, MAX_FRAGMENTS);
    if vector.is_empty() || vector.len() > most {
        return Err(PlanError::Fragments { asked: vector.len(), fewest, most });
    }
    for (index, &value) in vector.iter().enumerate() {
        if !(value.is_finite() && value > 0.0) {
            return Err(PlanError::Vector { index, value });
        }
    }
    let sum: f64 = vector.iter().sum();
    if (sum - request.bytes()).abs() > 1e-6 * request.bytes() {
        return Err(PlanError::VectorSum { sum, bytes: request.bytes() });
    }
    let mut cut = Cut::new(request.bytes(), &Limits::new())?;
    cut.counts = (1, vector.len());
    let problem = Problem { pipeline, bytes: request.bytes(), cut, limits: request.limits };
    match groups {
        None => Ok(problem.plan(Family::Given, vector.to_vec())),
        Some(groups) => hierarchical::given(&problem, groups, vector),
    }
}
