//! Time as an argument: instants, line rates, and serialization without rounding drift.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Nanoseconds since the fabric started; comparable within one fabric only.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(u64);

impl Instant {
    /// The start of the fabric.
    pub const ZERO: Self = Self(0);
    /// Later than any instant that is reached: an alarm set to it is off.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Creates the instant `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Adds `nanos` nanoseconds; saturates at [`Instant::FAR_FUTURE`].
    #[must_use]
    #[doc(hidden)]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the nanoseconds since `earlier`; 0 if `earlier` is later.
    #[must_use]
    #[doc(hidden)]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Adds a duration; saturates at [`Instant::FAR_FUTURE`].
    fn add(self, rhs: Duration) -> Self {
        self.plus_nanos(nanos(rhs))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Subtracts a duration; saturates at [`Instant::ZERO`].
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Converts a duration to whole nanoseconds; 584 years and more give `u64::MAX`.
#[must_use]
#[doc(hidden)]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A line rate in bits per second; never zero.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LineRate(u64);

impl LineRate {
    /// Creates a rate of `bits_per_second`; `None` for zero.
    #[must_use]
    pub const fn new(bits_per_second: u64) -> Option<Self> {
        if bits_per_second == 0 { None } else { Some(Self(bits_per_second)) }
    }

    /// Returns `percent` hundredths of this rate, at least one bit per second.
    #[must_use]
    pub const fn percent(self, percent: u8) -> Self {
        let bits = self.0 as u128 * percent as u128 / 100;
        Self(if bits == 0 {
            1
        } else if bits > u64::MAX as u128 {
            u64::MAX
        } else {
            bits as u64
        })
    }

    /// Creates a rate of `mega` times 10^6 bits per second, of at most 2^64 - 1 bits per second.
    ///
    /// # Panics
    /// If `mega` is zero.
    #[must_use]
    pub const fn mbps(mega: u64) -> Self {
        assert!(
            mega > 0,
            "a rate of 0 Mb/s: a line carries at least 1 Mb/s; for less, use `LineRate::new`"
        );
        Self(mega.saturating_mul(1_000_000))
    }

    /// Returns the bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds that `bytes` take on the wire, rounded up.
    #[must_use]
    pub const fn nanos_for(self, bytes: u64) -> u64 {
        // Below 2 GB the product fits: 2^64 / (8 * 10^9).
        if bytes < 2_000_000_000 {
            (bytes * 8_000_000_000).div_ceil(self.0)
        } else {
            let exact = (bytes as u128 * 8_000_000_000).div_ceil(self.0 as u128);
            if exact > u64::MAX as u128 { u64::MAX } else { exact as u64 }
        }
    }

    /// Returns the whole bytes that pass in `nanos` nanoseconds, rounded down.
    #[must_use]
    #[doc(hidden)]
    pub const fn bytes_in(self, nanos: u64) -> u64 {
        let exact = nanos as u128 * self.0 as u128 / 8_000_000_000;
        if exact > u64::MAX as u128 { u64::MAX } else { exact as u64 }
    }
}

impl fmt::Display for LineRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Mb/s", self.0 as f64 / 1e6)
    }
}

/// Puts units on a line one after another, and carries over the fraction of a nanosecond that each leaves.
///
/// A 53-byte cell at 155.52 Mb/s takes 2726.337 ns: dropping the fraction would let a line carry
/// 0.01 % more than its rate.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Serializer {
    rate: LineRate,
    free_at: Instant,
    /// In units of 1 / rate nanoseconds; less than `rate`.
    remainder: u64,
}

impl Serializer {
    /// Creates a line that is free from the start.
    #[must_use]
    pub const fn new(rate: LineRate) -> Self {
        Self { rate, free_at: Instant::ZERO, remainder: 0 }
    }

