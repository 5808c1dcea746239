//! The machine's clock.

use midplane_simhw::time::Instant;

/// Now, since this machine has started.
#[must_use]
pub fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is ever negative, and the sum holds 584 years.
    Instant::from_nanos((now.tv_sec as u64).wrapping_mul(1_000_000_000) + now.tv_nsec as u64)
}
