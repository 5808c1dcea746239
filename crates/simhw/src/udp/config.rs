//! What a NIC over UDP is like, and where its peers are.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use thiserror::Error;

use super::batch::plain;
use super::discovery::LEAST_BYTES;
use crate::frame::MAX_PAYLOAD;
use crate::id::{Incarnation, NodeId};
use crate::link::LinkProfile;
use crate::port;
use crate::seal::{Identity, Key, SealConfigError, check_identity, check_keys};
use crate::time::LineRate;

/// The setters of whatever has a socket.
macro_rules! socket_setters {
    () => {
        /// Bytes to ask the system for, for each of the socket's two buffers. Default:
        /// [`DEFAULT_SOCKET_BUFFER`].
        #[must_use]
        pub const fn socket_buffer(mut self, bytes: usize) -> Self {
            self.socket_buffer = bytes;
            self
        }
    };
}
pub(super) use socket_setters;

/// What runs the firmware.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Coprocessor {
    /// A thread of its own: the application's load delays the NIC only through the scheduler.
    #[default]
    Thread,
    /// A task of the caller's runtime, and whoever rings or looks for completions: no thread more, and
    /// no hand-over between cores or tasks on the way of a message. The least latency where
    /// applications wait; what arrives waits while the runtime's tasks compute.
    Task,
}

/// 1 Gb/s Ethernet: what most hosts have at least.
pub const DEFAULT_LINE: LinkProfile = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::ZERO);
/// Eight frames: at 100 Mb/s and 1 KB each they bridge 0.7 ms of lateness of the firmware.
pub const DEFAULT_TRANSMIT_DEPTH: usize = 8;
/// Half a millisecond: what a wake-up is commonly late by where processes share cores.
pub const DEFAULT_CATCH_UP: Duration = Duration::from_micros(500);
/// 200 us: longer than a peer that sleeps takes to be woken by a datagram and to answer, so that two that wait for
/// each other do not both sleep for ever after they have once.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(200);
/// 4 MiB: a third of a second at 100 Mb/s. Systems commonly grant less unless told otherwise.
pub const DEFAULT_SOCKET_BUFFER: usize = 4 << 20;

/// Bytes of the longest datagram over IPv4.
const MOST_DATAGRAM: usize = 65_507;

/// What a NIC over UDP is like.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    pub(super) node: NodeId,
    pub(super) peers: Vec<SocketAddr>,
    pub(super) bind: Option<SocketAddr>,
    pub(super) via: Option<SocketAddr>,
    pub(super) line: LinkProfile,
    pub(super) coprocessor: Coprocessor,
    pub(super) seed: u64,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) mtu: usize,
    pub(super) port_depth: usize,
    pub(super) transmit_depth: usize,
    pub(super) catch_up: Duration,
    pub(super) spin: Duration,
    pub(super) socket_buffer: usize,
    pub(super) keys: Vec<Key>,
    pub(super) identity: Option<Identity>,
    pub(super) datagram_bytes: Option<usize>,
}

impl UdpConfig {
    /// The NIC of `node`; `peers[i]` is the address of node `i`, this one's own among them.
    #[must_use]
    pub const fn new(node: NodeId, peers: Vec<SocketAddr>) -> Self {
        Self {
            node,
            peers,
            bind: None,
            via: None,
            line: DEFAULT_LINE,
            coprocessor: Coprocessor::Thread,
            seed: 0,
            incarnation: None,
            mtu: MAX_PAYLOAD,
            port_depth: port::DEFAULT_DEPTH,
            transmit_depth: DEFAULT_TRANSMIT_DEPTH,
            catch_up: DEFAULT_CATCH_UP,
            spin: DEFAULT_SPIN,
            socket_buffer: DEFAULT_SOCKET_BUFFER,
            keys: Vec::new(),
            identity: None,
            datagram_bytes: None,
        }
    }

    /// The node whose NIC it is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The local address. Default: the node's own among its peers, which is what they compare the
    /// source of its frames with; another one is for hosts behind a translation of addresses.
    #[must_use]
    pub const fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Sends every frame to this soft switch and takes frames from nobody else. Default: straight
    /// to the peers.
    #[must_use]
    pub const fn via(mut self, switch: SocketAddr) -> Self {
        self.via = Some(switch);
        self
    }

