//! Connects NICs to each other: a socket in the abstract namespace, over which descriptors are passed.
//!
//! Each node listens under a name made of the fabric's name and its own number. It connects to the nodes with
//! lower numbers until it has them all. The connecting node makes the segment of the two and passes it on, with
//! one end of a channel on which the two wake each other. The system identifies the process at the other end
//! (peer credentials). The connection stays open: its end is the end of the peer, whatever the cause. Memory
//! that peers share besides the segment is passed over it. Nothing here has a name in the file system, and
//! nothing is left when a process is killed.

mod greeting;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SocketAddrUnix;

use super::config::ShmConfig;
use super::lane::{Receiver, Sender, Shape};
use crate::acceptor::Acceptor;
use crate::id::{Incarnation, NodeId};
use crate::live::clock::Clock;
use crate::nic::StartError;
use crate::passing::Socket;
use crate::region::SharedMemory;
use crate::segment::{Kind, Segment};
use crate::time::Instant;

pub(super) use greeting::pass;
use greeting::{Greeting, Kind as Message, receive, send, take};

/// Pause after a failed attempt to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Longest time that a new connection may take to send its greeting.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections of one process besides those of peers: failed attempts that are not yet closed.
const SPARE: usize = 16;

/// Both directions to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Channel on which the two processes wake each other.
    pub(super) channel: Arc<Socket>,
    /// The connection, over which memory is passed.
    pub(super) socket: Arc<Socket>,
}

impl Link {
    /// Closes the connection unused; both ends are notified by its end.
    pub(super) fn refuse(&self) {
        self.socket.hang_up();
    }
}

/// Receives the rendezvous's reports of peers.
pub(super) trait PeerListener: Send + Sync {
    /// Handles a peer that has connected; it replaces an earlier one with its number.
    fn joined(&self, link: Link);
    /// Handles a peer whose connection has ended.
    fn left(&self, node: NodeId);
    /// Handles memory that a peer shares; `false` refuses it and ends the connection.
    fn shown(&self, _: NodeId, _name: [u64; 2], _: SharedMemory) -> bool {
        false
    }
}

/// The values that every greeting carries and checks.
#[derive(Clone, Debug)]
struct Terms {
    node: NodeId,
    nodes: u16,
    incarnation: Incarnation,
    shape: Shape,
}

impl Terms {
    const fn greeting(&self, kind: Message) -> Greeting {
        Greeting { kind, node: self.node, incarnation: self.incarnation, shape: self.shape }
    }
}

/// A connection and its state in the handshake.
#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    stage: Stage,
    /// When its greeting is overdue.
    until: Instant,
}

#[derive(Debug)]
enum Stage {
    /// It has connected, and has yet to send its greeting.
    Expected,
    /// This node has sent it this segment and the other end of this channel; the answer is pending.
    Offered { node: NodeId, segment: Arc<Segment>, channel: Arc<Socket> },
    /// The handshake is complete.
    Joined(NodeId),
}

/// The result of a handshake step.
enum Step {
    Keep,
    Close,
}

/// The rendezvous of one NIC; dropping it ends it.
#[derive(Debug)]
pub(super) struct Rendezvous {
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rendezvous {
    /// Opens the rendezvous of the node in `config`.
    pub(super) fn open(
        config: &ShmConfig,
        incarnation: Incarnation,
        listener: Arc<dyn PeerListener>,
    ) -> Result<Self, StartError> {
        let terms =
            Terms { node: config.node, nodes: config.nodes, incarnation, shape: config.shape() };
        let system = |error: rustix::io::Errno| StartError::System(error.kind());
        let address = address(&config.name, config.node).map_err(system)?;
        // One process may run all peers, each of which may restart.
        let most = 2 * usize::from(config.nodes) + SPARE;
        let acceptor = Acceptor::open(&address, config.admitted.clone(), most);
        let acceptor = acceptor.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                StartError::Occupied { node: config.node, name: config.name.clone() }
            }
            kind => StartError::System(kind),
        })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(system)?;
        let stopped = stop.try_clone().map_err(|error| StartError::System(error.kind()))?;
        let mut event_loop = EventLoop {
            terms,
            name: config.name.clone(),
            acceptor,
            stopped,
            listener,
            connections: Vec::new(),
            next_attempt: Instant::ZERO,
        };
        let thread = std::thread::Builder::new().name(format!("shm {}", config.node));
        let thread = thread
            .spawn(move || event_loop.run())
            .map_err(|error| StartError::System(error.kind()))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // Both calls fail only if the thread has ended already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the address at which a node listens: unique in a network namespace, across all users.
