//! The driver's part that gives the processor away: to tasks of this process, and to peers.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::active::PATIENCE;
use super::{Driver, Found, Polls};

/// If yielding the processor takes the driver longer than `LONG_YIELD` twice within `SOON`, it parks instead of yielding for
/// `NO_YIELD_FOR`. Other tasks may keep the processor for as long as they like, and a parked process is woken sooner.
const LONG_YIELD: Duration = Duration::from_millis(1);
const NO_YIELD_FOR: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_millis(20);

impl Driver {
    /// Lets all ready tasks run.
    pub(super) async fn yield_to_tasks(&mut self, found: Found) {
        self.idle_turns =
            if found == Found::Something { 0 } else { self.idle_turns.wrapping_add(1) };
        // The runtime polls the future of `block_on`, often a program's only task, once no other task is ready. Spawned tasks
        // answer within `PATIENCE` turns.
        if !self.is_current_thread || self.polls == Polls::Now || self.idle_turns == PATIENCE {
            return tokio::task::yield_now().await;
        }
        // Queues this task last, without asking the system for events first.
        let mut has_yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Yields the processor to a peer that waits for it: then neither side needs a wake-up.
    pub(super) fn let_peer_run(&mut self) {
        let start = Instant::now();
        rustix::thread::sched_yield();
        let end = Instant::now();
        // A single one proves little: any other process may have had the processor meanwhile.
        if end > start + LONG_YIELD {
            let last = self.long_yield.replace(end);
            if last.is_some_and(|last| start < last + SOON) {
                self.no_yield_until = Some(end + NO_YIELD_FOR);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::session::Sessions;

    /// Regression: the runtime polled that future after every 61st turn of the driver. A loop of requests in `main` took
    /// up to 18 times as long.
    #[test]
    fn the_future_of_block_on_runs_soon_although_the_driver_polls() {
        const YIELDS: u32 = 100;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_sessions, mut driver) = Sessions::new(None, None).unwrap();
            let turns = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&turns);
            let driving = tokio::spawn(async move {
                loop {
                    let number = counted.fetch_add(1, Ordering::Relaxed);
                    let has_frame = number.is_multiple_of(2 * PATIENCE);
                    let found = if has_frame { Found::Something } else { Found::AnswerExpected };
                    driver.yield_to_tasks(found).await;
                }
            });
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            driving.abort();
            let turns = turns.load(Ordering::Relaxed);
            assert!(turns <= 2 * PATIENCE * (YIELDS + 1), "{turns} turns");
        });
    }
}