    /// The NIC's line: frames leave no faster than its rate, framing counted. Its propagation is
    /// the network's own. Default: [`DEFAULT_LINE`].
    #[must_use]
    pub const fn line(mut self, line: LinkProfile) -> Self {
        self.line = line;
        self
    }

    /// What runs the firmware. Default: [`Coprocessor::Thread`].
    #[must_use]
    pub const fn coprocessor(mut self, coprocessor: Coprocessor) -> Self {
        self.coprocessor = coprocessor;
        self
    }

    /// What the host's random streams are drawn from, together with the node. Default: 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Which life of the NIC this is. Default: from the time of day in units of 64 ms, so that it
    /// is newer than that of any process before; a clock that was set back breaks that.
    #[must_use]
    pub const fn incarnation(mut self, incarnation: Incarnation) -> Self {
        self.incarnation = Some(incarnation);
        self
    }

    /// Most payload bytes of one frame, from 1 to [`MAX_PAYLOAD`], which is the default. A frame that
    /// is longer than a datagram on its path leaves in pieces, which the receiving NIC joins.
    #[must_use]
    pub const fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = bytes;
        self
    }

    /// Vouches for every path: each carries datagrams of `bytes`, from 548 to 65,507, UDP's and IP's
    /// headers not counted, and nothing is probed. For networks whose owner knows: jumbo frames of 9,000
    /// bytes carry 8,972 over IPv4 and 8,952 over IPv6. Don't-fragment is set all the same: what a router
    /// can't pass on is lost, what the own interface can't is counted as
    /// [`System`](crate::drops::DropCause::System). Default: 1,200 to begin with, and more once
    /// [probes](super#how-long-datagrams-are) have shown that it passes.
    #[must_use]
    pub const fn datagram_bytes(mut self, bytes: usize) -> Self {
        self.datagram_bytes = Some(bytes);
        self
    }

    /// Commands that may be under way on one port. Default: [`port::DEFAULT_DEPTH`].
    #[must_use]
    pub const fn port_depth(mut self, commands: usize) -> Self {
        self.port_depth = commands;
        self
    }

    /// Frames that may wait for the line before the NIC is busy; at least 1. More of them bridge
    /// more lateness, and let the firmware decide earlier than it would have to. Default:
    /// [`DEFAULT_TRANSMIT_DEPTH`].
    #[must_use]
    pub const fn transmit_depth(mut self, frames: usize) -> Self {
        self.transmit_depth = frames;
        self
    }

    /// Line time that an idle line may make up for, so that a late wake-up costs nothing: in any
    /// window, no more leaves than the line carries in the window and this time, and one frame.
    /// Default: [`DEFAULT_CATCH_UP`].
    #[must_use]
    pub const fn catch_up(mut self, time: Duration) -> Self {
        self.catch_up = time;
        self
    }

    /// How long a NIC that is a [task](Coprocessor::Task) looks for datagrams before it waits to be woken, at most;
    /// less where looking was in vain lately. All other tasks have their turns meanwhile. Zero waits at once. Default:
    /// [`DEFAULT_SPIN`].
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    socket_setters!();

    /// Seals every frame, and takes none that is not sealed: see [`seal`](crate::seal). Handshakes
    /// begin with the first key that is given and are answered with any, so that keys can be
    /// exchanged one node after the other. Holders of a key are not told apart: each can claim to be any
    /// node, and the NIC says so at its start, unless there is an [`identity`](UdpConfig::identity).
    /// Default: no key; without an identity the network is then trusted.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// Seals every frame by the keys of the two nodes, and takes none that is not sealed so: a node whose
    /// key is not in the list joins nothing, and the source of each frame is the node that it says. A
    /// [`key`](UdpConfig::key) of the fabric may be given as well, to all nodes. Default: none.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// The address to bind, once everything is found to be in order.
    pub(super) fn check(&self) -> Result<SocketAddr, StartError> {
        let Some(own) = self.peers.get(self.node.index()) else {
            return Err(StartError::Rank { node: self.node, peers: self.peers.len() });
        };
        check_peers(&self.peers)?;
        if self.mtu == 0 || self.mtu > MAX_PAYLOAD {
            return Err(StartError::Mtu(self.mtu));
        }
        if let Some(bytes) = self.datagram_bytes
            && !(LEAST_BYTES..=MOST_DATAGRAM).contains(&bytes)
        {
            return Err(StartError::Datagram(bytes));
        }
        if !self.keys.is_empty() {
            check_keys(&self.keys)?;
        }
        if let Some(identity) = &self.identity {
            check_identity(self.node, self.peers.len(), identity)?;
        }
        let bind = self.bind.unwrap_or(*own);
        let targets = self.via.as_ref().map_or(&self.peers[..], std::slice::from_ref);
        check_family(bind, targets)?;
        Ok(bind)
    }
}

