//! One pass of the greedy rule from the first stage to the bottleneck, with or without derivatives.

use crate::stage::Stage;

/// The number type of a pass: `f64` for values alone, [`Dual`] for values with derivatives.
pub(super) trait Number: Copy {
    const ZERO: Self;
    const UNBOUND: Self;

    fn value(self) -> f64;

    /// Returns the operand with the larger value, with its derivatives.
    fn max(self, other: Self) -> Self {
        if other.value() > self.value() { other } else { self }
    }

    fn min(self, other: Self) -> Self {
        if other.value() < self.value() { other } else { self }
    }

    /// Returns `self + (overhead + size * per_byte)`.
    fn after(self, overhead: f64, size: Self, per_byte: f64) -> Self;

    /// Returns `(self - since - overhead) * factor`.
    fn spare(self, since: Self, overhead: f64, factor: f64) -> Self;
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    const UNBOUND: Self = Self::INFINITY;

    fn value(self) -> f64 {
        self
    }

    fn after(self, overhead: f64, size: Self, per_byte: f64) -> Self {
        self + (overhead + size * per_byte)
    }

    fn spare(self, since: Self, overhead: f64, factor: f64) -> Self {
        (self - since - overhead) * factor
    }
}

/// A value, with its derivatives by the first and by the last size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dual {
    pub(super) value: f64,
    pub(super) by_first: f64,
    pub(super) by_last: f64,
}

impl Dual {
    pub(super) const fn first(value: f64) -> Self {
        Self { value, by_first: 1.0, by_last: 0.0 }
    }

    pub(super) const fn last(value: f64) -> Self {
        Self { value, by_first: 0.0, by_last: 1.0 }
    }
}

impl Number for Dual {
    const ZERO: Self = Self { value: 0.0, by_first: 0.0, by_last: 0.0 };
    const UNBOUND: Self = Self { value: f64::INFINITY, by_first: 0.0, by_last: 0.0 };

    fn value(self) -> f64 {
        self.value
    }

    fn after(self, overhead: f64, size: Self, per_byte: f64) -> Self {
        Self {
            value: self.value.after(overhead, size.value, per_byte),
            by_first: self.by_first + size.by_first * per_byte,
            by_last: self.by_last + size.by_last * per_byte,
        }
    }

    fn spare(self, since: Self, overhead: f64, factor: f64) -> Self {
        Self {
            value: self.value.spare(since.value, overhead, factor),
            by_first: (self.by_first - since.by_first) * factor,
            by_last: (self.by_last - since.by_last) * factor,
        }
    }
}

/// A stage before the bottleneck, and the costs from it to the bottleneck.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    g: f64,
    c: f64,
    /// Overhead for the first fragment.
    first: f64,
    to_go_g: f64,
    /// One over the cost of a byte from here to the bottleneck; infinite if a byte costs nothing.
    per_us: f64,
}

/// The stages up to a bottleneck.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    ahead: Vec<Ahead>,
    bottleneck: (f64, f64),
    /// Cost of a byte before the bottleneck.
    pub(super) per_byte: f64,
}

impl Pass {
    pub(super) fn new(stages: impl ExactSizeIterator<Item = Stage>, use_first: bool) -> Self {
        let stages: Vec<Stage> = stages.collect();
        let (slowest, before) =
            stages.split_last().expect("a pass has the bottleneck as its last stage");
        let mut ahead: Vec<Ahead> = Vec::with_capacity(before.len());
        let (mut to_go_g, mut c) = (0.0, 0.0);
        for stage in before.iter().rev() {
            to_go_g += stage.g();
            c += stage.c();
            let first = if use_first { stage.first_overhead().get() } else { stage.g() };
            ahead.push(Ahead { g: stage.g(), c: stage.c(), first, to_go_g, per_us: 1.0 / c });
        }
        ahead.reverse();
        Self { ahead, bottleneck: (slowest.g(), slowest.c()), per_byte: c }
    }

    /// Returns the number of stages before the bottleneck.
    pub(super) const fn len(&self) -> usize {
        self.ahead.len()
    }

    /// Fills `sizes` from the first fragment on, each clamped to its cap, and returns their sum.
    ///
    /// `free` is a buffer for the time at which each stage before the bottleneck is free; its
    /// contents are overwritten. If the chain before the bottleneck is so slow that the bottleneck
    /// falls idle in any case, sizes become zero.
    pub(super) fn run<N: Number>(
        &self,
        free: &mut [N],
        first: N,
        caps: Option<&[N]>,
        sizes: &mut [N],
    ) -> N {
        let cap = |index: usize| caps.map_or(N::UNBOUND, |caps| caps[index]);
        let mut size = first.min(cap(0));
        let mut at = N::ZERO;
        for (stage, free) in self.ahead.iter().zip(free.iter_mut()) {
            at = at.after(stage.first, size, stage.c);
            *free = at;
        }
        let (g, c) = self.bottleneck;
        let mut end = at.after(g, size, c);
        let mut sum = size;
        sizes[0] = size;
        for (index, place) in sizes.iter_mut().enumerate().skip(1) {
            size = self.largest(free, end).min(cap(index));
            at = N::ZERO;
            for (stage, free) in self.ahead.iter().zip(free.iter_mut()) {
                at = at.max(*free).after(stage.g, size, stage.c);
                *free = at;
            }
            end = end.max(at).after(g, size, c);
            sum = sum.after(0.0, size, 1.0);
            *place = size;
        }
        sum
    }

    /// Returns the largest fragment that reaches the bottleneck by `end`.
    fn largest<N: Number>(&self, free: &[N], end: N) -> N {
        let mut size = N::UNBOUND;
        for (stage, &free) in self.ahead.iter().zip(free) {
            let fitting = end.spare(free, stage.to_go_g, stage.per_us);
            // NaN if no time is left and a byte costs nothing.
            if fitting.value().is_nan() || fitting.value() <= 0.0 {
                return N::ZERO;
            }
            size = size.min(fitting);
        }
        size
    }
}
