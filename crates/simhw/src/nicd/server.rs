//! The daemon's side: one thread that accepts clients, handles their doorbells, and closes the ports of exited ones.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;

use super::Source;
use super::holders::PortHolders;
use super::request::{Answer, Request, address, answer, next};
use crate::acceptor::{Acceptor, Admitted};
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::listener::{Connection, Listener, Service};
use crate::live::clock::Clock;
use crate::passing::Socket;
use crate::port::{Arenas, Grant, PortControlBlock, PortOptions};
use crate::segment::{Kind, Segment};
use crate::sync::{Ordering, fence};
use crate::time::{Instant, nanos};
use crate::wakes::Wakes;

/// Default limit of one client's memory in all its ports: 1 GiB. Pages that are never touched take no memory.
const DEFAULT_LOAN: usize = 1 << 30;
/// Default limit of one client's connections: one for each of its ports.
const DEFAULT_CONNECTIONS: usize = 256;
/// Least bytes of one request for memory: each is a mapping, and a process can have about 65,000.
const MIN_ARENA: usize = 64 << 10;
/// Default spin time: about what waking a parked process takes.
const DEFAULT_SPIN: Duration = Duration::from_micros(20);
/// Most bytes of a daemon's name.
const MAX_NAME: usize = 64;
/// Most ring polls between two polls of the sockets.
const POLLS_PER_WAIT: u32 = 4_096;

/// The configuration of a server of ports.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    name: String,
    admitted: Admitted,
    spin: Duration,
    loan: usize,
    connections: usize,
}

impl ServerConfig {
    /// Creates the configuration of a daemon that clients find by `name` and the NIC's node, in one network namespace.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let (admitted, spin, loan) = (Admitted::default(), DEFAULT_SPIN, DEFAULT_LOAN);
        Self { name: name.into(), admitted, spin, loan, connections: DEFAULT_CONNECTIONS }
    }

    /// Admits processes of this user as well. Default: those of the own user only.
    #[must_use]
    pub fn admit(self, user: u32) -> Self {
        self.admitted.add(user);
        self
    }

    /// Sets how long the daemon busy-polls for doorbells after the last one, and a client for a completion, before they
    /// park. Zero parks at once. Default: 20 us.
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Bounds the memory of one client, a process, in bytes: the rings and regions of all its ports. A port beyond the
    /// limit is refused with [`OpenError::System`](crate::host::OpenError::System), a region with
    /// [`RegisterError::NoMemory`](crate::port::RegisterError::NoMemory). Default: 1 GiB.
    #[must_use]
    pub const fn loan(mut self, bytes: usize) -> Self {
        self.loan = bytes;
        self
    }

    /// Bounds the connections of one client, a process: one for each of its ports, and one for each
    /// [`Client::connect`](super::Client::connect) in progress. The daemon closes further ones at once, and opening a
    /// port then fails with [`OpenError::System`](crate::host::OpenError::System). Default: 256.
    #[must_use]
    pub const fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }
}

/// The reason why ports are not served.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ServeError {
    /// The name is empty or too long for an address.
    #[error("the daemon's name has {0} bytes; it must have 1 to {MAX_NAME}")]
    Name(usize),
    /// Another process serves that node's ports under the same name.
    #[error("ports of node {node} are served under {name:?} already; stop that or rename this")]
    Occupied {
        /// The node of the NIC.
        node: NodeId,
        /// The name of the service.
        name: String,
    },
    /// The operating system failed otherwise.
    #[error("the system refused a socket, an event or a thread: {0}")]
    System(io::ErrorKind),
}

/// Serves a NIC's ports to other processes until it is dropped; their ports close then.
#[derive(Debug)]
pub struct PortServer {
    wakes: Arc<Wakes>,
    holders: PortHolders,
    admitted: Admitted,
    _listener: Listener,
}

impl PortServer {
    pub(crate) fn open(config: ServerConfig, nic: Arc<dyn Source>) -> Result<Self, ServeError> {
        let ServerConfig { name, admitted, spin, loan, connections } = config;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ServeError::Name(name.len()));
        }
        let system = |error: io::Error| ServeError::System(error.kind());
        let node = nic.node();
        let address = address(&name, node).map_err(|error| system(error.into()))?;
        let acceptor = Acceptor::open(&address, admitted.clone(), connections);
        let acceptor = acceptor.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ServeError::Occupied { node, name: name.clone() },
            kind => ServeError::System(kind),
        })?;
        let wakes = Wakes::new().map_err(system)?;
        let spin_nanos = u32::try_from(nanos(spin)).unwrap_or(u32::MAX);
        let holders = PortHolders::new(Arc::clone(&wakes));
        let clients = Clients {
            nic,
            holders: holders.clone(),
            spin_nanos,
            loan,
            wakes: Arc::clone(&wakes),
            lingering: Vec::new(),
        };
        let listener = Listener::start(format!("ports {node}"), acceptor, clients);
        Ok(Self { wakes, holders, admitted, _listener: listener.map_err(system)? })
    }

    /// Wakes the daemon, which polls all ports. Call it after suspending a client: the client may have posted commands
    /// whose doorbell it has not rung.
    #[doc(hidden)]
    pub fn look(&self) {
        self.wakes.signal();
    }

    /// Returns the processes that hold the ports; the list changes as ports open and close.
    #[must_use]
    #[doc(hidden)]
    pub fn holders(&self) -> PortHolders {
        self.holders.clone()
    }

    /// Returns the users whose processes are admitted besides the own user's; the list can be changed meanwhile.
    #[must_use]
    #[doc(hidden)]
    pub fn admitted(&self) -> Admitted {
        self.admitted.clone()
    }
}

