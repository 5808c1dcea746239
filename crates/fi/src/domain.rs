//! A domain: its endpoints, address vectors, queues, counters and regions, behind one lock.

mod driver;
mod waiter;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;

use crate::completion::{Bindings, Completions};
use crate::endpoint::{Domain, Endpoint};
use crate::region::Regions;
use crate::vector::Vector;
pub(crate) use driver::Driver;
use waiter::Waiter;

/// Most turns between two checks for connections, which take two system calls, or three with silent connections. A turn takes some tens of nanoseconds,
/// so the checks cost 5 %, and a new peer waits about 10 us.
const CONNECTIONS: u32 = 512;
/// Time between two checks for connections of an application that polls rarely.
const CHECKED: Duration = Duration::from_millis(1);
/// Turns between two readings of the clock for [`CHECKED`].
const LOOKS: u32 = 8;

/// The longest time that a thread waits for one wake-up, in case a peer omits it.
const MOST_WAIT: Duration = Duration::from_millis(50);

/// Pause of a waiting thread while there is no space for what has arrived: 1 ms.
const NO_SPACE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The state of a domain.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoints: Slab<Endpoint>,
    /// The address vectors, each with the endpoints that are bound to it.
    pub(crate) vectors: Slab<Vector>,
    pub(crate) completions: Completions,
    pub(crate) regions: Regions,
    /// Turns since the last check for connections, and the time of that check.
    turns: u32,
    checked: Duration,
    idle: u32,
    /// Number of calls of [`Core::progress`] so far.
    polls: u64,
    /// Wake threads of the application: one for each queue with a descriptor, and for each waiting thread.
    waiters: Slab<Waiter>,
    /// The waiters of threads that have stopped waiting, for the next threads.
    unused: Vec<usize>,
    /// Wakes the domain's own thread, if it has one; then only that thread waits for the endpoints' descriptors.
    driver: Option<Waiter>,
    /// True until the thread that has parked the driver unlocks the domain.
    is_driven: bool,
}

impl Core {
    fn new() -> Self {
        Self {
            endpoints: Slab::new(),
            vectors: Slab::new(),
            completions: Completions::default(),
            regions: Regions::default(),
            turns: 0,
            checked: Duration::ZERO,
            idle: 0,
            polls: 0,
            waiters: Slab::new(),
            unused: Vec::new(),
            driver: None,
            is_driven: false,
        }
    }

