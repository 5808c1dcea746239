//! The simulated fabric: NICs, links and switches in virtual time, deterministic from one seed.
//!
//! A [`World`] runs one firmware on every NIC and any number of application tasks on every host. Only what the
//! profiles charge takes virtual time. The same seed, topology and applications give the same run, to the last
//! bit of [`World::digest`].
//!
//! # Time on the way
//!
//! Between NICs without costs ([`NicProfile::FREE`]), a frame takes for each link its bytes on the wire
//! (`Framing::wire_bytes`, with the frame's header) at the link's rate, plus the
//! propagation delay, and for each switch its latency, plus the time in the queue. A switch that cuts through begins once
//! it has received its header bytes, if the outgoing line is not faster: the rest passes both lines at once. A frame of
//! several pieces passes them at once too, piece after piece.
//!
//! A piece arrives at a whole nanosecond; a busy line carries the fraction to its next piece
//! (`Serializer`). If switches store and forward, the rounded times of a piece on all links add
//! up exactly. If they cut through, that sum can be 1 ns too long for each switch.

pub(crate) mod active_faults;
mod broadcast;
mod clock;
mod event_queue;
mod executor;
mod frames;
mod hops;
mod incidents;
mod network;
mod nic;
mod processor;
mod reception;
mod shared;
mod turn;
mod uplink;
mod view;
mod watch;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::frame::MAX_PAYLOAD;
use crate::hardware::Firmware;
use crate::id::{Incarnation, NodeId};
use crate::link::Framing;
use crate::profile::NicProfile;
use crate::time::{Instant, nanos};
use crate::topology::Topology;
use crate::trace::Engine;

use event_queue::{Event, EventQueue};
use executor::{Doorbell, Executor, Shared};
use incidents::Script;
use network::{Arrival, Network};
use nic::{Nic, Work};

pub use executor::SimHost;
pub use network::Traffic;

/// Checks the settings without which no frame could leave.
fn check(topology: &Topology, profile: NicProfile) {
    let NicProfile { transmit_slots, mtu, .. } = profile;
    assert!(transmit_slots > 0, "`NicProfile::transmit_slots` is 0: a NIC needs 1 or more");
    assert!(
        mtu <= MAX_PAYLOAD,
        "`NicProfile::mtu` is {mtu}: a frame carries at most {MAX_PAYLOAD}"
    );
    let framing = topology.links.first().map(|link| link.profile.framing);
    assert!(
        !matches!(framing, Some(Framing::Packets { mtu: 0, .. })),
        "the links' `Framing::Packets` has an `mtu` of 0: a packet needs 1 or more bytes of a frame"
    );
}

/// Most events and task turns at one instant; more count as a livelock.
const LIVELOCK_TURNS: u64 = 10_000_000;

/// One event of a run, as tracers receive it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct TraceEvent {
    /// When it happened.
    pub at: Instant,
    /// The number of the event that goes into the digest.
    pub fingerprint: u64,
}

/// A simulated cluster.
pub struct World<F> {
    now: Instant,
    queue: EventQueue,
    network: Network,
    nics: Vec<Nic>,
    firmware: Vec<F>,
    factory: Box<dyn FnMut(NodeId, Incarnation) -> F + Send>,
    shared: Arc<Shared>,
    executor: Executor,
    /// Tasks that are ready, in the round that runs now.
    ready: Vec<u32>,
    script: Script,
    /// Events and task turns so far, and how many there were before this instant (`turns_before`).
    turns: u64,
    turns_before: u64,
    events: u64,
    digest: u64,
    digesting: bool,
    tracer: Option<Box<dyn FnMut(TraceEvent) + Send>>,
}

