//! Applications in virtual time: tasks, sleepers, and what hosts ask of the world.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use crate::host::{Host, OpenError};
use crate::id::{NodeId, PortId};
use crate::port::{Bell, DEFAULT_DEPTH, NicPort, Port, port};
use crate::rng::Rng;
use crate::time::Instant;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What tasks ask for while they run, taken up by the world after each of them.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) spawned: Vec<(NodeId, Task)>,
    pub(super) sleeps: Vec<(Instant, u32, u32)>,
    pub(super) doorbells: Vec<(NodeId, PortId)>,
    pub(super) opened: Vec<(NodeId, PortId, NicPort)>,
    sleepers: Vec<Sleeper>,
    free_sleepers: Vec<u32>,
    /// For each node: the number of its next port, `None` while its NIC is down.
    ports: Vec<Option<u16>>,
}

#[derive(Default)]
struct Sleeper {
    generation: u32,
    waker: Option<Waker>,
}

/// What the world and its hosts share.
pub(super) struct Shared {
    now: AtomicU64,
    seed: u64,
    asked: AtomicBool,
    requests: Mutex<Requests>,
    ready: Mutex<VecDeque<u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this lock")
}

impl Shared {
    pub(super) fn new(seed: u64, nodes: usize) -> Arc<Self> {
        let requests = Requests { ports: vec![Some(0); nodes], ..Requests::default() };
        Arc::new(Self {
            now: AtomicU64::new(0),
            seed,
            asked: AtomicBool::new(false),
            requests: Mutex::new(requests),
            ready: Mutex::default(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn set_now(&self, now: Instant) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn ask(&self, request: impl FnOnce(&mut Requests)) {
        request(&mut lock(&self.requests));
        self.asked.store(true, Ordering::Release);
    }

    /// Hands over what was asked for since the last time.
    pub(super) fn take_requests(&self, take: impl FnOnce(&mut Requests)) -> bool {
        if !self.asked.swap(false, Ordering::AcqRel) {
            return false;
        }
        take(&mut lock(&self.requests));
        true
    }

    pub(super) fn next_ready(&self) -> Option<u32> {
        lock(&self.ready).pop_front()
    }

    /// A sleeper's instant has come.
    pub(super) fn wake_sleeper(&self, slot: u32, generation: u32) {
        let waker = {
            let mut requests = lock(&self.requests);
            let sleeper = &mut requests.sleepers[slot as usize];
            if sleeper.generation == generation { sleeper.waker.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The node's NIC is up with all its ports free, or down.
    pub(super) fn set_up(&self, node: NodeId, up: bool) {
        lock(&self.requests).ports[node.index()] = up.then_some(0);
    }
}

struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            lock(&self.shared.ready).push_back(self.task);
        }
    }
}

struct Slot {
    node: NodeId,
    task: Option<Task>,
    waker: Arc<TaskWaker>,
    std_waker: Waker,
}

/// The tasks of all nodes.
pub(super) struct Executor {
    shared: Arc<Shared>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Executor {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, slots: Vec::new(), free: Vec::new() }
    }

    /// Takes in a task; it runs when its turn comes.
    pub(super) fn spawn(&mut self, node: NodeId, task: Task) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).expect("fewer tasks than 2^32");
                let queued = AtomicBool::new(false);
                let waker =
                    Arc::new(TaskWaker { task: slot, queued, shared: Arc::clone(&self.shared) });
                let std_waker = Waker::from(Arc::clone(&waker));
                self.slots.push(Slot { node, task: None, waker, std_waker });
                slot
            }
        };
        let entry = &mut self.slots[slot as usize];
        entry.node = node;
        entry.task = Some(task);
        entry.std_waker.wake_by_ref();
    }

    /// Runs one task as far as it goes.
    pub(super) fn poll(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.waker.queued.store(false, Ordering::Release);
        let Some(task) = &mut entry.task else { return };
        if task.as_mut().poll(&mut Context::from_waker(&entry.std_waker)).is_ready() {
            entry.task = None;
            self.free.push(slot);
        }
    }

    /// Drops all tasks of a node, as a crash of its host does.
    pub(super) fn kill(&mut self, node: NodeId) {
        for (slot, entry) in (0_u32..).zip(&mut self.slots) {
            if entry.node == node && entry.task.take().is_some() {
                self.free.push(slot);
            }
        }
    }

    /// Tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A node of the simulated fabric, to applications.
#[derive(Clone)]
pub struct SimHost {
    node: NodeId,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for SimHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHost").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SimHost {
    pub(super) const fn new(node: NodeId, shared: Arc<Shared>) -> Self {
        Self { node, shared }
    }
}

impl Host for SimHost {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send {
        Sleep { shared: Arc::clone(&self.shared), at, slot: None }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task: Task = Box::pin(task);
        self.shared.ask(|requests| requests.spawned.push((self.node, task)));
    }

    fn rng(&self, stream: &str) -> Rng {
        Rng::new(self.shared.seed, &format!("node {} {stream}", self.node))
    }

    fn open_port(&self) -> Result<Port, OpenError> {
        let bell = SimBell { node: self.node, shared: Arc::clone(&self.shared) };
        let mut requests = lock(&self.shared.requests);
        let next = requests.ports[self.node.index()].as_mut();
        let next = next.ok_or(OpenError::Stopped(self.node))?;
        if *next == u16::MAX {
            return Err(OpenError::Exhausted(self.node));
        }
        let id = PortId(*next);
        *next += 1;
        let (port, nic) = port(id, DEFAULT_DEPTH, Box::new(bell));
        requests.opened.push((self.node, id, nic));
        drop(requests);
        self.shared.asked.store(true, Ordering::Release);
        Ok(port)
    }
}

struct SimBell {
    node: NodeId,
    shared: Arc<Shared>,
}

impl Bell for SimBell {
    fn ring(&self, port: PortId) {
        self.shared.ask(|requests| requests.doorbells.push((self.node, port)));
    }
}

/// Waits for an instant of virtual time.
struct Sleep {
    shared: Arc<Shared>,
    at: Instant,
    slot: Option<(u32, u32)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.at {
            return Poll::Ready(());
        }
        let (at, known) = (self.at, self.slot);
        let mut requests = lock(&self.shared.requests);
        let (slot, generation) = match known {
            Some(known) => known,
            None => {
                let slot = requests.free_sleepers.pop().unwrap_or_else(|| {
                    requests.sleepers.push(Sleeper::default());
                    u32::try_from(requests.sleepers.len() - 1).expect("fewer sleepers than 2^32")
                });
                let generation = requests.sleepers[slot as usize].generation;
                requests.sleeps.push((at, slot, generation));
                (slot, generation)
            }
        };
        let waker = &mut requests.sleepers[slot as usize].waker;
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        drop(requests);
        self.shared.asked.store(true, Ordering::Release);
        self.slot = Some((slot, generation));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some((slot, _)) = self.slot else { return };
        let mut requests = lock(&self.shared.requests);
        let sleeper = &mut requests.sleepers[slot as usize];
        sleeper.generation = sleeper.generation.wrapping_add(1);
        sleeper.waker = None;
        requests.free_sleepers.push(slot);
    }
}