    /// Runs one turn of all endpoints: receives records, and sends waiting ones. Returns `true` if so many polls were
    /// idle that the caller should yield to other processes.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        self.polls += 1;
        if let Some(driver) = &mut self.driver
            && std::mem::take(&mut driver.is_parked)
        {
            // The driver then notices when the application stops polling.
            driver.signal();
        }
        // This thread may not poll again, so the requests of waiting threads for wake-ups remain.
        if self.driver.is_some() || !self.is_awaited() {
            self.unpark();
        }
        let has_any = self.advance();
        self.idle = if has_any { 0 } else { self.idle + 1 };
        let should_yield = self.idle >= CONNECTIONS;
        if should_yield {
            self.idle = 0;
        }
        should_yield
    }

    /// Receives and sends once; returns whether there was any work.
    #[inline]
    fn advance(&mut self) -> bool {
        let mut has_any = false;
        let mut domain = Domain { regions: &self.regions, out: &mut self.completions };
        for (_, endpoint) in &mut self.endpoints {
            has_any |= endpoint.progress(&mut domain);
        }
        self.turns += 1;
        let time = if self.turns.is_multiple_of(LOOKS) { now() } else { self.checked };
        if self.turns >= CONNECTIONS || time.saturating_sub(self.checked) >= CHECKED {
            (self.turns, self.checked) = (0, time);
            self.endpoints.iter_mut().for_each(|(_, endpoint)| endpoint.progress_connections());
            // The checks have taken wake-ups that waiting threads have requested.
            if self.driver.is_none() && self.is_awaited() && !self.park_endpoints() {
                self.completions.has_changed = true;
            }
        }
        has_any
    }

    /// Returns whether a thread waits.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|(_, waiter)| waiter.is_parked)
    }

    /// Returns an endpoint, and the memory of the domain that its methods take.
    ///
    /// # Panics
    /// If there is no endpoint with that key.
    #[inline]
    pub(crate) fn endpoint(&mut self, key: usize) -> (&mut Endpoint, Domain<'_>) {
        let domain = Domain { regions: &self.regions, out: &mut self.completions };
        (&mut self.endpoints[key], domain)
    }

    /// Returns whether `names` is true for the bindings of an endpoint.
    pub(crate) fn uses(&self, names: impl Fn(&Bindings) -> bool) -> bool {
        self.endpoints.iter().any(|(_, endpoint)| names(&endpoint.state.bindings))
    }

    /// Adds an endpoint.
    pub(crate) fn add(&mut self, endpoint: Endpoint) -> io::Result<usize> {
        match &self.driver {
            Some(driver) => driver.watch(&endpoint)?,
            None => self.waiters.iter().try_for_each(|(_, waiter)| waiter.watch(&endpoint))?,
        }
        Ok(self.endpoints.insert(endpoint))
    }

    /// Adds a waiter; returns its key.
    fn add_waiter(&mut self) -> io::Result<usize> {
        let waiter = Waiter::new()?;
        if self.driver.is_none() {
            self.endpoints.iter().try_for_each(|(_, endpoint)| waiter.watch(endpoint))?;
        }
        Ok(self.waiters.insert(waiter))
    }

    /// Returns the descriptor of a queue. It is readable after [`Core::park_queue`] when an event has occurred.
    pub(crate) fn descriptor(&mut self, queue: usize) -> io::Result<RawFd> {
        let missing = io::ErrorKind::NotFound;
        let known = self.completions.queues.get(queue).ok_or(missing)?.waiter;
        let key = known.map_or_else(|| self.add_waiter(), Ok)?;
        self.completions.queues.get_mut(queue).ok_or(missing)?.waiter = Some(key);
        Ok(self.waiters[key].ready.as_raw_fd())
    }

    /// Removes a queue, and its descriptor.
    pub(crate) fn remove_queue(&mut self, queue: usize) {
        let removed = self.completions.queues.try_remove(queue);
        if let Some(key) = removed.and_then(|queue| queue.waiter) {
            self.waiters.remove(key);
        }
    }

    /// Requests that the descriptor of a queue becomes readable. Returns `false` if the queue has entries, or an event has
    /// occurred already.
    pub(crate) fn park_queue(&mut self, queue: usize) -> bool {
        let known = self.completions.queues.get(queue).and_then(|queue| queue.waiter);
        self.resume(known);
        self.progress();
        let is_empty =
            self.completions.queues.get(queue).is_none_or(|queue| queue.entries.is_empty());
        let is_parked = is_empty
            && self.descriptor(queue).is_ok()
            && self.completions.queues[queue].waiter.is_some_and(|key| self.park(key));
        // Otherwise, other threads that wait request their wake-ups again.
        self.completions.has_changed |= !is_parked;
        is_parked
    }

    /// Ends a wait: takes the wake-ups of all endpoints.
    fn resume(&mut self, waiter: Option<usize>) {
        if let Some(key) = waiter {
            self.waiters[key].is_parked = false;
        }
        self.unpark();
    }

    /// Requests that a waiter's descriptor becomes readable. Returns `false` if an event has occurred already.
    fn park(&mut self, key: usize) -> bool {
        // Other threads may wait for what this one has received.
        self.notify();
        let waiter = &mut self.waiters[key];
        waiter.is_parked = true;
        waiter.clear();
        if let Some(driver) = &self.driver {
            driver.signal();
            return true;
        }
        self.park_endpoints()
    }

    /// Requests wake-ups from all endpoints. Returns `false` if an event has occurred already.
    fn park_endpoints(&mut self) -> bool {
        let mut is_idle = true;
        for (_, endpoint) in &mut self.endpoints {
            is_idle &= endpoint.park();
        }
        is_idle
    }

    /// Requests wake-ups once there is space for what waits to be sent, for the threads that wait.
    fn await_room(&mut self) {
        for (_, endpoint) in &mut self.endpoints {
            // A waiting thread then sends it.
            self.completions.has_changed |= !endpoint.await_room();
        }
    }

    /// Withdraws the requests for wake-ups.
    fn unpark(&mut self) {
        self.endpoints.iter_mut().for_each(|(_, endpoint)| endpoint.unpark());
    }

    /// Wakes the threads that wait, if an operation has completed.
    #[inline]
    fn notify(&mut self) {
        if std::mem::take(&mut self.completions.has_changed) {
            for (_, waiter) in &mut self.waiters {
                if std::mem::take(&mut waiter.is_parked) {
                    waiter.signal();
                }
            }
        }
    }

    /// Wakes the driver if an operation that was started since it was parked waits.
    fn signal_driver(&mut self) {
        let is_own = std::mem::take(&mut self.is_driven);
        if let Some(driver) = &mut self.driver
            && driver.is_parked
            && !is_own
            && self.endpoints.iter().any(|(_, endpoint)| endpoint.has_work())
        {
            driver.is_parked = false;
            driver.signal();
        }
    }
}