/// The state of a client's connection.
#[derive(Default)]
enum Stage {
    /// The client has not opened a port.
    #[default]
    Expected,
    Open(Served),
}

type Client = Connection<Stage>;

/// A port of another process.
struct Served {
    port: PortId,
    process: u32,
    /// Bytes of the segment of the port's rings.
    rings: usize,
    words: PortControlBlock,
    arenas: Arc<Arenas>,
    is_gone: Arc<AtomicBool>,
}

/// The clients of a daemon.
struct Clients {
    nic: Arc<dyn Source>,
    holders: PortHolders,
    spin_nanos: u32,
    loan: usize,
    /// Wake-ups of the thread: by this process, and by each client through its port's channel.
    wakes: Arc<Wakes>,
    /// Held ports whose clients have exited.
    lingering: Vec<Served>,
}

impl Service for Clients {
    type State = Stage;

    fn before_wait(&mut self, clients: &mut Vec<Client>) -> Instant {
        self.spin(clients);
        self.nic.rest();
        if self.arm_wakeup(clients) { Instant::FAR_FUTURE } else { Instant::ZERO }
    }

    fn wakes(&self) -> Option<&Wakes> {
        Some(&self.wakes)
    }

    fn on_readable(&mut self, clients: &mut [Client], index: usize) -> bool {
        let client = &clients[index];
        match (next(&client.socket), &client.state) {
            (Some(Request::Greet), _) => answer(&client.socket, Answer::Here, &[]).is_ok(),
            (Some(Request::Open(options)), Stage::Expected) => self.open(clients, index, options),
            (Some(Request::Memory { bytes }), Stage::Open(served)) => {
                let left = self.memory_left(clients, served.process);
                grant_memory(&client.socket, served, left, bytes)
            }
            _ => false,
        }
    }

    /// Handles the end of a client's connection: its port closes once the NIC has taken its posted commands.
    fn on_closed(&mut self, state: Stage) {
        if let Stage::Open(served) = state {
            self.wakes.remove(served.port.0.into());
            self.leave(served);
        }
    }

    fn on_end(&mut self, clients: Vec<Client>) {
        clients.into_iter().for_each(|client| self.on_closed(client.state));
        for served in self.lingering.drain(..) {
            served.is_gone.store(true, Ordering::Release);
            self.nic.ring(served.port);
        }
    }

    fn after_wait(&mut self, clients: &[Client], is_woken: bool) {
        served(clients).for_each(|served| served.words.disarm_wakeup());
        // The bell of a client that woke the thread is handled by the next poll.
        if is_woken && self.wakes.take() {
            // A suspended client may have posted without ringing.
            served(clients).for_each(|served| self.nic.ring(served.port));
            for served in std::mem::take(&mut self.lingering) {
                self.leave(served);
            }
        }
    }
}

/// Iterates over the open ports.
fn served(clients: &[Client]) -> impl Iterator<Item = &Served> {
    clients.iter().filter_map(|client| match &client.state {
        Stage::Open(served) => Some(served),
        Stage::Expected => None,
    })
}

