//! The state that a NIC's applications and its task share, and the task.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::FrameLink;
use super::link::StagingLink;
use crate::deferred::Held;
use crate::drops::DropCause;
use crate::frame::Header;
use crate::hardware::Firmware;
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::live::alarm::Alarm;
use crate::lock::lock;
use crate::nic::{self, NicCounters, NicHandle, PortOpener};
use crate::port::{Bell, Bells, Port, PortOptions};
use crate::time::Instant;

/// Most frames that one turn handles: it bounds how long doorbells wait.
const FRAMES_PER_TURN: usize = 32;

type Engine<F, L> = nic::Engine<F, StagingLink<L>>;

/// A NIC that its task runs. The engine is `None` once the NIC has stopped.
pub(super) struct Core<F, L> {
    node: NodeId,
    engine: Mutex<Option<Engine<F, L>>>,
    bells: Bells,
    driver: AtomicWaker,
    is_ending: AtomicBool,
    last_counters: Mutex<NicCounters>,
}

impl<F: Firmware, L: FrameLink> Core<F, L> {
    pub(super) fn new(node: NodeId, engine: Engine<F, L>) -> Arc<Self> {
        Arc::new(Self {
            node,
            engine: Mutex::new(Some(engine)),
            bells: Bells::new(1 << 16),
            driver: AtomicWaker::new(),
            is_ending: AtomicBool::new(false),
            last_counters: Mutex::default(),
        })
    }

    /// Locks the engine. Wakers that become due meanwhile run after the lock is released. An engine whose
    /// firmware has panicked is dropped, and its ports close.
    fn engine(&self) -> Held<'_, Option<Engine<F, L>>> {
        Held::new(|| {
            self.engine.lock().unwrap_or_else(|poisoned| {
                let mut engine = poisoned.into_inner();
                self.stop(&mut engine);
                engine
            })
        })
    }

    /// Drops the engine, and keeps its counters.
    fn stop(&self, engine: &mut Option<Engine<F, L>>) {
        if let Some(engine) = engine.take() {
            *lock(&self.last_counters) = engine.nic.counters;
        }
    }

    /// Gives the NIC a turn. Returns when the next one is due, or `None` if the NIC has stopped.
    fn turn(&self, context: &mut Context<'_>) -> Option<Instant> {
        self.driver.register(context.waker());
        let mut guard = self.engine();
        let engine = guard.as_mut()?;
        engine.nic.time.renew();
        self.bells.take(|port| engine.ring(port));
        let is_all = receive(engine, context);
        engine.deliver_delayed();
        engine.work();
        let has_failed = engine.nic.link.carrier.has_failed();
        let is_stopped =
            has_failed || (self.is_ending.load(Ordering::Acquire) && engine.stop().is_none());
        engine.nic.wake();
        if is_stopped {
            self.stop(&mut guard);
            return None;
        }
        if !is_all || engine.nic.has_work() {
            return Some(Instant::ZERO);
        }
        Some(engine.nic.next_alarm().min(engine.stopping().unwrap_or(Instant::FAR_FUTURE)))
    }
}

/// Handles received frames. Returns whether none are left.
fn receive<F: Firmware, L: FrameLink>(
    engine: &mut Engine<F, L>,
    context: &mut Context<'_>,
) -> bool {
    for _ in 0..FRAMES_PER_TURN {
        let received = engine.nic.link.carrier.poll_receive(context);
        let Poll::Ready((from, frame)) = received else { return true };
        let node = engine.nic.node;
        match Header::parse(&frame) {
            Err(_) => engine.nic.counters.drops.add(DropCause::Malformed),
            Ok((header, _)) if header.source != from => {
                engine.nic.counters.drops.add(DropCause::Stranger);
            }
            Ok((header, _)) if header.destination != node => {
                engine.nic.counters.drops.add(DropCause::Misrouted);
            }
            Ok(_) => {
                if !engine.nic.has_faults() || engine.nic.passes_faults(from, || frame.clone()) {
                    engine.deliver(&frame);
                }
            }
        }
    }
    false
}

/// Stops the NIC once its task has ended, panicked or been dropped: its ports close.
struct Stop<F: Firmware, L: FrameLink>(Arc<Core<F, L>>);

impl<F: Firmware, L: FrameLink> Drop for Stop<F, L> {
    fn drop(&mut self) {
        let mut engine = self.0.engine();
        self.0.stop(&mut engine);
    }
}

/// Returns the task of a NIC.
pub(super) fn run<F: Firmware, L: FrameLink>(
    core: Arc<Core<F, L>>,
) -> io::Result<impl Future<Output = ()>> {
    let mut alarm = Alarm::new()?;
    let core = Stop(core);
    Ok(async move {
        poll_fn(|context| {
            let Some(until) = core.0.turn(context) else { return Poll::Ready(()) };
            if alarm.poll(context, until).is_ready() {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
    })
}

impl<F, L> fmt::Debug for Core<F, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("node", &self.node).finish_non_exhaustive()
    }
}

impl<F: Firmware + Send + 'static, L: FrameLink> PortOpener for Core<F, L> {
    fn open(self: Arc<Self>, options: PortOptions) -> Result<Port, OpenError> {
        let bell = Box::new(PortBell(Arc::clone(&self)));
        match &mut *self.engine() {
            Some(engine) if !self.is_ending.load(Ordering::Acquire) => engine.open(&options, bell),
            _ => Err(OpenError::Stopped(self.node)),
        }
    }
}

impl<F: Firmware + Send + 'static, L: FrameLink> NicHandle for Core<F, L> {
    fn counters(&self) -> NicCounters {
        match &*self.engine() {
            Some(engine) => engine.nic.counters,
            None => *lock(&self.last_counters),
        }
    }

    fn end(&self, _is_orderly: bool) {
        self.is_ending.store(true, Ordering::Release);
        self.driver.wake();
    }
}

/// The doorbell of one NIC's ports: it wakes the NIC's task.
struct PortBell<F, L>(Arc<Core<F, L>>);

impl<F: Firmware + Send, L: FrameLink> Bell for PortBell<F, L> {
    fn ring(&self, port: PortId) {
        if self.0.bells.ring(port) {
            self.0.driver.wake();
        }
    }
}