/// A domain that several of the caller's objects share.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<Core>);

/// A locked domain.
pub(crate) struct Locked<'a>(MutexGuard<'a, Core>);

impl std::ops::Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    /// Wakes waiting threads if this thread has completed an operation, and the driver if operations wait to be sent.
    #[inline]
    fn drop(&mut self) {
        let core = &mut *self.0;
        if core.driver.is_some() {
            core.signal_driver();
        } else if core.is_awaited() {
            core.await_room();
        }
        core.notify();
    }
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Core::new()))
    }

    /// Locks the domain. If a thread panicked while it held the lock, the state stays as it was: that thread's
    /// operation may never complete.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one turn, and calls a function. Yields to other processes after many idle turns.
    #[inline]
    pub(crate) fn poll<T>(&self, call: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let should_yield = core.progress();
        let result = call(&mut core);
        drop(core);
        if should_yield {
            std::thread::yield_now();
        }
        result
    }

    /// Polls until `done` returns a value, and parks between polls. Returns `None` after `timeout`; without one, waits
    /// forever.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let until = timeout.map(|timeout| now() + timeout);
        let (mut waiter, mut refused) = (None, 0);
        loop {
            let mut core = self.lock();
            if waiter.is_some() {
                core.resume(waiter);
            }
            core.progress();
            let value = done(&mut core);
            let left = until.map(|until| until.saturating_sub(now()));
            if value.is_some() || left.is_some_and(|left| left.is_zero()) {
                // If this thread has waited, other threads request their wake-ups again.
                core.completions.has_changed |= waiter.is_some();
                core.unused.extend(waiter);
                return value;
            }
            waiter = waiter.or_else(|| core.unused.pop()).or_else(|| core.add_waiter().ok());
            let Some(key) = waiter.filter(|key| core.park(*key)) else {
                // Without work, what has arrived has no space, such as in a full queue.
                refused += 1;
                let has_no_space = refused > 1 && core.idle > 1;
                drop(core);
                if has_no_space {
                    let _ = poll(&mut [], Some(&NO_SPACE));
                }
                continue;
            };
            refused = 0;
            let Ok(descriptor) = rustix::io::dup(&core.waiters[key].ready) else { continue };
            drop(core);
            let slice = left.map_or(MOST_WAIT, |left| left.min(MOST_WAIT));
            let slice = Timespec::try_from(slice).ok();
            // After an interrupt as well, the next progress handles the events.
            let _ = poll(&mut [PollFd::new(&descriptor.as_fd(), PollFlags::IN)], slice.as_ref());
        }
    }
}

/// Returns the time since the machine started.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}
