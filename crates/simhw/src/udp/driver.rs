//! Who runs a NIC: a task, which is woken by datagrams, bells and alarms; and, where that is a task of
//! the application's runtime, applications themselves. What they ring for is carried out where they
//! are, so that no switch of tasks lies between them and the system.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Poll;

use super::alarm::Alarm;
use super::batch::Socket;
use super::clock::Clock;
use super::desk::{Desk, Ending};
use super::engine::Engine;
use super::looks::Looks;
use super::nic::Nic;
use super::watched::Watched;
use crate::deferred::Held;
use crate::hardware::Firmware;
use crate::time::Instant;

/// How long an ending NIC waits for the system to take its last frames.
const FLUSH_NANOS: u64 = 1_000_000_000;
/// Looks in vain after which who looks for completions gives the NIC its turns: each asks the system.
const LOOKS_OF_A_POLLER: u32 = 8;

/// A NIC that applications run.
pub(super) trait Inline: Send + Sync {
    /// Carries out what was rung for; `false` if somebody else runs the NIC, and is to be told.
    fn ring(&self) -> bool;

    /// An application looks, and finds nothing.
    fn progress(&self);

    /// It has looked for the last time before it waits.
    fn rest(&self);
}

/// A NIC, to all who run it. The engine is gone once the NIC has stopped.
struct Core<F> {
    engine: Mutex<Option<Engine<F>>>,
    desk: Arc<Desk>,
    /// When the driver wakes by itself, in nanoseconds.
    wakes: AtomicU64,
    /// The driver is to look at the engine anew.
    is_called: AtomicBool,
    /// Looks in vain since an application last waited.
    vain: AtomicU32,
}

/// What the driver is to do next.
enum Next {
    /// Another turn.
    Again,
    /// The same, later: looking has paid.
    Found,
    /// Wait for something to do, or until then.
    Wait(Instant),
    /// The same without new errands: the NIC ends.
    Linger(Instant),
    /// Send what is left, and end.
    Flush,
    /// End at once.
    End,
}

impl<F: Firmware> Core<F> {
    /// The engine; what becomes due to be woken waits for this to be released. One whose firmware has panicked is thrown away: its ports close.
    fn engine(&self) -> Held<'_, Option<Engine<F>>> {
        Held::new(|| self.engine.lock().unwrap_or_else(thrown_away))
    }

    /// The same, unless somebody has it.
    fn free_engine(&self) -> Option<Held<'_, Option<Engine<F>>>> {
        Held::try_new(|| match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(thrown_away(poisoned)),
        })
    }

    /// A turn of the NIC, which asks the system by itself if it `looks`.
    fn turn(&self, looks: bool) -> Next {
        let mut guard = self.engine();
        let Some(engine) = &mut *guard else { return Next::End };
        match engine.turn(looks) {
            Ending::Running => {}
            Ending::Flush => return engine.lingers().map_or(Next::Flush, Next::Linger),
            Ending::Now => return Next::End,
        }
        engine.report();
        if engine.has_more() {
            return Next::Again;
        }
        if looks && engine.has_received() {
            return Next::Found;
        }
        let until = engine.next_due();
        self.wakes.store(until.as_nanos(), Ordering::Relaxed);
        Next::Wait(until)
    }

    /// What is left to do after an application has run the engine is the driver's.
    fn leave(&self, engine: &Engine<F>) {
        let is_early = || engine.next_due().as_nanos() < self.wakes.load(Ordering::Relaxed);
        if engine.has_more() || is_early() {
            self.is_called.store(true, Ordering::Relaxed);
            self.desk.wake();
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
        if self.vain.fetch_add(1, Ordering::Relaxed) < LOOKS_OF_A_POLLER {
            return;
        }
        let Some(mut guard) = self.free_engine() else { return };
        let Some(engine) = &mut *guard else { return };
        // The end is the driver's.
        engine.turn(true);
        self.leave(engine);
    }

    fn rest(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }
}

/// An engine whose firmware has panicked is gone: its ports close.
fn thrown_away<F>(
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
    /// How long it looks before it waits, at most, in nanoseconds.
    spin: u32,
    looks: Looks,
}

impl<F: Firmware + Send + 'static> Driver<F> {
    /// A driver on the current runtime.
    pub(super) fn new(
        nic: impl FnOnce(Socket) -> Nic,
        socket: std::net::UdpSocket,
        firmware: F,
        desk: Arc<Desk>,
    ) -> std::io::Result<Self> {
        let (socket, alarm) = (Socket::new(socket)?, Alarm::new()?);
        let io = socket.watched();
        let engine = Engine::new(nic(socket), firmware, Arc::clone(&desk));
        let core = Core {
            engine: Mutex::new(Some(engine)),
            desk,
            wakes: AtomicU64::new(0),
            is_called: AtomicBool::new(false),
            vain: AtomicU32::new(0),
        };
        Ok(Self { core: Arc::new(core), io, alarm, spin: 0, looks: Looks::default() })
    }

    /// Lets applications run the NIC where they ring, and looks for so many nanoseconds before it waits.
    pub(super) fn serve_inline(&mut self, spin: u32) {
        self.spin = spin;
        let core: Arc<dyn Inline> = Arc::clone(&self.core) as _;
        self.core.desk.set_inline(Arc::downgrade(&core));
    }

    /// Runs until the desk says to end.
    pub(super) async fn run(mut self) {
        // Until when it looks by itself.
        let mut looks = None;
        loop {
            match self.core.turn(looks.is_some()) {
                Next::Again => tokio::task::yield_now().await,
                Next::Found => {
                    self.looks.on_end(true);
                    looks = Some(self.looks.until(self.spin));
                    tokio::task::yield_now().await;
                }
                Next::Wait(until) => looks = self.look_or_wait(looks, until).await,
                Next::Linger(until) => self.linger(until).await,
                Next::Flush => break,
                Next::End => return,
            }
        }
        self.flush().await;
    }

    /// With nothing to do: it looks for as long as that has paid lately, all other tasks of the runtime having their
    /// turns between two looks; then it waits. Until when it looks from then on.
    async fn look_or_wait(&mut self, looks: Option<Instant>, until: Instant) -> Option<Instant> {
        match looks {
            Some(rests) if Clock::now() < rests => {
                tokio::task::yield_now().await;
                looks
            }
            Some(_) => {
                self.looks.on_end(false);
                self.wait(until).await;
                None
            }
            None if self.spin > 0 => Some(self.looks.until(self.spin)),
            None => {
                self.wait(until).await;
                None
            }
        }
    }

    async fn wait(&mut self, until: Instant) {
        let Self { core, io, alarm, .. } = self;
        poll_fn(|context| {
            if core.desk.is_waiting(context.waker())
                || core.is_called.swap(false, Ordering::Relaxed)
                || io.poll_readable(context).is_ready()
            {
                return Poll::Ready(());
            }
            alarm.poll(context, until)
        })
        .await;
    }

    /// While the NIC ends, and frames wait for keys or for answers: no longer than it asks for them.
    async fn linger(&mut self, until: Instant) {
        let Self { io, alarm, .. } = self;
        poll_fn(|context| match io.poll_readable(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => alarm.poll(context, until),
        })
        .await;
    }

    /// Sends what is staged, for a second past the line's own time at most.
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
