//! Connects NICs to each other: a socket in the abstract namespace, over which descriptors are passed.
//!
//! Each node listens under a name made of the fabric's name and its own number. It connects to the nodes with
//! lower numbers until it has them all. The connecting node makes the segment of the two and passes it on, with
//! one end of a channel on which the two wake each other. The system identifies the process at the other end
//! (peer credentials). The connection stays open: it closes when the peer exits, whatever the cause. Memory that peers
//! share besides the segment is passed over it. Nothing here has a name in the file system, and nothing is left when a
//! process is killed.

mod greeting;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::SocketAddrUnix;

use super::config::ShmConfig;
use super::lane::{Receiver, Sender, Shape};
use crate::acceptor::{Acceptor, Admitted};
use crate::id::{Incarnation, NodeId};
use crate::listener::{Connection, Listener, Service};
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

/// The state of a connection in the handshake.
#[derive(Debug, Default)]
enum Stage {
    /// It has connected, and has yet to send its greeting.
    #[default]
    Expected,
    /// This node has sent it this segment and the other end of this channel; the answer is pending.
    Offered { node: NodeId, segment: Arc<Segment>, channel: Arc<Socket> },
    /// The handshake is complete.
    Joined(NodeId),
}

/// The rendezvous of one NIC; dropping it ends it.
#[derive(Debug)]
pub(super) struct Rendezvous(#[expect(dead_code, reason = "runs until it is dropped")] Listener);

impl Rendezvous {
    /// Opens the rendezvous of the node in `config`.
    pub(super) fn open(
        config: &ShmConfig,
        incarnation: Incarnation,
        listener: Arc<dyn PeerListener>,
    ) -> Result<Self, StartError> {
        let terms = Terms {
            node: config.nic.node,
            nodes: config.nodes,
            incarnation,
            shape: config.shape(),
        };
        let system = |error: io::Error| StartError::System(error.kind());
        let address =
            address(&config.name, config.nic.node).map_err(|error| system(error.into()))?;
        // One process may run all peers, each of which may restart.
        let most = 2 * usize::from(config.nodes) + SPARE;
        let acceptor = Acceptor::open(&address, config.admitted.clone(), most);
        let acceptor = acceptor.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                StartError::Occupied { node: config.nic.node, name: config.name.clone() }
            }
            kind => StartError::System(kind),
        })?;
        let (name, admitted) = (config.name.clone(), config.admitted.clone());
        let peers = Peers { terms, name, admitted, listener, next_attempt: Instant::ZERO };
        let thread = format!("shm {}", config.nic.node);
        Listener::start(thread, acceptor, peers).map(Self).map_err(system)
    }
}

/// Returns the address at which a node listens: unique in a network namespace, across all users.
fn address(name: &str, node: NodeId) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("midplane/{name}/{node}").as_bytes())
}

/// A node's connections to its peers.
struct Peers {
    terms: Terms,
    name: String,
    admitted: Admitted,
    listener: Arc<dyn PeerListener>,
    next_attempt: Instant,
}

impl Service for Peers {
    type State = Stage;

    /// Connects to the peers with lower numbers that are not connected.
    fn before_wait(&mut self, connections: &mut Vec<Connection<Stage>>) -> Instant {
        let now = Clock::now();
        if now < self.next_attempt {
            return self.next_attempt;
        }
        self.next_attempt = Instant::FAR_FUTURE;
        for node in (0..self.terms.node.0).map(NodeId) {
            if !connections.iter().any(|connection| connection.state.node() == Some(node)) {
                self.next_attempt = now + RETRY;
                // A failure means that the peer is not there yet or refuses; the next attempt follows.
                connections.extend(self.offer(node, now));
            }
        }
        self.next_attempt
    }

    fn on_readable(&mut self, connections: &mut [Connection<Stage>], index: usize) -> bool {
        let Connection { socket, state, .. } = &connections[index];
        let step = match state {
            Stage::Joined(node) => return self.take_memory(socket, *node),
            Stage::Expected => self.welcome(socket),
            Stage::Offered { node, segment, channel } => {
                self.conclude(socket, *node, segment, channel)
            }
        };
        let Ok(link) = step else { return false };
        // A peer that was killed and restarted may connect before the end of its old connection is noticed.
        let is_former = |state: &Stage| matches!(state, Stage::Joined(node) if *node == link.node);
        for former in connections.iter_mut().filter(|connection| is_former(&connection.state)) {
            (former.state, former.until) = (Stage::Expected, Instant::ZERO);
        }
        connections[index].state = Stage::Joined(link.node);
        connections[index].until = Instant::FAR_FUTURE;
        self.listener.joined(link);
        true
    }

    fn on_closed(&mut self, state: Stage) {
        if let Stage::Joined(node) = state {
            self.listener.left(node);
        }
        if state.node().is_some() {
            self.next_attempt = self.next_attempt.min(Clock::now() + RETRY);
        }
    }
}

impl Peers {
    /// Connects to `node` and sends it a segment.
    fn offer(&self, node: NodeId, now: Instant) -> Result<Connection<Stage>, Refusal> {
        let socket = Socket::connect(&address(&self.name, node)?)?;
        if !self.admitted.admits(socket.user()?) {
            return Err(Refusal);
        }
        let bytes = 2 * self.terms.shape.lane_bytes();
        let (segment, file) = Segment::shared(Kind::Link, bytes).map_err(|_| Refusal)?;
        let (channel, theirs) = Socket::pair()?;
        let hello = self.terms.greeting(Message::Hello);
        send(&socket, &hello, &[file.as_fd(), theirs.as_fd()])?;
        let (segment, channel) = (Arc::new(segment), Arc::new(channel));
        let stage = Stage::Offered { node, segment, channel };
        Ok(Connection::new(socket, stage, now))
    }

    /// Takes memory that a peer shares. Any other message, or the end of the connection, closes it.
    fn take_memory(&self, socket: &Socket, node: NodeId) -> bool {
        let admits = |user| self.admitted.admits(user);
        let memory = take(socket).and_then(|(name, bytes, file)| {
            Ok((name, SharedMemory::open(&file, bytes, admits).map_err(|_| Refusal)?))
        });
        memory.is_ok_and(|(name, memory)| self.listener.shown(node, name, memory))
    }

    /// Takes the segment of a peer with a higher number.
    fn welcome(&self, socket: &Arc<Socket>) -> Result<Link, Refusal> {
        let (hello, [file, channel]) = receive::<2>(socket)?;
        let is_peer = hello.node > self.terms.node && hello.node.0 < self.terms.nodes;
        if hello.kind != Message::Hello || !is_peer || hello.shape != self.terms.shape {
            return Err(Refusal);
        }
        let bytes = self.terms.shape.lane_bytes();
        let admits = |user| self.admitted.admits(user);
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
}

impl Stage {
    /// Returns the connection's peer, if it is known.
    const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Expected => None,
            Self::Offered { node, .. } | Self::Joined(node) => Some(*node),
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
