//! The daemon's side: one thread that takes clients in, hears their doorbells and sees them go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use thiserror::Error;

use super::Source;
use super::holders::PortHolders;
use super::request::{Answer, PATIENCE, Request, address, answer, next};
use crate::acceptor::Acceptor;
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::live::clock::Clock;
use crate::passing::Socket;
use crate::port::{Arenas, Grant, PortControlBlock, PortOptions};
use crate::segment::{Kind, Segment};
use crate::sync::{Ordering, fence};
use crate::time::{Instant, nanos};
use crate::wakes::Wakes;

/// Memory that one client may have lent in all its ports: 1 GiB; what is not touched takes none.
pub const DEFAULT_LOAN: usize = 1 << 30;
/// Connections that one client, a process, may have: one for each of its ports.
pub const DEFAULT_CONNECTIONS: usize = 256;
/// Least memory that is lent at once: each loan is a mapping, and a process can have some 65,000.
const MIN_LOAN: usize = 64 << 10;
/// As long as waking a parked process takes.
const DEFAULT_SPIN: Duration = Duration::from_micros(20);
/// Most bytes of a daemon's name.
const MAX_NAME: usize = 64;
/// Turns of looking between two looks at the sockets.
const LOOKS_PER_POLL: u32 = 4_096;

/// How a NIC's ports are served.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    name: String,
    admitted: Vec<u32>,
    spin: Duration,
    loan: usize,
    connections: usize,
}

impl ServerConfig {
    /// Clients find the daemon by `name` and the NIC's node, in one network namespace.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let (admitted, spin, loan) = (Vec::new(), DEFAULT_SPIN, DEFAULT_LOAN);
        Self { name: name.into(), admitted, spin, loan, connections: DEFAULT_CONNECTIONS }
    }

    /// Admits processes of this user, too. Default: those of the own user only.
    #[must_use]
    pub fn admit(mut self, user: u32) -> Self {
        self.admitted.push(user);
        self
    }

    /// How long the daemon looks for doorbells after the last, and a client for a completion,
    /// before each parks. Zero parks at once. Default: 20 us.
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Bounds the memory that one client, a process, is lent in all, in bytes: the rings of its ports and their
    /// regions. A port beyond it is refused as [`OpenError::System`](crate::host::OpenError::System), a region as
    /// [`RegisterError::NoMemory`](crate::port::RegisterError::NoMemory). Default: [`DEFAULT_LOAN`].
    #[must_use]
    pub const fn loan(mut self, bytes: usize) -> Self {
        self.loan = bytes;
        self
    }

    /// Bounds the connections that one client, a process, has at a time: one for each of its ports, and one for each
    /// [`Client::connect`](super::Client::connect) while that lasts. The daemon closes further ones unheard: opening a
    /// port fails as [`OpenError::System`](crate::host::OpenError::System). Default: [`DEFAULT_CONNECTIONS`].
    #[must_use]
    pub const fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }
}

/// Why ports are not served.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ServeError {
    /// The name is part of an address.
    #[error("the daemon's name has {0} bytes; it must have 1 to {MAX_NAME}")]
    Name(usize),
    /// Another process serves that node's ports.
    #[error("ports of node {node} are served under {name:?} already; stop that or rename this")]
    Occupied {
        /// The node.
        node: NodeId,
        /// The name.
        name: String,
    },
    /// The operating system failed otherwise.
    #[error("the system refused a socket, an event or a thread: {0}")]
    System(io::ErrorKind),
}

/// Serves a NIC's ports to other processes until it is dropped; their ports close then.
#[derive(Debug)]
pub struct PortServer {
    stop: OwnedFd,
    wakes: Arc<Wakes>,
    holders: PortHolders,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl PortServer {
    pub(crate) fn open(config: ServerConfig, nic: Arc<dyn Source>) -> Result<Self, ServeError> {
        let ServerConfig { name, admitted, spin, loan, connections } = config;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ServeError::Name(name.len()));
        }
        let system = |error: Errno| ServeError::System(error.kind());
        let node = nic.node();
        let address = address(&name, node).map_err(system)?;
        let acceptor = Acceptor::open(&address, admitted, connections);
        let acceptor = acceptor.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ServeError::Occupied { node, name: name.clone() },
            kind => ServeError::System(kind),
        })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(system)?;
        let failed = |error: io::Error| ServeError::System(error.kind());
        let wakes = Wakes::new().map_err(failed)?;
        let spin_nanos = u32::try_from(nanos(spin)).unwrap_or(u32::MAX);
        let holders = PortHolders::new(Arc::clone(&wakes));
        let mut room = Room {
            nic,
            holders: holders.clone(),
            spin_nanos,
            loan,
            acceptor,
            stopped: stop.try_clone().map_err(failed)?,
            wakes: Arc::clone(&wakes),
            clients: Vec::new(),
            lingering: Vec::new(),
        };
        let thread = std::thread::Builder::new().name(format!("ports {node}"));
        let thread = thread.spawn(move || room.run());
        let thread = thread.map_err(failed)?;
        Ok(Self { stop, wakes, holders, thread: Some(thread) })
    }

    /// Has the daemon look at all ports: whoever stops a process between its posting and its
    /// ringing wakes the daemon in its place.
    pub fn look(&self) {
        self.wakes.signal();
    }

    /// Whose the ports are: says so as they open and close.
    #[must_use]
    pub fn holders(&self) -> PortHolders {
        self.holders.clone()
    }
}

