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

/// Time between two polls of a provider that has no descriptor to wait for, or that sends again what it lost only
/// while it is polled. tokio's timers have this resolution.
const SHORT: Duration = Duration::from_millis(1);
/// The same, of a provider with a descriptor while nothing is outstanding.
const LONG: Duration = Duration::from_millis(50);
/// Polls without a completion after which a descriptor that stays readable is believed no longer.
const VAIN: u32 = 64;

/// Parks the task of an endpoint.
pub(crate) struct Waiter {
    descriptor: Option<AsyncFd<OwnedFd>>,
    sleep: Pin<Box<Sleep>>,
    spin: Duration,
    /// When the last completion came.
    active_at: Instant,
    /// Polls without a completion since then, though the provider had us poll.
    vain: u32,
}

impl Waiter {
    /// Creates a waiter that busy-polls for `spin` after each completion.
    pub(crate) fn new(descriptor: Option<OwnedFd>, spin: Duration) -> io::Result<Self> {
        #[allow(deprecated, reason = "an OwnedFd stays open; the replacement is unsafe")]
        let watch = |fd| AsyncFd::with_interest(fd, Interest::READABLE);
        let descriptor = descriptor.map(watch).transpose()?;
        let sleep = Box::pin(tokio::time::sleep(LONG));
        Ok(Self { descriptor, sleep, spin, active_at: Instant::now(), vain: 0 })
    }

    /// Returns whether the provider has a descriptor to wait for.
    pub(crate) const fn has_descriptor(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Notes that a completion was found.
    pub(crate) fn on_completion(&mut self) {
        self.active_at = Instant::now();
        self.vain = 0;
    }

    /// Has the task woken when the next poll is worthwhile. `may_wait` asks the provider whether its descriptor may be
    /// awaited; `is_urgent` says that something is outstanding that only polls bring forward.
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
            Some(_) if self.vain >= VAIN => period = SHORT,
            Some(descriptor) => {
                if !may_wait() || is_ready(descriptor, context) {
                    self.vain += 1;
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

/// Returns whether a descriptor is readable; if not, has the task woken once it is.
fn is_ready(descriptor: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> bool {
    match descriptor.poll_read_ready(context) {
        Poll::Ready(Ok(mut guard)) => {
            guard.clear_ready();
            true
        }
        // The runtime shuts down.
        Poll::Ready(Err(_)) => false,
        // The runtime reports changes only: a descriptor that was readable before, and still is, has none.
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
