//! The state that a NIC's applications, its driver and its rendezvous share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Wake, Waker};

use tokio::sync::watch;

use super::engine::Engine;
use super::rendezvous::{Link, PeerListener};
use crate::deferred::{self, Held};
use crate::hardware::Firmware;
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::lock::lock;
use crate::nic::{NicCounters, NicHandle, PortOpener};
use crate::nicd::Source;
use crate::port::{Bell, Grant, Port, PortOptions};
use crate::time::Instant;
use crate::wakes::Wakes;

/// A change of the connected peers.
#[derive(Debug)]
enum PeerEvent {
    Joined(Link),
    Left(NodeId),
}

/// The connected peers, and their published copy.
struct Peers {
    joined: Mutex<Vec<NodeId>>,
    shown: watch::Sender<Vec<NodeId>>,
}

impl Peers {
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Vec<NodeId>)) {
        change(&mut lock(&self.joined));
        deferred::wake(Some(Waker::from(Arc::clone(self))));
    }
}

impl Wake for Peers {
    /// Publishes the connected peers to watching tasks. It runs when no lock is held, because it wakes those
    /// tasks.
    fn wake(self: Arc<Self>) {
        self.shown.send_modify(|shown| {
            shown.clone_from(&lock(&self.joined));
        });
    }
}

/// A NIC that its applications and its driver run. The engine is `None` once the NIC has stopped.
pub(super) struct Core<F> {
    node: NodeId,
    engine: Mutex<Option<Engine<F>>>,
    events: Mutex<Vec<PeerEvent>>,
    has_events: AtomicBool,
    /// Wake-ups of the driver.
    wakes: Arc<Wakes>,
    /// True while the driver checks, every tick, that applications still give the NIC turns.
    is_watched: AtomicBool,
    /// When the driver wakes by itself, in nanoseconds.
    driver_wakes: AtomicU64,
    is_ending: AtomicBool,
    peers: Arc<Peers>,
    last_counters: Mutex<NicCounters>,
    spin_nanos: u32,
}

/// The driver's next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    /// Take another turn at once.
    Again,
    /// Wait for an event, or until this instant.
    Wait(Instant),
    /// End: the NIC has stopped.
    End,
}

impl<F: Firmware> Core<F> {
    pub(super) fn new(node: NodeId, engine: Engine<F>, wakes: Arc<Wakes>, spin_nanos: u32) -> Self {
        Self {
            node,
            engine: Mutex::new(Some(engine)),
            events: Mutex::default(),
            has_events: AtomicBool::new(false),
            wakes,
            is_watched: AtomicBool::new(false),
            driver_wakes: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            peers: Arc::new(Peers { joined: Mutex::default(), shown: watch::Sender::default() }),
            last_counters: Mutex::default(),
            spin_nanos,
        }
    }

