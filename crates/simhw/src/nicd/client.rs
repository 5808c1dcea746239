//! The client's side: opens ports of a NIC in another process.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::request::{Answer, Request, address, ask};
use crate::acceptor::Admitted;
use crate::host::OpenError;
use crate::id::NodeId;
use crate::listener::TIMEOUT;
use crate::live::Tasks;
use crate::live::clock::Clock;
use crate::nic::{LiveHost, PortOpener};
use crate::passing::{Passed, Socket};
use crate::port::{
    ArenaSource, Port, PortClosed, PortName, PortOptions, PortParts, PortShared, remote_port,
};
use crate::segment::{Kind, Segment};

/// Pause after a failed attempt to connect.
const RETRY: Duration = Duration::from_millis(20);

/// The configuration of a client: which daemon it connects to.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    name: String,
    node: NodeId,
    seed: u64,
    trusted: Admitted,
}

impl ClientConfig {
    /// Creates the configuration of a client of the daemon that serves the ports of `node` under `name`.
    #[must_use]
    pub fn new(name: impl Into<String>, node: NodeId) -> Self {
        Self { name: name.into(), node, seed: 0, trusted: Admitted::default() }
    }

    /// Sets the seed from which, together with the node, the host's random streams are drawn. Default: 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Accepts a daemon of this user as well. Default: one of the own user only.
    #[must_use]
    pub fn trust(self, user: u32) -> Self {
        self.trusted.add(user);
        self
    }
}

/// The reason why a client has not connected to a daemon.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConnectError {
    /// No process serves that node's ports under that name.
    #[error("no process serves ports of node {node} under {name:?}; start a daemon first")]
    Nobody {
        /// The name of the service.
        name: String,
        /// The node of the NIC.
        node: NodeId,
    },
    /// The daemon runs as another user.
    #[error("the daemon runs as user {0}, who is not trusted; run both as one user")]
    Stranger(u32),
    /// The caller is outside a tokio runtime.
    #[error("no tokio runtime here; call it from a task, or inside Runtime::enter")]
    NoRuntime,
    /// The daemon's answer is invalid or late, or the operating system failed.
    #[error("no answer from the daemon: {0}")]
    System(io::ErrorKind),
}

impl ConnectError {
    /// Returns whether the cause may be that the daemon is not yet running, or is being restarted.
    const fn may_pass(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, WouldBlock};

        let Self::System(kind) = self else { return matches!(self, Self::Nobody { .. }) };
        matches!(kind, ConnectionReset | ConnectionAborted | BrokenPipe | TimedOut | WouldBlock)
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::System(error.kind())
    }
}

impl From<rustix::io::Errno> for ConnectError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.kind())
    }
}

/// A process's access to a daemon's NIC. Ports outlive this value; each has a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    host: LiveHost,
}

impl Client {
    /// Connects to the daemon, which must already serve. Blocks the thread until the daemon answers, for 2 s at most.
    ///
    /// # Errors
    /// [`ConnectError`] says how to fix it.
    ///
    /// # Panics
    /// The host's tasks and ports panic if the current runtime's I/O or time is not enabled.
    pub fn connect(config: ClientConfig) -> Result<Self, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let (Answer::Here, _) = ask(&dial(&config)?, Request::Greet)? else {
            return Err(ConnectError::System(io::ErrorKind::InvalidData));
        };
        let tasks = Tasks::new(config.node, config.seed, runtime.clone());
        let ports = Ports { config: Arc::new(config), runtime };
        Ok(Self { host: LiveHost::new(tasks, Arc::new(ports)) })
    }

    /// Connects to the daemon as soon as it serves, within `timeout`. The daemon may be restarted meanwhile. Each attempt
    /// runs on a blocking thread of the runtime. If the daemon does not answer, an attempt takes 2 s, and the last may
    /// end that much later than `timeout`.
    ///
    /// # Errors
    /// Those of [`Client::connect`]: the error of the last attempt. [`ConnectError::System`] with
    /// [`TimedOut`](io::ErrorKind::TimedOut) also if no blocking thread became free in time.
    ///
    /// # Panics
    /// As [`Client::connect`] does; and if the current runtime's time is not enabled.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind once the attempt in progress has ended, 2 s after it got a thread at
    /// most.
    pub async fn meet(config: ClientConfig, timeout: Duration) -> Result<Self, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let until = Clock::now() + timeout;
        loop {
            let config = config.clone();
            let attempt = runtime.spawn_blocking(move || Self::connect(config));
            match Self::attempted(attempt, until.since(Clock::now()) + TIMEOUT).await {
                Err(error) if error.may_pass() && Clock::now() < until => {
                    tokio::time::sleep(RETRY).await;
                }
                result => return result,
            }
        }
    }

    /// Returns the result of an attempt to connect, for which it waits for `limit` at most: other work may keep all
    /// blocking threads.
    async fn attempted(
        attempt: JoinHandle<Result<Self, ConnectError>>,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime has ended before the attempt began.
            Ok(Err(_)) => Err(ConnectError::NoRuntime),
            Err(_) => Err(ConnectError::System(io::ErrorKind::TimedOut)),
        }
    }

    /// Returns the application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }
}

