//! Timers that fire at their nanosecond.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::VirtualHost;
use crate::time::Instant;

/// Waits for an instant of the host's clock, to the nanosecond.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Alarm {
    host: VirtualHost,
    at: Instant,
    number: Option<u64>,
}

impl VirtualHost {
    /// Waits until `at` of the host's clock.
    ///
    /// # Cancel safety
    /// Dropping the future removes the timer.
    pub const fn alarm(self, at: Instant) -> Alarm {
        Alarm { host: self, at, number: None }
    }
}

impl Alarm {
    /// Moves the alarm to `at`.
    pub fn reset(&mut self, at: Instant) {
        self.remove();
        self.at = at;
    }

    fn remove(&mut self) {
        if let Some(number) = self.number.take() {
            let waker = self.host.0.state().remove_timer(self.at, number);
            drop(waker);
        }
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.host.now() >= self.at {
            self.remove();
            return Poll::Ready(());
        }
        let (number, replaced) =
            self.host.0.state().set_timer(self.at, self.number, context.waker());
        drop(replaced);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.remove();
    }
}
