//! Hierarchical fragmentation (section 4.3): compound stages cut fragments finer inside and
//! reassemble them at their borders.

use crate::compound;
use crate::fixed;
use crate::grouping::{Grouping, GroupingError};
use crate::limits::{Cut, Limits};
use crate::plan_error::PlanError;
use crate::problem::{Family, Level, Plan, Problem, Request};
use crate::ramp;
use crate::ramp_up;
use crate::ramp_up_down;
use crate::stage::Pipeline;
use crate::unit::Micros;

/// Number of fits of the compound stages, each over the sizes that the fit before led to. A third
/// changes nothing.
const ROUNDS: usize = 2;

/// Number of sizes to which a compound stage is fitted. 24 are within 0.1 % of the fit to a
/// thousand.
const POINTS: usize = 24;

/// The smallest size of the first fit, in bytes.
const SMALLEST: f64 = 64.0;

/// Numbers of top-level fragments that are tried on either side of the approximation's best.
const AROUND: usize = 4;

/// Groupings on which ramps are tried. The best one is nearly always among the first four with
/// equal fragments.
const SHORTLIST: usize = 4;

/// Stages up to which every division into few groups is tried: 63 of them for eight stages.
const SHORT_CHAIN: usize = 8;

/// The most groups of such a division; a fifth has never helped in tests.
const MAX_GROUPS: u32 = 4;

/// The most pieces of all fragments inside one group, which bounds a plan's memory.
const MAX_PIECES: usize = 1 << 12;

/// An algorithm for the top level, or for the inside of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
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

/// A compound pipeline: every group of stages is replaced by the simple stage that approximates it.
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

/// Makes the plan that refragments at the groups' borders, with one algorithm for each level.
///
/// The top level is planned on the approximated compound pipeline, fitted twice. The exact
/// recurrence then determines its latency and the best number of fragments.
///
/// # Errors
///
/// [`PlanError::Groups`] if the groups do not cover the stages. [`PlanError::NotApplicable`] if a
/// [`Base`] does not fit the number of groups. Otherwise see [`PlanError`].
#[doc(hidden)]
pub fn with_bases(
    pipeline: &Pipeline,
    request: &Request,
    groups: &Grouping,
    top: Base,
    inside: Base,
) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    check(pipeline, groups)?;
    best_of(&problem, groups, top, inside)
}

/// Makes the fastest refragmenting plan with equal fragments and ramps on both levels.
///
/// Uses the given groups. Without them it tries all divisions into two to four groups, or on chains
/// of more than eight stages the groups around the slowest stages.
///
/// # Errors
///
/// [`PlanError::Groups`] if the groups do not cover the stages; otherwise see [`PlanError`].
pub fn hierarchical(
    pipeline: &Pipeline,
    request: &Request,
    groups: Option<&Grouping>,
) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let groupings = match groups {
        Some(groups) => {
            check(pipeline, groups)?;
            vec![groups.clone()]
        }
        None => natural_groupings(&problem),
    };
    let flat = || problem.plan(Family::Fixed, fixed::sizes(&problem));
    Ok(plan(&problem, &groupings)?.unwrap_or_else(flat))
}

/// Returns true if a plan's top level satisfies `equal_but_last`, in case its problem requires
/// that.
fn keeps_shape(problem: &Problem<'_>, plan: &Plan) -> bool {
    let Some((last, others)) = plan.fragments().split_last() else { return false };
    let first = others.first().unwrap_or(last);
    let equal = others.iter().all(|size| (size - first).abs() <= 1e-9 * first);
    !problem.limits.equal_but_last || (equal && *last <= first * (1.0 + 1e-9))
}

/// Returns the fastest plan of a checked problem over some groupings. Tries all of them with equal
/// fragments on both levels, and the best of those with ramps. Returns `None` if none satisfies all
/// limits.
pub(crate) fn plan(
    problem: &Problem<'_>,
    groupings: &[Grouping],
) -> Result<Option<Plan>, PlanError> {
    let mut tried = Vec::with_capacity(groupings.len());
    for groups in groupings {
        let (compound, sizes) = approximated(problem, groups, Base::Fixed)?;
        tried.push((groups, cut_inside(problem, &compound, sizes, Base::Fixed)?));
    }
    tried.sort_by(|a, b| a.1.latency().get().total_cmp(&b.1.latency().get()));
    let mut best: Option<Plan> = None;
    let mut offer = |plan: Plan| {
        let faster = best.as_ref().is_none_or(|best| plan.latency() < best.latency());
        if faster && keeps_shape(problem, &plan) {
            best = Some(plan);
        }
    };
    for (groups, plan) in tried.into_iter().take(SHORTLIST) {
        offer(plan);
        offer(best_of(problem, groups, Base::Fixed, Base::Fixed)?);
        let ramped = best_of(problem, groups, Base::Ramp, Base::Fixed)?;
        let compound =
            Compound::new(problem.pipeline, groups, SMALLEST.min(problem.bytes), problem.bytes);
        offer(cut_inside(problem, &compound, ramped.fragments.clone(), Base::Ramp)?);
        offer(ramped);
    }
    Ok(best)
}