fn address(name: &str, node: NodeId) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("midplane/{name}/{node}").as_bytes())
}

/// The state of the rendezvous's thread.
struct EventLoop {
    terms: Terms,
    name: String,
    acceptor: Acceptor,
    stopped: OwnedFd,
    listener: Arc<dyn PeerListener>,
    connections: Vec<Connection>,
    next_attempt: Instant,
}

impl EventLoop {
    fn run(&mut self) {
        loop {
            let now = Clock::now();
            self.connect_missing(now);
            self.close_overdue(now);
            let ready = self.wait(now);
            if ready[0] {
                return;
            }
            // From the back, so that a removal moves no index that is still to come.
            for index in (0..self.connections.len()).rev() {
                if ready[2 + index]
                    && let Step::Close = self.on_readable(index)
                {
                    self.close(index);
                }
            }
            self.accept_all(ready[1]);
        }
    }

    /// Waits until a descriptor is readable or an attempt is due. Returns for the stop event, the listener and
    /// each connection whether it is readable.
    fn wait(&self, now: Instant) -> Vec<bool> {
        let first = [PollFd::new(&self.stopped, PollFlags::IN), self.acceptor.polled()];
        let sockets = self.connections.iter();
        let sockets = sockets.map(|connection| PollFd::new(&*connection.socket, PollFlags::IN));
        let mut polled: Vec<_> = first.into_iter().chain(sockets).collect();
        let deadlines = self.connections.iter().filter(|c| !matches!(c.stage, Stage::Joined(_)));
        let deadlines = deadlines.map(|c| c.until).chain(self.acceptor.paused_until());
        let next = deadlines.fold(self.next_attempt, Instant::min);
        let left = next.since(now).max(Duration::from_millis(1));
        let timeout = Timespec::try_from(left).ok().filter(|_| next != Instant::FAR_FUTURE);
        if poll(&mut polled, timeout.as_ref()).is_err() {
            // The wait was interrupted: no descriptor is known to be ready.
            return vec![false; polled.len()];
        }
        polled.iter().map(|one| !one.revents().is_empty()).collect()
    }

    /// Connects to the peers with lower numbers that are not connected.
    fn connect_missing(&mut self, now: Instant) {
        if now < self.next_attempt {
            return;
        }
        self.next_attempt = Instant::FAR_FUTURE;
        for node in (0..self.terms.node.0).map(NodeId) {
            if !self.connections.iter().any(|connection| connection.node() == Some(node)) {
                self.next_attempt = now + RETRY;
                // A failure means that the peer is not there yet or refuses; the next attempt follows.
                if let Ok(connection) = self.offer(node, now) {
                    self.connections.push(connection);
                }
            }
        }
    }

    /// Connects to `node` and sends it a segment.
    fn offer(&self, node: NodeId, now: Instant) -> Result<Connection, Refusal> {
        let socket = Socket::connect(&address(&self.name, node)?)?;
        if !self.acceptor.admits(socket.user()?) {
            return Err(Refusal);
        }
        let bytes = 2 * self.terms.shape.lane_bytes();
        let (segment, file) = Segment::shared(Kind::Link, bytes).map_err(|_| Refusal)?;
        let (channel, theirs) = Socket::pair()?;
        let hello = self.terms.greeting(Message::Hello);
        send(&socket, &hello, &[file.as_fd(), theirs.as_fd()])?;
        let (segment, channel) = (Arc::new(segment), Arc::new(channel));
        let stage = Stage::Offered { node, segment, channel };
        Ok(Connection { socket: Arc::new(socket), stage, until: now + PATIENCE })
    }

    fn accept_all(&mut self, is_ready: bool) {
        let now = Clock::now();
        for socket in self.acceptor.accept(is_ready, now) {
            let (socket, stage) = (Arc::new(socket), Stage::Expected);
            self.connections.push(Connection { socket, stage, until: now + PATIENCE });
        }
    }