impl<F> std::fmt::Debug for World<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("nodes", &self.nics.len())
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl<F: Firmware> World<F> {
    /// Creates a cluster with the shape of `topology`, whose NICs have `profile`. `factory` makes the firmware
    /// of a NIC, at the start and at each restart of the NIC.
    ///
    /// # Panics
    /// If NICs have no transmit slot or a longer MTU than [`MAX_PAYLOAD`], or links cut frames into packets of 0 bytes.
    pub fn new(
        topology: &Topology,
        profile: NicProfile,
        seed: u64,
        mut factory: impl FnMut(NodeId, Incarnation) -> F + Send + 'static,
    ) -> Self {
        check(topology, profile);
        let network = Network::new(topology, seed);
        let nodes: Vec<NodeId> = (0..topology.hosts()).map(NodeId).collect();
        let shared = Shared::new(seed, nodes.len());
        let nics = nodes.iter().map(|n| Nic::new(*n, profile)).collect();
        let firmware = nodes.iter().map(|node| factory(*node, Incarnation::FIRST)).collect();
        let mut world = Self {
            now: Instant::ZERO,
            queue: EventQueue::default(),
            network,
            nics,
            firmware,
            factory: Box::new(factory),
            executor: Executor::new(Arc::clone(&shared)),
            shared,
            ready: Vec::new(),
            script: Script::default(),
            turns: 0,
            turns_before: 0,
            events: 0,
            digesting: true,
            digest: seed,
            tracer: None,
        };
        for node in nodes {
            world.dispatch(node, Work::Start);
        }
        world
    }

    /// Returns the host of `node`.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn host(&self, node: NodeId) -> SimHost {
        self.assert_node(node);
        SimHost::new(node, Arc::clone(&self.shared))
    }

    /// Starts a task on `node`.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn spawn(&mut self, node: NodeId, task: impl Future<Output = ()> + Send + 'static) {
        self.assert_node(node);
        self.executor.spawn(node, Box::pin(task));
    }

    /// Runs `task` on `node`, and everything else, until it ends. `None` if no event is left before that.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        node: NodeId,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let result = Arc::new(Mutex::new(None));
        let ended = Arc::new(AtomicBool::new(false));
        let (out, end) = (Arc::clone(&result), Arc::clone(&ended));
        self.spawn(node, async move {
            let value = task.await;
            *out.lock().expect("only this task writes") = Some(value);
            end.store(true, Ordering::Release);
        });
        while !ended.load(Ordering::Acquire) && self.step(Instant::FAR_FUTURE) {}
        result.lock().expect("only one task writes").take()
    }

    /// Runs until no event is left that is due by `until`; the time is then `until`.
    pub fn run_until(&mut self, until: Instant) {
        while self.step(until) {}
        self.advance(until.max(self.now));
    }

    /// Runs while `should_continue` returns `true` and events due by `until` are left. Calls `should_continue` before
    /// each event. Returns `true` if it stopped because no such event is left; the time is then that of the last event.
    #[doc(hidden)]
    pub fn run_while(&mut self, until: Instant, mut should_continue: impl FnMut() -> bool) -> bool {
        while should_continue() {
            if !self.step(until) {
                return true;
            }
        }
        false
    }

    /// Runs until no event is left.
    pub fn run(&mut self) {
        while self.step(Instant::FAR_FUTURE) {}
    }

    /// Runs tasks until all of them wait, then one event, if it is due by `limit`. Returns `false` if there is
    /// none.
    fn step(&mut self, limit: Instant) -> bool {
        self.run_tasks();
        let Some((at, event)) = self.queue.pop_until(limit) else { return false };
        self.advance(at);
        self.on_event(event);
        true
    }

    fn advance(&mut self, at: Instant) {
        if at != self.now {
            self.now = at;
            self.turns_before = self.turns;
            self.network.watch.now = at;
            self.queue.set_now(at);
            self.shared.set_now(at);
        }
    }

    fn run_tasks(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        loop {
            self.take_requests();
            if !self.executor.take_ready(&mut ready) {
                break;
            }
            for task in ready.drain(..) {
                self.count_turn();
                if self.network.active_faults.is_none() || !self.put_off(task) {
                    self.run_task(task);
                }
            }
        }
        self.ready = ready;
    }

    fn run_task(&mut self, task: u32) {
        if self.shared.is_charged() && self.waits_for_processor(task) {
            return;
        }
        self.note(9 | u64::from(task) << 4);
        self.executor.poll(task);
    }

    /// Returns whether another task has the host's processor; if so, schedules this one for when it is free.
    fn waits_for_processor(&mut self, task: u32) -> bool {
        let (node, now) = (self.executor.node_of(task), self.now);
        let free_at = self.shared.processors(|processors| processors.switch_to(node, now, task));
        let Some(at) = free_at.flatten() else { return false };
        self.queue.schedule(at, Event::Task { task });
        true
    }

    fn count_turn(&mut self) {
        self.turns += 1;
        let here = self.turns - self.turns_before;
        assert!(here < LIVELOCK_TURNS, "livelock: time does not advance at {}", self.now);
    }

    /// Handles the requests of tasks and hosts.
    fn take_requests(&mut self) {
        let Self { shared, queue, nics, executor, now, network, .. } = self;
        let Some(mut guard) = shared.take_requests() else { return };
        let requests = &mut *guard;
        for (node, restarts, port, id) in requests.opened.drain(..) {
            let nic = &mut nics[node.index()];
            if nic.up && nic.restarts == restarts {
                nic.ports.insert(id, port);
            }
        }
        requests.schedule_sleepers(queue);
        for Doorbell { node, port, restarts, at } in requests.doorbells.drain(..) {
            let nic = &mut nics[node.index()];
            if !nic.up || nic.restarts != restarts {
                continue;
            }
            let active_faults = &mut network.active_faults;
            // A port closes through the kernel, which loses no doorbell.
            let times = if active_faults.is_none() || nic.ports.is_closing(port) {
                1
            } else {
                active_faults.doorbells(node, nic.rung())
            };
            if times > 0 && nic.ring(port) {
                let at = at.max(*now).plus_nanos(nanos(nic.profile.doorbell));
                network.watch.busy(Engine::Doorbell(node), *now, at, "doorbell", None);
                for _ in 0..times {
                    queue.schedule(at, Event::Doorbell { node, port, restarts });
                }
            }
        }
        let spawned = std::mem::take(&mut requests.spawned);
        // Dropping a task may add requests.
        drop(guard);
        for (node, task) in spawned {
            if nics[node.index()].up {
                executor.spawn(node, task);
            }
        }
    }

    fn note(&mut self, fingerprint: u64) {
        if self.digesting {
            let mixed = (self.digest ^ fingerprint ^ self.now.as_nanos().rotate_left(32))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.digest = mixed ^ mixed >> 29;
        }
        if let Some(tracer) = &mut self.tracer {
            tracer(TraceEvent { at: self.now, fingerprint });
        }
    }

    fn on_event(&mut self, event: Event) {
        self.events += 1;
        self.count_turn();
        self.note(event.fingerprint());
        match event {
            Event::Piece { link, frame, index } => {
                let arrival = self.network.on_piece(&mut self.queue, self.now, link, frame, index);
                if let Arrival::Whole { node, frame } = arrival {
                    self.receive(node, frame);
                }
            }
            Event::OutputFree { link } => {
                self.network.on_output_free(&mut self.queue, self.now, link);
            }
            Event::Medium { medium } => {
                self.network.on_medium(&mut self.queue, self.now, medium);
            }
            Event::Looped { node, frame, restarts } => self.on_looped(node, frame, restarts),
            Event::Wake { slot } => self.executor.wake_sleeper(slot),
            Event::Completion { node, restarts } => {
                if self.is_live(node, restarts) {
                    self.publish_completion(node);
                }
            }
            Event::Incident { index, phase } => self.on_incident(index as usize, phase),
            Event::Task { task } => self.on_late_task(task),
            Event::Interrupt { node, port, restarts } if self.is_live(node, restarts) => {
                if let Some(port) = self.nics[node.index()].ports.at(port) {
                    port.wake();
                }
            }
            Event::Doorbell { node, port, restarts } if self.is_live(node, restarts) => {
                self.dispatch(node, Work::Doorbell(port));
            }
            Event::DmaDone { node, dma, restarts } if self.is_live(node, restarts) => {
                self.dispatch(node, Work::DmaDone(dma));
            }
            Event::Timer { node, timer, restarts } if self.is_live(node, restarts) => {
                self.nics[node.index()].expire_alarm(timer);
                self.dispatch(node, Work::Timer(timer));
            }
            Event::Coprocessor { node, restarts } if self.is_live(node, restarts) => {
                self.on_coprocessor(node);
            }
            Event::Doorbell { .. }
            | Event::DmaDone { .. }
            | Event::Timer { .. }
            | Event::Interrupt { .. }
            | Event::Coprocessor { .. } => {}
        }
    }

    fn assert_node(&self, node: NodeId) {
        let nodes = self.nics.len();
        assert!(node.index() < nodes, "no node {node}: the topology has {nodes}, numbered from 0");
    }

    fn is_live(&self, node: NodeId, restarts: u16) -> bool {
        let nic = &self.nics[node.index()];
        nic.up && nic.restarts == restarts
    }
}
