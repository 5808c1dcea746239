//! The two ends of a ramp: how large the first and the last fragment are.
//!
//! With a busy bottleneck the latency is a constant plus `A first + C last`, where `A` and `C` are the costs of a
//! byte before and after the bottleneck. The sum of all sizes grows with both ends. So: for each `last`, the `first`
//! that makes the sum right (Newton), and over `last` a convex, piecewise linear function, whose minimum is found by
//! intersecting its tangents.

use super::pass::{Dual, Pass};
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

/// Newton steps for one end; it converges in 3 to 6, the bracket halves where it does not.
const NEWTON: usize = 40;

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
    has_before: bool,
    has_after: bool,
    sizes: Vec<Dual>,
    caps: Vec<Dual>,
    /// Where the search for the ends starts: where the last one ended, as fractions of an equal share.
    start: (f64, f64),
    precision: Precision,
}

/// A point of the search: both ends, what they cost, and the slope of the cost along the last one.
#[derive(Clone, Copy, Debug)]
struct Point {
    last: f64,
    cost: f64,
    slope: f64,
}

impl Ramp {
    pub(crate) fn new(stages: &[Stage], bottleneck: usize, bytes: f64) -> Self {
        let before = Pass::new(stages[..=bottleneck].iter().copied(), true);
        let after = Pass::new(stages[bottleneck..].iter().rev().copied(), false);
        let has_before = before.per_byte > 0.0;
        let has_after = after.per_byte > 0.0;
        Self {
            before,
            after,
            bytes,
            has_before,
            has_after,
            sizes: Vec::new(),
            caps: Vec::new(),
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
        let zero = Dual::new(0.0, 0.0, 0.0);
        self.sizes.resize(count, zero);
        self.caps.resize(count, zero);
        if count == 1 {
            return Some(vec![self.bytes]);
        }
        match (self.has_before, self.has_after) {
            (false, false) => return None,
            (true, false) => {
                self.caps.fill(Dual::UNBOUND);
                self.first().ok()?;
            }
            (false, true) => self.last_alone()?,
            (true, true) => self.both()?,
        }
        let sum: f64 = self.sizes.iter().map(|size| size.value).sum();
        let scale = self.bytes / sum;
        let good = (scale - 1.0).abs() < 1e-6
            && self.sizes.iter().all(|size| size.value > self.bytes * 1e-12);
        good.then(|| self.sizes.iter().map(|size| size.value * scale).collect())
    }

    /// Finds the first fragment for which the sum is right, under the caps as they are.
    fn first(&mut self) -> Result<(f64, Dual), Miss> {
        let guess = self.start.0 * self.bytes / self.sizes.len() as f64;
        let (before, caps, sizes) = (&mut self.before, &self.caps, &mut self.sizes);
        let found = newton((self.bytes, self.precision.error() * 0.01), guess, |first| {
            let sum = before.run(Dual::new(first, 1.0, 0.0), Some(caps), sizes);
            (sum, sum.by_first)
        })?;
        self.start.0 = found.0 / self.bytes * self.sizes.len() as f64;
        Ok(found)
    }

    /// Fills the caps backward from a last fragment; their sum.
    fn cap(&mut self, last: f64) -> Dual {
        let sum = self.after.run(Dual::new(last, 1.0, 0.0), None, &mut self.caps);
        self.caps.reverse();
        for cap in &mut self.caps {
            *cap = cap.mirrored();
        }
        sum.mirrored()
    }

    /// No cost ahead of the bottleneck: the plan is the backward ramp.
    fn last_alone(&mut self) -> Option<()> {
        self.least_last()?;
        self.sizes.copy_from_slice(&self.caps);
        Some(())
    }

    /// The smallest last fragment whose backward ramp carries the message; next to nothing if any does.
    fn least_last(&mut self) -> Option<f64> {
        let guess = self.start.1 * self.bytes / self.sizes.len() as f64;
        let (after, caps) = (&mut self.after, &mut self.caps);
        let found = newton((self.bytes, self.precision.error() * 0.01), guess, |last| {
            let sum = after.run(Dual::new(last, 1.0, 0.0), None, caps);
            (sum, sum.by_first)
        });
        match found {
            Ok((last, _)) => {
                self.cap(last);
                Some(last)
            }
            // Backward sizes may grow so fast that next to nothing carries the message.
            Err(_) => self.has_before.then_some(self.bytes * 1e-12),
        }
    }

    fn point(&mut self, last: f64) -> Result<Point, Miss> {
        self.cap(last);
        let (first, sum) = self.first()?;
        let (a, c) = (self.before.per_byte, self.after.per_byte);
        let trade = if sum.by_first > 0.0 { sum.by_last / sum.by_first } else { f64::INFINITY };
        Ok(Point { last, cost: a.mul_add(first, c * last), slope: c - a * trade })
    }

    /// Balances the two ends by intersecting tangents.
    fn both(&mut self) -> Option<()> {
        let (mut low, mut high) = (self.least_last()? * (1.0 - 1e-12), self.bytes);
        let (mut left, mut right): (Option<Point>, Option<Point>) = (None, None);
        let mut best: Option<Point> = None;
        let mut next = (self.start.1 * self.bytes / self.sizes.len() as f64).clamp(low, high);
        for _ in 0..self.precision.tangents() {
            match self.point(next) {
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
                (_, None) if high == self.bytes => (2.0 * next).min(high),
                _ => (low * high).sqrt().max(0.125 * high),
            };
            if next <= low || next >= high && (high < self.bytes || right.is_some()) {
                next = 0.5 * (low + high);
            }
            if high - low <= self.precision.error() * high {
                break;
            }
        }
        let best = best?;
        self.start.1 = best.last / self.bytes * self.sizes.len() as f64;
        self.point(best.last).ok().map(|_| ())
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

/// The argument at which a growing function reaches `target`; the function gives its value and its slope.
fn newton(
    (target, exact): (f64, f64),
    guess: f64,
    mut sum_at: impl FnMut(f64) -> (Dual, f64),
) -> Result<(f64, Dual), Miss> {
    let (mut low, mut high) = (0.0, target);
    let mut at = if guess > low && guess < high { guess } else { 0.5 * high };
    let mut last = None;
    for step in 0..NEWTON {
        let (sum, slope) = sum_at(at);
        let error = sum.value - target;
        last = Some((at, sum));
        if error.abs() <= exact.max(EXACT) * target || high - low <= EXACT * high {
            break;
        }
        if error < 0.0 {
            low = at;
        } else {
            high = at;
        }
        let next = at - error / slope;
        let inside = next > low && next < high;
        at = match (inside, step) {
            (true, _) => next,
            // Off the edge at once: look at the edge before halving the way to it.
            (false, 0 | 1) if error > 0.0 => low + (high - low) * 1e-12,
            (false, 0 | 1) => high,
            (false, _) => 0.5 * (low + high),
        };
        if low >= high || (low > 0.0 && at >= target && error < 0.0 && low >= target) {
            break;
        }
    }
    let (at, sum) = last.expect("the loop runs at least once");
    let error = sum.value - target;
    match error {
        _ if error.abs() <= 1e-7 * target => Ok((at, sum)),
        _ if error > 0.0 => Err(Miss::Over),
        _ => Err(Miss::Under),
    }
}
