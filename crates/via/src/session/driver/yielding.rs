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
        // answer within `PATIENCE` turns; but a reader of a long frame has 50 us.
        let lets_main_run = self.idle_turns == PATIENCE || self.lets_read;
        if !self.is_current_thread || self.polls == Polls::Now || lets_main_run {
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
    use std::io::IoSlice;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Waker};

    use tokio::io::{AsyncRead as _, ReadBuf};

    use super::*;
    use crate::session::core::Core;
    use crate::session::line::Line;
    use crate::session::piped::Piped;
    use crate::session::tests::drivers::Recorder;
    use crate::session::tests::take_outgoing;
    use crate::session::wire::Wire;
    use crate::session::{Session, Sessions, TransportKind};

    /// Moves all bytes from one end of a connection to the other.
    fn carry(from: &Line, to: &Line) {
        to.buffers().incoming.write(&take_outgoing(from));
    }

    /// Regression: a driver was busy with a long frame that it had left to its reader. So the future of `block_on`, if that
    /// was the reader, was polled after 61 polls of the driver.
    #[test]
    fn a_driver_lets_the_reader_run_that_has_not_taken_a_long_frame() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let [here, there] = [(); 2].map(|()| Arc::new(Line::default()));
            let mut peer = Core::new(Wire::Piped(Piped::over_line(Arc::clone(&there))), true);
            let (_sessions, mut driver) = Sessions::new(None, None).unwrap();
            let wire = Wire::Piped(Piped::over_line(Arc::clone(&here)));
            let transport = TransportKind::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
            let session = Session::new(Arc::clone(&driver.shared), 1, (wire, transport), false);
            let mut handler = Recorder::default();
            session.send_hello(Vec::new());
            let opened = peer.open("service").unwrap();
            peer.flush();
            carry(&there, &here);
            driver.turn(&mut handler);
            let mut stream = handler.1.lock().unwrap().pop().unwrap();
            driver.turn(&mut handler);
            carry(&here, &there);
            peer.pump(None);
            let mut bytes = [0; 20_000];
            let mut into = ReadBuf::new(&mut bytes);
            let mut reader = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut stream).poll_read(&mut reader, &mut into).is_pending());
            assert_eq!(peer.write(opened, &[IoSlice::new(&[7; 20_000])], Waker::noop()), 20_000);
            peer.flush();
            carry(&there, &here);
            session.with(|core| core.is_dirty = true);
            assert_eq!(driver.turn(&mut handler), Found::Something, "the reader was woken");
            let handled = session.lock().handled;
            let found = driver.turn(&mut handler);
            // After 50 us the driver takes the frame itself.
            if session.lock().handled == handled {
                assert_eq!((found, driver.lets_read), (Found::Something, true));
            }
            assert!(Pin::new(&mut stream).poll_read(&mut reader, &mut into).is_ready());
            assert_eq!(into.filled(), [7; 20_000]);
        });
    }

    /// Regression: the runtime polled that future after every 61st turn of the driver. A loop of requests in `main` took
    /// up to 18 times as long.
    #[test]
    fn the_future_of_block_on_runs_soon_although_the_driver_polls() {
        const YIELDS: u32 = 100;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let turns_of = async |lets_read| {
            let (_sessions, mut driver) = Sessions::new(None, None).unwrap();
            let turns = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&turns);
            let driving = tokio::spawn(async move {
                loop {
                    let number = counted.fetch_add(1, Ordering::Relaxed);
                    driver.lets_read = lets_read;
                    let has_frame = lets_read || number.is_multiple_of(2 * PATIENCE);
                    let found = if has_frame { Found::Something } else { Found::AnswerExpected };
                    driver.yield_to_tasks(found).await;
                }
            });
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            driving.abort();
            turns.load(Ordering::Relaxed)
        };
        runtime.block_on(async {
            for (lets_read, most) in [(false, 2 * PATIENCE), (true, 1)] {
                let turns = turns_of(lets_read).await;
                assert!(turns <= most * (YIELDS + 1), "{turns} turns");
            }
        });
    }
}
