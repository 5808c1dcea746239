//! The task that runs a NIC when no application does: woken by peers, by alarms, by news.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::core::{Core, Next};
use crate::hardware::Firmware;
use crate::live::alarm::Alarm;
use crate::live::clock::Clock;
use crate::time::Instant;
use crate::wakes::Wakes;

/// How often it looks whether an application that looked after the NIC still does.
const TICK_NANOS: u64 = 5_000_000;

/// What the driver waits on.
pub(super) struct Driver {
    wakes: AsyncFd<Arc<Wakes>>,
    alarm: Alarm,
}

impl Driver {
    /// A driver on the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O is not enabled.
    pub(super) fn new(wakes: Arc<Wakes>) -> io::Result<Self> {
        // Not all versions of tokio that will do deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(wakes, Interest::READABLE)?;
        Ok(Self { wakes, alarm: Alarm::new()? })
    }

    /// Runs until the core says to end.
    pub(super) async fn run<F: Firmware>(mut self, core: Arc<Core<F>>) {
        let mut visits = 0;
        loop {
            match core.drive(&mut visits, Clock::now(), TICK_NANOS) {
                Next::Again => tokio::task::yield_now().await,
                Next::Wait(until) => poll_fn(|context| self.poll(context, until)).await,
                Next::End => return,
            }
        }
    }

    /// Ready at a wake-up, or `until`.
    fn poll(&mut self, context: &mut Context<'_>, until: Instant) -> Poll<()> {
        match self.wakes.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                // In this order: what comes after the last was taken is told anew.
                ready.clear_ready();
                self.wakes.get_ref().take();
                return Poll::Ready(());
            }
            // The runtime shuts down; nothing wakes this task any more.
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        self.alarm.poll(context, until)
    }
}
