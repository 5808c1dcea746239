//! Waits for an endpoint's completions: busy-polls for a short time, then parks.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, Sleep};

/// Time between two polls of a provider without a descriptor, or of one that repeats lost frames only while it is
/// polled. tokio's timers have this resolution.
const SHORT: Duration = Duration::from_millis(1);
/// Time between two polls of a provider with a descriptor while nothing is outstanding.
const LONG: Duration = Duration::from_millis(50);
/// Polls without a completion after which a descriptor that stays readable is ignored.
const MAX_IDLE_POLLS: u32 = 64;

/// Parks the task of an endpoint.
pub(crate) struct Waiter {
    descriptor: Option<AsyncFd<OwnedFd>>,
    sleep: Pin<Box<Sleep>>,
    spin: Duration,
    /// When the last completion was found.
    active_at: Instant,
    /// Number of polls without a completion since then that the provider requested.
    idle_polls: u32,
}

impl Waiter {
    /// Creates a waiter that busy-polls for `spin` after each completion.
    pub(crate) fn new(descriptor: Option<OwnedFd>, spin: Duration) -> io::Result<Self> {
        #[allow(deprecated, reason = "an OwnedFd stays open; the replacement is unsafe")]
        let watch = |fd| AsyncFd::with_interest(fd, Interest::READABLE);
        let descriptor = descriptor.map(watch).transpose()?;
        let sleep = Box::pin(tokio::time::sleep(LONG));
        Ok(Self { descriptor, sleep, spin, active_at: Instant::now(), idle_polls: 0 })
    }

    /// Returns whether the provider has a descriptor to wait for.
    pub(crate) const fn has_descriptor(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Records that a completion was found.
    pub(crate) fn on_completion(&mut self) {
        self.active_at = Instant::now();
        self.idle_polls = 0;
    }

    /// Wakes the task when the next poll is worthwhile. `may_wait` asks the provider whether the task may wait for its
    /// descriptor. `is_urgent` is true if outstanding work progresses only by polls.
    pub(crate) fn park(
        &mut self,
        context: &mut Context<'_>,
        is_urgent: bool,
        may_wait: impl FnOnce() -> bool,
    ) {
        if self.active_at.elapsed() < self.spin {
            context.waker().wake_by_ref();
            return;
        }
        let mut period = if is_urgent { SHORT } else { LONG };
        match &self.descriptor {
            None => period = SHORT,
            Some(_) if self.idle_polls >= MAX_IDLE_POLLS => period = SHORT,
            Some(descriptor) => {
                if !may_wait() || is_ready(descriptor, context) {
                    self.idle_polls += 1;
                    context.waker().wake_by_ref();
                    return;
                }
            }
        }
        self.sleep.as_mut().reset(Instant::now() + period);
        if self.sleep.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }
}

/// Returns whether a descriptor is readable; if not, wakes the task when it is.
fn is_ready(descriptor: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> bool {
    match descriptor.poll_read_ready(context) {
        Poll::Ready(Ok(mut guard)) => {
            guard.clear_ready();
            true
        }
        // The runtime is shutting down.
        Poll::Ready(Err(_)) => false,
        // The runtime reports only changes: a descriptor that was readable before, and still is, has none.
        Poll::Pending => {
            let mut fds = [PollFd::new(descriptor.get_ref(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("has_descriptor", &self.has_descriptor()).finish()
    }
}
