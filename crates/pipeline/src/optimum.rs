//! The linear program's optimum (section 2): the reference for plans that do not refragment.
//!
//! It is for tests and studies (feature `lp`), since it takes milliseconds where the ramp takes
//! microseconds.

use microlp::{
    ComparisonOp, LinearExpr, OptimizationDirection, Problem as Program, SolveOutcome, Variable,
};

use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Problem, Request};
use crate::ramp;
use crate::stage::{Pipeline, Stage};

/// The largest program, in stages times fragments. A program of that size takes about a second.
pub(crate) const MAX_PASSAGES: usize = 1024;

/// Computes the best plan that does not refragment: solves inequalities 1 to 3 for one number of
/// fragments after another.
///
/// The latency is convex in the number of fragments, so the search starts at the ramp's number and
/// goes up and down. The program supports no limits other than the number of fragments.
///
/// # Errors
///
/// [`PlanError::NotApplicable`] for limits on sizes or flight, [`PlanError::TooLarge`] and
/// [`PlanError::Solver`]; otherwise see [`PlanError`].
pub fn optimum(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let stages = pipeline.stages().len();
    if problem.limits.shapes() || problem.credits().is_some() {
        return Err(PlanError::NotApplicable {
            planner: "lp",
            needs: "a pipeline without limits on sizes or flight",
            stages,
        });
    }
    let (fewest, most) = problem.cut.counts;
    let start = ramp::sizes(&problem).len();
    let mut best = solve(&problem, start)?;
    for up in [true, false] {
        let mut count = start;
        loop {
            if (up && count >= most) || (!up && count <= fewest) {
                break;
            }
            count = if up { count + 1 } else { count - 1 };
            let next = solve(&problem, count)?;
            if next.latency() >= best.latency() {
                break;
            }
            best = next;
        }
    }
    Ok(best)
}

/// Solves one program. Sizes are fractions of the message, and times are fractions of the lower
/// bound, which keeps the solver's numbers near one.
fn solve(problem: &Problem<'_>, count: usize) -> Result<Plan, PlanError> {
    let stages = problem.pipeline.stages();
    let needed = count * stages.len();
    if needed > MAX_PASSAGES {
        return Err(PlanError::TooLarge { needed, limit: MAX_PASSAGES });
    }
    let failed = PlanError::Solver { fragments: count };
    let scale = problem.pipeline.lower_bound(problem.bytes).get().max(f64::MIN_POSITIVE);
    let scale = if scale.is_normal() { scale } else { 1.0 };
    let mut program = Program::new(OptimizationDirection::Minimize);
    let sizes: Vec<Variable> = (0..count).map(|_| program.add_var(0.0, (0.0, 1.0))).collect();
    let all: Vec<(Variable, f64)> = sizes.iter().map(|&size| (size, 1.0)).collect();
    program.add_constraint(all.as_slice(), ComparisonOp::Eq, 1.0);
    let mut before: Vec<Variable> = Vec::new();
    for (index, &size) in sizes.iter().enumerate() {
        before =
            passage(&mut program, problem, scale, (index + 1 == count, index == 0), size, &before);
    }
    let Ok(SolveOutcome::Solution(solution)) = program.solve() else { return Err(failed) };
    let fragments: Vec<f64> =
        sizes.iter().map(|&size| solution[size].max(0.0) * problem.bytes).collect();
    let sum: f64 = fragments.iter().sum();
    if sum.is_nan() || (sum - problem.bytes).abs() > 1e-6 * problem.bytes {
        return Err(failed);
    }
    let mut plan = problem
        .plan(Family::Optimum, fragments.iter().map(|size| size * (problem.bytes / sum)).collect());
    // A fragment without bytes still costs its overhead, so it is removed if the limits allow fewer
    // fragments.
    if plan.fragments.contains(&0.0) && count > problem.cut.counts.0 {
        let fewer: Vec<f64> = plan.fragments.iter().copied().filter(|&size| size > 0.0).collect();
        plan = problem.plan(Family::Optimum, fewer);
    }
    Ok(plan)
}

/// Adds the variables of one fragment's exits from every stage, with the constraints by the
/// fragment before. Returns the exits.
fn passage(
    program: &mut Program,
    problem: &Problem<'_>,
    scale: f64,
    (is_last, is_first): (bool, bool),
    size: Variable,
    before: &[Variable],
) -> Vec<Variable> {
    let stages: &[Stage] = problem.pipeline.stages();
    let mut exits: Vec<Variable> = Vec::with_capacity(stages.len());
    for (index, stage) in stages.iter().enumerate() {
        let goal = if is_last && index + 1 == stages.len() { 1.0 } else { 0.0 };
        let exit = program.add_var(goal, (0.0, f64::INFINITY));
        let overhead = if is_first { stage.first_overhead().get() } else { stage.g() } / scale;
        let cost = stage.c() * problem.bytes / scale;
        let mut after = |entry: Option<Variable>| {
            let mut row = LinearExpr::empty();
            row.add(exit, 1.0);
            row.add(size, -cost);
            if let Some(entry) = entry {
                row.add(entry, -1.0);
            }
            program.add_constraint(row, ComparisonOp::Ge, overhead);
        };
        let (own, other) = (exits.last().copied(), before.get(index).copied());
        if own.is_some() || other.is_none() {
            after(own);
        }
        if other.is_some() {
            after(other);
        }
        exits.push(exit);
    }
    exits
}