impl Drop for PortServer {
    fn drop(&mut self) {
        // Both can only fail if the thread has ended already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        // Its own thread gives the NIC turns, and wakes tasks in them: one of those may have been the last to have this.
        let own = std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}

/// A connection, and the port that it is of.
struct Client {
    socket: Socket,
    stage: Stage,
}

enum Stage {
    /// It has asked for nothing; it must by then.
    Expected(Instant),
    Open(Served),
}

/// A port of another process.
struct Served {
    port: PortId,
    process: u32,
    /// Bytes of its rings.
    rings: usize,
    words: PortControlBlock,
    arenas: Arc<Arenas>,
    is_gone: Arc<AtomicBool>,
}

/// The thread's own.
struct Room {
    nic: Arc<dyn Source>,
    holders: PortHolders,
    spin_nanos: u32,
    loan: usize,
    acceptor: Acceptor,
    stopped: OwnedFd,
    /// Wakes the thread: by this process, and by each client through its port's channel.
    wakes: Arc<Wakes>,
    clients: Vec<Client>,
    /// Ports that are held, and whose clients are gone.
    lingering: Vec<Served>,
}

/// What there is at the sockets.
struct Ready {
    stop: bool,
    listener: bool,
    wakes: bool,
    /// Of each client.
    clients: Vec<bool>,
}

impl Room {
    fn run(&mut self) {
        loop {
            self.spin();
            self.nic.rest();
            let may_sleep = self.arm_wakeup();
            let ready = self.wait(if may_sleep { self.patience() } else { Duration::ZERO });
            self.disarm_wakeup();
            if ready.stop {
                return;
            }
            self.serve(&ready);
            // A client that woke the thread has rung its own bell, which the next turn takes.
            if ready.wakes && self.wakes.take() {
                // A stopped process may have posted without ringing.
                self.ring_all();
                for served in std::mem::take(&mut self.lingering) {
                    self.leave(served);
                }
            }
        }
    }

