//! The state that a NIC's applications and its driver share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use super::engine::Engine;
use super::link::UdpLink;
use crate::deferred::Held;
use crate::drops::DropCause;
use crate::hardware::Firmware;
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::lock::lock;
use crate::nic::{self, NicCounters, NicHandle, PortOpener};
use crate::port::{Bell, Bells, Port, PortOptions};
use crate::time::Instant;
use crate::udp::kernel;

/// Failed polls after which an application that polls for completions gives the NIC turns; each turn is a
/// system call.
const FAILED_POLLS: u32 = 8;

/// A request to the driver to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    /// The driver continues.
    Running = 0,
    /// The driver ends once everything staged has left.
    Flush = 1,
    /// The driver ends at once.
    Now = 2,
}

/// A NIC that its driver runs, and applications as well if it is inline. The engine is `None` once the NIC has
/// stopped.
pub(super) struct Core<F> {
    node: NodeId,
    address: SocketAddr,
    engine: Mutex<Option<Engine<F>>>,
    bells: Bells,
    ending: AtomicU8,
    driver: AtomicWaker,
    /// True if applications handle their doorbells and poll for datagrams themselves.
    is_inline: bool,
    /// When the driver wakes by itself, in nanoseconds.
    wakes: AtomicU64,
    /// True if the driver must check the engine again.
    is_called: AtomicBool,
    /// Failed polls since an application last parked.
    failed_polls: AtomicU32,
    /// The counters for readers.
    reported: Mutex<Reported>,
}

/// The counters as of the last turn. Reading them needs no lock of the engine.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    counters: NicCounters,
    /// True once the NIC has stopped: the counters then include the datagrams that the system dropped.
    has_stopped: bool,
}

/// The driver's next step.
pub(super) enum Next {
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
    pub(super) fn new(engine: Engine<F>, address: SocketAddr, is_inline: bool) -> Arc<Self> {
        Arc::new(Self {
            node: engine.nic().node,
            address,
            engine: Mutex::new(Some(engine)),
            bells: Bells::new(1 << 16),
            ending: AtomicU8::new(Ending::Running as u8),
            driver: AtomicWaker::new(),
            is_inline,
            wakes: AtomicU64::new(0),
            is_called: AtomicBool::new(false),
            failed_polls: AtomicU32::new(0),
            reported: Mutex::default(),
        })
    }

