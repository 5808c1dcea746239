//! Applications in virtual time: tasks, sleepers, and the requests of hosts to the world.

mod host;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};

use super::clock::Clock;
use super::event_queue::{Event, EventQueue, Scheduled};
use super::processor::Processors;
use crate::id::{NodeId, PortId};
use crate::port::{NicPort, PortNumbers};
use crate::time::Instant;

pub use host::SimHost;
pub(super) use host::Sleep;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Requests of tasks, which the world handles after each task turn.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) spawned: Vec<(NodeId, Task)>,
    /// Sleepers to schedule: instant, slot, and generation of the slot.
    sleeps: Vec<(Instant, u32, u32)>,
    /// Events of sleepers that were dropped.
    cancelled: Vec<Scheduled>,
    pub(super) doorbells: Vec<Doorbell>,
    pub(super) opened: Vec<(NodeId, u16, NicPort, PortId)>,
    sleepers: Vec<Sleeper>,
    free_sleepers: Vec<u32>,
    gates: Vec<Gate>,
}

/// A doorbell, for one incarnation of a NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doorbell {
    pub(super) node: NodeId,
    pub(super) port: PortId,
    pub(super) restarts: u16,
    /// When the host has written it.
    pub(super) at: Instant,
}

/// A NIC's state, as its host sees it.
#[derive(Clone, Default)]
struct Gate {
    restarts: u16,
    numbers: PortNumbers,
    down: bool,
    clock: Clock,
}

struct Sleeper {
    generation: u32,
    scheduled: Scheduled,
    waiting: Waiting,
}

/// The task or waker that a sleeper wakes.
#[derive(Default)]
enum Waiting {
    #[default]
    None,
    /// The task itself: this needs no reference count and no lock.
    Task(u32),
    /// A waker that is not the task's own.
    Waker(Waker),
}

impl Requests {
    /// Schedules new sleepers, and cancels dropped ones.
    pub(super) fn schedule_sleepers(&mut self, queue: &mut EventQueue) {
        for scheduled in self.cancelled.drain(..) {
            queue.cancel(scheduled);
        }
        for (at, slot, generation) in self.sleeps.drain(..) {
            let sleeper = &mut self.sleepers[slot as usize];
            if sleeper.generation == generation {
                sleeper.scheduled = queue.schedule(at, Event::Wake { slot });
            }
        }
    }

    fn claim_sleeper(&mut self, at: Instant) -> (u32, u32) {
        let slot = self.free_sleepers.pop().unwrap_or_else(|| {
            let scheduled = Scheduled::NEVER;
            self.sleepers.push(Sleeper { generation: 0, scheduled, waiting: Waiting::None });
            u32::try_from(self.sleepers.len() - 1).expect("fewer sleepers than 2^32")
        });
        let generation = self.sleepers[slot as usize].generation;
        self.sleeps.push((at, slot, generation));
        (slot, generation)
    }

    /// Frees a sleeper's slot; returns its event and its waker.
    fn free_sleeper(&mut self, slot: u32) -> (Scheduled, Waiting) {
        let sleeper = &mut self.sleepers[slot as usize];
        sleeper.generation = sleeper.generation.wrapping_add(1);
        self.free_sleepers.push(slot);
        let scheduled = std::mem::replace(&mut sleeper.scheduled, Scheduled::NEVER);
        (scheduled, std::mem::take(&mut sleeper.waiting))
    }
}

/// The state that the world and its hosts share.
pub(super) struct Shared {
    now: AtomicU64,
    seed: u64,
    /// True if some node's clock is not exact.
    skewed: AtomicBool,
    /// True if work costs time on the hosts' processors.
    charged: AtomicBool,
    processors: Mutex<Option<Processors>>,
    /// True if there are requests.
    has_requests: AtomicBool,
    /// The task that was woken last; [`TaskWaker::next`] links those before it.
    ready: AtomicU32,
    /// The running task, and the address of its waker (`running_waker`).
    running: AtomicU32,
    running_waker: AtomicUsize,
    requests: Mutex<Requests>,
}

/// Marks the end of the list of ready tasks.
const NO_TASK: u32 = u32::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this lock")
}

impl Shared {
    pub(super) fn new(seed: u64, nodes: usize) -> Arc<Self> {
        let requests = Requests { gates: vec![Gate::default(); nodes], ..Requests::default() };
        Arc::new(Self {
            now: AtomicU64::new(0),
            seed,
            skewed: AtomicBool::new(false),
            charged: AtomicBool::new(false),
            processors: Mutex::new(None),
            has_requests: AtomicBool::new(false),
            ready: AtomicU32::new(NO_TASK),
            running: AtomicU32::new(NO_TASK),
            running_waker: AtomicUsize::new(0),
            requests: Mutex::new(requests),
        })
    }

    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn set_processors(&self, processors: Processors) {
        *lock(&self.processors) = Some(processors);
        self.charged.store(true, Ordering::Relaxed);
    }

    /// Returns whether work costs time on the hosts' processors.
    pub(super) fn is_charged(&self) -> bool {
        self.charged.load(Ordering::Relaxed)
    }

    /// Calls `use_processors` on the processors; returns `None` if work costs no time.
    pub(super) fn processors<T>(
        &self,
        use_processors: impl FnOnce(&mut Processors) -> T,
    ) -> Option<T> {
        if self.is_charged() { lock(&self.processors).as_mut().map(use_processors) } else { None }
    }

    pub(super) fn set_now(&self, now: Instant) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn request(&self, request: impl FnOnce(&mut Requests)) {
        request(&mut lock(&self.requests));
        self.has_requests.store(true, Ordering::Release);
    }