    /// Busy-polls the bells and gives the NIC turns for as long as that pays.
    fn spin(&self) {
        let mut until = Clock::now().plus_nanos(self.spin_nanos.into());
        for look in 1_u32.. {
            let was_any = self.ring_rung() | self.nic.poll();
            let now = Clock::now();
            if was_any {
                until = now.plus_nanos(self.spin_nanos.into());
            }
            // Who is new, gone or in want of memory waits no longer than these take.
            if now >= until || look == LOOKS_PER_POLL {
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn served(&self) -> impl Iterator<Item = &Served> {
        self.clients.iter().filter_map(|client| match &client.stage {
            Stage::Open(served) => Some(served),
            Stage::Expected(_) => None,
        })
    }

    /// Tells the NIC of the ports that were rung; whether there were any.
    fn ring_rung(&self) -> bool {
        let mut was_any = false;
        for served in self.served().filter(|served| served.words.take_bell()) {
            self.nic.ring(served.port);
            was_any = true;
        }
        was_any
    }

    fn ring_all(&self) {
        self.served().for_each(|served| self.nic.ring(served.port));
    }

    /// Clients wake this thread from now on; `false` if one has rung meanwhile, and does not.
    fn arm_wakeup(&self) -> bool {
        self.served().for_each(|served| served.words.arm_wakeup());
        fence(Ordering::SeqCst);
        !self.ring_rung()
    }

    fn disarm_wakeup(&self) {
        self.served().for_each(|served| served.words.disarm_wakeup());
    }

    /// Until the next who has said nothing is given up, or who knocks is heard again.
    fn patience(&self) -> Duration {
        let now = Clock::now();
        let left = self.clients.iter().filter_map(|client| match client.stage {
            Stage::Expected(until) => Some(until.since(now)),
            Stage::Open(_) => None,
        });
        let left = left.chain(self.acceptor.paused_until().map(|until| until.since(now)));
        left.min().map_or(Duration::MAX, |left| left.max(Duration::from_millis(1)))
    }

    fn wait(&self, patience: Duration) -> Ready {
        let sockets = self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN));
        let first = [
            PollFd::new(&self.stopped, PollFlags::IN),
            self.acceptor.polled(),
            PollFd::new(&*self.wakes, PollFlags::IN),
        ];
        let mut polled: Vec<_> = first.into_iter().chain(sockets).collect();
        let timeout = Timespec::try_from(patience).ok().filter(|_| patience != Duration::MAX);
        // Interrupted, nothing is known to be ready.
        let is_any = poll(&mut polled, timeout.as_ref()).is_ok_and(|count| count > 0);
        let mut ready = polled.iter().map(|one| is_any && !one.revents().is_empty());
        let mut one = || ready.next().unwrap_or(false);
        let (stop, listener, wakes) = (one(), one(), one());
        Ready { stop, listener, wakes, clients: ready.collect() }
    }

    fn serve(&mut self, ready: &Ready) {
        let now = Clock::now();
        // From the back, so that those before keep their places.
        for index in (0..self.clients.len()).rev() {
            let is_overdue =
                matches!(self.clients[index].stage, Stage::Expected(until) if until <= now);
            let keeps = !is_overdue && (!ready.clients[index] || self.hear(index));
            if !keeps {
                self.end(index);
            }
        }
        for socket in self.acceptor.accept(ready.listener, now) {
            self.clients.push(Client { socket, stage: Stage::Expected(now + PATIENCE) });
        }
    }

    /// Returns the bytes that a client may still be lent.
    fn left_of_loan(&self, process: u32) -> usize {
        let its = self.served().chain(&self.lingering).filter(|served| served.process == process);
        let taken: usize = its.map(|served| served.rings + served.arenas.bytes()).sum();
        self.loan.saturating_sub(taken)
    }

    /// A client has said something, or is gone; whether it stays.
    fn hear(&mut self, index: usize) -> bool {
        let client = &self.clients[index];
        match (next(&client.socket), &client.stage) {
            (Some(Request::Greet), _) => answer(&client.socket, Answer::Here, &[]).is_ok(),
            (Some(Request::Open(options)), Stage::Expected(_)) => self.open(index, options),
            (Some(Request::Lend { bytes }), Stage::Open(served)) => {
                self.lend(&client.socket, served, bytes)
            }
            _ => false,
        }
    }

    fn open(&mut self, index: usize, options: PortOptions) -> bool {
        let socket = &self.clients[index].socket;
        let Ok(process) = socket.process() else { return false };
        let left = self.left_of_loan(process);
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
        // Before it can do anything with it.
        self.holders.add(port, process);
        let (epoch, spin_nanos) = (name.epoch, self.spin_nanos);
        let opened = Answer::Opened { port, epoch, depth, spin_nanos };
        let is_heard = self.wakes.add(port.0.into(), channel).is_ok();
        let is_told = answer(socket, opened, &[file.as_fd(), theirs.as_fd()]).is_ok();
        let served = Served { port, process, rings: bytes, words, arenas, is_gone };
        self.clients[index].stage = Stage::Open(served);
        is_heard && is_told
    }

    fn lend(&self, socket: &Socket, served: &Served, bytes: usize) -> bool {
        let left = self.left_of_loan(served.process);
        let lent = (MIN_LOAN..=left).contains(&bytes).then(|| Segment::shared(Kind::Arena, bytes));
        let Some(Ok((segment, file))) = lent else {
            return answer(socket, Answer::NothingLent, &[]).is_ok();
        };
        let arena = served.arenas.add(Arc::new(segment));
        let arena = u32::try_from(arena).expect("fewer arenas than bytes");
        answer(socket, Answer::Lent { arena }, &[file.as_fd()]).is_ok()
    }

    /// A client is gone: its port closes once what it has posted is taken.
    fn end(&mut self, index: usize) {
        if let Stage::Open(served) = self.clients.swap_remove(index).stage {
            self.wakes.remove(served.port.0.into());
            self.leave(served);
        }
    }

    /// A port closes unless it is held.
    fn leave(&mut self, served: Served) {
        if !self.holders.leave(served.port) {
            return self.lingering.push(served);
        }
        served.is_gone.store(true, Ordering::Release);
        self.nic.ring(served.port);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        while !self.clients.is_empty() {
            self.end(0);
        }
        for served in self.lingering.drain(..) {
            served.is_gone.store(true, Ordering::Release);
            self.nic.ring(served.port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;
    impl Source for Nobody {
        fn node(&self) -> NodeId {
            NodeId(4)
        }
        fn grant(&self, _: PortOptions) -> Result<Grant, crate::host::OpenError> {
            unreachable!("nobody asks")
        }
        fn ring(&self, _: PortId) {}
    }

    /// What its turn wakes is the last to have the server.
    #[derive(Debug)]
    struct Last(std::sync::Mutex<Option<PortServer>>, std::sync::mpsc::Sender<()>);
    impl Source for Last {
        fn node(&self) -> NodeId {
            NodeId(5)
        }
        fn grant(&self, _: PortOptions) -> Result<Grant, crate::host::OpenError> {
            unreachable!("nobody asks")
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
        // Its end takes the other end of the channel along, if it does not come to that.
        drop(nic);
        dropped.recv_timeout(Duration::from_secs(60)).expect("it is dropped");
    }

    #[test]
    fn a_name_is_one_daemons() {
        let open = |name: &str| PortServer::open(ServerConfig::new(name), Arc::new(Nobody));
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
