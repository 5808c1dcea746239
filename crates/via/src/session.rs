//! Sessions: thousands of byte streams between two processes, over one wire, each with credit of its own.
//!
//! A stream that is not read blocks its own writer, and no other stream: see [`Stream`]. A [`Driver`] moves the
//! bytes of all sessions of a process; it is one task of the caller's runtime.

mod byte_pipe;
mod core;
mod dial;
mod driver;
mod due;
mod flow;
mod frame;
mod gossip;
#[cfg(feature = "hyper")]
mod hyper;
mod line;
mod mover;
mod own;
mod parts;
mod piped;
mod sessions;
mod spin;
mod stats;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use midplane_simhw::lock::lock;
use midplane_simhw::seal::PublicKey;
use midplane_simhw::shm::rings::WakeSet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use self::core::Core;
pub use self::core::Ended;
use byte_pipe::Pipes;
pub use dial::{Attempt, Attempts};
pub use driver::{Driver, Handler, Refusal};
use frame::{MAX_CONTROL, Reason};
pub use gossip::Gossip;
use line::Line;
use mover::Mover;
pub use sessions::Sessions;
pub use stats::Stats;
pub use stream::{Stream, Watch};
use wire::Wire;

use crate::wire::endpoint::PipeId;
use crate::wire::pipe;
use crate::wire::tcp;

/// Most bytes of a service's name.
const MAX_SERVICE: usize = 256;

/// Limits how long a driver that ends waits until its peers are notified.
const CLOSE: Duration = Duration::from_secs(1);

/// State that the sessions of a process share.
#[derive(Debug)]
pub struct SharedState {
    /// Sessions that are new or have something to flush; `None` once the driver has ended.
    dirty: Mutex<Option<Vec<Arc<Session>>>>,
    driver: AtomicWaker,
    /// Wakes the driver for sessions over shared memory; `None` without any.
    wakes: Option<WakeSet>,
    /// The runtime of the process's sessions: that of a caller may end sooner.
    runtime: tokio::runtime::Handle,
    pipes: Option<Arc<Pipes>>,
    tcp: Option<tcp::Config>,
    /// The number of the next session.
    next: AtomicU64,
    is_closed: AtomicBool,
    /// True if a message of gossip was written since the driver last moved datagrams.
    has_gossip: AtomicBool,
    /// Counts the tasks that move the bytes of sessions over TCP and libfabric, and those that close streams' own
    /// connections; notified when one has ended.
    movers: AtomicUsize,
    mover_ended: Notify,
    /// Permits for streams' own connections.
    own_connections: Arc<Semaphore>,
    /// The sessions that peers have dialed, by the ids that their streams' own connections name.
    accepted: Mutex<BTreeMap<u64, Weak<Session>>>,
}

impl SharedState {
    /// Removes a session over shared memory that has ended from the set of wake-ups.
    fn unwatch(&self, number: u64) {
        if let Some(wakes) = &self.wakes {
            wakes.remove(number);
        }
    }

    /// Waits until the tasks that move bytes have ended, after all that was written; for [`CLOSE`] at most.
    async fn wait_for_movers(self: Arc<Self>) {
        let ended = async {
            loop {
                let ended = self.mover_ended.notified();
                if self.movers.load(Ordering::Acquire) == 0 {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(CLOSE, ended).await;
    }
}

/// Why a stream could not be opened.
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
    shared: Arc<SharedState>,
    number: u64,
    /// True while it is in the list of sessions that have something to flush.
    is_listed: AtomicBool,
    /// True once this process has described itself to the peer, or has ended the session. Only then does the driver
    /// handle frames of the peer.
    has_begun: AtomicBool,
    transport: TransportKind,
    /// The transport that carries a dialed session, if it is not the one tried first.
    decided: OnceLock<TransportKind>,
    /// Its connection over UDP, and the statistics at the end of that.
    pipe: OnceLock<PipeId>,
    last_stats: OnceLock<pipe::Stats>,
    attempts: OnceLock<Arc<Attempts>>,
    /// The id that names it at its acceptor. Set at the acceptor, and at a dialer over TCP; a dialer over UDP asks its pipe.
    id: OnceLock<u64>,
    /// The peer's own key, as proven over TCP.
    proven: OnceLock<PublicKey>,
}

/// The transport of a session.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum TransportKind {
    /// Rings of shared memory: the peer is a process of this host.
    Shm,
    /// UDP datagrams to this address.
    Udp(SocketAddr),
    /// TCP to this address, for a peer that does not answer over UDP.
    Tcp(SocketAddr),
    /// A provider of libfabric.
    Ofi,
}

impl TransportKind {
    /// Returns its name: `shm`, `udp`, `tcp` or `ofi`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp(_) => "udp",
            Self::Tcp(_) => "tcp",
            Self::Ofi => "ofi",
        }
    }

    /// Returns the peer's address; `None` through shared memory and libfabric.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Shm | Self::Ofi => None,
            Self::Udp(address) | Self::Tcp(address) => Some(address),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A session that this process has dialed is not registered.
        if let Some(id) = self.id.get().filter(|_| self.attempts.get().is_none()) {
            lock(&self.shared.accepted).remove(id);
        }
    }
}

