//! Sessions: byte streams by the thousand between two processes, over one wire, each with credits of its own.
//!
//! A stream that is not read holds its own writer, and no other stream: see [`Stream`]. A [`Driver`] moves what all
//! sessions of a process have to send and to receive; it is one task of the caller's runtime.

mod core;
mod driver;
mod flow;
mod frame;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atomic_waker::AtomicWaker;
use midplane_simhw::shm::rings::{RingPair, WakeSet};

pub use self::core::Ended;
use self::core::{Core, MOST_CONTROL};
pub use driver::{Driver, Handler, Refusal};
use frame::Reason;
pub use stream::Stream;
use wire::Wire;

/// Most bytes of what a process says of itself.
pub const MOST_HELLO: usize = MOST_CONTROL;
/// Most bytes of a service's name.
pub const MOST_SERVICE: usize = 256;

/// What the sessions of a process share.
#[derive(Debug)]
pub struct Hub {
    /// Sessions with something to flush, or that are new.
    dirty: Mutex<Vec<Arc<Session>>>,
    driver: AtomicWaker,
    wakes: WakeSet,
    is_closed: AtomicBool,
}

impl Hub {
    fn dirty(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a stream could not be opened, or a peer could not be told something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenError {
    /// The session has ended.
    Ended(Ended),
    /// The wire has no room now; try again later.
    Full,
}

/// The streams between this process and another one.
#[derive(Debug)]
pub struct Session {
    core: Mutex<Core>,
    hub: Arc<Hub>,
    number: u64,
    /// It stands among those that have something to flush.
    is_listed: AtomicBool,
}

impl Session {
    /// A session over two rings; `is_first` at the end that has connected.
    fn new(hub: Arc<Hub>, number: u64, wire: Wire, is_first: bool) -> Arc<Self> {
        let core = Mutex::new(Core::new(wire, is_first));
        Arc::new(Self { core, hub, number, is_listed: AtomicBool::new(false) })
    }

    /// The number of the session, unique among those of the process.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Why the session has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended
    }

    /// Streams that are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.lock().streams()
    }

    /// Describes this process to the peer, instead of what was said before.
    ///
    /// # Panics
    /// If it is longer than [`MOST_HELLO`].
    pub fn say(self: &Arc<Self>, hello: Vec<u8>) {
        assert!(hello.len() <= MOST_HELLO, "a description has at most {MOST_HELLO} bytes");
        self.with(|core| core.say(hello));
    }

    /// Tells the peer that this process opens and accepts no more streams.
    pub fn say_goodbye(self: &Arc<Self>) {
        self.with(Core::say_goodbye);
    }

    /// Opens a stream to a service of the peer. It carries bytes once [`Stream::accepted`] is ready.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// If the name is longer than [`MOST_SERVICE`].
    pub fn open(self: &Arc<Self>, service: &str) -> Result<Stream, OpenError> {
        assert!(service.len() <= MOST_SERVICE, "a name has at most {MOST_SERVICE} bytes");
        let number = self.with(|core| match core.ended {
            Some(ended) => Err(OpenError::Ended(ended)),
            None => core.open(service).ok_or(OpenError::Full),
        })?;
        Ok(Stream::new(Arc::clone(self), number))
    }

    /// Ends the session, and all of its streams with an error.
    pub fn end(self: &Arc<Self>) {
        self.with(|core| core.end(Ended::Closed));
    }

    /// Refuses a stream: the node offers no such service.
    fn refuse(self: &Arc<Self>, stream: u32, reason: Reason) {
        self.with(|core| {
            core.reset(stream, reason);
            core.drop_stream(stream);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes the tasks and the driver that this concerns, without the lock.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = change(&mut core);
        let wakers = std::mem::take(&mut core.wakers);
        let concerns_driver = core.is_dirty || !core.events.is_empty();
        drop(core);
        if concerns_driver && !self.is_listed.swap(true, Ordering::Relaxed) {
            self.hub.dirty().push(Arc::clone(self));
            self.hub.driver.wake();
        }
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }
}

/// Makes sessions.
#[derive(Clone, Debug)]
pub struct Sessions {
    hub: Arc<Hub>,
    next: Arc<std::sync::atomic::AtomicU64>,
}

impl Sessions {
    /// The sessions of a process, and the driver that must [run](Driver::run) for them.
    ///
    /// # Errors
    /// The system's: it has no descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O.
    pub fn new() -> io::Result<(Self, Driver)> {
        let wakes = WakeSet::new()?;
        let hub = Arc::new(Hub {
            dirty: Mutex::default(),
            driver: AtomicWaker::new(),
            wakes: wakes.clone(),
            is_closed: AtomicBool::new(false),
        });
        let driver = Driver::new(Arc::clone(&hub), wakes)?;
        Ok((Self { hub, next: Arc::default() }, driver))
    }

    /// A session over shared memory; `is_first` at the end that has connected.
    ///
    /// # Errors
    /// The system's.
    pub fn over_rings(&self, pair: RingPair, is_first: bool) -> io::Result<Arc<Session>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.hub.wakes.add(number, &pair)?;
        let session = Session::new(Arc::clone(&self.hub), number, Wire::ring(pair), is_first);
        session.with(|core| core.is_dirty = true);
        Ok(session)
    }

    /// Ends the driver.
    pub fn close(&self) {
        self.hub.is_closed.store(true, Ordering::Release);
        self.hub.driver.wake();
    }
}
