//! Runs a NIC on a task, which datagrams, doorbells and alarms wake. If the task is on the application's runtime,
//! applications run the NIC as well. They handle their own doorbells, so that no task switch lies between them and the
//! system.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::adaptive_spin::AdaptiveSpin;
use super::alarm::Alarm;
use super::clock::Clock;
use super::core::{Core, Next};
use super::engine::Engine;
use super::watched::Watched;
use crate::hardware::Firmware;
use crate::time::Instant;

/// Longest time in nanoseconds that an ending NIC waits for the system to accept its next frame.
const FLUSH_NANOS: u64 = 1_000_000_000;

/// The task of a NIC.
pub(super) struct Driver<F: Firmware> {
    core: Arc<Core<F>>,
    io: Arc<Watched>,
    alarm: Alarm,
    /// Longest time in nanoseconds for which the driver busy-polls before it parks.
    spin: u32,
    spin_state: AdaptiveSpin,
}

impl<F: Firmware + Send + 'static> Driver<F> {
    /// Creates a driver on the current runtime, which busy-polls for at most `spin` nanoseconds before it parks.
    pub(super) fn new(core: Arc<Core<F>>, io: Arc<Watched>, spin: u32) -> std::io::Result<Self> {
        Ok(Self { core, io, alarm: Alarm::new()?, spin, spin_state: AdaptiveSpin::default() })
    }

    /// Runs until the NIC must end.
    pub(super) async fn run(mut self) {
        // The end of the current busy-poll, if there is one.
        let mut polls_until = None;
        loop {
            match self.core.turn(polls_until.is_some()) {
                Next::Again => tokio::task::yield_now().await,
                Next::Found => {
                    self.spin_state.on_end(true);
                    polls_until = Some(self.spin_state.until(self.spin));
                    tokio::task::yield_now().await;
                }
                Next::Wait(until) => polls_until = self.spin_or_wait(polls_until, until).await,
                Next::Linger(until) => {
                    // Only a turn that does not poll lets the runtime report the next datagram.
                    polls_until = None;
                    self.linger(until).await;
                }
                Next::Flush => break,
                Next::End => return,
            }
        }
        self.flush().await;
    }

    /// Busy-polls for an adaptive time if there is no work, then parks. The runtime's other tasks get turns between two
    /// polls. Returns when the next busy-poll ends.
    async fn spin_or_wait(
        &mut self,
        polls_until: Option<Instant>,
        until: Instant,
    ) -> Option<Instant> {
        match polls_until {
            Some(ends) if Clock::now() < ends => {
                // The peer may need this processor to answer.
                std::thread::yield_now();
                tokio::task::yield_now().await;
                polls_until
            }
            Some(_) => {
                self.spin_state.on_end(false);
                self.wait(until).await;
                None
            }
            None if self.spin > 0 => Some(self.spin_state.until(self.spin)),
            None => {
                self.wait(until).await;
                None
            }
        }
    }

    async fn wait(&mut self, until: Instant) {
        let Self { core, io, alarm, .. } = self;
        poll_fn(|context| {
            if core.is_waiting(context.waker()) || io.poll_readable(context).is_ready() {
                return Poll::Ready(());
            }
            alarm.poll(context, until)
        })
        .await;
    }

    /// Waits while the NIC ends and frames wait for keys or answers, for no longer than handshakes last.
    async fn linger(&mut self, until: Instant) {
        let Self { core, io, alarm, .. } = self;
        poll_fn(|context| {
            if core.ends_now(context.waker()) || io.poll_readable(context).is_ready() {
                return Poll::Ready(());
            }
            alarm.poll(context, until)
        })
        .await;
    }

    /// Sends what is staged, until the system has not accepted the next frame for 1 s. Returns early if the NIC must end
    /// at once.
    async fn flush(&mut self) {
        let Self { core, alarm, .. } = self;
        let mut limit = None;
        loop {
            let left = core.engine().as_mut().and_then(Engine::flush);
            let again = left.and_then(|left| next_try(Clock::now(), &mut limit, left));
            let Some(again) = again else { return };
            let ends_now = poll_fn(|context| {
                if core.ends_now(context.waker()) {
                    return Poll::Ready(true);
                }
                alarm.poll(context, again).map(|()| false)
            });
            if ends_now.await {
                return;
            }
        }
    }
}

/// Returns when a flush sends again, if frames are left that it can send at `again` and of which the first is due on
/// the line at `due`. Returns `None` if that frame has been the first for more than 1 s since it was due: the system
/// accepts none. `limit` keeps when the first frame is due, and until when the flush tries to send it.
fn next_try(
    now: Instant,
    limit: &mut Option<(Instant, Instant)>,
    (again, due): (Instant, Instant),
) -> Option<Instant> {
    let until = match *limit {
        Some((first_due, until)) if first_due == due => until,
        _ => now.max(due).plus_nanos(FLUSH_NANOS),
    };
    *limit = Some((due, until));
    (now <= until).then_some(again)
}

impl<F: Firmware> Drop for Driver<F> {
    fn drop(&mut self) {
        self.core.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::batch::RETRY_NANOS;

    #[test]
    fn a_flush_that_the_system_blocks_ends_after_a_second() {
        let begins = Instant::from_nanos(5_000_000_000);
        let mut limit = None;
        // A frame that waits for the line for longer than that still leaves.
        let due = begins.plus_nanos(3_000_000_000);
        assert_eq!(next_try(begins, &mut limit, (due, due)), Some(due));
        let mut now = due;
        while let Some(at) = next_try(now, &mut limit, (now.plus_nanos(RETRY_NANOS), due)) {
            assert!(now.nanos_since(due) <= FLUSH_NANOS, "it does not give up");
            now = at;
        }
        assert_eq!(now.nanos_since(due), FLUSH_NANOS + RETRY_NANOS);
    }

    /// Regression: the second counted from the beginning, so that frames were lost while the system accepted others.
    #[test]
    fn a_flush_continues_while_the_system_accepts_frames() {
        let begins = Instant::from_nanos(5_000_000_000);
        let mut limit = None;
        // All ten frames are due at the beginning. The system accepts one each 0.9 s.
        for frame in 0..10 {
            let due = begins.plus_nanos(frame);
            let first_since = begins.plus_nanos(frame * 900_000_000);
            for waited in [0, 450_000_000, 899_000_000] {
                let again = first_since.plus_nanos(waited + RETRY_NANOS);
                let next = next_try(first_since.plus_nanos(waited), &mut limit, (again, due));
                assert_eq!(next, Some(again), "it gives up at frame {frame}");
            }
        }
    }
}
