//! Equal fragments (section 3): the Fixed-sized Theorem, for chains whose bottleneck changes with
//! the fragment size.

use crate::limits::MAX_FRAGMENTS;
use crate::plan_error::PlanError;
use crate::problem::{Family, Plan, Problem, Request};
use crate::stage::{Pipeline, Stage};
use crate::timing::Recurrence;
use crate::unit::Micros;

/// If limits break the closed form: the range of counts up to which all are tried.
const FULL_SEARCH: usize = 64;

/// The latency of equal fragments on a chain, as a function of their number; prepared so that a
/// plan takes nanoseconds.
///
/// Equal fragments of size `x` take `sum(g) + x sum(G) + (k-1) max(g + G x)`. The maximum is the
/// upper hull of the stages' lines (section 3.2), so the latency is the maximum of the stages'
/// signature curves `c1 k + c2/k + c3` (equation 13). Each curve is convex in `k`, so the latency
/// is, too. It has one local minimum: at a curve's minimum, at a switch between two stages, or at
/// one fragment.
///
/// [`Signature::new`] sorts the stages and allocates once; [`Signature::count`] does neither.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub struct Signature {
    overheads: f64,
    per_byte: f64,
    /// Hull lines, from the highest one for large fragments to the highest one for small fragments.
    hull: Vec<Line>,
}

/// One line of the hull: `g + G x` is the greatest from `from` bytes up to the `from` of the line
/// before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    g: f64,
    c: f64,
    /// `sum(G) - G`: the cost of a byte in all other stages.
    others: f64,
    from: f64,
    /// One over `from`.
    per_from: f64,
}

impl Signature {
    /// Computes the signature of a chain.
    #[must_use]
    pub fn new(pipeline: &Pipeline) -> Self {
        let stages = pipeline.stages();
        let overheads = stages.iter().map(|stage| stage.first_overhead().get()).sum();
        Self::of_lines(overheads, stages.iter().map(Stage::c).sum(), stages)
    }

    /// Computes the signature of a chain from its sums and its slowest stages, which is all that
    /// can be observed from outside (section 5.3.2).
    pub(crate) fn of_lines(overheads: f64, per_byte: f64, slowest: &[Stage]) -> Self {
        let mut lines: Vec<&Stage> = slowest.iter().collect();
        lines.sort_by(|a, b| b.c().total_cmp(&a.c()).then(b.g().total_cmp(&a.g())));
        let mut hull: Vec<Line> = Vec::with_capacity(lines.len());
        for stage in lines {
            let line = Line {
                g: stage.g(),
                c: stage.c(),
                others: (per_byte - stage.c()).max(0.0),
                from: 0.0,
                per_from: f64::INFINITY,
            };
            if hull.last().is_some_and(|top| line.g <= top.g) {
                continue;
            }
            while let Some(top) = hull.last_mut() {
                let switch = (line.g - top.g) / (top.c - line.c);
                let above = hull.len().checked_sub(2).map(|index| hull[index].from);
                if above.is_some_and(|above| switch >= above) {
                    hull.pop();
                } else {
                    let last = hull.len() - 1;
                    hull[last].from = switch;
                    hull[last].per_from = 1.0 / switch;
                    break;
                }
            }
            hull.push(line);
        }
        Self { overheads, per_byte, hull }
    }

    /// Returns the latency of `bytes` cut into `count` equal fragments, which may be fractional.
    #[must_use]
    pub fn latency(&self, bytes: f64, count: f64) -> Micros {
        Micros::of(self.us(bytes, count))
    }

    // No fused multiply-add: without support by the target processor it is a function call, which
    // costs more than the rest.
    fn us(&self, bytes: f64, count: f64) -> f64 {
        let size = bytes / count;
        let mut slowest = 0.0;
        for line in &self.hull {
            let time = line.g + line.c * size;
            slowest = if time > slowest { time } else { slowest };
        }
        (count - 1.0) * slowest + (self.per_byte * size + self.overheads)
    }

    /// Returns the fragment sizes, in bytes and descending, at which the bottleneck moves to
    /// another stage (point A of the paper's figure 2).
    pub fn switches(&self) -> impl Iterator<Item = f64> + '_ {
        let inner = self.hull.len().saturating_sub(1);
        self.hull[..inner].iter().map(|line| line.from)
    }

    /// Returns the best whole number of fragments within `fewest..=most`. The result is that of
    /// trying them all, because the latency is convex in the count. Does not allocate.
    #[must_use]
    pub fn count(&self, bytes: f64, fewest: usize, most: usize) -> usize {
        let piece = self.piece(bytes, (fewest as f64, most as f64));
        piece.best(most, |count| self.us(bytes, count))
    }

    /// Returns the curve on which the latency is least within a range of counts.
    fn piece(&self, bytes: f64, (mut low, most): (f64, f64)) -> Piece {
        let mut piece = Piece { g: 0.0, own: 0.0, low, high: most };
        for line in &self.hull {
            let high = (bytes * line.per_from).min(most);
            if high < low {
                continue;
            }
            piece = Piece { g: line.g, own: bytes * line.others, low, high };
            if piece.own <= high * high * line.g {
                return piece;
            }
            low = high;
        }
        piece
    }
}

