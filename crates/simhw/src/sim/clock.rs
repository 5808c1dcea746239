//! The clocks of nodes.

use crate::time::Instant;

/// A node's clock; it is exact unless a fault has changed it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Clock {
    /// The world's time of the last change.
    since: Instant,
    /// The clock's own time at the last change.
    showed: Instant,
    /// Millionths by which it is too fast.
    ppm: i32,
}

const MILLION: u128 = 1_000_000;

impl Clock {
    /// Creates a clock that starts at `now` and is ahead by `ahead_ns` nanoseconds, or behind if negative, but
    /// not before time 0.
    pub(super) const fn starting(now: Instant, ahead_ns: i64) -> Self {
        let showed = now.as_nanos().saturating_add_signed(ahead_ns);
        Self { since: now, showed: Instant::from_nanos(showed), ppm: 0 }
    }

    const fn rate(self) -> u128 {
        (1_000_000 + self.ppm as i64) as u128
    }

    /// Returns the clock's time at the world's time `now`.
    pub(super) const fn read(self, now: Instant) -> Instant {
        let passed = now.nanos_since(self.since);
        if self.ppm == 0 {
            return self.showed.plus_nanos(passed);
        }
        self.showed.plus_nanos((passed as u128 * self.rate() / MILLION) as u64)
    }

    /// Returns the first instant of the world at which the clock shows at least `at`.
    pub(super) const fn when(self, at: Instant) -> Instant {
        if at.as_nanos() == u64::MAX {
            return at;
        }
        let ahead = at.nanos_since(self.showed);
        if self.ppm == 0 {
            return self.since.plus_nanos(ahead);
        }
        self.since.plus_nanos((ahead as u128 * MILLION).div_ceil(self.rate()) as u64)
    }

    /// Returns the earliest time that the clock does not show before the world's time `at`. An alarm at that time is
    /// never early.
    pub(super) const fn not_before(self, at: Instant) -> Instant {
        let shown = self.read(at);
        if self.when(shown).as_nanos() < at.as_nanos() { shown.plus_nanos(1) } else { shown }
    }

    /// Sets the clock's drift to `ppm` from `now` on, and moves it ahead by `step`.
    pub(super) fn change(&mut self, now: Instant, ppm: i32, step: std::time::Duration) {
        *self = Self { since: now, showed: self.read(now) + step, ppm };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_alarm_is_never_early_and_at_most_a_tick_late(
            ahead in -1_000_i64..1_000_000, ppm in -500_000_i32..500_000, step in 0_u64..1_000,
            changed in 0_u64..1_000_000, after in 0_u64..1_000_000_000,
        ) {
            let mut clock = Clock::starting(Instant::from_nanos(5_000), ahead);
            let now = Instant::from_nanos(5_000 + changed);
            let before = clock.read(now);
            clock.change(now, ppm, Duration::from_nanos(step));
            prop_assert_eq!(clock.read(now), before.plus_nanos(step));
            let at = clock.read(now).plus_nanos(after);
            let when = clock.when(at);
            prop_assert!(clock.read(when) >= at);
            let earlier = Instant::from_nanos(when.as_nanos() - 1);
            prop_assert!(after == 0 || clock.read(earlier) < at);
            let later = Instant::from_nanos(now.as_nanos() + after);
            prop_assert!(clock.when(clock.not_before(later)) >= later);
        }
    }

    #[test]
    fn a_right_clock_shows_the_worlds_time() {
        let at = Instant::from_nanos(77);
        assert_eq!((Clock::default().read(at), Clock::default().when(at)), (at, at));
        assert_eq!(Clock::default().when(Instant::FAR_FUTURE), Instant::FAR_FUTURE);
    }
}
