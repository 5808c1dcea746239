//! Limits that real systems set for a cut, and the fitting of desired sizes to them.

use crate::plan_error::PlanError;

/// The most fragments of any plan. A terabyte over a stage with 10 us of overhead needs about
/// 10,000; object stores refuse more.
#[doc(hidden)]
pub const MAX_FRAGMENTS: usize = 1 << 16;

/// Limits of the sizes and the number of fragments; all off by default.
///
/// They hold at every level of a plan that refragments. Only `max_in_flight` and `max_fragments`
/// concern just the top level.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    pub(crate) mtu: Option<f64>,
    pub(crate) align: Option<f64>,
    pub(crate) min_fragment: Option<f64>,
    pub(crate) max_fragments: Option<usize>,
    pub(crate) equal_but_last: bool,
    pub(crate) max_in_flight: Option<usize>,
}

impl Limits {
    /// Creates limits that are all off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest fragment in bytes.
    #[must_use]
    pub const fn mtu(mut self, bytes: f64) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Makes every fragment but the last a multiple of this many bytes.
    ///
    /// Coarse units cost latency: for messages up to 64 KB about 1 % at 256 bytes, and a quarter at
    /// 4 KiB.
    #[must_use]
    pub const fn align(mut self, bytes: f64) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Sets the smallest fragment in bytes. Only the last fragment may be smaller, and only if no
    /// other cut exists.
    #[must_use]
    pub const fn min_fragment(mut self, bytes: f64) -> Self {
        self.min_fragment = Some(bytes);
        self
    }

    /// Sets the most fragments; at least 1. 65,536 applies in any case.
    #[must_use]
    pub const fn max_fragments(mut self, count: usize) -> Self {
        self.max_fragments = Some(count);
        self
    }

    /// If true, makes all fragments equal except the last, which may be smaller. Multipart uploads
    /// require this.
    #[must_use]
    pub const fn equal_but_last(mut self, yes: bool) -> Self {
        self.equal_but_last = yes;
        self
    }

    /// Sets the most fragments in the chain at once (credits, receive buffers); at least 1. With
    /// fewer than there are stages, some stages are always idle.
    #[must_use]
    pub const fn max_in_flight(mut self, count: usize) -> Self {
        self.max_in_flight = Some(count);
        self
    }

    /// Returns true if a limit bounds the number of fragments from above.
    pub(crate) const fn bounds_count(&self) -> bool {
        self.align.is_some() || self.min_fragment.is_some() || self.max_fragments.is_some()
    }

    /// Returns true if a limit constrains sizes beyond their sum.
    pub(crate) const fn shapes(&self) -> bool {
        self.align.is_some()
            || self.mtu.is_some()
            || self.min_fragment.is_some()
            || self.equal_but_last
    }

    pub(crate) fn check(&self, bytes: f64) -> Result<(), PlanError> {
        let positive = |field, value: Option<f64>| match value {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(PlanError::NotPositive { field, value })
            }
            _ => Ok(()),
        };
        positive("mtu", self.mtu)?;
        positive("align", self.align)?;
        positive("min_fragment", self.min_fragment)?;
        let nonzero = |field, count| {
            if count == Some(0) { Err(PlanError::ZeroCount { field }) } else { Ok(()) }
        };
        nonzero("max_fragments", self.max_fragments)?;
        nonzero("max_in_flight", self.max_in_flight)?;
        if let Some(align) = self.align.filter(|&align| align < 1.0) {
            return Err(PlanError::AlignBelowByte(align));
        }
        if let Some(align) = self.align.filter(|&align| align > bytes) {
            return Err(PlanError::AlignBeyondMessage { align, bytes });
        }
        let mtu = self.mtu.unwrap_or(f64::INFINITY);
        if let Some(min) = self.min_fragment.filter(|&min| min > mtu) {
            return Err(PlanError::MinBeyondMtu { min, mtu });
        }
        if let Some(align) = self.align.filter(|&align| align > mtu && bytes > mtu) {
            return Err(PlanError::AlignBeyondMtu { align, mtu });
        }
        Ok(())
    }
}