/// A signature curve, `g k + own / k` and a constant, with the range of counts where it is the
/// highest.
#[derive(Clone, Copy, Debug)]
struct Piece {
    g: f64,
    own: f64,
    low: f64,
    high: f64,
}

impl Piece {
    /// Returns the best real count. Compares squares, so that it computes one root at most. If both
    /// terms are zero, cutting has neither gain nor cost, and the result is the lowest count.
    fn best_real(&self) -> f64 {
        if self.own <= self.low * self.low * self.g {
            self.low
        } else if self.own <= self.high * self.high * self.g || self.high.is_infinite() {
            (self.own / self.g).sqrt()
        } else {
            self.high
        }
    }

    /// Returns the better of the two whole numbers around the best real one. Calls `us` only if
    /// they lie on two curves.
    fn best(&self, most: usize, us: impl Fn(f64) -> f64) -> usize {
        let real = self.best_real();
        let below = real as usize;
        let at = below as f64;
        if below >= most || real <= at {
            return below.min(most);
        }
        let rises = if self.low <= at && at + 1.0 <= self.high {
            self.g * at * (at + 1.0) < self.own
        } else {
            us(at + 1.0) < us(at)
        };
        if rises { below + 1 } else { below }
    }
}

/// Returns the best whole number of equal fragments within `fewest..=most`, directly from the
/// stages.
///
/// The result is that of [`Signature::count`]. Suited to a chain that is planned for once: builds
/// no table and does not allocate.
#[must_use]
#[doc(hidden)]
pub fn count(pipeline: &Pipeline, bytes: f64, fewest: usize, most: usize) -> usize {
    let stages = pipeline.stages();
    let (low, high) = (fewest as f64, most as f64);
    let (coarse, fine) = (bytes / low, bytes / high);
    let (mut left, mut right, mut per_byte) = (Slowest::NONE, Slowest::NONE, 0.0);
    for stage in stages {
        left = left.or(stage, coarse);
        right = right.or(stage, fine);
        per_byte += stage.c();
    }
    let piece = enclosed(stages, (bytes, per_byte), (left, right), (low, high));
    piece.best(most, |count| {
        let size = bytes / count;
        (count - 1.0) * slowest(stages, size).us + per_byte * size
    })
}

/// Returns the curve on which the latency is least, given the slowest stages at both ends of the
/// range of counts.
///
/// Where the lines of these two stages meet, another stage may be slower. It then replaces one of
/// them, and the search repeats until no other stage is slower.
fn enclosed(
    stages: &[Stage],
    (bytes, per_byte): (f64, f64),
    (mut left, mut right): (Slowest, Slowest),
    (mut low, mut high): (f64, f64),
) -> Piece {
    let piece = |line: Slowest, low, high| {
        let own = bytes * (per_byte - line.c).max(0.0);
        Piece { g: line.g, own, low, high }
    };
    for _ in stages {
        if left.c <= right.c || right.g <= left.g {
            break;
        }
        let size = (right.g - left.g) / (left.c - right.c);
        let meet = bytes / size;
        let top = slowest(stages, size);
        let falls_before = |line: Slowest| line.g * meet * meet >= bytes * (per_byte - line.c);
        if top.us <= (left.g + left.c * size) * (1.0 + 1e-12) {
            let before = falls_before(left);
            return if before { piece(left, low, meet) } else { piece(right, meet, high) };
        }
        if falls_before(top) {
            (right, high) = (top, meet);
        } else {
            (left, low) = (top, meet);
        }
    }
    piece(left, low, high)
}

/// The stage that takes longest for a fragment of some size, and the time it takes.
#[derive(Clone, Copy, Debug)]
struct Slowest {
    g: f64,
    c: f64,
    us: f64,
}

impl Slowest {
    const NONE: Self = Self { g: 0.0, c: 0.0, us: -1.0 };

    fn or(self, stage: &Stage, size: f64) -> Self {
        let us = stage.us(size);
        if us > self.us { Self { g: stage.g(), c: stage.c(), us } } else { self }
    }
}

fn slowest(stages: &[Stage], size: f64) -> Slowest {
    stages.iter().fold(Slowest::NONE, |slowest, stage| slowest.or(stage, size))
}

/// Plans equal fragments of the best number: the paper's fixed-sized algorithm.
///
/// If limits break the closed form (units, credits, a smaller last fragment), tries counts around
/// the closed form's with the exact recurrence; all of them, if the limits allow at most 64.
///
/// # Errors
///
/// See [`PlanError`].
pub fn fixed(pipeline: &Pipeline, request: &Request) -> Result<Plan, PlanError> {
    let problem = request.problem(pipeline)?;
    let sizes = sizes(&problem);
    Ok(problem.plan(Family::Fixed, sizes))
}

