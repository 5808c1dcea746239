//! What real systems ask of a cut, and fitting a wished-for cut to it.

use crate::plan::PlanError;

/// Most fragments of any plan. A terabyte over a stage of 10 us wants about 10,000; object stores refuse more.
pub const MAX_FRAGMENTS: usize = 1 << 16;

/// Rules for the sizes and the number of fragments; all off by default.
///
/// They hold at every level of a plan that refragments, except `max_in_flight` and `fragments`, which concern the
/// top level.
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
    /// No limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Largest fragment in bytes.
    #[must_use]
    pub const fn mtu(mut self, bytes: f64) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Every fragment but the last is a multiple of so many bytes. Coarse units cost: about 1 % of the latency at
    /// 256 bytes and a quarter of it at 4 KiB, for messages up to 64 KB.
    #[must_use]
    pub const fn align(mut self, bytes: f64) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Smallest fragment in bytes. Only the last fragment may be smaller, and only if no other cut exists.
    #[must_use]
    pub const fn min_fragment(mut self, bytes: f64) -> Self {
        self.min_fragment = Some(bytes);
        self
    }

    /// Most fragments; at least 1, and [`MAX_FRAGMENTS`] in any case.
    #[must_use]
    pub const fn max_fragments(mut self, count: usize) -> Self {
        self.max_fragments = Some(count);
        self
    }

    /// All fragments have one size, but the last may be smaller: what multipart uploads ask for.
    #[must_use]
    pub const fn equal_but_last(mut self, yes: bool) -> Self {
        self.equal_but_last = yes;
        self
    }

    /// Most fragments in the chain at once (credits, receive buffers); at least 1. Fewer than there are stages
    /// leaves some of them idle whatever the plan.
    #[must_use]
    pub const fn max_in_flight(mut self, count: usize) -> Self {
        self.max_in_flight = Some(count);
        self
    }

    /// Whether anything bounds the size of a fragment from below, so that cutting must come to an end.
    pub(crate) const fn bounds_count(&self) -> bool {
        self.align.is_some() || self.min_fragment.is_some() || self.max_fragments.is_some()
    }

    /// Whether any limit constrains sizes beyond their sum.
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

/// The sizes that one message may be cut into: a band for all fragments but the last, one for the last, and a unit.
///
/// Sizes are counted in units here, a real number of bytes where no alignment is asked for; the remainder that is
/// less than a unit goes to the last fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    bytes: f64,
    /// Unit in bytes; 1 with `whole == false` where sizes may be fractional.
    unit: f64,
    whole: bool,
    total: f64,
    remainder: f64,
    low: f64,
    high: f64,
    last_low: f64,
    last_high: f64,
    /// Fewest and most fragments.
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

    /// Most fragments that the bands leave room for; without a unit or a smallest size, one a byte.
    fn most(&self) -> f64 {
        let free = !self.whole && self.low == 0.0;
        let (low, last_low) = if free { (1.0, 1.0) } else { (self.low, self.last_low) };
        1.0 + ((self.total - last_low) / low + 1e-12).floor()
    }

    /// Brings a wish to what is allowed: same number of fragments, exact sum, every size in its band.
    /// `false` if that number of fragments does not allow any cut.
    pub(crate) fn fit(&self, sizes: &mut [f64]) -> bool {
        let count = sizes.len();
        if count < self.counts.0 || count > self.counts.1 {
            return false;
        }
        for size in sizes.iter_mut() {
            *size = (*size / self.unit).max(0.0);
        }
        if !self.pour(sizes) {
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

    fn band(&self, index: usize, count: usize) -> (f64, f64) {
        if index + 1 == count { (self.last_low, self.last_high) } else { (self.low, self.high) }
    }

    /// Scales all sizes by one factor, each held within its band, until they sum to the message.
    fn pour(&self, sizes: &mut [f64]) -> bool {
        let count = sizes.len();
        let inside = |sizes: &[f64], factor: f64, index: usize| {
            let (low, high) = self.band(index, count);
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
                // No number lies between them.
                break;
            }
            if sum_at(sizes, middle) < self.total { low = middle } else { high = middle }
        }
        let poured: Vec<f64> = (0..count).map(|i| inside(sizes, high, i)).collect();
        let sum: f64 = poured.iter().sum();
        sizes.copy_from_slice(&poured);
        self.settle(sizes, self.total - sum);
        true
    }

    /// Puts a rounding error of the sum where there is room for it.
    fn settle(&self, sizes: &mut [f64], mut error: f64) {
        let count = sizes.len();
        for index in (0..count).rev() {
            if error == 0.0 {
                return;
            }
            let (low, high) = self.band(index, count);
            let moved = (sizes[index] + error).clamp(low, high.max(low));
            error -= moved - sizes[index];
            sizes[index] = moved;
        }
    }

    /// Whole units: everything rounded down, what is missing given to the largest fractions that have room.
    fn round(&self, units: &mut [f64]) {
        let count = units.len();
        let wished = units.to_vec();
        for (index, size) in units.iter_mut().enumerate() {
            let (low, high) = self.band(index, count);
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
                let (low, high) = self.band(index, count);
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

    /// Equal sizes and a last fragment that may be smaller, of about `size` bytes; `None` if that breaks a limit.
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

    /// The unit in bytes, if sizes are counted in units.
    pub(crate) fn unit(&self) -> Option<f64> {
        self.whole.then_some(self.unit)
    }

    /// Whether a vector keeps every limit; `size` in bytes.
    pub(crate) fn allows(&self, sizes: &[f64]) -> bool {
        let count = sizes.len();
        sizes.iter().enumerate().all(|(index, &size)| {
            let (low, high) = self.band(index, count);
            let rest = if index + 1 == count { self.remainder } else { 0.0 };
            let units = (size - rest) / self.unit;
            size > 0.0 && units >= low - 1e-9 && units <= high + 1e-9
        })
    }
}