/// The sizes that one message may be cut into: bounds for all fragments but the last, bounds for
/// the last, and a unit.
///
/// Sizes here count units. Without alignment a unit is a byte, and sizes are real numbers. The
/// remainder that is less than a unit goes to the last fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    bytes: f64,
    /// Unit in bytes; 1 if `whole` is false, so that sizes may be fractional.
    unit: f64,
    whole: bool,
    total: f64,
    remainder: f64,
    low: f64,
    high: f64,
    last_low: f64,
    last_high: f64,
    /// The fewest and the most fragments.
    pub(crate) counts: (usize, usize),
}

impl Cut {
    pub(crate) fn new(bytes: f64, limits: &Limits) -> Result<Self, PlanError> {
        limits.check(bytes)?;
        let unit = limits.align.unwrap_or(1.0);
        let whole = limits.align.is_some();
        let total = if whole { (bytes / unit).floor() } else { bytes };
        let remainder = if whole { (bytes - total * unit).max(0.0) } else { 0.0 };
        let down = |x: f64| if whole { (x / unit).floor() } else { x };
        let up = |x: f64| if whole { (x / unit).ceil().max(1.0) } else { x };
        let min = limits.min_fragment.unwrap_or(0.0);
        let mtu = limits.mtu.unwrap_or(f64::INFINITY);
        let floor = if whole { 1.0 } else { 0.0 };
        let mut cut = Self {
            bytes,
            unit,
            whole,
            total,
            remainder,
            low: up(min).max(floor),
            high: down(mtu).min(total),
            last_low: if whole { ((min - remainder) / unit).ceil().max(0.0) } else { min },
            last_high: down(mtu - remainder).min(total),
            counts: (1, 1),
        };
        if whole && remainder == 0.0 {
            cut.last_low = cut.last_low.max(1.0);
        }
        cut.set_counts(limits)?;
        Ok(cut)
    }

    fn set_counts(&mut self, limits: &Limits) -> Result<(), PlanError> {
        let most = limits.max_fragments.unwrap_or(MAX_FRAGMENTS).min(MAX_FRAGMENTS);
        let fewest = if self.last_high >= self.total {
            1.0
        } else {
            1.0 + ((self.total - self.last_high.max(0.0)) / self.high - 1e-12).ceil().max(1.0)
        };
        if self.most() < fewest {
            self.last_low = if self.whole && self.remainder == 0.0 { 1.0 } else { 0.0 };
        }
        let most = (most as f64).min(self.most().max(1.0));
        if fewest > most || self.last_high < self.last_low || !fewest.is_finite() {
            return Err(PlanError::NoCut { bytes: self.bytes });
        }
        self.counts = (fewest as usize, most as usize);
        Ok(())
    }

    /// Returns the most fragments that the bounds permit; without a unit or a smallest size, one
    /// per byte.
    fn most(&self) -> f64 {
        let free = !self.whole && self.low == 0.0;
        let (low, last_low) = if free { (1.0, 1.0) } else { (self.low, self.last_low) };
        1.0 + ((self.total - last_low) / low + 1e-12).floor()
    }

    /// Changes desired sizes to allowed ones: the same number of fragments, the exact sum, every
    /// size within its bounds. Returns false if no cut into that many fragments is allowed.
    pub(crate) fn fit(&self, sizes: &mut [f64]) -> bool {
        let count = sizes.len();
        if count < self.counts.0 || count > self.counts.1 {
            return false;
        }
        for size in sizes.iter_mut() {
            *size = (*size / self.unit).max(0.0);
        }
        if !self.scale_to_sum(sizes) {
            return false;
        }
        if self.whole {
            self.round(sizes);
        }
        for size in sizes.iter_mut() {
            *size *= self.unit;
        }
        sizes[count - 1] += self.remainder;
        true
    }

    fn bounds(&self, index: usize, count: usize) -> (f64, f64) {
        if index + 1 == count { (self.last_low, self.last_high) } else { (self.low, self.high) }
    }

