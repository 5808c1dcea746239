//! Reads the machine's monotonic clock.

use midplane_simhw::time::Instant;

/// Returns the time since this machine started.
#[must_use]
pub fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither field is ever negative, and a `u64` holds 584 years of nanoseconds.
    Instant::from_nanos((now.tv_sec as u64).wrapping_mul(1_000_000_000) + now.tv_nsec as u64)
}
