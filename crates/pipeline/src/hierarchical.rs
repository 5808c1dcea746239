//! Hierarchical fragmentation (section 4.3): compound stages that cut finer inside and reassemble at their borders.

use crate::compound::{self, Approximation, Grouping, GroupingError};
use crate::fixed::{self, Signature};
use crate::limits::{Cut, Limits};
use crate::plan::{Family, Level, Plan, PlanError, Problem, Request};
use crate::ramp;
use crate::ramp_up;
use crate::ramp_up_down;
use crate::stage::Pipeline;

/// Fits of the compound stages, each over the sizes that the one before led to; a third changes nothing.
const ROUNDS: usize = 2;

/// Sizes that a compound stage is fitted to. 24 are within 0.1 % of the fit to a thousand.
const POINTS: usize = 24;

/// The smallest size of the first fit, in bytes.
const SMALLEST: f64 = 64.0;

/// Numbers of top-level fragments tried on either side of the approximation's best.
const AROUND: usize = 3;

/// Pieces of all fragments in all groups together beyond which no more are cut: it bounds a plan's memory.
const MOST_PIECES: usize = 1 << 17;

/// The algorithm on the top level, or inside a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Base {
    /// Equal fragments; with them on both levels this is the paper's algorithm B.
    Fixed,
    /// The two-stage ramp; on the top level the paper's algorithm C.
    RampUp,
    /// The three-stage ramp; on the top level the paper's algorithm C'.
    RampUpDown,
    /// The greedy ramp on any number of groups.
    Ramp,
}

/// A compound pipeline: every group of stages replaced by the simple stage that approximates it.
#[derive(Clone, Debug)]
pub(crate) struct Compound {
    pub(crate) groups: Grouping,
    pub(crate) insides: Vec<Pipeline>,
    pub(crate) top: Pipeline,
}

impl Compound {
    pub(crate) fn new(pipeline: &Pipeline, groups: &Grouping, low: f64, high: f64) -> Self {
        let insides: Vec<Pipeline> =
            groups.ranges().map(|range| Pipeline::of(pipeline.stages()[range].to_vec())).collect();
        let top = insides
            .iter()
            .map(|inside| match inside.stages() {
                [stage] => *stage,
                _ => compound::approximate(inside, low, high, POINTS).stage,
            })
            .collect();
        Self { groups: groups.clone(), insides, top: Pipeline::of(top) }
    }
}

/// The plan that refragments at the groups' borders with one algorithm on each level.
///
/// The top level is planned on the approximated compound pipeline, fitted twice; its latency and its number of
/// fragments are then settled by the exact recurrence.
///
/// # Errors
///
/// Groups that do not cover the stages; a [`Base`] that does not fit the number of groups; else see [`PlanError`].
pub fn with_bases(pipeline: &Pipeline, request: &Request, groups: &Grouping, top: Base, inside: Base) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    check(pipeline, groups)?;
    best_of(&problem, groups, top, inside)
}

/// The fastest refragmenting plan over all bases that apply, for the given groups, or else for every group around one
/// stage.
///
/// # Errors
///
/// Groups that do not cover the stages; else see [`PlanError`].
pub fn hierarchical(pipeline: &Pipeline, request: &Request, groups: Option<&Grouping>) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let groupings = match groups {
        Some(groups) => {
            check(pipeline, groups)?;
            vec![groups.clone()]
        }
        None => natural_groupings(&problem),
    };
    plan(&problem, &groupings)
}

/// The fastest plan over some groupings of a checked problem.
pub(crate) fn plan(problem: &Problem<'_>, groupings: &[Grouping]) -> Result<Plan, PlanError> {
    let mut best: Option<Plan> = None;
    for groups in groupings {
        for (top, inside) in [(Base::Fixed, Base::Fixed), (Base::Ramp, Base::Fixed), (Base::Ramp, Base::Ramp)] {
            let plan = best_of(problem, groups, top, inside)?;
            if best.as_ref().is_none_or(|best| plan.latency() < best.latency()) {
                best = Some(plan);
            }
        }
    }
    best.ok_or(PlanError::Groups(GroupingError::Empty(0)))
}

