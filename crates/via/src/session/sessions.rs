//! All sessions of a process, and how each begins.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use atomic_waker::AtomicWaker;
use midplane_simhw::shm::rings::{RingPair, WakeSet};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use super::byte_pipe::Pipes;
use super::dial::{self, Attempt, Attempts};
use super::line::Line;
use super::own;
use super::piped::Piped;
use super::wire::{Dialing, Wire};
use super::{Driver, Session, SharedState, TransportKind};
use crate::wire::endpoint::{Endpoint, PipeId, TokenCounters};
use crate::wire::pipe::{Config, Pipe};
use crate::wire::socket::Socket;
use crate::wire::tcp;

/// Makes the sessions of a process.
#[derive(Clone, Debug)]
pub struct Sessions(pub(super) Arc<SharedState>);

impl Sessions {
    /// Makes the sessions of a process, and the driver that must [run](Driver::run) for them. Sessions use shared
    /// memory on Linux, except on a simulated host; with a socket and a configuration, also UDP; with a configuration of TCP,
    /// also TCP.
    ///
    /// # Errors
    /// The system's error: there are no file descriptors left, or no random numbers.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn new(
        udp: Option<(Socket, Config)>,
        tcp: Option<tcp::Config>,
    ) -> io::Result<(Self, Driver)> {
        let is_live = udp.as_ref().is_none_or(|(socket, _)| socket.is_live());
        let has_rings = is_live && cfg!(target_os = "linux");
        let wakes = has_rings.then(WakeSet::new).transpose()?;
        let (socket, pipes) = match udp {
            None => (None, None),
            Some((socket, config)) => {
                let seed = socket.random()?;
                let config = config.socket_bytes(socket.receive_bytes());
                let pipes = Pipes::new(Endpoint::new(config, seed), socket.clock());
                (Some(socket), Some(pipes))
            }
        };
        let shared = Arc::new(SharedState {
            dirty: Mutex::new(Some(Vec::new())),
            driver: AtomicWaker::new(),
            wakes,
            runtime: Handle::current(),
            pipes,
            tcp,
            next: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            has_gossip: AtomicBool::new(false),
            movers: AtomicUsize::new(0),
            mover_ended: Notify::new(),
            accepted: Mutex::default(),
            own_connections: Arc::new(Semaphore::new(own::most())),
        });
        let driver = Driver::new(Arc::clone(&shared), socket)?;
        Ok((Self(shared), driver))
    }

    /// Makes a session over shared memory; `is_first` at the end that has connected. [`Session::send_hello`] starts
    /// it.
    ///
    /// # Errors
    /// The system's error.
    pub fn over_rings(&self, pair: RingPair, is_first: bool) -> io::Result<Arc<Session>> {
        let number = self.0.number();
        let wire = (Wire::ring(pair), TransportKind::Shm);
        let session = Session::new(Arc::clone(&self.0), number, wire, is_first);
        // The driver knows the session before its first wake-up arrives.
        session.with(|core| core.is_dirty = true);
        let watched = match &self.0.wakes {
            Some(wakes) => session.lock().watch(wakes, number),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        watched.inspect_err(|_| session.end())?;
        Ok(session)
    }

    /// Makes a session to the process at `to`: over UDP, or over TCP if UDP does not answer within 300 ms. It
    /// ends if neither answers. Returns `None` if neither is configured. [`Session::send_hello`] starts it.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    #[must_use]
    pub fn dial(&self, to: SocketAddr) -> Option<Arc<Session>> {
        let SharedState { pipes, tcp, .. } = &*self.0;
        let transport = match (pipes, tcp) {
            (Some(_), _) => TransportKind::Udp(to),
            (None, Some(_)) => TransportKind::Tcp(to),
            (None, None) => return None,
        };
        let attempts = Arc::new(Attempts::default());
        // The driver knows the session before it receives its first event.
        let mut endpoint = pipes.as_ref().map(|pipes| (pipes, pipes.endpoint()));
        let id = endpoint.as_mut().map(|(pipes, endpoint)| endpoint.dial(pipes.clock.now(), to));
        let udp = pipes.as_ref().zip(id).map(|(pipes, id)| Piped::new(Arc::clone(pipes), id));
        let wire = Wire::Dialing(Dialing { udp, is_tcp_open: tcp.is_some() });
        let number = self.0.number();
        let session = Session::new(Arc::clone(&self.0), number, (wire, transport), true);
        session.attempts.set(Arc::clone(&attempts)).expect("the session is new");
        if let Some(id) = id {
            attempts.set_udp(Attempt::UnderWay);
            session.pipe.set(id).expect("the session is new");
        }
        session.with(|core| {
            core.may_move = tcp.as_ref().is_some_and(tcp::Config::moves_streams);
            core.is_dirty = true;
        });
        drop(endpoint);
        if let Some(config) = tcp {
            let dial = dial::over_tcp(Arc::clone(&session), attempts, to, config.clone());
            self.0.runtime.spawn(dial);
        }
        Some(session)
    }

    /// Makes a session with a process that has connected over TCP, after a handshake of at most 2 s.
    /// [`Session::send_hello`] starts it. Returns `None` if the process has connected for a stream of another session: that
    /// stream then uses the connection.
    ///
    /// # Errors
    /// [`tcp::Failed`].
    ///
    /// # Panics
    /// Without a configuration of TCP.
    ///
    /// # Cancel safety
    /// If dropped, it closes the connection.
    pub async fn accept_tcp(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<Option<Arc<Session>>, tcp::Failed> {
        let config = self.0.tcp.as_ref().expect("sessions over TCP were configured");
        match tcp::accept(stream, config).await? {
            tcp::Accepted::Session(connection) => {
                let id = connection.id;
                let session = self.over_connection(*connection, TransportKind::Tcp(peer), false);
                session.register(id);
                Ok(Some(session))
            }
            tcp::Accepted::Stream(socket, joining) => {
                own::accept(&self.0, socket, peer.ip(), joining).await?;
                Ok(None)
            }
        }
    }

    /// Makes a session over a reliable stream of bytes that libfabric carries, after a handshake as over TCP of at most
    /// 10 s. `is_first` at the end that has connected. [`Session::send_hello`] starts it.
    ///
    /// # Errors
    /// [`tcp::Failed`].
    ///
    /// # Cancel safety
    /// If dropped, it closes the stream.
    pub async fn over_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        config: &tcp::Config,
        is_first: bool,
    ) -> Result<Arc<Session>, tcp::Failed> {
        let connection = match is_first {
            true => tcp::connect_over(stream, config).await?,
            false => tcp::accept_over(stream, config).await?,
        };
        Ok(self.over_connection(connection, TransportKind::Ofi, is_first))
    }

    fn over_connection<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        connection: tcp::Connection<S>,
        transport: TransportKind,
        is_first: bool,
    ) -> Arc<Session> {
        let line = Arc::new(Line::default());
        let wire = Wire::Piped(Piped::over_line(Arc::clone(&line)));
        let session =
            Session::new(Arc::clone(&self.0), self.0.number(), (wire, transport), is_first);
        session.with(|core| core.is_dirty = true);
        session.move_bytes(line, connection);
        session
    }

    /// Returns the counters of the tokens that this process grants; `None` without [`Config::receive_tokens`],
    /// or without UDP.
    #[must_use]
    pub fn token_counters(&self) -> Option<TokenCounters> {
        self.0.pipes.as_ref()?.endpoint().token_counters()
    }

    /// Ends the driver, and all sessions with it.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.driver.wake();
    }
}

impl SharedState {
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn over_pipe(
        self: &Arc<Self>,
        id: PipeId,
        peer: SocketAddr,
        is_first: bool,
    ) -> Arc<Session> {
        let pipes = self.pipes.as_ref().expect("a connection over UDP has a socket");
        let wire = Wire::Piped(Piped::new(Arc::clone(pipes), id));
        let wire = (wire, TransportKind::Udp(peer));
        let session = Session::new(Arc::clone(self), self.number(), wire, is_first);
        session.pipe.set(id).expect("the session is new");
        if let Some(local) = pipes.endpoint().peek(id).map(Pipe::local) {
            session.register(local);
        }
        session.with(|core| core.is_dirty = true);
        session
    }
}
