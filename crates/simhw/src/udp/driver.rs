//! Runs a NIC: on a task, which datagrams, doorbells and alarms wake. If it is a task of the application's
//! runtime, applications run the NIC as well: they handle their own doorbells, so that no task switch lies
//! between them and the system.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Poll;

use super::adaptive_spin::AdaptiveSpin;
use super::alarm::Alarm;
use super::batch::Socket;
use super::clock::Clock;
use super::engine::Engine;
use super::nic::Nic;
use super::shared::{Ending, Shared};
use super::watched::Watched;
use crate::deferred::Held;
use crate::hardware::Firmware;
use crate::time::Instant;

/// Longest time in nanoseconds that an ending NIC waits for the system to accept its last frames.
const FLUSH_NANOS: u64 = 1_000_000_000;
/// Failed polls after which an application that polls for completions gives the NIC turns; each turn is a
/// system call.
const FAILED_POLLS: u32 = 8;

/// A NIC that applications run.
pub(super) trait Inline: Send + Sync {
    /// Handles rung doorbells. Returns `false` if another thread runs the NIC, which the caller must then wake.
    fn ring(&self) -> bool;

    /// Called when an application polls and finds no completion.
    fn progress(&self);

    /// Called after an application's last poll, before it parks.
    fn rest(&self);
}

/// A NIC that its driver and applications run. The engine is `None` once the NIC has stopped.
struct Core<F> {
    engine: Mutex<Option<Engine<F>>>,
    shared: Arc<Shared>,
    /// When the driver wakes by itself, in nanoseconds.
    wakes: AtomicU64,
    /// True if the driver must check the engine again.
    is_called: AtomicBool,
    /// Failed polls since an application last parked.
    vain: AtomicU32,
}

/// The driver's next step.
enum Next {
    /// Take another turn.
    Again,
    /// Take another turn: busy-polling has found datagrams.
    Found,
    /// Wait for work, or until this instant.
    Wait(Instant),
    /// Wait without new work, because the NIC ends.
    Linger(Instant),
    /// Send what is left, and end.
    Flush,
    /// End at once.
    End,
}

impl<F: Firmware> Core<F> {
    /// Locks the engine. Wakers that become due meanwhile run after the lock is released. An engine whose
    /// firmware has panicked is dropped, and its ports close.
    fn engine(&self) -> Held<'_, Option<Engine<F>>> {
        Held::new(|| self.engine.lock().unwrap_or_else(discard_engine))
    }

    /// Locks the engine, unless another thread has it.
    fn free_engine(&self) -> Option<Held<'_, Option<Engine<F>>>> {
        Held::try_new(|| match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(discard_engine(poisoned)),
        })
    }

    /// Gives the NIC a turn; if `polls` is true, it asks the system for datagrams by itself.
    fn turn(&self, polls: bool) -> Next {
        let mut guard = self.engine();
        let Some(engine) = &mut *guard else { return Next::End };
        match engine.turn(polls) {
            Ending::Running => {}
            Ending::Flush => return engine.lingers().map_or(Next::Flush, Next::Linger),
            Ending::Now => return Next::End,
        }
        engine.report();
        if engine.has_more() {
            return Next::Again;
        }
        if polls && engine.has_received() {
            return Next::Found;
        }
        let until = engine.next_due();
        self.wakes.store(until.as_nanos(), Ordering::Relaxed);
        Next::Wait(until)
    }

    /// Wakes the driver for what is left after an application has run the engine.
    fn leave(&self, engine: &Engine<F>) {
        let is_early = || engine.next_due().as_nanos() < self.wakes.load(Ordering::Relaxed);
        if engine.has_more() || is_early() {
            self.is_called.store(true, Ordering::Relaxed);
            self.shared.wake();
        }
    }
}

impl<F: Firmware + Send> Inline for Core<F> {
    fn ring(&self) -> bool {
        let Some(mut guard) = self.free_engine() else { return false };
        let Some(engine) = &mut *guard else { return true };
        engine.answer_bells();
        self.leave(engine);
        true
    }