    /// Puts `bytes` on the line as soon as it is free, but not before `now`; returns when the last bit has
    /// left.
    pub fn send(&mut self, now: Instant, bytes: u32) -> Instant {
        // If the line becomes free within this nanosecond, it continues without a gap.
        if now > self.free_at() {
            self.free_at = now;
            self.remainder = 0;
        }
        // Saturates only at rates above 10^18 bits per second, and then loses a fraction of 10^-5 ns.
        let scaled = (u64::from(bytes) * 8_000_000_000).saturating_add(self.remainder);
        let rate = self.rate.0;
        self.free_at = self.free_at.plus_nanos(scaled / rate);
        self.remainder = scaled % rate;
        // A remaining fraction means that the last bit has left at the next whole nanosecond.
        if self.remainder == 0 { self.free_at } else { self.free_at.plus_nanos(1) }
    }

    /// Occupies the line for `nanos` nanoseconds.
    pub const fn delay(&mut self, nanos: u64) {
        self.free_at = self.free_at.plus_nanos(nanos);
    }

    /// Changes the rate of the line; earlier units keep their times.
    pub(crate) const fn set_rate(&mut self, rate: LineRate) {
        self.free_at = self.free_at();
        self.remainder = 0;
        self.rate = rate;
    }

    /// Returns when the last bit of all units has left.
    #[must_use]
    pub const fn free_at(&self) -> Instant {
        if self.remainder == 0 { self.free_at } else { self.free_at.plus_nanos(1) }
    }

    /// Returns the line's rate.
    #[must_use]
    pub const fn rate(&self) -> LineRate {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cell_on_an_oc3_takes_its_exact_share_over_a_second() {
        let mut line = Serializer::new(LineRate::new(155_520_000).unwrap());
        for _ in 0..366_792 {
            line.send(Instant::ZERO, 53);
        }
        // 366,792 cells of 424 bits are 155,519,808 bits: 1.235 us short of a second.
        assert_eq!(line.free_at().as_nanos(), 999_998_766);
    }

    #[test]
    fn the_fastest_line_carries_a_frame_in_a_nanosecond() {
        let rate = LineRate::mbps(u64::MAX);
        assert_eq!(rate.bits_per_second(), u64::MAX);
        let mut line = Serializer::new(rate);
        for _ in 0..2 {
            // 10^19 units of 1 / rate nanoseconds: two such frames are more than 2^64.
            assert_eq!(line.send(Instant::ZERO, 1_250_000_000).as_nanos(), 1);
        }
    }

    proptest! {
        #[test]
        fn a_busy_line_never_carries_more_than_its_rate(
            rate in 1_000_u64..400_000_000_000,
            units in proptest::collection::vec(1_u32..100_000, 1..200),
        ) {
            let rate = LineRate::new(rate).unwrap();
            let mut line = Serializer::new(rate);
            let mut bytes = 0;
            for unit in units {
                let end = line.send(Instant::ZERO, unit);
                bytes += u64::from(unit);
                prop_assert!(rate.bytes_in(end.as_nanos()) >= bytes);
                // ... and never carries a nanosecond less than it could.
                prop_assert!(rate.bytes_in(end.as_nanos() - 1) <= bytes);
            }
        }

        #[test]
        fn a_line_that_is_fed_whenever_it_is_free_loses_nothing_to_rounding(
            rate in 1_000_u64..400_000_000_000,
            units in proptest::collection::vec(1_u32..100_000, 1..200),
        ) {
            let mut line = Serializer::new(LineRate::new(rate).unwrap());
            let mut fed = line;
            for unit in units {
                let end = line.send(Instant::ZERO, unit);
                prop_assert_eq!(fed.send(fed.free_at(), unit), end);
            }
        }

        #[test]
        fn an_idle_line_starts_at_once(gap in 1_u64..1_000_000_000, bytes in 1_u32..65_536) {
            let rate = LineRate::mbps(100);
            let mut line = Serializer::new(rate);
            let first = line.send(Instant::ZERO, bytes);
            let now = first.plus_nanos(gap);
            prop_assert_eq!(line.send(now, bytes), now.plus_nanos(rate.nanos_for(u64::from(bytes))));
        }
    }
}
