//! The two ends of a ramp: how large the first and the last fragment are.
//!
//! With a busy bottleneck the latency is a constant plus `A first + C last`, where `A` and `C` are the costs of a
//! byte before and after the bottleneck. The sum of all sizes grows with both ends. So: for each `last`, the `first`
//! that makes the sum right (secants over plain passes), and over `last` a convex, piecewise linear function, whose
//! minimum is found by intersecting its tangents (one pass with derivatives each). Where the tangent was drawn, it
//! also tells the `first` of the next `last`, so that few passes are needed.

use super::pass::{Dual, Number as _, Pass};
use crate::stage::Stage;

/// How exactly the ends are searched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Precision {
    /// To compare numbers of fragments: the cost to about 1e-5.
    Rough,
    /// To the last digits.
    Exact,
}

impl Precision {
    const fn tangents(self) -> usize {
        match self {
            Self::Rough => 9,
            Self::Exact => TANGENTS,
        }
    }

    const fn error(self) -> f64 {
        match self {
            Self::Rough => 1e-5,
            Self::Exact => EXACT,
        }
    }
}

/// Steps of the search for one end; it converges in 2 to 6, the bracket halves where it does not.
const STEPS: usize = 60;

/// Steps after which every other one halves the bracket: secants across many pieces may creep.
const PATIENCE: usize = 8;

/// Tangents drawn over the other end; pieces are as many as fragments, most are never met.
const TANGENTS: usize = 60;

/// Relative error at which an end is good: well below the 1e-9 that is asked of two and three stages.
const EXACT: f64 = 1e-13;

/// Where the first search for the ends starts: half an equal share.
const START: (f64, f64) = (0.5, 0.5);

/// Makes ramps around one bottleneck for any number of fragments.
#[derive(Debug)]
pub(crate) struct Ramp {
    before: Pass,
    after: Pass,
    bytes: f64,
    plain: Scratch<f64>,
    tangent: Scratch<Dual>,
    /// Where the search for the ends starts: where the last one ended, as fractions of an equal share.
    start: (f64, f64),
    precision: Precision,
}

/// What passes fill.
#[derive(Debug)]
struct Scratch<N> {
    sizes: Vec<N>,
    caps: Vec<N>,
    free: Vec<N>,
}

/// A point of the search: both ends, what they cost, and the slope of the cost along the last one.
#[derive(Clone, Copy, Debug)]
struct Point {
    first: f64,
    last: f64,
    cost: f64,
    slope: f64,
    /// How much of the first fragment a byte of the last one replaces.
    trade: f64,
    /// How much the sum grows with the first fragment.
    growth: f64,
}

impl Ramp {
    pub(crate) fn new(stages: &[Stage], bottleneck: usize, bytes: f64) -> Self {
        let before = Pass::new(stages[..=bottleneck].iter().copied(), true);
        let after = Pass::new(stages[bottleneck..].iter().rev().copied(), false);
        let most = before.len().max(after.len());
        Self {
            before,
            after,
            bytes,
            plain: Scratch { sizes: Vec::new(), caps: Vec::new(), free: vec![0.0; most] },
            tangent: Scratch { sizes: Vec::new(), caps: Vec::new(), free: vec![Dual::ZERO; most] },
            start: START,
            precision: Precision::Exact,
        }
    }

    /// The ramp of so many fragments, or `None` if there is none with every fragment above zero.
    pub(crate) fn shape(&mut self, count: usize, precision: Precision) -> Option<Vec<f64>> {
        self.precision = precision;
        let found = self.search(count);
        if found.is_some() || self.start == START {
            return found;
        }
        // The last number's ends may lead astray.
        self.start = START;
        self.search(count)
    }