/// Returns the best equal cut of a checked problem.
pub(crate) fn sizes(problem: &Problem<'_>) -> Vec<f64> {
    let (fewest, most) = problem.cut.counts;
    let count = count(problem.pipeline, problem.bytes, fewest, most);
    if !problem.limits.shapes() && problem.credits().is_none() {
        return vec![problem.bytes / count as f64; count];
    }
    let mut best = BestCut::new(problem);
    for count in counts_to_try(problem, count) {
        if problem.limits.equal_but_last {
            try_equal_but_last(problem, count, &mut best);
        } else {
            let mut sizes = vec![problem.bytes / count as f64; count];
            if problem.cut.fit(&mut sizes) {
                best.offer(sizes);
            }
        }
    }
    best.take().unwrap_or_else(|| fallback(problem))
}

/// Numbers of fragments that the fallback tries for equal sizes.
const FALLBACKS: usize = 1_000;

/// Returns a cut within all limits, if no candidate was: equal fragments with a smaller last one,
/// or the fewest fragments.
pub(crate) fn fallback(problem: &Problem<'_>) -> Vec<f64> {
    let (fewest, most) = problem.cut.counts;
    if problem.limits.equal_but_last {
        let even = |count: usize| problem.cut.equal_but_last(count, problem.bytes / count as f64);
        if let Some(sizes) = (fewest..=most.min(fewest + FALLBACKS)).find_map(even) {
            return sizes;
        }
    }
    let count = fewest;
    let mut sizes = vec![problem.bytes / count as f64; count];
    problem.cut.fit(&mut sizes);
    sizes
}

fn counts_to_try(problem: &Problem<'_>, near: usize) -> Vec<usize> {
    let (fewest, most) = problem.cut.counts;
    let all = most - fewest < FULL_SEARCH;
    // With few credits the best count may be far below the closed form's, which ignores credits.
    let low = if all || problem.credits().is_some() { fewest } else { fewest.max(near / 2) };
    let high = if all { most } else { most.min(near.saturating_mul(2).max(FULL_SEARCH)) };
    let step = ((high.saturating_sub(low)) / 256).max(1);
    let mut counts: Vec<usize> = (low..=high).step_by(step).collect();
    counts.extend(near.saturating_sub(8).max(fewest)..=(near + 8).min(most));
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Offers cuts of one count with various sizes of all fragments but the last. The latency is convex
/// in that size, so a golden-section search finds the best.
fn try_equal_but_last(problem: &Problem<'_>, count: usize, best: &mut BestCut<'_, '_>) {
    let bytes = problem.bytes;
    let low = bytes / count as f64;
    let high = if count == 1 { bytes } else { bytes / (count - 1) as f64 };
    if let Some(unit) = problem.cut.unit() {
        let (first, last) = ((low / unit).ceil(), (high / unit).ceil());
        let step = ((last - first) / 32.0).ceil().max(1.0);
        let mut units = first;
        while units <= last {
            best.offer_if(problem.cut.equal_but_last(count, units * unit));
            units += step;
        }
        return;
    }
    let share = 0.5 * (5.0_f64.sqrt() - 1.0);
    let (mut a, mut b) = (low, high);
    best.offer_if(problem.cut.equal_but_last(count, low));
    for _ in 0..40 {
        let (left, right) = (b - share * (b - a), a + share * (b - a));
        let at_left = best.offer_if(problem.cut.equal_but_last(count, left));
        let at_right = best.offer_if(problem.cut.equal_but_last(count, right));
        if at_left <= at_right { b = right } else { a = left }
    }
}

/// Keeps the fastest of the offered cuts, timed by the exact recurrence.
pub(crate) struct BestCut<'a, 'p> {
    clock: Recurrence<'p>,
    best: Option<(f64, Vec<f64>)>,
    problem: &'a Problem<'p>,
}

impl<'a, 'p> BestCut<'a, 'p> {
    pub(crate) fn new(problem: &'a Problem<'p>) -> Self {
        Self { clock: problem.recurrence(), best: None, problem }
    }

    /// Times a cut and keeps it if it is the fastest so far. Returns its latency in microseconds.
    pub(crate) fn offer(&mut self, sizes: Vec<f64>) -> f64 {
        debug_assert!(sizes.len() <= MAX_FRAGMENTS && self.problem.bytes > 0.0);
        let latency = self.clock.latency(&sizes);
        if self.best.as_ref().is_none_or(|(best, _)| latency < *best) {
            self.best = Some((latency, sizes));
        }
        latency
    }

    fn offer_if(&mut self, sizes: Option<Vec<f64>>) -> f64 {
        sizes.map_or(f64::INFINITY, |sizes| self.offer(sizes))
    }

    /// Returns the latency of the fastest cut in microseconds, infinite if there is none.
    pub(crate) fn latency(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(latency, _)| *latency)
    }

    pub(crate) fn take(self) -> Option<Vec<f64>> {
        self.best.map(|(_, sizes)| sizes)
    }
}
