//! One pass of the greedy rule from the first stage to the bottleneck, with derivatives.

use crate::stage::Stage;

/// A value and how it changes with the first fragment's size and with the last one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dual {
    pub(super) value: f64,
    pub(super) by_first: f64,
    pub(super) by_last: f64,
}

impl Dual {
    pub(super) const UNBOUND: Self = Self { value: f64::INFINITY, by_first: 0.0, by_last: 0.0 };

    pub(super) const fn new(value: f64, by_first: f64, by_last: f64) -> Self {
        Self { value, by_first, by_last }
    }

    fn max(self, other: Self) -> Self {
        if other.value > self.value { other } else { self }
    }

    fn min(self, other: Self) -> Self {
        if other.value < self.value { other } else { self }
    }

    /// `self + overhead + size * per_byte`.
    fn after(self, overhead: f64, size: Self, per_byte: f64) -> Self {
        Self {
            value: self.value + overhead + size.value * per_byte,
            by_first: self.by_first + size.by_first * per_byte,
            by_last: self.by_last + size.by_last * per_byte,
        }
    }

    /// Derivatives change places: what was the first fragment of the reversed chain is the last of this one.
    pub(super) const fn mirrored(self) -> Self {
        Self { value: self.value, by_first: self.by_last, by_last: self.by_first }
    }
}

/// A stage ahead of the bottleneck, and the costs from it up to the bottleneck.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    g: f64,
    c: f64,
    to_go_g: f64,
    /// One over the costs of a byte from here to the bottleneck; 0 if a byte costs nothing.
    per_us: f64,
    free: Dual,
}

/// The stages up to a bottleneck, and when each is free.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    ahead: Vec<Ahead>,
    first: Vec<f64>,
    bottleneck: (f64, f64),
    /// Costs of a byte before the bottleneck.
    pub(super) per_byte: f64,
}

impl Pass {
    pub(super) fn new(stages: impl ExactSizeIterator<Item = Stage>, use_first: bool) -> Self {
        let stages: Vec<Stage> = stages.collect();
        let (slowest, before) =
            stages.split_last().expect("a bottleneck is one of at least one stages");
        let mut ahead: Vec<Ahead> = Vec::with_capacity(before.len());
        let (mut g, mut c) = (0.0, 0.0);
        for stage in before.iter().rev() {
            g += stage.g();
            c += stage.c();
            let per_us = if c > 0.0 { 1.0 / c } else { 0.0 };
            ahead.push(Ahead {
                g: stage.g(),
                c: stage.c(),
                to_go_g: g,
                per_us,
                free: Dual::UNBOUND,
            });
        }
        ahead.reverse();
        let first = before
            .iter()
            .map(|s| if use_first { s.first_overhead().get() } else { s.g() })
            .collect();
        Self { ahead, first, bottleneck: (slowest.g(), slowest.c()), per_byte: c }
    }

    /// Fills `sizes` from the first fragment on, each held below its cap; the sum with its derivatives.
    ///
    /// Where the chain before the bottleneck is so slow that it falls idle whatever comes, sizes become zero.
    pub(super) fn run(&mut self, first: Dual, caps: Option<&[Dual]>, sizes: &mut [Dual]) -> Dual {
        let cap = |index: usize| caps.map_or(Dual::UNBOUND, |caps| caps[index]);
        let mut size = first.min(cap(0));
        let mut at = Dual::new(0.0, 0.0, 0.0);
        for (stage, overhead) in self.ahead.iter_mut().zip(&self.first) {
            at = at.after(*overhead, size, stage.c);
            stage.free = at;
        }
        let (g, c) = self.bottleneck;
        let mut end = at.after(g, size, c);
        let mut sum = size;
        sizes[0] = size;
        for (index, place) in sizes.iter_mut().enumerate().skip(1) {
            size = self.largest(end).min(cap(index));
            at = Dual::new(0.0, 0.0, 0.0);
            for stage in &mut self.ahead {
                at = at.max(stage.free).after(stage.g, size, stage.c);
                stage.free = at;
            }
            end = end.max(at).after(g, size, c);
            sum = sum.after(0.0, size, 1.0);
            *place = size;
        }
        sum
    }

    /// The largest fragment that reaches the bottleneck by `end`.
    fn largest(&self, end: Dual) -> Dual {
        let mut size = Dual::UNBOUND;
        for stage in &self.ahead {
            let spare = end.value - stage.free.value - stage.to_go_g;
            if spare <= 0.0 {
                return Dual::new(0.0, 0.0, 0.0);
            }
            if stage.per_us > 0.0 && spare * stage.per_us < size.value {
                size = Dual {
                    value: spare * stage.per_us,
                    by_first: (end.by_first - stage.free.by_first) * stage.per_us,
                    by_last: (end.by_last - stage.free.by_last) * stage.per_us,
                };
            }
        }
        size
    }
}
