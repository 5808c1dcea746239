//! Sleeps that are exact to the nanosecond on a simulated host, where tokio's own end at whole milliseconds.
//!
//! Elsewhere these are tokio's. They need no feature: a service can use them in production and in tests.

use std::future::Future;
use std::time::Duration;

#[cfg(feature = "sim")]
use midplane_simhw::services::VirtualHost;
use thiserror::Error;
pub use tokio::time::Instant;

/// The error of a future that was not ready in time.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the time is over")]
pub struct Elapsed;

/// Waits for this time: exact to the nanosecond on a simulated host, with tokio's milliseconds elsewhere.
///
/// # Cancel safety
/// If the future is dropped, no task is woken.
pub async fn sleep(time: Duration) {
    #[cfg(feature = "sim")]
    if let Some(host) = VirtualHost::current() {
        let at = host.now() + time;
        return host.alarm(at).await;
    }
    tokio::time::sleep(time).await;
}

/// Waits for a future for at most this time, as exactly as [`sleep`].
///
/// # Errors
/// [`Elapsed`] if the time expires before the future is ready.
///
/// # Cancel safety
/// That of the future.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = sleep(time) => Err(Elapsed),
    }
}

/// Returns an interval whose first tick is immediate, as exact as [`sleep`]. A late tick does not delay the next one.
///
/// # Panics
/// If the period is zero.
#[must_use]
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval has a period");
    Interval { next: Instant::now(), period }
}

/// Ticks in a fixed period.
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick; returns the time for which it was set.
    ///
    /// # Cancel safety
    /// If the future is dropped, no tick was taken.
    pub async fn tick(&mut self) -> Instant {
        let now = Instant::now();
        if self.next > now {
            sleep(self.next - now).await;
        }
        let tick = self.next;
        self.next = tick + self.period;
        tick
    }
}