    fn search(&mut self, count: usize) -> Option<Vec<f64>> {
        self.plain.sizes.resize(count, 0.0);
        self.plain.caps.resize(count, f64::UNBOUND);
        self.tangent.sizes.resize(count, Dual::ZERO);
        self.tangent.caps.resize(count, Dual::UNBOUND);
        if count == 1 {
            return Some(vec![self.bytes]);
        }
        match (self.before.per_byte > 0.0, self.after.per_byte > 0.0) {
            (false, false) => return None,
            (true, false) => {
                self.plain.caps.fill(f64::UNBOUND);
                let first = self.first(self.share(self.start.0), None).ok()?;
                self.start.0 = first / self.share(1.0);
            }
            (false, true) => self.last_alone()?,
            (true, true) => self.both()?,
        }
        let sizes = &self.plain.sizes;
        let scale = self.bytes / sizes.iter().sum::<f64>();
        let good = (scale - 1.0).abs() < 1e-6 && sizes.iter().all(|&s| s > self.bytes * 1e-12);
        good.then(|| sizes.iter().map(|size| size * scale).collect())
    }

    /// A fraction of an equal share of the message.
    fn share(&self, fraction: f64) -> f64 {
        fraction * self.bytes / self.plain.sizes.len() as f64
    }

    /// Finds the first fragment for which the sum is right, under the caps as they are; fills the sizes.
    fn first(&mut self, guess: f64, growth: Option<f64>) -> Result<f64, Miss> {
        let Scratch { sizes, caps, free } = &mut self.plain;
        let goal = (self.bytes, self.precision.error() * 0.01);
        let most = self.bytes.min(caps[0]);
        root(goal, most, guess, growth, |first| self.before.run(free, first, Some(caps), sizes))
    }

    /// No cost ahead of the bottleneck: the plan is the backward ramp.
    fn last_alone(&mut self) -> Option<()> {
        let guess = self.share(self.start.1);
        let Scratch { sizes, free, .. } = &mut self.plain;
        let goal = (self.bytes, self.precision.error() * 0.01);
        let last =
            root(goal, self.bytes, guess, None, |last| self.after.run(free, last, None, sizes))
                .ok()?;
        sizes.reverse();
        self.start.1 = last / self.share(1.0);
        Some(())
    }

    /// Fills the caps backward from a last fragment; their sum.
    fn cap(&mut self, last: f64) -> f64 {
        let Scratch { caps, free, .. } = &mut self.tangent;
        let sum = self.after.run(free, Dual::last(last), None, caps);
        caps.reverse();
        for (plain, cap) in self.plain.caps.iter_mut().zip(caps) {
            *plain = cap.value;
        }
        sum.value
    }

    /// The ramp that ends with `last`; `near` is a point found before.
    fn point(&mut self, last: f64, near: Option<Point>) -> Result<Point, Miss> {
        if self.cap(last) < self.bytes {
            return Err(Miss::Under);
        }
        let line = near.filter(|near| near.trade.is_finite());
        let guess = line.map_or_else(|| self.share(self.start.0), |near| near.first_at(last));
        let first = self.first(guess, line.map(|near| near.growth))?;
        let Scratch { sizes, caps, free } = &mut self.tangent;
        let sum = self.before.run(free, Dual::first(first), Some(caps), sizes);
        let (a, c) = (self.before.per_byte, self.after.per_byte);
        let trade = if sum.by_first > 0.0 { sum.by_last / sum.by_first } else { f64::INFINITY };
        let (cost, slope) = (a * first + c * last, c - a * trade);
        Ok(Point { first, last, cost, slope, trade, growth: sum.by_first })
    }