/// Addresses are of nodes: not too many, and all different.
pub(super) fn check_peers(peers: &[SocketAddr]) -> Result<(), StartError> {
    if peers.len() > usize::from(u16::MAX) {
        return Err(StartError::TooManyPeers(peers.len()));
    }
    let mut sorted: Vec<_> = peers.iter().map(|peer| plain(*peer)).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(StartError::Duplicate(two[0])),
        None => Ok(()),
    }
}

/// A socket bound to `bind` can reach every one of `targets`.
pub(super) fn check_family(bind: SocketAddr, targets: &[SocketAddr]) -> Result<(), StartError> {
    let other = |peer: &&SocketAddr| plain(**peer).is_ipv4() != plain(bind).is_ipv4();
    match targets.iter().find(other) {
        Some(peer) => Err(StartError::Family { bind, peer: *peer }),
        None => Ok(()),
    }
}

/// Why a NIC or a switch did not start.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StartError {
    /// The rank is outside of the list of peers.
    #[error("rank {node} is outside the list of {peers} peers; ranks count from 0")]
    Rank {
        /// The rank.
        node: NodeId,
        /// Length of the list.
        peers: usize,
    },
    /// Nodes have 16-bit numbers.
    #[error("{0} peers are too many; name at most 65535")]
    TooManyPeers(usize),
    /// Two nodes have one address.
    #[error("two peers have the address {0}; give each its own port")]
    Duplicate(SocketAddr),
    /// One socket speaks IPv4 or IPv6.
    #[error("{peer} cannot be reached from {bind}: use IPv4 addresses only, or IPv6 only")]
    Family {
        /// The local address.
        bind: SocketAddr,
        /// One that is of the other family.
        peer: SocketAddr,
    },
    /// No frame may be that long, or none would fit.
    #[error("a payload of {0} bytes is outside 1 to {MAX_PAYLOAD}")]
    Mtu(usize),
    /// No datagram may be that long, or every path carries longer ones.
    #[error("datagrams of {0} bytes are outside {LEAST_BYTES} to {MOST_DATAGRAM}")]
    Datagram(usize),
    /// The keys cannot be used together.
    #[error(transparent)]
    Keys(#[from] SealConfigError),
    /// Another process has the port.
    #[error("{0} is in use; stop the other process or choose another port")]
    PortInUse(SocketAddr),
    /// The address is not one of this host's.
    #[error("{0} is no address of this host; check the rank, or bind another address")]
    NotLocal(SocketAddr),
    /// The system reserves the port.
    #[error("this user may not bind {0}; choose a port above 1023")]
    Denied(SocketAddr),
    /// There is no tokio runtime here.
    #[error("no tokio runtime here; call it from a task, or inside Runtime::enter")]
    NoRuntime,
    /// The operating system failed otherwise.
    #[error("the system refused a socket, a timer or a thread for {address}: {kind}")]
    System {
        /// The local address.
        address: SocketAddr,
        /// What it said.
        kind: std::io::ErrorKind,
    },
}

impl StartError {
    pub(super) fn from_io(address: SocketAddr, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::AddrInUse => Self::PortInUse(address),
            ErrorKind::AddrNotAvailable => Self::NotLocal(address),
            ErrorKind::PermissionDenied => Self::Denied(address),
            kind => Self::System { address, kind },
        }
    }
}

/// Longest that names may take to resolve.
const RESOLVE_LIMIT: Duration = Duration::from_secs(4);

/// Why a list of peers names no addresses.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ResolveError {
    /// There are no peers.
    #[error("the list of peers is empty; give one host:port a node")]
    Empty,
    /// It is no `host:port`, or the host is unknown.
    #[error("peer {index}, {name:?}, is unknown; it must be host:port with a host that resolves")]
    Unknown {
        /// Its place in the list.
        index: usize,
        /// The entry.
        name: String,
    },
    /// Some have IPv4 addresses only and some IPv6 addresses only.
    #[error("the peers share no address family; use IPv4 addresses only, or IPv6 only")]
    Families,
    /// The name service is slow or cannot be reached.
    #[error("resolving the peers' names took longer than 4 s; use addresses instead of names")]
    TimedOut,
}

