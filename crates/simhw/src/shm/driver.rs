//! The task that runs a NIC when no application does. Frames, alarms, and peers that connect or disconnect wake it.

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

/// Nanoseconds between the driver's checks that an application still polls the NIC.
const TICK_NANOS: u64 = 5_000_000;

/// The events that the driver waits for.
pub(super) struct Driver {
    wakes: AsyncFd<Arc<Wakes>>,
    alarm: Alarm,
}

impl Driver {
    /// Creates a driver on the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O is not enabled.
    pub(super) fn new(wakes: Arc<Wakes>) -> io::Result<Self> {
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(wakes, Interest::READABLE)?;
        Ok(Self { wakes, alarm: Alarm::new()? })
    }

    /// Runs until the core ends.
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

    /// Ready at a wake-up, or at `until`.
    fn poll(&mut self, context: &mut Context<'_>, until: Instant) -> Poll<()> {
        match self.wakes.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                // In this order: a wake-up that comes after `take` makes the descriptor ready again.
                ready.clear_ready();
                self.wakes.get_ref().take();
                return Poll::Ready(());
            }
            // The runtime shuts down; only the alarm is left.
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        self.alarm.poll(context, until)
    }
}