    /// Locks the engine. Wakers that become due meanwhile run after the lock is released. An engine whose
    /// firmware has panicked is dropped, and its ports close.
    pub(super) fn engine(&self) -> Held<'_, Option<Engine<F>>> {
        Held::new(|| self.engine.lock().unwrap_or_else(|poisoned| self.discard(poisoned)))
    }

    /// Locks the engine, unless another thread has it.
    fn free_engine(&self) -> Option<Held<'_, Option<Engine<F>>>> {
        Held::try_new(|| match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(self.discard(poisoned)),
        })
    }

    fn discard<'a>(
        &self,
        poisoned: PoisonError<MutexGuard<'a, Option<Engine<F>>>>,
    ) -> MutexGuard<'a, Option<Engine<F>>> {
        let mut engine = poisoned.into_inner();
        self.save(engine.take());
        engine
    }

    /// Drops an engine, and keeps its counters.
    fn save(&self, engine: Option<Engine<F>>) {
        if let Some(engine) = engine {
            let counters = engine.last_counters();
            *lock(&self.reported) = Reported { counters, has_stopped: true };
        }
    }

    /// Drops the engine: its ports close.
    pub(super) fn stop(&self) {
        // Under the lock, so that wakers of the ports run once it is released.
        let mut engine = self.engine();
        self.save(engine.take());
    }

    fn ending(&self) -> Ending {
        match self.ending.load(Ordering::Acquire) {
            0 => Ending::Running,
            1 => Ending::Flush,
            _ => Ending::Now,
        }
    }

    /// Runs a turn of the NIC. If `polls` is true, makes a system call for datagrams even if the runtime has reported
    /// none.
    pub(super) fn turn(&self, polls: bool) -> Next {
        let mut guard = self.engine();
        let Some(engine) = &mut *guard else { return Next::End };
        engine.turn(polls, &self.bells);
        match self.ending() {
            Ending::Running => {}
            Ending::Flush => return engine.lingers().map_or(Next::Flush, Next::Linger),
            Ending::Now => return Next::End,
        }
        lock(&self.reported).counters = engine.report();
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

    /// Returns whether work is pending for the driver. If not, `waker` is woken when there is.
    pub(super) fn is_waiting(&self, waker: &Waker) -> bool {
        self.driver.register(waker);
        self.is_called.swap(false, Ordering::Relaxed)
            || !self.bells.is_silent()
            || self.ending() != Ending::Running
    }

    /// Returns whether the driver must end at once. If not, `waker` is woken when it must.
    pub(super) fn ends_now(&self, waker: &Waker) -> bool {
        self.driver.register(waker);
        self.ending() == Ending::Now
    }

    /// Wakes the driver for the work that is left after an application has run the engine.
    fn leave(&self, engine: &Engine<F>) {
        let is_early = || engine.next_due().as_nanos() < self.wakes.load(Ordering::Relaxed);
        if engine.has_more() || is_early() {
            self.is_called.store(true, Ordering::Relaxed);
            self.driver.wake();
        }
    }

    /// Handles rung doorbells. Returns `false` if another thread runs the NIC; the caller must then wake the driver.
    fn answer_bells(&self) -> bool {
        let Some(mut guard) = self.free_engine() else { return false };
        let Some(engine) = &mut *guard else { return true };
        engine.answer_bells(&self.bells);
        self.leave(engine);
        true
    }

    fn ring_bell(&self, port: PortId) {
        let tells = self.bells.ring(port);
        let is_answered = self.is_inline && self.answer_bells();
        if tells && !is_answered {
            self.driver.wake();
        }
    }

    /// Opens a port with the engine, unless the NIC has stopped.
    fn open_with<T>(
        &self,
        open: impl FnOnce(&mut nic::Engine<F, UdpLink>) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        match &mut *self.engine() {
            Some(engine) if self.ending() == Ending::Running => open(engine.unit()),
            _ => Err(OpenError::Stopped(self.node)),
        }
    }
}

impl<F> std::fmt::Debug for Core<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("node", &self.node).finish_non_exhaustive()
    }
}

impl<F: Firmware + Send + 'static> PortOpener for Core<F> {
    fn open(self: Arc<Self>, options: PortOptions) -> Result<Port, OpenError> {
        let bell = Box::new(PortBell(Arc::clone(&self)));
        self.open_with(|unit| unit.open(&options, bell))
    }
}

impl<F: Firmware + Send + 'static> NicHandle for Core<F> {
    /// Includes datagrams that the system dropped for lack of space in the socket.
    fn counters(&self) -> NicCounters {
        let lost = kernel::dropped(self.address);
        let Reported { mut counters, has_stopped } = *lock(&self.reported);
        if !has_stopped {
            counters.drops.add_many(DropCause::System, lost);
        }
        counters
    }

    fn end(&self, is_orderly: bool) {
        let ending = if is_orderly { Ending::Flush } else { Ending::Now };
        self.ending.fetch_max(ending as u8, Ordering::AcqRel);
        self.driver.wake();
    }
}

/// The doorbell of one NIC's ports.
struct PortBell<F>(Arc<Core<F>>);

impl<F: Firmware + Send> Bell for PortBell<F> {
    fn ring(&self, port: PortId) {
        self.0.ring_bell(port);
    }

    /// Runs a turn of an inline NIC, once polls have failed for a while.
    fn progress(&self) {
        let core = &*self.0;
        if !core.is_inline || core.failed_polls.fetch_add(1, Ordering::Relaxed) < FAILED_POLLS {
            return;
        }
        let Some(mut guard) = core.free_engine() else { return };
        let Some(engine) = &mut *guard else { return };
        // Only the driver ends the NIC.
        engine.turn(true, &core.bells);
        core.leave(engine);
    }

    fn rest(&self) {
        self.0.failed_polls.store(0, Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
impl<F: Firmware + Send + 'static> crate::nicd::Source for Core<F> {
    fn node(&self) -> NodeId {
        self.node
    }

    fn grant(&self, options: PortOptions) -> Result<crate::port::Grant, OpenError> {
        self.open_with(|unit| unit.grant(&options))
    }

    fn ring(&self, port: PortId) {
        self.ring_bell(port);
    }
}
