//! A domain: its endpoints, address vectors, queues, counters and regions, behind one lock.

mod driver;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;

use crate::completion::Completions;
use crate::endpoint::{Domain, Endpoint};
use crate::region::Regions;
use crate::vector::Vector;
pub(crate) use driver::Driver;

/// Calls of [`Core::progress`] between two checks for connections, which take two system calls. A call takes some tens
/// of nanoseconds, so the checks cost 5 %, and a new peer waits about 10 us.
const CONNECTIONS: u32 = 512;

/// The longest time that a thread waits for one wake-up: another thread of the same domain may consume it.
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
    turns: u32,
    idle: u32,
    /// Number of calls of [`Core::progress`] so far.
    polls: u64,
    /// Wakes threads of the application.
    waiter: Option<Waiter>,
    /// Wakes the domain's own thread, if it has one; then only that thread waits for the endpoints' descriptors.
    driver: Option<Waiter>,
    /// True until the thread that has parked the driver unlocks the domain.
    is_driven: bool,
}

/// A descriptor that is readable when an event has occurred since the domain was parked.
#[derive(Debug)]
struct Waiter {
    ready: OwnedFd,
    /// An eventfd for events of this process.
    own: OwnedFd,
    is_parked: bool,
}

impl Core {
    fn new() -> Self {
        Self {
            endpoints: Slab::new(),
            vectors: Slab::new(),
            completions: Completions::default(),
            regions: Regions::default(),
            turns: 0,
            idle: 0,
            polls: 0,
            waiter: None,
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
        if self.turns >= CONNECTIONS {
            self.turns = 0;
            self.endpoints.iter_mut().for_each(|(_, endpoint)| endpoint.progress_connections());
        }
        has_any
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

    /// Adds an endpoint.
    pub(crate) fn add(&mut self, endpoint: Endpoint) -> io::Result<usize> {
        if let Some(waiter) = self.driver.as_ref().or(self.waiter.as_ref()) {
            waiter.watch(&endpoint)?;
        }
        Ok(self.endpoints.insert(endpoint))
    }

    /// Returns the descriptor that is readable after [`Core::park`] when an event has occurred.
    pub(crate) fn descriptor(&mut self) -> io::Result<RawFd> {
        if self.waiter.is_none() {
            let waiter = Waiter::new()?;
            if self.driver.is_none() {
                for (_, endpoint) in &self.endpoints {
                    waiter.watch(endpoint)?;
                }
            }
            self.waiter = Some(waiter);
        }
        Ok(self.waiter.as_ref().map_or(-1, |waiter| waiter.ready.as_raw_fd()))
    }

    /// Requests that the descriptor becomes readable. Returns `false` if an event has occurred already.
    pub(crate) fn park(&mut self) -> bool {
        if self.descriptor().is_err() {
            return false;
        }
        if let Some(waiter) = &mut self.waiter {
            waiter.is_parked = true;
            // An error means that the eventfd was not set.
            let _ = rustix::io::read(&waiter.own, &mut [0; 8]);
        }
        self.completions.has_changed = false;
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

    /// Wakes the threads that wait for the descriptor.
    pub(crate) fn signal(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.signal();
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

impl Waiter {
    fn new() -> io::Result<Self> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&ready, &own, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { ready, own, is_parked: false })
    }

    fn signal(&self) {
        // It fails only after 2^64 - 1 signals.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    fn watch(&self, endpoint: &Endpoint) -> io::Result<()> {
        for descriptor in endpoint.descriptors() {
            epoll::add(&self.ready, descriptor, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
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
        if core.completions.has_changed
            && let Some(waiter) = &mut core.waiter
            && std::mem::take(&mut waiter.is_parked)
        {
            core.signal();
        }
        if core.driver.is_some() {
            core.signal_driver();
        }
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

    /// Polls until `done` returns a value, and parks between polls. Returns `None` after `timeout`; without one, waits
    /// forever.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let until = timeout.map(|timeout| now() + timeout);
        let mut refused = 0;
        loop {
            let mut core = self.lock();
            core.progress();
            if let Some(value) = done(&mut core) {
                return Some(value);
            }
            let left = until.map(|until| until.saturating_sub(now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if !core.park() {
                // Without work, what has arrived has no space, such as in a full queue.
                refused += 1;
                let has_no_space = refused > 1 && core.idle > 1;
                drop(core);
                if has_no_space {
                    let _ = poll(&mut [], Some(&NO_SPACE));
                }
                continue;
            }
            refused = 0;
            let Ok(descriptor) = core
                .waiter
                .as_ref()
                .map_or(Err(rustix::io::Errno::BADF), |waiter| rustix::io::dup(&waiter.ready))
            else {
                continue;
            };
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
