//! The configuration of a NIC over UDP, and the addresses of its peers.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use thiserror::Error;

use super::batch::plain;
use super::discovery::MIN_BYTES;
use crate::frame::MAX_PAYLOAD;
use crate::id::NodeId;
use crate::link::LinkProfile;
use crate::live::clock::Clock;
use crate::nic::{NicConfig, StartError, nic_setters};
use crate::seal::{Identity, Key, check_identity, check_keys};
use crate::time::LineRate;

/// The way in which the firmware runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Coprocessor {
    /// On a thread of its own: the application's load delays the NIC only through the system's scheduler.
    #[default]
    Thread,
    /// On a task of the caller's runtime, and on the threads that ring or poll for completions. Uses no additional
    /// thread, and passes a message between no cores or tasks. It has the lowest latency if applications wait. Received
    /// frames wait while the runtime's tasks compute.
    Task,
}

/// Default line: 1 Gb/s Ethernet, the least that most hosts have.
const DEFAULT_LINE: LinkProfile = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::ZERO);
/// Frames that may wait for the line before the NIC is busy: eight, or 32 of at most one Ethernet packet each. At 100 Mb/s,
/// 32 of them cover a firmware delay of 3.9 ms, as on a busy host. More would cover longer delays, but make the firmware
/// commit to frames earlier.
pub(super) const TRANSMIT_DEPTH: usize = 8;
/// Default catch-up: 0.5 ms, by which a wake-up is commonly late where processes share cores.
const DEFAULT_CATCH_UP: Duration = Duration::from_micros(500);
/// Default spin time: 200 us. It is longer than a parked peer takes to be woken by a datagram and to answer.
/// Two nodes that wait for each other therefore do not keep parking once both have parked.
const DEFAULT_SPIN: Duration = Duration::from_micros(200);

/// Bytes of the longest datagram over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// The configuration of a NIC over UDP.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    pub(super) nic: NicConfig,
    pub(super) peers: Vec<SocketAddr>,
    pub(super) bind: Option<SocketAddr>,
    pub(super) via: Option<SocketAddr>,
    pub(super) line: LinkProfile,
    pub(super) coprocessor: Coprocessor,
    pub(super) catch_up: Duration,
    pub(super) keys: Vec<Key>,
    pub(super) identity: Option<Identity>,
    pub(super) datagram_bytes: Option<usize>,
}

impl UdpConfig {
    /// Creates the configuration of `node`; `peers[i]` is the address of node `i`, including this one's.
    #[must_use]
    pub const fn new(node: NodeId, peers: Vec<SocketAddr>) -> Self {
        Self {
            nic: NicConfig::new(node, MAX_PAYLOAD, DEFAULT_SPIN),
            peers,
            bind: None,
            via: None,
            line: DEFAULT_LINE,
            coprocessor: Coprocessor::Thread,
            catch_up: DEFAULT_CATCH_UP,
            keys: Vec::new(),
            identity: None,
            datagram_bytes: None,
        }
    }