impl Clients {
    /// Busy-polls the doorbells and gives the NIC turns, until `spin_nanos` have passed without work, or after
    /// `POLLS_PER_WAIT` polls.
    fn spin(&self, clients: &[Client]) {
        let mut until = Clock::now().plus_nanos(self.spin_nanos.into());
        for poll in 1_u32.. {
            let was_any = self.ring_rung(clients) | self.nic.poll();
            let now = Clock::now();
            if was_any {
                until = now.plus_nanos(self.spin_nanos.into());
            }
            // The sockets are polled next: new clients, exits and requests for memory wait no longer than this.
            if now >= until || poll == POLLS_PER_WAIT {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Passes the doorbells that were rung to the NIC. Returns whether there were any.
    fn ring_rung(&self, clients: &[Client]) -> bool {
        let mut was_any = false;
        for served in served(clients).filter(|served| served.words.take_bell()) {
            self.nic.ring(served.port);
            was_any = true;
        }
        was_any
    }

    /// Requests wake-ups from the clients. Returns `false` if a doorbell was rung meanwhile: its client may not wake
    /// this thread.
    fn arm_wakeup(&self, clients: &[Client]) -> bool {
        served(clients).for_each(|served| served.words.arm_wakeup());
        fence(Ordering::SeqCst);
        !self.ring_rung(clients)
    }

    /// Returns the bytes of memory that a client may still get.
    fn memory_left(&self, clients: &[Client], process: u32) -> usize {
        let its = served(clients).chain(&self.lingering).filter(|served| served.process == process);
        let taken: usize = its.map(|served| served.rings + served.arenas.bytes()).sum();
        self.loan.saturating_sub(taken)
    }

    fn open(&self, clients: &mut [Client], index: usize, options: PortOptions) -> bool {
        let socket = &clients[index].socket;
        let Ok(process) = socket.process() else { return false };
        let left = self.memory_left(clients, process);
        let Grant { name, depth, bytes, file, channel, theirs, words, arenas, is_gone } =
            match self.nic.grant(options) {
                Ok(grant) => grant,
                Err(error) => return answer(socket, Answer::Refused(error), &[]).is_ok(),
            };
        let port = name.id;
        if bytes > left {
            is_gone.store(true, Ordering::Release);
            self.nic.ring(port);
            let refused = OpenError::System(io::ErrorKind::OutOfMemory);
            return answer(socket, Answer::Refused(refused), &[]).is_ok();
        }
        socket.place().into_iter().for_each(|place| channel.occupy(place));
        // Before the client can use the port.
        self.holders.add(port, process);
        let (epoch, spin_nanos) = (name.epoch, self.spin_nanos);
        let opened = Answer::Opened { port, epoch, depth, spin_nanos };
        let is_added = self.wakes.add(port.0.into(), channel).is_ok();
        let is_answered = answer(socket, opened, &[file.as_fd(), theirs.as_fd()]).is_ok();
        let served = Served { port, process, rings: bytes, words, arenas, is_gone };
        clients[index].state = Stage::Open(served);
        clients[index].until = Instant::FAR_FUTURE;
        is_added && is_answered
    }

    /// Closes a port whose client has exited, unless the port is held.
    fn leave(&mut self, served: Served) {
        if !self.holders.leave(served.port) {
            return self.lingering.push(served);
        }
        served.is_gone.store(true, Ordering::Release);
        self.nic.ring(served.port);
    }
}

/// Passes a client a segment of `bytes`, or refuses it: a client may get at most `left` bytes.
fn grant_memory(socket: &Socket, served: &Served, left: usize, bytes: usize) -> bool {
    let made = (MIN_ARENA..=left).contains(&bytes).then(|| Segment::shared(Kind::Arena, bytes));
    let Some(Ok((segment, file))) = made else {
        return answer(socket, Answer::NoMemory, &[]).is_ok();
    };
    let arena = served.arenas.add(Arc::new(segment));
    let arena = u32::try_from(arena).expect("fewer arenas than bytes");
    answer(socket, Answer::Arena { arena }, &[file.as_fd()]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoPorts;
    impl Source for NoPorts {
        fn node(&self) -> NodeId {
            NodeId(4)
        }
        fn grant(&self, _: PortOptions) -> Result<Grant, crate::host::OpenError> {
            unreachable!("no client opens a port")
        }
        fn ring(&self, _: PortId) {}
    }

    /// A NIC whose turn drops the server that runs it.
    #[derive(Debug)]
    struct Last(std::sync::Mutex<Option<PortServer>>, std::sync::mpsc::Sender<()>);
    impl Source for Last {
        fn node(&self) -> NodeId {
            NodeId(5)
        }
        fn grant(&self, _: PortOptions) -> Result<Grant, crate::host::OpenError> {
            unreachable!("no client opens a port")
        }
        fn ring(&self, _: PortId) {}
        fn poll(&self) -> bool {
            if let Some(server) = self.0.lock().unwrap().take() {
                drop(server);
                self.1.send(()).unwrap();
            }
            false
        }
    }

    #[test]
    fn a_server_that_its_own_thread_drops_ends() {
        let (tell, dropped) = std::sync::mpsc::channel();
        let nic = Arc::new(Last(std::sync::Mutex::default(), tell));
        let name = format!("server-drop-{}", std::process::id());
        let server = PortServer::open(ServerConfig::new(&name), Arc::clone(&nic) as _).unwrap();
        let wakes = Arc::clone(&server.wakes);
        *nic.0.lock().unwrap() = Some(server);
        wakes.signal();
        // The server's thread now holds the only sender: if that thread ends early, receiving fails at once.
        drop(nic);
        dropped.recv_timeout(Duration::from_secs(60)).expect("the server is dropped");
    }

    #[test]
    fn two_daemons_cannot_have_one_name() {
        let open = |name: &str| PortServer::open(ServerConfig::new(name), Arc::new(NoPorts));
        for length in [0, MAX_NAME + 1] {
            assert_eq!(open(&"x".repeat(length)).unwrap_err(), ServeError::Name(length));
        }
        let name = format!("server-test-{}", std::process::id());
        let first = open(&name).unwrap();
        let occupied = ServeError::Occupied { node: NodeId(4), name: name.clone() };
        assert_eq!(open(&name).unwrap_err(), occupied);
        drop(first);
        open(&name).unwrap();
    }
}