    /// Balances the two ends by intersecting tangents.
    fn both(&mut self) -> Option<()> {
        let least = self.bytes * 1e-12;
        let (mut low, mut high, mut edge) = (least, self.bytes, false);
        let (mut left, mut right): (Option<Point>, Option<Point>) = (None, None);
        let mut best: Option<Point> = None;
        let mut next = self.share(self.start.1).clamp(low, high);
        for _ in 0..self.precision.tangents() {
            match self.point(next, best) {
                Ok(point) => {
                    if best.is_none_or(|best| point.cost < best.cost) {
                        best = Some(point);
                    }
                    if point.slope < 0.0 {
                        (left, low) = (Some(point), next);
                    } else {
                        (right, high) = (Some(point), next);
                    }
                }
                Err(Miss::Under) => low = next,
                Err(Miss::Over) => high = next,
            }
            next = match (left, right) {
                (Some(left), Some(right)) => {
                    let cost = best.map_or(f64::INFINITY, |best| best.cost);
                    if floor(left, right) >= cost * (1.0 - self.precision.error()) {
                        break;
                    }
                    meet(left, right)
                }
                (_, None) if high == self.bytes => (2.0 * next).max(self.share(START.1)).min(high),
                // Next to nothing may be the best last fragment: found at once, or never looked at again.
                (None, Some(_)) if !edge => least,
                _ => (low * high).sqrt().max(0.125 * high),
            };
            edge |= next == least;
            if next < low
                || next == low && low > least
                || next >= high && (high < self.bytes || right.is_some())
            {
                next = 0.5 * (low + high);
            }
            if high - low <= self.precision.error() * high {
                break;
            }
        }
        let best = best?;
        self.start = (best.first / self.share(1.0), best.last / self.share(1.0));
        self.cap(best.last);
        self.first(best.first, Some(best.growth)).ok().map(|_| ())
    }
}

impl Point {
    /// The first fragment that belongs to another last one, along the tangent.
    fn first_at(&self, last: f64) -> f64 {
        self.first - self.trade * (last - self.last)
    }
}

/// Where the tangents of two points meet.
fn meet(left: Point, right: Point) -> f64 {
    let lean = right.slope - left.slope;
    if lean > 0.0 && lean.is_finite() {
        (left.cost - right.cost + right.slope * right.last - left.slope * left.last) / lean
    } else {
        0.5 * (left.last + right.last)
    }
}

/// The cost at that place: no point between can be below it.
fn floor(left: Point, right: Point) -> f64 {
    if left.slope.is_finite() {
        (meet(left, right) - left.last).mul_add(left.slope, left.cost)
    } else {
        f64::NEG_INFINITY
    }
}

/// Why no argument fits: the function is above the target even at zero, or below it even at the target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Miss {
    Over,
    Under,
}

/// The argument below `most` at which a growing function reaches `target`, by secants; `growth` is its slope near the
/// guess.
fn root(
    (target, exact): (f64, f64),
    most: f64,
    guess: f64,
    growth: Option<f64>,
    mut sum_at: impl FnMut(f64) -> f64,
) -> Result<f64, Miss> {
    let least = target * 1e-13;
    let (mut low, mut high) = (least, most);
    let mut at = if guess > low && guess < high { guess } else { 0.5 * high };
    let mut before: Option<(f64, f64)> = None;
    let mut error = f64::INFINITY;
    for step in 0..STEPS {
        let sum = sum_at(at);
        error = sum - target;
        let edge = error < 0.0 && at >= most || error > 0.0 && at <= least;
        if error.abs() <= exact.max(EXACT) * target || high - low <= EXACT * high || edge {
            break;
        }
        if error < 0.0 {
            low = at;
        } else {
            high = at;
        }
        let slope = match before {
            Some((other, off)) if off != error => (error - off) / (at - other),
            _ => growth.unwrap_or(sum / at),
        };
        before = Some((at, error));
        let next = at - error / slope;
        at = if next > low && next < high && (step < PATIENCE || step % 2 == 0) {
            next
        } else if high == most && error < 0.0 {
            most
        } else if low == least && error > 0.0 {
            least
        } else {
            0.5 * (low + high)
        };
    }
    match error {
        _ if error.abs() <= 1e-7 * target => Ok(at),
        _ if error > 0.0 => Err(Miss::Over),
        _ => Err(Miss::Under),
    }
}