/// The addresses of `peers`, each `host:port`: all IPv4 where all have one, else all IPv6.
///
/// Blocks for as long as the system's resolver takes, up to 4 s; call it once, at the start.
///
/// # Errors
/// [`ResolveError`] names the entry that is wrong.
pub fn resolve_peers(peers: &[String]) -> Result<Vec<SocketAddr>, ResolveError> {
    if peers.is_empty() {
        return Err(ResolveError::Empty);
    }
    let (answer, resolved) = mpsc::sync_channel(1);
    let names = peers.to_vec();
    // A resolver cannot be interrupted: past the limit, the thread is left to end by itself.
    let resolver = std::thread::Builder::new().name("resolve".into()).spawn(move || {
        let _ = answer.send(resolve_all(&names));
    });
    if resolver.is_err() {
        return resolve_all(peers);
    }
    resolved.recv_timeout(RESOLVE_LIMIT).unwrap_or(Err(ResolveError::TimedOut))
}

fn resolve_all(names: &[String]) -> Result<Vec<SocketAddr>, ResolveError> {
    let mut candidates = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let found: Vec<SocketAddr> =
            name.trim().to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        if found.is_empty() {
            return Err(ResolveError::Unknown { index, name: name.clone() });
        }
        candidates.push(found);
    }
    let all_of = |is: fn(&SocketAddr) -> bool| {
        candidates
            .iter()
            .map(|found| found.iter().copied().find(is))
            .collect::<Option<Vec<SocketAddr>>>()
    };
    all_of(SocketAddr::is_ipv4)
        .or_else(|| all_of(SocketAddr::is_ipv6))
        .ok_or(ResolveError::Families)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_and_addresses_of_both_families_resolve() {
        let found = resolve_peers(&names(&["127.0.0.1:7000", " localhost:7001\n"])).unwrap();
        assert_eq!(found, ["127.0.0.1:7000", "127.0.0.1:7001"].map(|a| a.parse().unwrap()));
        let found = resolve_peers(&names(&["[::1]:7000", "[::1]:7001"])).unwrap();
        assert!(found.iter().all(SocketAddr::is_ipv6));
    }

    #[test]
    fn a_wrong_list_is_refused_with_its_entry() {
        assert_eq!(resolve_peers(&[]), Err(ResolveError::Empty));
        for wrong in ["", "nonsense", "127.0.0.1", "127.0.0.1:70000", "host.invalid:7000"] {
            assert_eq!(
                resolve_peers(&names(&["127.0.0.1:1", wrong])),
                Err(ResolveError::Unknown { index: 1, name: wrong.into() })
            );
        }
        assert_eq!(resolve_peers(&names(&["127.0.0.1:1", "[::1]:1"])), Err(ResolveError::Families));
    }

    #[test]
    fn a_contradictory_configuration_is_refused() {
        let peers: Vec<SocketAddr> =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|a| a.parse().unwrap()).to_vec();
        let config = |node| UdpConfig::new(NodeId(node), peers.clone());
        assert_eq!(config(1).check(), Ok(peers[1]));
        assert_eq!(config(2).check(), Err(StartError::Rank { node: NodeId(2), peers: 2 }));
        let key = || Key::new(7, [1; 32]);
        let twice = StartError::Keys(SealConfigError::DuplicateKey(7));
        assert_eq!(config(0).key(key()).key(key()).check(), Err(twice));
        assert_eq!(config(0).mtu(0).check(), Err(StartError::Mtu(0)));
        for bytes in [547, 65_508] {
            let vouched = config(0).datagram_bytes(bytes);
            assert_eq!(vouched.check(), Err(StartError::Datagram(bytes)));
        }
        let six: SocketAddr = "[::1]:1".parse().unwrap();
        assert_eq!(
            config(0).via(six).check(),
            Err(StartError::Family { bind: peers[0], peer: six })
        );
        assert_eq!(
            UdpConfig::new(NodeId(0), vec![peers[0], peers[0]]).check(),
            Err(StartError::Duplicate(peers[0]))
        );
    }
}