    /// Locks the engine. Wakers that become due meanwhile run after the lock is released. An engine whose
    /// firmware has panicked is dropped, and its ports close.
    fn engine(&self) -> Held<'_, Option<Engine<F>>> {
        Held::new(|| self.engine.lock().unwrap_or_else(discard_engine))
    }

    /// Watches the connected peers.
    pub(super) fn peers(&self) -> watch::Receiver<Vec<NodeId>> {
        self.peers.shown.subscribe()
    }

    /// Wakes the task of the driver.
    fn signal(&self) {
        self.wakes.signal();
    }

    fn add_event(&self, event: PeerEvent) {
        lock(&self.events).push(event);
        self.has_events.store(true, Ordering::Release);
        self.signal();
    }

    /// Handles the changes that the rendezvous has reported.
    fn take_events(&self, engine: &mut Engine<F>) {
        if !self.has_events.load(Ordering::Relaxed)
            || !self.has_events.swap(false, Ordering::Acquire)
        {
            return;
        }
        let events = std::mem::take(&mut *lock(&self.events));
        for event in events {
            match event {
                PeerEvent::Joined(link) => {
                    let node = link.node;
                    if self.wakes.add(node.0.into(), Arc::clone(&link.channel)).is_err() {
                        // The system has no resources for the peer's wake-ups: closes the connection, to be
                        // tried again.
                        link.refuse();
                        continue;
                    }
                    engine.join(link);
                    self.peers.change(|peers| {
                        peers.retain(|peer| *peer != node);
                        peers.push(node);
                        peers.sort_unstable();
                    });
                }
                PeerEvent::Left(node) => {
                    self.wakes.remove(node.0.into());
                    engine.leave(node);
                    self.peers.change(|peers| peers.retain(|peer| *peer != node));
                }
            }
        }
    }

    /// Gives the NIC a turn from an application that polls, unless another thread has the engine.
    #[inline]
    fn visit(&self) -> bool {
        let engine = Held::try_new(|| match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(discard_engine(poisoned)),
        });
        let Some(mut engine) = engine else { return false };
        let Some(engine) = &mut *engine else { return false };
        self.take_events(engine);
        let was_any = engine.visit();
        if was_any && engine.unit.stopping().is_some() {
            // The driver may wait for an effect of this turn.
            self.signal();
        }
        if engine.is_polled_while_armed() {
            // If the application stops polling without parking, the driver notices.
            if !self.is_watched.swap(true, Ordering::Relaxed) {
                self.signal();
            }
            engine.disarm_wakeup();
        }
        was_any
    }

    /// Gives the NIC one turn of the driver, and returns the driver's next step. While the driver watches the
    /// applications, it waits for at most `tick` nanoseconds.
    pub(super) fn drive(&self, last_visits: &mut u64, now: Instant, tick: u64) -> Next {
        let mut guard = self.engine();
        let Some(engine) = &mut *guard else { return Next::End };
        // Before the check: an ending NIC may only wait for frames that a disconnected peer has left.
        self.take_events(engine);
        if self.is_ending.load(Ordering::Acquire) && engine.may_stop() {
            *lock(&self.last_counters) = engine.unit.nic.counters;
            *guard = None;
            return Next::End;
        }
        engine.unit.nic.time.read();
        if engine.turn() {
            return Next::Again;
        }
        let is_visited = std::mem::replace(last_visits, engine.visits) != engine.visits;
        if self.is_watched.load(Ordering::Relaxed) {
            if is_visited {
                return self.wait(engine.next_alarm().min(now.plus_nanos(tick)));
            }
            self.is_watched.store(false, Ordering::Relaxed);
        }
        // An engine that has armed its wake-up already may have been woken: a peer does so only once.
        if !engine.arm_wakeup() {
            return Next::Again;
        }
        self.wait(engine.next_alarm())
    }

    fn wait(&self, until: Instant) -> Next {
        self.driver_wakes.store(until.as_nanos(), Ordering::Relaxed);
        Next::Wait(until)
    }

    /// Arms the NIC's wake-up, because the application that gave it turns parks.
    fn settle_down(&self) {
        let mut guard = self.engine();
        let Some(engine) = &mut *guard else { return };
        if !engine.is_armed() && !engine.arm_wakeup() {
            // Frames may keep arriving: runs one more turn here, and leaves the rest to the driver.
            engine.turn();
            self.signal();
        }
        self.set_driver(engine);
    }

    /// Makes the driver wake by the next alarm of an engine that no application polls.
    fn set_driver(&self, engine: &Engine<F>) {
        let (alarm, wakes) = (engine.next_alarm().as_nanos(), &self.driver_wakes);
        if engine.is_armed() && alarm < wakes.load(Ordering::Relaxed) {
            // Until the driver runs, later doorbells need not signal again.
            wakes.store(alarm, Ordering::Relaxed);
            self.signal();
        }
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

impl<F> std::fmt::Debug for Core<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("node", &self.node).finish_non_exhaustive()
    }
}

impl<F: Firmware + Send> PeerListener for Core<F> {
    fn joined(&self, link: Link) {
        self.add_event(PeerEvent::Joined(link));
    }

    fn left(&self, node: NodeId) {
        self.add_event(PeerEvent::Left(node));
    }
}

impl<F: Firmware + Send + 'static> Source for Core<F> {
    fn node(&self) -> NodeId {
        self.node
    }

    fn grant(&self, options: PortOptions) -> Result<Grant, OpenError> {
        match &mut *self.engine() {
            Some(engine) if !self.is_ending.load(Ordering::Acquire) => engine.unit.grant(&options),
            _ => Err(OpenError::Stopped(self.node)),
        }
    }

    fn ring(&self, port: PortId) {
        if let Some(engine) = &mut *self.engine() {
            engine.ring(port);
            self.set_driver(engine);
        }
    }

    fn poll(&self) -> bool {
        self.visit()
    }

    fn rest(&self) {
        self.settle_down();
    }
}

impl<F: Firmware + Send + 'static> PortOpener for Core<F> {
    fn open(self: Arc<Self>, options: PortOptions) -> Result<Port, OpenError> {
        let bell = Box::new(PortBell(Arc::clone(&self)));
        match &mut *self.engine() {
            Some(engine) if !self.is_ending.load(Ordering::Acquire) => {
                engine.unit.open(&options, bell)
            }
            _ => Err(OpenError::Stopped(self.node)),
        }
    }
}

impl<F: Firmware + Send + 'static> NicHandle for Core<F> {
    fn counters(&self) -> NicCounters {
        match &*self.engine() {
            Some(engine) => engine.unit.nic.counters,
            None => *lock(&self.last_counters),
        }
    }

    fn end(&self, _is_orderly: bool) {
        self.is_ending.store(true, Ordering::Release);
        self.signal();
    }
}

/// The doorbell of one NIC's ports: it runs the NIC on the ringing thread.
struct PortBell<F>(Arc<Core<F>>);

impl<F: Firmware + Send> Bell for PortBell<F> {
    fn ring(&self, port: PortId) {
        if let Some(engine) = &mut *self.0.engine() {
            engine.ring(port);
            self.0.set_driver(engine);
        }
    }

    #[inline]
    fn progress(&self) {
        self.0.visit();
    }

    fn rest(&self) {
        self.0.settle_down();
    }

    fn spin_nanos(&self) -> u32 {
        self.0.spin_nanos
    }
}

#[cfg(test)]
#[path = "core/tests.rs"]
mod tests;
