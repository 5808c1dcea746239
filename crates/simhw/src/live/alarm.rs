//! An alarm of the system's finest resolution; it never fires early.
//!
//! tokio's timers have a resolution of 1 ms, but frames of 1 KB at 100 Mb/s are 80 us apart. Linux has timerfd,
//! exact to some 10 us on an idle core. Elsewhere an alarm is tokio's.

use std::io;
use std::task::{Context, Poll, ready};

use super::clock::Clock;
use crate::time::Instant;

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::{Context, Poll, io, ready};

    #[derive(Debug)]
    pub(super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            // Some supported versions of tokio deprecate it.
            #[allow(deprecated, reason = "an OwnedFd stays open; the replacement is unsafe")]
            let timer = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Self(timer))
        }

        pub(super) fn arm(&self, nanos: u64) -> io::Result<()> {
            const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
            #[expect(clippy::cast_possible_wrap, reason = "both are far below the signed maximum")]
            let value = Timespec {
                tv_sec: (nanos / 1_000_000_000) as _,
                // All zero would disarm it.
                tv_nsec: (nanos.max(1) % 1_000_000_000) as _,
            };
            let spec = Itimerspec { it_interval: ZERO, it_value: value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
            Ok(())
        }

        /// Ready once the timer has expired, now or before it was last armed.
        pub(super) fn poll_expired(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The count of expirations is not read: arming the timer again clears it.
            ready!(self.0.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::pin::Pin;
    use std::time::Duration;

    use tokio::time::{Sleep, sleep};

    use super::{Context, Poll, io};

    #[derive(Debug)]
    pub(super) struct Timer(Pin<Box<Sleep>>);

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(Box::pin(sleep(Duration::MAX))))
        }

        pub(super) fn arm(&mut self, nanos: u64) -> io::Result<()> {
            self.0.set(sleep(Duration::from_nanos(nanos)));
            Ok(())
        }

        pub(super) fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.as_mut().poll(context).map(Ok)
        }
    }
}

/// An alarm of one task.
#[derive(Debug)]
#[doc(hidden)]
pub struct Alarm {
    timer: system::Timer,
    /// The instant for which the timer is armed.
    armed: Option<Instant>,
}

impl Alarm {
    /// Creates an alarm on the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O or its timers are not enabled.
    ///
    /// # Errors
    /// The system's error: the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { timer: system::Timer::new()?, armed: None })
    }

    /// Ready once `nanos` nanoseconds have passed. An error of the system counts as ready.
    pub fn poll_after(&mut self, context: &mut Context<'_>, nanos: u64) -> Poll<()> {
        self.poll(context, Clock::now().plus_nanos(nanos))
    }

    /// Ready at `at`. An error of the system counts as ready: the caller reads the clock in any case.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, at: Instant) -> Poll<()> {
        if at == Instant::FAR_FUTURE {
            return Poll::Pending;
        }
        loop {
            // Arming the timer costs more than an occasional early wake-up. A timer that is armed for an
            // earlier instant therefore stays, and is armed anew when it expires.
            if self.armed.is_none_or(|armed| armed > at) {
                let left = at.nanos_since(Clock::now());
                if left == 0 || self.timer.arm(left).is_err() {
                    return Poll::Ready(());
                }
                self.armed = Some(at);
            }
            let expired = ready!(self.timer.poll_expired(context));
            self.armed = None;
            if expired.is_err() {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn an_alarm_is_never_early_and_may_be_set_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::new().unwrap();
            let mut rng = Rng::new(1, "alarm");
            for _ in 0..50 {
                let far = Clock::now().plus_nanos(1_000_000_000_000);
                poll_fn(|context| {
                    assert!(alarm.poll(context, far).is_pending());
                    Poll::Ready(())
                })
                .await;
                let at = Clock::now().plus_nanos(rng.below(500_000));
                poll_fn(|context| alarm.poll(context, at)).await;
                assert!(Clock::now() >= at);
            }
        });
    }
}