    /// Returns the node of the NIC.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.nic.node
    }

    /// Sets the local address. Default: the node's own among its peers, with which they compare the source of
    /// its frames. Another one is for hosts behind network address translation.
    #[must_use]
    pub const fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Sends every frame to this soft switch, and accepts frames from it only. Default: directly to the peers.
    #[must_use]
    pub const fn via(mut self, switch: SocketAddr) -> Self {
        self.via = Some(switch);
        self
    }

    /// Sets the NIC's line: frames leave no faster than its rate, framing included. Its propagation delay is
    /// ignored; the network has its own. Default: 1 Gb/s Ethernet.
    #[must_use]
    pub const fn line(mut self, line: LinkProfile) -> Self {
        self.line = line;
        self
    }

    /// Sets how the firmware runs. Default: [`Coprocessor::Thread`].
    #[must_use]
    pub const fn coprocessor(mut self, coprocessor: Coprocessor) -> Self {
        self.coprocessor = coprocessor;
        self
    }

    /// Sets the most payload bytes of one frame, from 1 to [`MAX_PAYLOAD`], which is the default. A frame that
    /// is longer than a datagram on its path leaves in pieces, which the receiving NIC reassembles.
    #[must_use]
    pub const fn mtu(mut self, bytes: usize) -> Self {
        self.nic.mtu = bytes;
        self
    }

    /// Sets a fixed datagram length instead of probing: the caller guarantees that every path carries `bytes`,
    /// from 548 to 65,507, without the UDP and IP headers. Jumbo frames of 9,000 bytes carry 8,972 over IPv4
    /// and 8,952 over IPv6. Don't-fragment is set nevertheless. A datagram that a router cannot forward is
    /// lost; one that the own interface cannot send is counted as [`System`](crate::drops::DropCause::System).
    /// Default: 1,200 at first, and more once [probes](super#how-long-datagrams-are) have shown that it passes.
    #[must_use]
    pub const fn datagram_bytes(mut self, bytes: usize) -> Self {
        self.datagram_bytes = Some(bytes);
        self
    }

    /// Sets how much idle line time may be made up for, so that a late wake-up loses no bandwidth. In any window, the
    /// NIC sends at most what the line carries in the window plus this time, plus one frame. Default:
    /// 0.5 ms.
    #[must_use]
    pub const fn catch_up(mut self, time: Duration) -> Self {
        self.catch_up = time;
        self
    }

    /// Sets how long a NIC that is a [task](Coprocessor::Task) busy-polls for datagrams before it parks, at
    /// most; it polls for less time if recent polls found nothing. All other tasks get turns meanwhile. Zero
    /// parks at once. Default: 200 us.
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.nic.spin = time;
        self
    }

    nic_setters!();

    /// Seals every frame with session keys that `key` admits, and accepts no frame that is not sealed: see
    /// [`seal`](crate::seal). Handshakes begin with the first given key and are answered with any, so that keys
    /// can be exchanged one node after another. Holders of a key cannot be distinguished: each can claim to be any
    /// node. The NIC warns of that at its start, unless it has an [`identity`](UdpConfig::identity). Default:
    /// no key; without an identity, the network is then trusted.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// Seals every frame by the identities of the two nodes, and accepts no other. A node whose key is not on
    /// the list is refused, and the source of each frame is certain. A [`key`](UdpConfig::key) of the fabric
    /// may be given as well, to all nodes. Default: none.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Checks the configuration; returns the address to bind.
    pub(super) fn check(&self) -> Result<SocketAddr, StartError> {
        self.nic.check(self.peers.len())?;
        check_peers(&self.peers)?;
        if let Some(bytes) = self.datagram_bytes {
            StartError::check("the length of datagrams", bytes, (MIN_BYTES, MAX_DATAGRAM))?;
        }
        if !self.keys.is_empty() {
            check_keys(&self.keys)?;
        }
        if let Some(identity) = &self.identity {
            check_identity(self.nic.node, self.peers.len(), identity)?;
        }
        let bind = self.bind.unwrap_or_else(|| self.peers[self.nic.node.index()]);
        let targets = self.via.as_ref().map_or(&self.peers[..], std::slice::from_ref);
        check_family(bind, targets)?;
        Ok(bind)
    }
}

/// Checks that there are not too many addresses, and that all differ.
pub(super) fn check_peers(peers: &[SocketAddr]) -> Result<(), StartError> {
    StartError::check("the number of peers", peers.len(), (0, u16::MAX.into()))?;
    let mut sorted: Vec<_> = peers.iter().map(|peer| plain(*peer)).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(StartError::Duplicate(two[0])),
        None => Ok(()),
    }
}

/// Checks that a socket bound to `bind` can reach each of `targets`.
pub(super) fn check_family(bind: SocketAddr, targets: &[SocketAddr]) -> Result<(), StartError> {
    let other = |peer: &&SocketAddr| plain(**peer).is_ipv4() != plain(bind).is_ipv4();
    match targets.iter().find(other) {
        Some(peer) => Err(StartError::Family { bind, peer: *peer }),
        None => Ok(()),
    }
}

/// Longest time for one name to resolve.
const RESOLVE_LIMIT: Duration = Duration::from_secs(4);
/// Pause between two attempts to resolve an unknown name.
const RESOLVE_PAUSE: Duration = Duration::from_millis(200);

/// The reason why a list of peers could not be resolved.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ResolveError {
    /// The list is empty.
    #[error("the list of peers is empty; give one host:port a node")]
    Empty,
    /// The entry is not a `host:port`, or the host is unknown.
    #[error("peer {index}, {name:?}, is unknown; it must be host:port with a host that resolves")]
    Unknown {
        /// Its index in the list.
        index: usize,
        /// The entry.
        name: String,
    },
    /// Some peers have IPv4 addresses only, and some IPv6 addresses only.
    #[error("the peers share no address family; use IPv4 addresses only, or IPv6 only")]
    Families,
    /// The name service is slow or unreachable.
    #[error("resolving a peer's name took longer than 4 s; use addresses instead of names")]
    TimedOut,
}

/// Resolves `peers`, each a `host:port`: to IPv4 addresses if all have one, else to IPv6 addresses.
///
/// Blocks while the system's resolver runs, up to 4 s for each host; call it once, at the start.
///
/// # Errors
/// [`ResolveError`] names the entry that failed.
#[doc(hidden)]
pub fn resolve_peers(peers: &[String]) -> Result<Vec<SocketAddr>, ResolveError> {
    resolve_within(peers, Duration::ZERO)
}