    /// Takes the requests since the last call; `None` if there are none.
    pub(super) fn take_requests(&self) -> Option<MutexGuard<'_, Requests>> {
        // A thread sets the flag after it has pushed under the lock; this one clears the flag before it takes
        // the lock. No request is therefore missed without a swap.
        if !self.has_requests.load(Ordering::Relaxed) {
            return None;
        }
        self.has_requests.store(false, Ordering::Relaxed);
        Some(lock(&self.requests))
    }

    /// Marks the node's NIC as stopped.
    pub(super) fn set_down(&self, node: NodeId) {
        lock(&self.requests).gates[node.index()].down = true;
    }

    /// Marks the node's NIC as running, after this number of `restarts`, with all its port numbers free.
    pub(super) fn set_up(&self, node: NodeId, restarts: u16, clock: Clock) {
        let gate = &mut lock(&self.requests).gates[node.index()];
        gate.numbers.release_all();
        gate.restarts = restarts;
        gate.down = false;
        gate.clock = clock;
        self.skewed.fetch_or(clock != Clock::default(), Ordering::Relaxed);
    }

    /// Replaces the node's clock.
    pub(super) fn set_clock(&self, node: NodeId, clock: Clock) {
        lock(&self.requests).gates[node.index()].clock = clock;
        self.skewed.store(true, Ordering::Relaxed);
    }

    fn clock(&self, node: NodeId) -> Clock {
        if self.skewed.load(Ordering::Relaxed) {
            lock(&self.requests).gates[node.index()].clock
        } else {
            Clock::default()
        }
    }

    /// Releases the number of a port whose close the NIC has handled.
    pub(super) fn release_port(&self, node: NodeId, port: PortId) {
        lock(&self.requests).gates[node.index()].numbers.release(port);
    }
}

struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    /// While queued: the task that was woken before this one.
    next: AtomicU32,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let ready = &self.shared.ready;
        let mut head = ready.load(Ordering::Relaxed);
        loop {
            self.next.store(head, Ordering::Relaxed);
            match ready.compare_exchange_weak(head, self.task, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}

struct Slot {
    node: NodeId,
    task: Option<Task>,
    /// True if the task was dropped while it was ready: the slot is free once its turn has come.
    is_killed: bool,
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

    /// Adds a task and makes it ready.
    pub(super) fn spawn(&mut self, node: NodeId, task: Task) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).expect("fewer tasks than 2^32");
                let waker = Arc::new(TaskWaker {
                    task: slot,
                    queued: AtomicBool::new(false),
                    next: AtomicU32::new(NO_TASK),
                    shared: Arc::clone(&self.shared),
                });
                let std_waker = Waker::from(Arc::clone(&waker));
                self.slots.push(Slot { node, task: None, is_killed: false, waker, std_waker });
                slot
            }
        };
        let entry = &mut self.slots[slot as usize];
        entry.node = node;
        entry.task = Some(task);
        entry.std_waker.wake_by_ref();
    }

    /// Moves the ready tasks to `ready`, in the order in which they were woken. `ready` must be empty. Returns
    /// `false` if there are none.
    pub(super) fn take_ready(&self, ready: &mut Vec<u32>) -> bool {
        if self.shared.ready.load(Ordering::Relaxed) == NO_TASK {
            return false;
        }
        let mut task = self.shared.ready.swap(NO_TASK, Ordering::Acquire);
        while task != NO_TASK {
            ready.push(task);
            task = self.slots[task as usize].waker.next.load(Ordering::Relaxed);
        }
        ready.reverse();
        true
    }

    /// Wakes a sleeper whose instant has come.
    pub(super) fn wake_sleeper(&self, slot: u32) {
        let (_, waiting) = lock(&self.shared.requests).free_sleeper(slot);
        match waiting {
            Waiting::Task(task) => self.slots[task as usize].waker.wake_by_ref(),
            Waiting::Waker(waker) => waker.wake(),
            Waiting::None => {}
        }
    }

    /// Polls one task.
    pub(super) fn poll(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.waker.queued.store(false, Ordering::Release);
        let Some(task) = &mut entry.task else {
            if std::mem::take(&mut entry.is_killed) {
                self.free.push(slot);
            }
            return;
        };
        self.shared.running.store(slot, Ordering::Relaxed);
        self.shared.running_waker.store(entry.std_waker.data().addr(), Ordering::Relaxed);
        if task.as_mut().poll(&mut Context::from_waker(&entry.std_waker)).is_ready() {
            entry.task = None;
            self.free.push(slot);
        }
    }

    /// Returns the node of a task.
    pub(super) fn node_of(&self, slot: u32) -> NodeId {
        self.slots[slot as usize].node
    }

    /// Makes a suspended task ready again; it may have been dropped meanwhile.
    pub(super) fn thaw(&self, slot: u32) {
        let waker = &self.slots[slot as usize].waker;
        waker.queued.store(false, Ordering::Release);
        waker.wake_by_ref();
    }

    /// Drops all tasks of a node, as a crash of its host does.
    pub(super) fn kill(&mut self, node: NodeId) {
        for (slot, entry) in (0_u32..).zip(&mut self.slots) {
            if entry.node == node && entry.task.take().is_some() {
                entry.is_killed = entry.waker.queued.load(Ordering::Acquire);
                if !entry.is_killed {
                    self.free.push(slot);
                }
            }
        }
    }

    /// Returns the number of tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.slots.iter().filter(|slot| slot.task.is_some()).count()
    }
}
