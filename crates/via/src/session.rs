//! Sessions: byte streams by the thousand between two processes, over one wire, each with credits of its own.
//!
//! A stream that is not read holds its own writer, and no other stream: see [`Stream`]. A [`Driver`] moves what all
//! sessions of a process have to send and to receive; it is one task of the caller's runtime.

mod core;
mod driver;
mod due;
mod flow;
mod frame;
#[cfg(feature = "hyper")]
mod hyper;
mod parts;
mod piped;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atomic_waker::AtomicWaker;
use midplane_simhw::shm::rings::{RingPair, WakeSet};

pub use self::core::Ended;
use self::core::{Core, MOST_CONTROL};
pub use driver::{Driver, Handler, Refusal};
use frame::Reason;
use piped::{Piped, Pipes};
pub use stream::Stream;
use wire::Wire;

use crate::wire::endpoint::{Endpoint, PipeId};
use crate::wire::pipe::Config;
use crate::wire::socket::Socket;

/// Most bytes of what a process says of itself.
pub const MOST_HELLO: usize = MOST_CONTROL;
/// Most bytes of a service's name.
pub const MOST_SERVICE: usize = 256;

/// State that the sessions of a process share.
#[derive(Debug)]
pub struct Hub {
    /// Sessions with something to flush, or that are new; `None` once the driver has ended.
    dirty: Mutex<Option<Vec<Arc<Session>>>>,
    driver: AtomicWaker,
    wakes: WakeSet,
    pipes: Option<Arc<Pipes>>,
    /// The number of the next session.
    next: AtomicU64,
    is_closed: AtomicBool,
}

impl Hub {
    fn dirty(&self) -> MutexGuard<'_, Option<Vec<Arc<Session>>>> {
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
    /// It has described this process, or was ended by it: the driver handles what the peer sends.
    has_begun: AtomicBool,
    transport: Transport,
    /// Its connection, over UDP.
    pipe: OnceLock<PipeId>,
}

/// The transport of a session.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Transport {
    /// Rings of shared memory: the peer is a process of this host.
    Shm,
    /// UDP datagrams to this address.
    Udp(SocketAddr),
}

impl Session {
    /// A session over a wire; `is_first` at the end that has connected.
    fn new(
        hub: Arc<Hub>,
        number: u64,
        (wire, transport): (Wire, Transport),
        is_first: bool,
    ) -> Arc<Self> {
        let core = Mutex::new(Core::new(wire, is_first));
        Arc::new(Self {
            core,
            hub,
            number,
            is_listed: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            transport,
            pipe: OnceLock::new(),
        })
    }

    /// Returns the session's transport.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
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

    /// Returns whether the peer was silent for a second although something is outstanding; over UDP alone.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        let pipes = self.hub.pipes.as_ref().zip(self.pipe.get());
        pipes.is_some_and(|(pipes, id)| {
            pipes.endpoint().peek(*id).is_some_and(|pipe| pipe.is_suspected(pipes.clock.now()))
        })
    }

    /// Describes this process to the peer, instead of what was said before.
    ///
    /// The first call begins the session: the driver handles nothing of what the peer sends before.
    ///
    /// # Panics
    /// If it is longer than [`MOST_HELLO`].
    pub fn say(self: &Arc<Self>, hello: Vec<u8>) {
        assert!(hello.len() <= MOST_HELLO, "a description has at most {MOST_HELLO} bytes");
        self.has_begun.store(true, Ordering::Release);
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
        self.has_begun.store(true, Ordering::Release);
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
        let replaced = std::mem::take(&mut core.replaced);
        let concerns_driver = core.is_dirty || !core.events.is_empty();
        drop(core);
        if concerns_driver && !self.is_listed.swap(true, Ordering::Relaxed) {
            if let Some(dirty) = &mut *self.hub.dirty() {
                dirty.push(Arc::clone(self));
            }
            self.hub.driver.wake();
        }
        wakers.into_iter().for_each(std::task::Waker::wake);
        // Dropping one may drop a stream of this session.
        drop(replaced);
        result
    }
}

/// Makes the sessions of a process.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<Hub>);

impl Sessions {
    /// The sessions of a process, and the driver that must [run](Driver::run) for them; over UDP as well with a socket
    /// and what its connections are like.
    ///
    /// # Errors
    /// The system's: it has no descriptors, or no random numbers.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn new(udp: Option<(Socket, Config)>) -> io::Result<(Self, Driver)> {
        let wakes = WakeSet::new()?;
        let (socket, pipes) = match udp {
            None => (None, None),
            Some((socket, config)) => {
                let seed = getrandom::u64().map_err(io::Error::other)?;
                let config = config.socket_bytes(socket.receive_bytes());
                let endpoint = Mutex::new(Endpoint::new(config, seed));
                let pipes = Pipes { endpoint, closing: Mutex::default(), clock: socket.clock() };
                (Some(socket), Some(Arc::new(pipes)))
            }
        };
        let hub = Arc::new(Hub {
            dirty: Mutex::new(Some(Vec::new())),
            driver: AtomicWaker::new(),
            wakes: wakes.clone(),
            pipes,
            next: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        let driver = Driver::new(Arc::clone(&hub), wakes, socket)?;
        Ok((Self(hub), driver))
    }

    /// A session over shared memory; `is_first` at the end that has connected. [`Session::say`] begins it.
    ///
    /// # Errors
    /// The system's.
    pub fn over_rings(&self, pair: RingPair, is_first: bool) -> io::Result<Arc<Session>> {
        let number = self.0.number();
        let wire = (Wire::ring(pair), Transport::Shm);
        let session = Session::new(Arc::clone(&self.0), number, wire, is_first);
        // The driver knows it before it is told of its first wake-up.
        session.with(|core| core.is_dirty = true);
        let watched = session.lock().watch(&self.0.wakes, number);
        watched.inspect_err(|_| session.end())?;
        Ok(session)
    }

    /// A session over UDP to the process at `to`; it ends if none answers. `None` without a socket. [`Session::say`] begins
    /// it.
    #[must_use]
    pub fn dial(&self, to: SocketAddr) -> Option<Arc<Session>> {
        let pipes = self.0.pipes.as_ref()?;
        // The driver knows it before it is told of its first event.
        let mut endpoint = pipes.endpoint();
        let id = endpoint.dial(pipes.clock.now(), to);
        Some(self.0.over_pipe(id, to, true))
    }

    /// Ends the driver, and all sessions with it.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.driver.wake();
    }
}

impl Hub {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn over_pipe(self: &Arc<Self>, id: PipeId, peer: SocketAddr, is_first: bool) -> Arc<Session> {
        let pipes = self.pipes.as_ref().expect("a connection over UDP has a socket");
        let wire = Wire::Piped(Piped::new(Arc::clone(pipes), id));
        let wire = (wire, Transport::Udp(peer));
        let session = Session::new(Arc::clone(self), self.number(), wire, is_first);
        session.pipe.set(id).expect("it is new");
        session.with(|core| core.is_dirty = true);
        session
    }
}