/// Groups around each stage that is busy long: the slowest two for small fragments and for large.
pub(crate) fn natural_groupings(problem: &Problem<'_>) -> Vec<Grouping> {
    let stages = problem.pipeline.stages();
    let mut groupings: Vec<Grouping> = Vec::new();
    for count in [1.0_f64, 4.0] {
        let busy = |index: &usize| stages[*index].g().mul_add(count, stages[*index].c() * problem.bytes);
        let mut order: Vec<usize> = (0..stages.len()).collect();
        order.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        for &slow in order.iter().take(2) {
            let groups = Grouping::around(stages.len(), slow);
            if !groupings.contains(&groups) {
                groupings.push(groups);
            }
        }
    }
    groupings
}

/// The plan whose top level is given; each group cuts by the fixed planner.
pub(crate) fn given(problem: &Problem<'_>, groups: &Grouping, vector: &[f64]) -> Result<Plan, PlanError> {
    check(problem.pipeline, groups)?;
    let compound = Compound::new(problem.pipeline, groups, SMALLEST.min(problem.bytes), problem.bytes);
    let plan = cut_inside(problem, &compound, vector.to_vec(), Base::Fixed)?;
    Ok(Plan { family: Family::Given, ..plan })
}

fn check(pipeline: &Pipeline, groups: &Grouping) -> Result<(), PlanError> {
    let stages = pipeline.stages().len();
    let covered = groups.ranges().map(|range| range.len()).sum();
    if groups.covers(stages) { Ok(()) } else { Err(GroupingError::Uncovered { covered, stages }.into()) }
}

fn best_of(problem: &Problem<'_>, groups: &Grouping, top: Base, inside: Base) -> Result<Plan, PlanError> {
    let (compound, sizes) = approximated(problem, groups, top)?;
    let count = sizes.len();
    let mut best = cut_inside(problem, &compound, sizes, inside)?;
    let (fewest, most) = problem.cut.counts;
    for near in count.saturating_sub(AROUND).max(fewest)..=(count + AROUND).min(most) {
        if near == count {
            continue;
        }
        let plan = cut_inside(problem, &compound, top_sizes(problem, &compound, top, Some(near))?, inside)?;
        if plan.latency() < best.latency() {
            best = plan;
        }
    }
    Ok(best)
}

/// Plans the top level on the approximation, fits again over the sizes in use, and plans again.
pub(crate) fn approximated(problem: &Problem<'_>, groups: &Grouping, top: Base) -> Result<(Compound, Vec<f64>), PlanError> {
    let (mut low, mut high) = (SMALLEST.min(problem.bytes), problem.bytes);
    let mut round = 0;
    loop {
        let compound = Compound::new(problem.pipeline, groups, low, high);
        let sizes = top_sizes(problem, &compound, top, None)?;
        round += 1;
        if round == ROUNDS {
            return Ok((compound, sizes));
        }
        (low, high) = in_use(&sizes);
    }
}

/// The smallest and the largest size of a plan, spread a little where they are equal.
pub(crate) fn in_use(sizes: &[f64]) -> (f64, f64) {
    let low = sizes.iter().copied().fold(f64::INFINITY, f64::min);
    let high = sizes.iter().copied().fold(0.0, f64::max);
    if high > low * 1.01 { (low, high) } else { (low * 0.75, high * 1.25) }
}

fn top_sizes(problem: &Problem<'_>, compound: &Compound, base: Base, count: Option<usize>) -> Result<Vec<f64>, PlanError> {
    let mut cut = problem.cut;
    if let Some(count) = count {
        cut.counts = (count, count);
    }
    if compound.top.is_free_to_cut() && count.is_none() && !problem.limits.bounds_count() && cut.counts.0 != cut.counts.1 {
        cut.counts = (1, 1);
    }
    let upper = Problem { pipeline: &compound.top, bytes: problem.bytes, cut, limits: problem.limits };
    cut_with(&upper, base)
}

