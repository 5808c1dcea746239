//! Reads the machine's clocks; no other module does.

#[cfg(not(target_os = "linux"))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use crate::id::Incarnation;
use crate::time::Instant;

/// The clock's first reading.
#[cfg(not(target_os = "linux"))]
static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
static LAST_INCARNATION: AtomicU32 = AtomicU32::new(0);

/// The clock that all fabrics of this process share. On Linux it is the machine's monotonic clock, so that all
/// processes of the host share it. Elsewhere it starts at its first reading.
pub(crate) struct Clock;

impl Clock {
    /// Takes half the time of the standard library's clock, which handles errors as well.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn now() -> Instant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // Neither part is ever negative, and the sum holds 584 years.
        let nanos = (now.tv_sec as u64).wrapping_mul(1_000_000_000);
        Instant::from_nanos(nanos.wrapping_add(now.tv_nsec as u64))
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::disallowed_methods, reason = "a live fabric runs on the machine's clock")]
    pub(crate) fn now() -> Instant {
        let now = std::time::Instant::now();
        let origin = ORIGIN.get_or_init(|| now);
        Instant::from_nanos(crate::time::nanos(now.saturating_duration_since(*origin)))
    }

    /// Returns the time of day since 1970.
    #[expect(clippy::disallowed_methods, reason = "kernel timestamps and incarnations use it")]
    fn wall() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    /// Reads both clocks, to convert the kernel's timestamps of datagrams to instants. Called once a batch.
    pub(crate) fn stamps() -> Stamps {
        Stamps { now: Self::now(), wall: Self::wall() }
    }

    /// Reads the monotonic clock alone, for a batch without timestamps.
    pub(crate) fn stamps_of_none() -> Stamps {
        Stamps { now: Self::now(), wall: Duration::ZERO }
    }

    /// Returns an incarnation newer than those of earlier processes, and than all of this process so far.
    ///
    /// It is the time of day in units of 64 ms. It wraps after 8.7 years, so that two incarnations compare
    /// correctly for 4.3 years. Two processes that start within 64 ms may have the same one.
    pub(crate) fn incarnation() -> Incarnation {
        #[expect(clippy::cast_possible_truncation, reason = "wraps, as incarnations do")]
        let wall = Incarnation(((Self::wall().as_millis() / 64) as u32).max(1));
        let step = |last| {
            let last = Incarnation(last);
            Some(if wall.is_newer_than(last) { wall.0 } else { last.next().0 })
        };
        let last = LAST_INCARNATION.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        step(last.unwrap_or(0)).map_or(wall, Incarnation)
    }
}

/// A pair of readings of the two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    now: Instant,
    wall: Duration,
}

impl Stamps {
    /// Returns when the clocks were read.
    pub(crate) const fn now(self) -> Instant {
        self.now
    }

    /// Returns when the kernel received a datagram with timestamp `stamp`; the time of reading if there is
    /// none.
    pub(crate) fn arrival(self, stamp: Option<Duration>) -> Instant {
        match stamp {
            Some(stamp) => self.now - self.wall.saturating_sub(stamp),
            None => self.now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incarnation_is_newer_than_the_one_before() {
        let mut last = Incarnation::UNKNOWN;
        for _ in 0..100 {
            let next = Clock::incarnation();
            assert!(next.is_newer_than(last), "{next:?} after {last:?}");
            last = next;
        }
    }

    #[test]
    fn a_stamp_from_the_past_is_an_instant_before_now() {
        let stamps =
            Stamps { now: Instant::from_nanos(5_000), wall: Duration::from_nanos(1_000_000) };
        assert_eq!(stamps.arrival(Some(Duration::from_nanos(999_000))).as_nanos(), 4_000);
        assert_eq!(stamps.arrival(Some(Duration::from_nanos(1_000_001))).as_nanos(), 5_000);
        assert_eq!(stamps.arrival(Some(Duration::ZERO)), Instant::ZERO);
        assert_eq!(stamps.arrival(None).as_nanos(), 5_000);
    }
}