    /// Scales all sizes by one factor, each clamped to its bounds, until they sum to the message.
    fn scale_to_sum(&self, sizes: &mut [f64]) -> bool {
        let count = sizes.len();
        let inside = |sizes: &[f64], factor: f64, index: usize| {
            let (low, high) = self.bounds(index, count);
            (sizes[index] * factor).clamp(low, high.max(low))
        };
        let sum_at =
            |sizes: &[f64], factor: f64| (0..count).map(|i| inside(sizes, factor, i)).sum::<f64>();
        let floor = self.total / count as f64 * 1e-9;
        sizes.iter_mut().for_each(|size| *size = size.max(floor));
        let (mut low, mut high) = (0.0, 1.0);
        while sum_at(sizes, high) < self.total {
            high *= 4.0;
            if high > 1e30 {
                return false;
            }
        }
        if sum_at(sizes, 0.0) > self.total * (1.0 + 1e-12) {
            return false;
        }
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                // No `f64` lies between them.
                break;
            }
            if sum_at(sizes, middle) < self.total { low = middle } else { high = middle }
        }
        let scaled: Vec<f64> = (0..count).map(|i| inside(sizes, high, i)).collect();
        let sum: f64 = scaled.iter().sum();
        sizes.copy_from_slice(&scaled);
        self.absorb_error(sizes, self.total - sum);
        true
    }

    /// Adds a rounding error of the sum to fragments that have room for it.
    fn absorb_error(&self, sizes: &mut [f64], mut error: f64) {
        let count = sizes.len();
        for index in (0..count).rev() {
            if error == 0.0 {
                return;
            }
            let (low, high) = self.bounds(index, count);
            let moved = (sizes[index] + error).clamp(low, high.max(low));
            error -= moved - sizes[index];
            sizes[index] = moved;
        }
    }

    /// Rounds sizes to whole units: rounds all down, then adds the missing units where the fraction
    /// was largest and the bounds permit it.
    fn round(&self, units: &mut [f64]) {
        let count = units.len();
        let wished = units.to_vec();
        for (index, size) in units.iter_mut().enumerate() {
            let (low, high) = self.bounds(index, count);
            *size = (*size + 1e-9).floor().clamp(low, high.max(low));
        }
        let mut missing = (self.total - units.iter().sum::<f64>()).round();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| (wished[b] - units[b]).total_cmp(&(wished[a] - units[a])));
        while missing != 0.0 {
            let step = missing.signum();
            let before = missing;
            for position in 0..count {
                if missing == 0.0 {
                    return;
                }
                let index = if step > 0.0 { order[position] } else { order[count - 1 - position] };
                let (low, high) = self.bounds(index, count);
                let share = (missing.abs() / (count - position) as f64).floor().max(1.0);
                let room = if step > 0.0 { high - units[index] } else { units[index] - low };
                let moved = share.min(room).max(0.0);
                units[index] += step * moved;
                missing -= step * moved;
            }
            if missing == before {
                return;
            }
        }
    }

    /// Returns `count` fragments of about `size` bytes, all equal but the last, which may be
    /// smaller. Returns `None` if that breaks a limit.
    pub(crate) fn equal_but_last(&self, count: usize, size: f64) -> Option<Vec<f64>> {
        if count == 1 {
            return (self.counts.0 == 1).then(|| vec![self.bytes]);
        }
        let mut units = size / self.unit;
        if self.whole {
            units = (units - 1e-9).ceil();
        }
        let last = (self.total - units * (count - 1) as f64) * self.unit + self.remainder;
        let size = units * self.unit;
        let last_units = self.total - units * (count - 1) as f64;
        let fits = units >= self.low
            && units <= self.high
            && last > 0.0
            && last <= size * (1.0 + 1e-12)
            && last_units >= self.last_low - 1e-9
            && last_units <= self.last_high + 1e-9;
        let mut sizes = vec![size; count];
        sizes[count - 1] = last.min(size);
        fits.then_some(sizes)
    }

    /// Returns the unit in bytes, if there is an alignment.
    pub(crate) fn unit(&self) -> Option<f64> {
        self.whole.then_some(self.unit)
    }

    /// Returns true if sizes in bytes satisfy every limit.
    pub(crate) fn allows(&self, sizes: &[f64]) -> bool {
        let count = sizes.len();
        sizes.iter().enumerate().all(|(index, &size)| {
            let (low, high) = self.bounds(index, count);
            let rest = if index + 1 == count { self.remainder } else { 0.0 };
            let units = (size - rest) / self.unit;
            size > 0.0 && units >= low - 1e-9 && units <= high + 1e-9
        })
    }
}
