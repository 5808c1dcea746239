//! A node of the simulated fabric, as its applications see it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::{Doorbell, Shared, Task, Waiting, lock};
use crate::host::{Host, OpenError};
use crate::id::{NodeId, PortId};
use crate::port::{Bell, DEFAULT_DEPTH, Port, PortOptions, port};
use crate::rng::Rng;
use crate::time::Instant;

/// A node of the simulated fabric, as its applications see it.
#[derive(Clone)]
pub struct SimHost {
    pub(in crate::sim) node: NodeId,
    pub(in crate::sim) shared: Arc<Shared>,
}

impl std::fmt::Debug for SimHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHost").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SimHost {
    pub(in crate::sim) const fn new(node: NodeId, shared: Arc<Shared>) -> Self {
        Self { node, shared }
    }

    /// Returns the network's time, from which the node's clock may differ.
    #[cfg(feature = "services")]
    #[must_use]
    pub fn world_now(&self) -> Instant {
        self.shared.now()
    }
}

impl Host for SimHost {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        let now = self.shared.now();
        let reached = self.shared.processors(|processors| processors.free_at(self.node, now));
        self.shared.clock(self.node).read(reached.unwrap_or(now))
    }

    async fn sleep_until(&self, at: Instant) {
        // A clock that was slowed down meanwhile may not have reached `at` yet.
        while self.now() < at {
            let at = self.shared.clock(self.node).when(at);
            Sleep { shared: &self.shared, at, slot: None }.await;
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task: Task = Box::pin(task);
        self.shared.request(|requests| requests.spawned.push((self.node, task)));
    }

    fn rng(&self, stream: &str) -> Rng {
        Rng::new(self.shared.seed, &format!("node {} {stream}", self.node))
    }

    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError> {
        let mut requests = lock(&self.shared.requests);
        let gate = &mut requests.gates[self.node.index()];
        if gate.down {
            return Err(OpenError::Stopped(self.node));
        }
        let (name, restarts) = (gate.numbers.claim(self.node, &options)?, gate.restarts);
        let bell = SimBell { node: self.node, restarts, shared: Arc::clone(&self.shared) };
        let (port, nic) = port(name, options.depth_or(DEFAULT_DEPTH), Box::new(bell));
        requests.opened.push((self.node, restarts, nic, name.id));
        drop(requests);
        self.shared.has_requests.store(true, Ordering::Release);
        Ok(port)
    }
}

struct SimBell {
    node: NodeId,
    restarts: u16,
    shared: Arc<Shared>,
}

impl Bell for SimBell {
    fn ring(&self, port: PortId) {
        let (node, restarts, now) = (self.node, self.restarts, self.shared.now());
        let at = self.shared.processors(|processors| processors.ring(node, now)).unwrap_or(now);
        self.shared
            .request(|requests| requests.doorbells.push(Doorbell { node, port, restarts, at }));
    }

    fn on_registered(&self, bytes: usize) {
        let (node, now) = (self.node, self.shared.now());
        self.shared.processors(|processors| {
            processors.take(node, now, processors.profile.pin.nanos(bytes));
        });
    }
}

/// Waits until an instant of virtual time.
pub(in crate::sim) struct Sleep<'a> {
    pub(in crate::sim) shared: &'a Shared,
    pub(in crate::sim) at: Instant,
    /// The sleeper's slot and its generation, once it has one.
    pub(in crate::sim) slot: Option<(u32, u32)>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.at {
            return Poll::Ready(());
        }
        let mut requests = lock(&self.shared.requests);
        let (slot, generation) = self.slot.unwrap_or_else(|| requests.claim_sleeper(self.at));
        let waker = context.waker();
        let waiting = &mut requests.sleepers[slot as usize].waiting;
        if waker.data().addr() == self.shared.running_waker.load(Ordering::Relaxed) {
            *waiting = Waiting::Task(self.shared.running.load(Ordering::Relaxed));
        } else if !matches!(waiting, Waiting::Waker(known) if known.will_wake(waker)) {
            *waiting = Waiting::Waker(waker.clone());
        }
        drop(requests);
        if self.slot.is_none() {
            self.shared.has_requests.store(true, Ordering::Release);
        }
        self.slot = Some((slot, generation));
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        let Some((slot, generation)) = self.slot else { return };
        if self.shared.now() >= self.at {
            // It was woken, which freed the slot, or will be at this instant.
            return;
        }
        let mut requests = lock(&self.shared.requests);
        if requests.sleepers[slot as usize].generation != generation {
            return;
        }
        let (scheduled, waiting) = requests.free_sleeper(slot);
        requests.cancelled.push(scheduled);
        drop(requests);
        self.shared.has_requests.store(true, Ordering::Release);
        // Dropped without the lock: a waker may be the last reference to a task, whose drop may drop another [`Sleep`].
        drop(waiting);
    }
}