/// Opens ports of another process's NIC.
#[derive(Debug)]
struct Ports {
    config: Arc<ClientConfig>,
    /// Runs a task for each port.
    runtime: Handle,
}

impl PortOpener for Ports {
    fn open(self: Arc<Self>, options: PortOptions) -> Result<Port, OpenError> {
        let system = |error: io::Error| OpenError::System(error.kind());
        let socket = dial(&self.config).map_err(|error| match error {
            ConnectError::Nobody { node, .. } => OpenError::Stopped(node),
            ConnectError::Stranger(_) => OpenError::System(io::ErrorKind::PermissionDenied),
            ConnectError::System(kind) => OpenError::System(kind),
            ConnectError::NoRuntime => unreachable!("dialling needs no runtime"),
        })?;
        let (answer, descriptors) = ask(&socket, Request::Open(options)).map_err(system)?;
        let invalid = || OpenError::System(io::ErrorKind::InvalidData);
        let (port, epoch, depth, spin_nanos) = match answer {
            Answer::Opened { port, epoch, depth, spin_nanos } => (port, epoch, depth, spin_nanos),
            Answer::Refused(error) => return Err(error),
            _ => return Err(invalid()),
        };
        let [file, channel]: [Passed; 2] = descriptors.try_into().map_err(|_| invalid())?;
        let file = file.memory().ok_or_else(invalid)?;
        let channel = Arc::new(channel.channel(&socket).ok_or_else(invalid)?);
        let (wakes, socket) = (Arc::clone(&channel), Arc::new(socket));
        let source = Connection { socket: Arc::clone(&socket), config: Arc::clone(&self.config) };
        let parts = PortParts {
            name: PortName { id: port, epoch },
            depth,
            file,
            channel,
            spin_nanos,
            source: Box::new(source),
        };
        let admits = |user| self.config.trusted.admits(user);
        let (port, shared) = remote_port(parts, admits).map_err(|_| invalid())?;
        let _inside = self.runtime.enter();
        let watch = Watch::new(wakes, socket, shared).map_err(system)?;
        self.runtime.spawn(watch.run());
        Ok(port)
    }
}

/// Connects to the daemon, whose user must be trusted.
fn dial(config: &ClientConfig) -> Result<Socket, ConnectError> {
    let not_served = || ConnectError::Nobody { name: config.name.clone(), node: config.node };
    let socket = Socket::connect(&address(&config.name, config.node)?);
    let socket = socket.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => not_served(),
        kind => ConnectError::System(kind),
    })?;
    let user = socket.user()?;
    if config.trusted.admits(user) { Ok(socket) } else { Err(ConnectError::Stranger(user)) }
}

/// The connection of one port.
struct Connection {
    socket: Arc<Socket>,
    config: Arc<ClientConfig>,
}

impl ArenaSource for Connection {
    fn request(&self, bytes: usize) -> Result<Option<(u32, Arc<Segment>)>, PortClosed> {
        let Ok((answer, descriptors)) = ask(&self.socket, Request::Memory { bytes }) else {
            // A late answer would be taken for that of the next request.
            self.socket.hang_up();
            return Err(PortClosed);
        };
        let Answer::Arena { arena } = answer else { return Ok(None) };
        let admits = |user| self.config.trusted.admits(user);
        let file = descriptors.into_iter().next().and_then(Passed::memory);
        let segment = file.and_then(|file| Segment::open(&file, Kind::Arena, bytes, admits).ok());
        Ok(segment.map(|segment| (arena, Arc::new(segment))))
    }

    fn hang_up(&self) {
        self.socket.hang_up();
    }
}

/// Wakes a port's application at each wake-up of the NIC, and when the daemon has exited.
struct Watch {
    channel: AsyncFd<Arc<Socket>>,
    socket: AsyncFd<Arc<Socket>>,
    shared: Arc<PortShared>,
}

impl Watch {
    fn new(channel: Arc<Socket>, socket: Arc<Socket>, shared: Arc<PortShared>) -> io::Result<Self> {
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let watch = |fd| AsyncFd::with_interest(fd, Interest::READABLE);
        Ok(Self { channel: watch(channel)?, socket: watch(socket)?, shared })
    }

    /// Runs until the port is dropped or the daemon has exited; then closes the port.
    async fn run(self) {
        poll_fn(|context| self.poll(context)).await;
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(ready) = self.channel.poll_read_ready(context) {
            let Ok(mut ready) = ready else { return Poll::Ready(()) };
            // In this order: a wake-up that comes after `take_wakes` makes the descriptor ready again.
            ready.clear_ready();
            let is_valid = self.channel.get_ref().take_wakes();
            self.shared.wake();
            // Tokio reports the end of a channel again and again.
            if !is_valid || is_over(self.channel.get_ref().as_fd()) {
                return Poll::Ready(());
            }
        }
        while let Poll::Ready(ready) = self.socket.poll_read_ready(context) {
            let Ok(mut ready) = ready else { return Poll::Ready(()) };
            if is_over(self.socket.get_ref().as_fd()) {
                return Poll::Ready(());
            }
            ready.clear_ready();
        }
        Poll::Pending
    }
}

/// Closes the port, also if the runtime is dropped.
impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Returns whether the other end is closed. Leaves pending answers in the socket.
fn is_over(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    match recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, count)) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}
