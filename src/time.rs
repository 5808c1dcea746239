//! Sleeps that are exact to the nanosecond on a simulated host, where tokio's own end at whole milliseconds.
//!
//! Elsewhere these are tokio's. They need no feature: a service can use them in production and in tests.

use std::future::{Future, pending};
use std::time::Duration;

#[cfg(feature = "sim")]
use midplane_simhw::services::{Alarm, VirtualHost};
use thiserror::Error;
pub use tokio::time::Instant;

/// The error of a future that was not ready in time.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the time is over")]
pub struct Elapsed;

/// Waits for this time from the call on: exact to the nanosecond on a simulated host, with tokio's milliseconds elsewhere.
/// The future belongs to the host on which it was made.
///
/// # Cancel safety
/// If the future is dropped, no task is woken.
pub fn sleep(time: Duration) -> impl Future<Output = ()> {
    let alarm = alarm(time);
    let until = alarm.is_none().then(|| Instant::now().checked_add(time)).flatten();
    async move {
        match (alarm, until) {
            (Some(alarm), _) => alarm.await,
            (None, Some(until)) => tokio::time::sleep_until(until).await,
            (None, None) => pending().await,
        }
    }
}

/// Waits for a future for at most this time from the call on, as exactly as [`sleep`], and on the same host.
///
/// # Errors
/// [`Elapsed`] if the time expires before the future is ready.
///
/// # Cancel safety
/// That of the future.
pub fn timeout<F: Future>(
    time: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    let alarm = alarm(time);
    let until = alarm.is_none().then(|| Instant::now().checked_add(time)).flatten();
    async move {
        match (alarm, until) {
            (Some(alarm), _) => tokio::select! {
                biased;
                output = future => Ok(output),
                () = alarm => Err(Elapsed),
            },
            // `select!` would never poll a timer behind a future that uses up the task's budget.
            (None, Some(until)) => {
                tokio::time::timeout_at(until, future).await.map_err(|_| Elapsed)
            }
            (None, None) => Ok(future.await),
        }
    }
}

/// Returns an alarm of the simulated host; `None` elsewhere.
#[cfg(feature = "sim")]
fn alarm(time: Duration) -> Option<Alarm> {
    let host = VirtualHost::current()?;
    let at = host.now() + time;
    Some(host.alarm(at))
}

/// Returns no alarm: no host is simulated.
#[cfg(not(feature = "sim"))]
const fn alarm(_: Duration) -> Option<std::future::Pending<()>> {
    None
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
        } else {
            // Ticks that are late in a row let other tasks run.
            tokio::task::coop::consume_budget().await;
        }
        let tick = self.next;
        self.next = tick + self.period;
        tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn always_ready() {
        loop {
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Regression: such a future used up the budget of its task, without which the timer was not polled.
    #[tokio::test]
    async fn a_future_that_is_always_ready_times_out() {
        let timed = timeout(Duration::from_millis(1), always_ready());
        assert_eq!(tokio::time::timeout(5 * SECOND, timed).await, Ok(Err(Elapsed)));
    }

    /// Waits for a sleep and a timeout of 1 s each that are first polled half a second later; returns the time of both.
    #[cfg(feature = "sim")]
    async fn polled_late() -> Duration {
        let start = Instant::now();
        let (slept, timed) = (sleep(SECOND), timeout(SECOND, pending::<()>()));
        sleep(SECOND / 2).await;
        slept.await;
        assert_eq!(timed.await, Err(Elapsed));
        start.elapsed()
    }

    /// Regression: the time began with the first poll.
    #[cfg(feature = "sim")]
    #[tokio::test(start_paused = true)]
    async fn a_sleep_counts_from_its_call() {
        assert!(polled_late().await < SECOND + Duration::from_millis(5));
    }

    /// Regression: the time began with the first poll.
    #[cfg(feature = "sim")]
    #[test]
    fn a_sleep_counts_from_its_call_on_a_simulated_host() {
        let mut sim = crate::Sim::builder().build();
        sim.client(|_| async {
            assert_eq!(polled_late().await, SECOND);
            Ok(())
        });
        sim.run().unwrap();
    }

    /// Regression: an interval that was late by many ticks kept its thread until it had taken all of them.
    #[tokio::test]
    async fn a_late_interval_lets_other_tasks_run() {
        let other = tokio::spawn(async {});
        let mut interval = interval(Duration::from_nanos(1));
        for _ in 0..1_000 {
            interval.tick().await;
        }
        assert!(other.is_finished());
    }
}