/// Returns the divisions worth trying. On short chains: all divisions into two to four groups. On
/// long ones: the groups around the slowest stages for small and for large fragments, alone and
/// with either neighbour.
pub(crate) fn natural_groupings(problem: &Problem<'_>) -> Vec<Grouping> {
    let n = problem.pipeline.stages().len();
    if n <= SHORT_CHAIN {
        let few = (1_u32..1 << (n - 1)).filter(|borders| borders.count_ones() < MAX_GROUPS);
        let mut groupings: Vec<Grouping> = few
            .map(|borders| Grouping::at(n, |stage| borders >> stage & 1 == 1))
            .filter(|g| !g.is_flat())
            .collect();
        if groupings.is_empty() {
            groupings.push(Grouping::at(n, |_| true));
        }
        return groupings;
    }
    let stages = problem.pipeline.stages();
    let mut groupings: Vec<Grouping> = Vec::new();
    for bytes in [0.0, problem.bytes / 16.0, problem.bytes] {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| stages[b].us(bytes).total_cmp(&stages[a].us(bytes)));
        for &slow in order.iter().take(2) {
            for (from, to) in
                [(slow, slow), (slow.saturating_sub(1), slow), (slow, (slow + 1).min(n - 1))]
            {
                let groups = Grouping::at(n, |stage| stage + 1 == from || stage == to);
                if !groupings.contains(&groups) {
                    groupings.push(groups);
                }
            }
        }
    }
    groupings
}

/// Makes the plan whose top level is given; each group cuts by the fixed planner.
pub(crate) fn given(
    problem: &Problem<'_>,
    groups: &Grouping,
    vector: &[f64],
) -> Result<Plan, PlanError> {
    check(problem.pipeline, groups)?;
    let compound =
        Compound::new(problem.pipeline, groups, SMALLEST.min(problem.bytes), problem.bytes);
    let plan = cut_inside(problem, &compound, vector.to_vec(), Base::Fixed)?;
    Ok(Plan { family: Family::Given, ..plan })
}

/// Checks that the groups cover the stages.
pub(crate) fn check(pipeline: &Pipeline, groups: &Grouping) -> Result<(), PlanError> {
    let stages = pipeline.stages().len();
    let covered = groups.ranges().map(|range| range.len()).sum();
    if groups.covers(stages) {
        Ok(())
    } else {
        Err(GroupingError::Uncovered { covered, stages }.into())
    }
}

fn best_of(
    problem: &Problem<'_>,
    groups: &Grouping,
    top: Base,
    inside: Base,
) -> Result<Plan, PlanError> {
    let (compound, sizes) = approximated(problem, groups, top)?;
    let count = sizes.len();
    let mut best = cut_inside(problem, &compound, sizes, inside)?;
    let (fewest, most) = problem.cut.counts;
    for up in [true, false] {
        for step in 1..=AROUND {
            let near = if up { count + step } else { count.saturating_sub(step) };
            if near < fewest || near > most {
                break;
            }
            let plan = cut_inside(
                problem,
                &compound,
                top_sizes(problem, &compound, top, Some(near))?,
                inside,
            )?;
            if plan.latency() >= best.latency() {
                break;
            }
            best = plan;
        }
    }
    Ok(best)
}