fn cut_with(problem: &Problem<'_>, base: Base) -> Result<Vec<f64>, PlanError> {
    Ok(match base {
        Base::Fixed => fixed::sizes(problem, &Signature::new(problem.pipeline)),
        Base::Ramp => ramp::sizes(problem, &Signature::new(problem.pipeline)),
        Base::RampUp => ramp_up::sizes(problem)?,
        Base::RampUpDown => ramp_up_down::sizes(problem)?,
    })
}

/// Cuts every top-level fragment inside every group, and times the whole exactly.
fn cut_inside(problem: &Problem<'_>, compound: &Compound, sizes: Vec<f64>, base: Base) -> Result<Plan, PlanError> {
    let mut levels = Vec::with_capacity(compound.insides.len());
    for (range, inside) in compound.groups.ranges().zip(&compound.insides) {
        let signature = Signature::new(inside);
        let mut fragments: Vec<Vec<f64>> = Vec::with_capacity(sizes.len());
        for (index, &size) in sizes.iter().enumerate() {
            let same = index.checked_sub(1).filter(|&before| sizes[before] == size);
            fragments.push(match same {
                Some(before) => fragments[before].clone(),
                None => pieces(problem, inside, &signature, (size, sizes.len()), base),
            });
        }
        levels.push(Level { stages: range, fragments });
    }
    let latency = compound::latency(problem.pipeline, &levels, problem.credits(), None);
    let mut plan = problem.plan(Family::Hierarchical, sizes);
    plan.latency = crate::unit::Micros::of(latency);
    plan.levels = levels;
    Ok(plan)
}

/// One fragment's pieces inside one group; the fragment itself where a limit or a free chain leaves no better cut.
fn pieces(problem: &Problem<'_>, inside: &Pipeline, signature: &Signature, (size, of): (f64, usize), base: Base) -> Vec<f64> {
    let limits = Limits { max_in_flight: None, max_fragments: None, ..problem.limits };
    if inside.stages().len() == 1 || (inside.is_free_to_cut() && !limits.bounds_count()) {
        return vec![size];
    }
    let Ok(mut cut) = Cut::new(size, &limits) else { return vec![size] };
    cut.counts.1 = cut.counts.1.min((MOST_PIECES / of).max(cut.counts.0));
    let lower = Problem { pipeline: inside, bytes: size, cut, limits };
    match base {
        Base::Ramp => ramp::sizes(&lower, signature),
        _ => fixed::sizes(&lower, signature),
    }
}

/// A plan made and promised as in the paper: in the linear model of the compound stages.
#[derive(Clone, Debug)]
pub struct LinearModel {
    /// The compound pipeline of the last fit.
    pub top: Pipeline,
    /// The top level's sizes in bytes.
    pub fragments: Vec<f64>,
    /// Its latency on the compound pipeline, in microseconds.
    pub latency: f64,
}

/// Algorithms B, C and C' in the paper's own terms: planned, and timed, on the approximation (section 5.5). The
/// exact time of the same plan is [`with_bases`]'s affair; the two differ by a few percent.
///
/// # Errors
///
/// As [`with_bases`].
pub fn linear_model(pipeline: &Pipeline, request: &Request, groups: &Grouping, top: Base) -> Result<LinearModel, PlanError> {
    let problem = request.problem(pipeline)?;
    check(pipeline, groups)?;
    let (compound, fragments) = approximated(&problem, groups, top)?;
    let latency = compound.top.latency(&fragments, None).get();
    Ok(LinearModel { top: compound.top, fragments, latency })
}

impl Approximation {
    /// The standard deviation as a fraction of the mean.
    #[must_use]
    pub fn relative_deviation(&self) -> f64 {
        let mean = self.mean.get();
        if mean > 0.0 { self.deviation.get() / mean } else { 0.0 }
    }
}