    fn on_readable(&mut self, index: usize) -> Step {
        let connection = &self.connections[index];
        let step = match &connection.stage {
            Stage::Joined(node) => return self.take_memory(&connection.socket, *node),
            Stage::Expected => self.welcome(&connection.socket),
            Stage::Offered { node, segment, channel } => {
                self.conclude(&connection.socket, *node, segment, channel)
            }
        };
        let Ok(link) = step else { return Step::Close };
        let node = link.node;
        self.connections[index].stage = Stage::Joined(node);
        // A peer that was killed and restarted may connect before the end of its old connection is noticed.
        for other in (0..self.connections.len()).rev().filter(|other| *other != index) {
            if matches!(self.connections[other].stage, Stage::Joined(former) if former == node) {
                self.connections[other].stage = Stage::Expected;
                self.connections[other].until = Instant::ZERO;
            }
        }
        self.listener.joined(link);
        Step::Keep
    }

    /// Takes memory that a peer shares. Any other message, or the end of the connection, closes it.
    fn take_memory(&self, socket: &Socket, node: NodeId) -> Step {
        let admits = |user| self.acceptor.admits(user);
        let memory = take(socket).and_then(|(name, bytes, file)| {
            Ok((name, SharedMemory::open(&file, bytes, admits).map_err(|_| Refusal)?))
        });
        match memory.is_ok_and(|(name, memory)| self.listener.shown(node, name, memory)) {
            true => Step::Keep,
            false => Step::Close,
        }
    }

    /// Takes the segment of a peer with a higher number.
    fn welcome(&self, socket: &Arc<Socket>) -> Result<Link, Refusal> {
        let (hello, [file, channel]) = receive::<2>(socket)?;
        let is_peer = hello.node > self.terms.node && hello.node.0 < self.terms.nodes;
        if hello.kind != Message::Hello || !is_peer || hello.shape != self.terms.shape {
            return Err(Refusal);
        }
        let bytes = self.terms.shape.lane_bytes();
        let admits = |user| self.acceptor.admits(user);
        let file = file.memory().ok_or(Refusal)?;
        let segment = Segment::open(&file, Kind::Link, 2 * bytes, admits).map_err(|_| Refusal)?;
        let channel = Arc::new(channel.channel(socket).ok_or(Refusal)?);
        send(socket, &self.terms.greeting(Message::Welcome), &[])?;
        Ok(self.link(hello.node, Arc::new(segment), (bytes, 0), channel, socket))
    }

    /// Takes the answer of a peer with a lower number.
    fn conclude(
        &self,
        socket: &Arc<Socket>,
        node: NodeId,
        segment: &Arc<Segment>,
        channel: &Arc<Socket>,
    ) -> Result<Link, Refusal> {
        let (welcome, []) = receive::<0>(socket)?;
        if welcome.kind != Message::Welcome || welcome.node != node {
            return Err(Refusal);
        }
        let bytes = self.terms.shape.lane_bytes();
        Ok(self.link(node, Arc::clone(segment), (0, bytes), Arc::clone(channel), socket))
    }

    fn link(
        &self,
        node: NodeId,
        segment: Arc<Segment>,
        (sends_at, receives_at): (usize, usize),
        channel: Arc<Socket>,
        socket: &Arc<Socket>,
    ) -> Link {
        let shape = self.terms.shape;
        let sender = Sender::new(Arc::clone(&segment), sends_at, shape);
        let receiver = Receiver::new(segment, receives_at, shape);
        Link { node, sender, receiver, channel, socket: Arc::clone(socket) }
    }

    fn close_overdue(&mut self, now: Instant) {
        for index in (0..self.connections.len()).rev() {
            let connection = &self.connections[index];
            if connection.until <= now && !matches!(connection.stage, Stage::Joined(_)) {
                self.close(index);
            }
        }
    }

    fn close(&mut self, index: usize) {
        let closed = self.connections.swap_remove(index);
        if let Stage::Joined(node) = closed.stage {
            self.listener.left(node);
        }
        if closed.node().is_some() {
            self.next_attempt = self.next_attempt.min(Clock::now() + RETRY);
        }
    }
}

impl Connection {
    /// Returns the connection's peer, if it is known.
    const fn node(&self) -> Option<NodeId> {
        match self.stage {
            Stage::Expected => None,
            Stage::Offered { node, .. } | Stage::Joined(node) => Some(node),
        }
    }
}

/// The error of a handshake that failed: its connection is closed, and tried again.
#[derive(Debug)]
struct Refusal;

impl From<rustix::io::Errno> for Refusal {
    fn from(_: rustix::io::Errno) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests;