impl Session {
    /// Makes a session over a wire; `is_first` at the end that has connected.
    fn new(
        shared: Arc<SharedState>,
        number: u64,
        (wire, transport): (Wire, TransportKind),
        is_first: bool,
    ) -> Arc<Self> {
        let core = Mutex::new(Core::new(wire, is_first));
        Arc::new(Self {
            core,
            shared,
            number,
            is_listed: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            transport,
            decided: OnceLock::new(),
            pipe: OnceLock::new(),
            last_stats: OnceLock::new(),
            attempts: OnceLock::new(),
            id: OnceLock::new(),
            proven: OnceLock::new(),
        })
    }

    /// Lets the peer's connections for streams of this session name it by its id.
    fn register(self: &Arc<Self>, id: u64) {
        if self.id.set(id).is_ok() {
            lock(&self.shared.accepted).insert(id, Arc::downgrade(self));
        }
    }

    /// Returns the session's transport; before a dial is answered, the one that is tried first.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        *self.decided.get().unwrap_or(&self.transport)
    }

    /// Returns the peer's own key, as proven over UDP, TCP or libfabric. `None` if the peer or this process has no such
    /// key, and always through shared memory, where the system identifies the peer's user.
    #[must_use]
    pub fn peer_key(&self) -> Option<PublicKey> {
        match self.transport() {
            TransportKind::Udp(_) => self.over_pipe(pipe::Pipe::peer_key)?,
            TransportKind::Tcp(_) | TransportKind::Ofi => self.proven.get().copied(),
            TransportKind::Shm => None,
        }
    }

    /// Returns the attempts to connect, if this process has dialed the session by address.
    #[must_use]
    pub fn attempts(&self) -> Option<&Arc<Attempts>> {
        self.attempts.get()
    }

    /// Returns counters and measurements.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.lock();
        let (counted, open) = (core.counted, core.streams());
        drop(core);
        Stats {
            bytes_sent: counted.bytes_sent,
            bytes_received: counted.bytes_received,
            opened: counted.opened,
            accepted: counted.accepted,
            refused: counted.refused,
            moved: counted.moved,
            open,
            pipe: self.pipe_stats(),
        }
    }

    /// Returns the statistics of its connection over UDP, open or ended; `None` if another transport carries it.
    fn pipe_stats(&self) -> Option<pipe::Stats> {
        let stats = || self.last_stats.get().copied().or_else(|| self.over_pipe(pipe::Pipe::stats));
        self.is_over_udp().then(stats).flatten()
    }

    /// Keeps the statistics of its connection over UDP, which is released now.
    fn keep_stats(&self) {
        if let Some(stats) = self.over_pipe(pipe::Pipe::stats) {
            let _ = self.last_stats.set(stats);
        }
    }

    /// Reads the state of its connection over UDP; returns `None` if there is none.
    fn over_pipe<R>(&self, ask: impl FnOnce(&pipe::Pipe) -> R) -> Option<R> {
        let (pipes, id) = self.shared.pipes.as_ref().zip(self.pipe.get())?;
        pipes.endpoint().peek(*id).map(ask)
    }

    fn is_over_udp(&self) -> bool {
        matches!(self.transport(), TransportKind::Udp(_))
    }

    /// Returns the session's number, unique in the process.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns why the session has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.lock().streams()
    }

    /// Returns the number of open streams that bytes may still cross: not those whose both directions have ended, and
    /// which the application has read to their end but still holds.
    #[must_use]
    pub fn streams_in_use(&self) -> usize {
        self.lock().streams_in_use()
    }

    /// Returns whether all that was written has left this process: over UDP, whether the peer has acknowledged it; over TCP
    /// and libfabric, whether the system has it.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.lock().is_flushed()
    }

    /// Returns whether the peer has been silent for a second although something is outstanding: over UDP; over
    /// TCP and libfabric, only once the system's buffers are full.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        match (self.transport(), &self.shared.pipes) {
            (TransportKind::Udp(_), Some(pipes)) => {
                let now = pipes.clock.now();
                self.over_pipe(|pipe| pipe.is_suspected(now)).unwrap_or(false)
            }
            (TransportKind::Tcp(_) | TransportKind::Ofi, _) => self.lock().is_stuck(),
            _ => false,
        }
    }

    /// Describes this process to the peer; replaces an earlier description.
    ///
    /// The first call starts the session: before it, the driver handles nothing that the peer sends.
    ///
    /// # Panics
    /// If the description is longer than 8 KiB.
    pub fn send_hello(self: &Arc<Self>, hello: Vec<u8>) {
        assert!(hello.len() <= MAX_CONTROL, "a description has at most {MAX_CONTROL} bytes");
        self.has_begun.store(true, Ordering::Release);
        self.with(|core| core.send_hello(hello));
    }

    /// Reports to the peer that this process opens and accepts no more streams.
    pub fn send_goodbye(self: &Arc<Self>) {
        self.with(Core::send_goodbye);
    }

    /// Opens a stream to a service of the peer. It carries bytes once [`Stream::accepted`] is ready.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// If the name is longer than 256 bytes.
    pub fn open(self: &Arc<Self>, service: &str) -> Result<Stream, OpenError> {
        assert!(service.len() <= MAX_SERVICE, "a name has at most {MAX_SERVICE} bytes");
        let number = self.with(|core| match core.ended {
            Some(ended) => Err(OpenError::Ended(ended)),
            None => core.open(service).ok_or(OpenError::Full),
        })?;
        Ok(Stream::new(Arc::clone(self), number))
    }

    /// Ends the session, and all its streams with an error.
    pub fn end(self: &Arc<Self>) {
        self.has_begun.store(true, Ordering::Release);
        self.with(|core| core.end(Ended::Closed));
    }

    /// Refuses a stream, for `reason`.
    fn refuse(self: &Arc<Self>, stream: u32, reason: Reason) {
        self.with(|core| {
            core.reset(stream, reason);
            core.drop_stream(stream);
        });
    }

    /// Handles the establishment of its connection over UDP.
    fn on_pipe_established(self: &Arc<Self>, id: PipeId) {
        if self.with(|core| core.on_pipe_established(id)) {
            self.set_udp(Attempt::Answered);
        }
    }

    /// Handles the end of its connection over UDP.
    fn on_pipe_ended(self: &Arc<Self>, id: PipeId, why: pipe::Ended) {
        self.keep_stats();
        if self.with(|core| core.on_pipe_ended(id)) {
            self.set_udp(match why {
                pipe::Ended::KeyMismatch => Attempt::KeyMismatch,
                why => Attempt::Failed(why.to_string()),
            });
        }
    }

    fn set_udp(&self, attempt: Attempt) {
        if let Some(attempts) = self.attempts.get() {
            attempts.set_udp(attempt);
        }
    }

    /// Records that TCP is not tried, or has failed.
    fn on_tcp_failed(self: &Arc<Self>) {
        self.with(Core::on_tcp_failed);
    }

    /// Carries a dialed session over TCP; returns `false` if UDP carries it already, or if it has ended.
    fn adopt(
        self: &Arc<Self>,
        connection: tcp::Connection<TcpStream>,
        transport: TransportKind,
    ) -> bool {
        let line = Arc::new(Line::default());
        let is_adopted = self.with(|core| {
            let is_adopted = core.on_tcp_established(Arc::clone(&line));
            if is_adopted {
                let _ = self.decided.set(transport);
                let _ = self.id.set(connection.id);
            }
            is_adopted
        });
        if is_adopted {
            self.move_bytes(line, connection);
        }
        is_adopted
    }

    fn move_bytes<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        self: &Arc<Self>,
        line: Arc<Line>,
        connection: tcp::Connection<S>,
    ) {
        if let Some(proven) = connection.records.as_ref().and_then(tcp::Records::peer) {
            let _ = self.proven.set(proven);
        }
        tokio::spawn(Mover::new(Arc::clone(self), line, connection).run());
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Changes the state, then wakes the tasks and the driver concerned, without the lock.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = change(&mut core);
        let wakers = std::mem::take(&mut core.wakers);
        let replaced = std::mem::take(&mut core.replaced);
        let moving = std::mem::take(&mut core.moving);
        let concerns_driver = core.is_dirty || !core.events.is_empty();
        drop(core);
        if concerns_driver && !self.is_listed.swap(true, Ordering::Relaxed) {
            if let Some(dirty) = &mut *lock(&self.shared.dirty) {
                dirty.push(Arc::clone(self));
            }
            self.shared.driver.wake();
        }
        wakers.into_iter().for_each(std::task::Waker::wake);
        for stream in moving {
            self.shared.runtime.spawn(own::make(Arc::clone(self), stream));
        }
        // Dropping a waker may drop a stream of this session, which takes the lock.
        drop(replaced);
        result
    }
}
