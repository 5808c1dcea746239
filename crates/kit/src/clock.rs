//! Reads the clocks of this machine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the time, for measurements and time limits of real processes.
#[expect(clippy::disallowed_methods, reason = "programs measure the machine")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time since 1970.
#[expect(clippy::disallowed_methods, reason = "the one clock that processes of one host share")]
pub fn time_of_day() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
