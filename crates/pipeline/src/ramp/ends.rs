//! The two ends of a ramp: the sizes of the first and the last fragment.
//!
//! With a busy bottleneck the latency is a constant plus `A first + C last`. `A` and `C` are the
//! costs of a byte before and after the bottleneck. The sum of all sizes grows with both ends. For
//! each `last`, secants over plain passes find the `first` with the right sum. Over `last`, the
//! cost is a convex, piecewise linear function. Intersecting its tangents finds the minimum; each
//! tangent takes one pass with derivatives. A tangent also predicts the `first` of the next `last`,
//! so few passes are needed.

use super::pass::{Dual, Number as _, Pass};
use crate::stage::Stage;

/// The precision of the search for the ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Precision {
    /// The cost to about 1e-5: enough to compare numbers of fragments.
    Rough,
    /// The cost to a relative error of 1e-13.
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

/// The most steps of the search for one end. It converges in 2 to 6, and halves its bracket where
/// secants fail.
const STEPS: usize = 60;

/// Steps after which every other step halves the bracket, since secants across many pieces may
/// converge slowly.
const SECANT_STEPS: usize = 8;

/// The most tangents over the last size. There are as many pieces as fragments, but most are never
/// touched.
const TANGENTS: usize = 60;

/// The relative error at which an end is exact: well below the 1e-9 that two and three stages
/// require.
const EXACT: f64 = 1e-13;

/// Start of the first search for the ends: half an equal share each.
const START: (f64, f64) = (0.5, 0.5);

/// Makes ramps around one bottleneck for any number of fragments.
#[derive(Debug)]
pub(crate) struct Ramp {
    before: Pass,
    after: Pass,
    bytes: f64,
    plain: Scratch<f64>,
    tangent: Scratch<Dual>,
    /// Start of the next search for the ends: the last result, as fractions of an equal share.
    start: (f64, f64),
    precision: Precision,
}

/// Buffers that passes fill.
#[derive(Debug)]
struct Scratch<N> {
    sizes: Vec<N>,
    caps: Vec<N>,
    free: Vec<N>,
}

/// A point of the search: both ends, their cost, and the slope of the cost along the last size.
#[derive(Clone, Copy, Debug)]
struct Point {
    first: f64,
    last: f64,
    cost: f64,
    slope: f64,
    /// Bytes of the first fragment that one byte of the last fragment replaces.
    trade: f64,
    /// Growth of the sum of all sizes per byte of the first fragment.
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

    /// Returns the ramp of `count` fragments, or `None` if there is none with every fragment above
    /// zero.
    pub(crate) fn shape(&mut self, count: usize, precision: Precision) -> Option<Vec<f64>> {
        self.precision = precision;
        let found = self.search(count);
        if found.is_some() || self.start == START {
            return found;
        }
        // The ends for the last number of fragments may be a bad start.
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

    /// Returns a fraction of an equal share of the message.
    fn share(&self, fraction: f64) -> f64 {
        fraction * self.bytes / self.plain.sizes.len() as f64
    }

    /// Finds the first size for which the sum is right, under the present caps. Fills the sizes.
    fn first(&mut self, guess: f64, growth: Option<f64>) -> Result<f64, Miss> {
        let Scratch { sizes, caps, free } = &mut self.plain;
        let goal = (self.bytes, self.precision.error() * 0.01);
        let most = self.bytes.min(caps[0]);
        root(goal, most, guess, growth, |first| self.before.run(free, first, Some(caps), sizes))
    }

    /// Finds the ends if no stage before the bottleneck has a cost per byte: the ramp is then the
    /// backward pass alone.
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

    /// Fills the caps backward from a last size. Returns their sum.
    fn cap(&mut self, last: f64) -> f64 {
        let Scratch { caps, free, .. } = &mut self.tangent;
        let sum = self.after.run(free, Dual::last(last), None, caps);
        caps.reverse();
        for (plain, cap) in self.plain.caps.iter_mut().zip(caps) {
            *plain = cap.value;
        }
        sum.value
    }

    /// Finds the ramp that ends with `last`; `near` is a point found before.
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

    /// Finds the best pair of ends by intersecting tangents.
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
                // The best last size may be almost zero: tries that once.
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
    /// Returns the first size for another last size, along the tangent.
    fn first_at(&self, last: f64) -> f64 {
        self.first - self.trade * (last - self.last)
    }
}

/// Returns the last size at which the tangents of two points meet.
fn meet(left: Point, right: Point) -> f64 {
    let lean = right.slope - left.slope;
    if lean > 0.0 && lean.is_finite() {
        (left.cost - right.cost + right.slope * right.last - left.slope * left.last) / lean
    } else {
        0.5 * (left.last + right.last)
    }
}

/// Returns the cost where the tangents meet: no point between them can be below it.
fn floor(left: Point, right: Point) -> f64 {
    if left.slope.is_finite() {
        (meet(left, right) - left.last).mul_add(left.slope, left.cost)
    } else {
        f64::NEG_INFINITY
    }
}

/// The reason why no argument fits: the function is above the target even near zero, or below it
/// even at the most.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Miss {
    Over,
    Under,
}

/// Finds the argument up to `most` at which a growing function reaches `target`, by secants.
/// `growth` is its slope near the guess.
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
        at = if next > low && next < high && (step < SECANT_STEPS || step % 2 == 0) {
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