/// Plans the top level on the approximation, fits again over the sizes of that plan, and plans
/// again.
pub(crate) fn approximated(
    problem: &Problem<'_>,
    groups: &Grouping,
    top: Base,
) -> Result<(Compound, Vec<f64>), PlanError> {
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

/// Returns the smallest and the largest size of a plan. If they are nearly equal, widens the range
/// by 1 % at each end, so that the fit has a range.
pub(crate) fn in_use(sizes: &[f64]) -> (f64, f64) {
    let low = sizes.iter().copied().fold(f64::INFINITY, f64::min);
    let high = sizes.iter().copied().fold(0.0, f64::max);
    if high > low * 1.01 { (low, high) } else { (low * 0.99, high * 1.01) }
}

fn top_sizes(
    problem: &Problem<'_>,
    compound: &Compound,
    base: Base,
    count: Option<usize>,
) -> Result<Vec<f64>, PlanError> {
    let mut cut = problem.cut;
    if let Some(count) = count {
        cut.counts = (count, count);
    }
    if compound.top.is_free_to_cut()
        && count.is_none()
        && !problem.limits.bounds_count()
        && cut.counts.0 != cut.counts.1
    {
        cut.counts = (1, 1);
    }
    let upper =
        Problem { pipeline: &compound.top, bytes: problem.bytes, cut, limits: problem.limits };
    cut_with(&upper, base)
}

fn cut_with(problem: &Problem<'_>, base: Base) -> Result<Vec<f64>, PlanError> {
    Ok(match base {
        Base::Fixed => fixed::sizes(problem),
        Base::Ramp => ramp::sizes(problem),
        Base::RampUp => ramp_up::sizes(problem)?,
        Base::RampUpDown => ramp_up_down::sizes(problem)?,
    })
}

/// Cuts every top-level fragment inside every group, and times the plan exactly.
fn cut_inside(
    problem: &Problem<'_>,
    compound: &Compound,
    sizes: Vec<f64>,
    base: Base,
) -> Result<Plan, PlanError> {
    let mut levels = Vec::with_capacity(compound.insides.len());
    for (range, inside) in compound.groups.ranges().zip(&compound.insides) {
        let mut fragments: Vec<Vec<f64>> = Vec::with_capacity(sizes.len());
        for (index, &size) in sizes.iter().enumerate() {
            let same = index.checked_sub(1).filter(|&before| sizes[before] == size);
            fragments.push(match same {
                Some(before) => fragments[before].clone(),
                None => pieces(problem, inside, (size, sizes.len()), base),
            });
        }
        levels.push(Level { stages: range, fragments });
    }
    let latency = compound::latency(problem.pipeline, &levels, problem.credits(), None);
    let mut plan = problem.plan(Family::Hierarchical, sizes);
    plan.latency = Micros::of(latency);
    plan.levels = levels;
    Ok(plan)
}

/// Returns one fragment's pieces inside one group. Returns the fragment itself if a limit or a
/// chain without overheads leaves no better cut.
fn pieces(
    problem: &Problem<'_>,
    inside: &Pipeline,
    (size, of): (f64, usize),
    base: Base,
) -> Vec<f64> {
    let limits = Limits { max_in_flight: None, max_fragments: None, ..problem.limits };
    if inside.stages().len() == 1 || (inside.is_free_to_cut() && !limits.bounds_count()) {
        return vec![size];
    }
    let Ok(mut cut) = Cut::new(size, &limits) else { return vec![size] };
    cut.counts.1 = cut.counts.1.min((MAX_PIECES / of).max(cut.counts.0));
    let lower = Problem { pipeline: inside, bytes: size, cut, limits };
    match base {
        Base::Ramp => ramp::sizes(&lower),
        _ => fixed::sizes(&lower),
    }
}

/// A plan made and timed as in the paper, in the linear model of the compound stages.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct LinearModel {
    /// The compound pipeline of the last fit.
    pub top: Pipeline,
    /// The top level's sizes in bytes.
    pub fragments: Vec<f64>,
    /// The plan's latency on the compound pipeline, in microseconds.
    pub latency: f64,
}

/// Runs the paper's algorithms B, C and C' on its own terms: planned and timed on the approximation
/// (section 5.5). [`with_bases`] returns the exact time of the same plan; the two differ by a few
/// percent.
///
/// # Errors
///
/// As [`with_bases`].
#[doc(hidden)]
pub fn linear_model(
    pipeline: &Pipeline,
    request: &Request,
    groups: &Grouping,
    top: Base,
) -> Result<LinearModel, PlanError> {
    let problem = request.problem(pipeline)?;
    check(pipeline, groups)?;
    let (compound, fragments) = approximated(&problem, groups, top)?;
    let latency = compound.top.latency(&fragments, None).get();
    Ok(LinearModel { top: compound.top, fragments, latency })
}