    fn progress(&self) {
        if self.vain.fetch_add(1, Ordering::Relaxed) < FAILED_POLLS {
            return;
        }
        let Some(mut guard) = self.free_engine() else { return };
        let Some(engine) = &mut *guard else { return };
        // Only the driver ends the NIC.
        engine.turn(true);
        self.leave(engine);
    }

    fn rest(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }
}

/// Drops an engine whose firmware has panicked, so that its ports close.
fn discard_engine<F>(
    poisoned: PoisonError<MutexGuard<'_, Option<Engine<F>>>>,
) -> MutexGuard<'_, Option<Engine<F>>> {
    let mut engine = poisoned.into_inner();
    *engine = None;
    engine
}

/// The task of a NIC.
pub(super) struct Driver<F: Firmware> {
    core: Arc<Core<F>>,
    io: Arc<Watched>,
    alarm: Alarm,
    /// Longest time of busy-polling before it parks, in nanoseconds.
    spin: u32,
    spin_state: AdaptiveSpin,
}

impl<F: Firmware + Send + 'static> Driver<F> {
    /// Creates a driver on the current runtime.
    pub(super) fn new(
        nic: impl FnOnce(Socket) -> Nic,
        socket: std::net::UdpSocket,
        firmware: F,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        let (socket, alarm) = (Socket::new(socket)?, Alarm::new()?);
        let io = socket.watched();
        let engine = Engine::new(nic(socket), firmware, Arc::clone(&shared));
        let core = Core {
            engine: Mutex::new(Some(engine)),
            shared,
            wakes: AtomicU64::new(0),
            is_called: AtomicBool::new(false),
            vain: AtomicU32::new(0),
        };
        Ok(Self { core: Arc::new(core), io, alarm, spin: 0, spin_state: AdaptiveSpin::default() })
    }

    /// Lets applications run the NIC where they ring, and sets how many nanoseconds the driver busy-polls
    /// before it parks.
    pub(super) fn serve_inline(&mut self, spin: u32) {
        self.spin = spin;
        let core: Arc<dyn Inline> = Arc::clone(&self.core) as _;
        self.core.shared.set_inline(Arc::downgrade(&core));
    }

    /// Runs until the shared state requests the end.
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
                Next::Linger(until) => self.linger(until).await,
                Next::Flush => break,
                Next::End => return,
            }
        }
        self.flush().await;
    }

    /// Busy-polls for an adaptive time if there is no work; the runtime's other tasks get turns between two
    /// polls. Then parks. Returns when the next busy-poll ends.
    async fn spin_or_wait(
        &mut self,
        polls_until: Option<Instant>,
        until: Instant,
    ) -> Option<Instant> {
        match polls_until {
            Some(ends) if Clock::now() < ends => {
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
            if core.shared.is_waiting(context.waker())
                || core.is_called.swap(false, Ordering::Relaxed)
                || io.poll_readable(context).is_ready()
            {
                return Poll::Ready(());
            }
            alarm.poll(context, until)
        })
        .await;
    }

    /// Waits while the NIC ends and frames wait for keys or answers, for no longer than handshakes last.
    async fn linger(&mut self, until: Instant) {
        let Self { io, alarm, .. } = self;
        poll_fn(|context| match io.poll_readable(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => alarm.poll(context, until),
        })
        .await;
    }

    /// Sends what is staged, for at most 1 s past the line's own time.
    async fn flush(&mut self) {
        let mut last = Clock::now().plus_nanos(FLUSH_NANOS);
        loop {
            let due = self.core.engine().as_mut().and_then(Engine::flush);
            let Some(due) = due else { return };
            let now = Clock::now();
            if due > now {
                last = due.plus_nanos(FLUSH_NANOS);
            } else if now > last {
                return;
            }
            poll_fn(|context| self.alarm.poll(context, due)).await;
        }
    }
}

impl<F: Firmware> Drop for Driver<F> {
    fn drop(&mut self) {
        *self.core.engine() = None;
    }
}