/// Does what [`resolve_peers`] does, but looks unknown hosts up again until `wait` is over.
pub(crate) fn resolve_within(
    peers: &[String],
    wait: Duration,
) -> Result<Vec<SocketAddr>, ResolveError> {
    if peers.is_empty() {
        return Err(ResolveError::Empty);
    }
    let until = Clock::now() + wait;
    let is_again = move || {
        let left = until.since(Clock::now());
        std::thread::park_timeout(RESOLVE_PAUSE.min(left));
        !left.is_zero()
    };
    let (answer, resolved) = mpsc::channel();
    let names = peers.to_vec();
    // A resolver cannot be interrupted: after the limit, its thread is left to end by itself, after its present lookup.
    let resolver = std::thread::Builder::new().name("resolve".into()).spawn(move || {
        let lookup = |host: &str| match answer.send(None) {
            Ok(()) => look_up(host),
            Err(_) => Vec::new(),
        };
        let found = resolve_all(&names, lookup, is_again);
        let _ = answer.send(Some(found));
    });
    if resolver.is_err() {
        return resolve_all(peers, look_up, is_again);
    }
    loop {
        // Each lookup begins with a message.
        match resolved.recv_timeout(until.since(Clock::now()).max(RESOLVE_LIMIT)) {
            Ok(Some(found)) => return found,
            Ok(None) => {}
            Err(_) => return Err(ResolveError::TimedOut),
        }
    }
}

/// Returns the addresses of a host, with port 0; none if it is unknown.
fn look_up(host: &str) -> Vec<SocketAddr> {
    (host, 0).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// Resolves `names` with one `lookup` for each different host, or several while it is unknown and `is_again` returns
/// true.
fn resolve_all(
    names: &[String],
    mut lookup: impl FnMut(&str) -> Vec<SocketAddr>,
    mut is_again: impl FnMut() -> bool,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let mut hosts: BTreeMap<&str, Vec<SocketAddr>> = BTreeMap::new();
    let mut candidates = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        if let Ok(address) = name.trim().parse::<SocketAddr>() {
            candidates.push(vec![address]);
            continue;
        }
        let unknown = || ResolveError::Unknown { index, name: name.clone() };
        let (host, port) = name.trim().rsplit_once(':').ok_or_else(unknown)?;
        let port: u16 = port.parse().map_err(|_| unknown())?;
        let found = hosts.entry(host).or_insert_with(|| {
            let mut found = lookup(host);
            while found.is_empty() && is_again() {
                found = lookup(host);
            }
            found
        });
        if found.is_empty() {
            return Err(unknown());
        }
        let at_port = |host: &SocketAddr| {
            let mut address = *host;
            address.set_port(port);
            address
        };
        candidates.push(found.iter().map(at_port).collect());
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
    fn each_host_is_looked_up_once_and_again_only_while_it_is_unknown() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut asked = Vec::new();
        let lookup = |host: &str| {
            asked.push(host.to_owned());
            vec![at(0)]
        };
        let equal: Vec<String> = (1..=128).map(|port| format!("one:{port}")).collect();
        let found = resolve_all(&equal, lookup, || false).unwrap();
        assert_eq!(found, (1..=128).map(at).collect::<Vec<_>>());
        assert_eq!(asked, ["one"]);

        let mut asked = Vec::new();
        let lookup = |host: &str| {
            asked.push(host.to_owned());
            if host == "late" && asked.len() < 4 { Vec::new() } else { vec![at(0)] }
        };
        let mixed = names(&["early:1", "late:2", "early:3"]);
        assert_eq!(resolve_all(&mixed, lookup, || true), Ok(vec![at(1), at(2), at(3)]));
        assert_eq!(asked, ["early", "late", "late", "late"]);
        let unknown = ResolveError::Unknown { index: 1, name: "late:2".into() };
        let none = |host: &str| if host == "late" { Vec::new() } else { vec![at(0)] };
        assert_eq!(resolve_all(&mixed, none, || false), Err(unknown));
    }

    #[test]
    fn a_contradictory_configuration_is_refused() {
        let peers: Vec<SocketAddr> =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|a| a.parse().unwrap()).to_vec();
        let config = |node| UdpConfig::new(NodeId(node), peers.clone());
        assert_eq!(config(1).check(), Ok(peers[1]));
        assert_eq!(config(2).check(), Err(StartError::Rank { node: NodeId(2), nodes: 2 }));
        let key = || Key::new(7, [1; 32]);
        let twice = StartError::Keys(crate::seal::SealConfigError::DuplicateKey(7));
        assert_eq!(config(0).key(key()).key(key()).check(), Err(twice));
        let mtu = StartError::OutOfRange { what: "the MTU", value: 0, min: 1, max: MAX_PAYLOAD };
        assert_eq!(config(0).mtu(0).check(), Err(mtu));
        for bytes in [547, 65_508] {
            let vouched = config(0).datagram_bytes(bytes);
            assert!(matches!(vouched.check(), Err(StartError::OutOfRange { .. })));
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
