//! Links and the nodes at their other ends.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::SILENCE;
use super::hello::Refusal;
use super::place::Target;

/// A session as membership uses it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) transport: TransportKind,
    /// The place that this node has dialed to open it.
    pub(super) target: Option<Target>,
    /// The node at its other end, once it has described itself.
    pub(super) peer: Option<u64>,
    pub(super) since: Instant,
    /// True if the peer has not answered in time: it may be suspended.
    pub(super) is_slow: bool,
    /// True once its end was requested.
    pub(super) is_ending: bool,
    /// A node that had this one's name before it, as the peer reports; 0 for none.
    pub(super) rival: u64,
    /// The reason why its peer is refused, and when the link ends.
    pub(super) refused: Option<(Refusal, Instant)>,
}

impl Link {
    pub(super) const fn is_refused(&self) -> bool {
        self.refused.is_some() || self.is_ending
    }

    /// Iterates over the addresses of its peer: the dialed place, and the source of datagrams.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let dialed = match self.target {
            Some(Target::Address(address)) => Some(address),
            _ => None,
        };
        let source = match self.transport {
            TransportKind::Udp(address) => Some(address),
            _ => None,
        };
        dialed.into_iter().chain(source)
    }

    /// Returns when it ends because its peer is silent or refused; `None` if neither.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        let silent = self.since.plus_nanos(SILENCE);
        let refused = self.refused.map(|(_, until)| until);
        let at = refused.or_else(|| self.peer.is_none().then_some(silent));
        at.filter(|_| !self.is_ending)
    }

    /// Returns the sort key that places the better of two links to one peer first. Both ends agree, except about links
    /// that one of them has dialed.
    pub(super) fn order(&self, own: u64, number: u64) -> (bool, u8, u64, u64) {
        let dialer = if self.target.is_some() { own } else { self.peer.unwrap_or(u64::MAX) };
        (self.is_ending, preference(self.transport), dialer, number)
    }
}

/// Returns a transport's distance: lower is nearer. Peers over TCP are as near as others over UDP.
pub(super) const fn distance(transport: TransportKind) -> u8 {
    match transport {
        TransportKind::Shm => 0,
        _ => 1,
    }
}

/// Ranks the transports to one peer: the lowest is used.
const fn preference(transport: TransportKind) -> u8 {
    match transport {
        TransportKind::Shm => 0,
        TransportKind::Ofi => 1,
        TransportKind::Tcp(_) => 3,
        _ => 2,
    }
}

/// A node that has described itself.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) incarnation: u64,
    /// The key that the node has proven, or has stated through shared memory.
    pub(super) key: Option<PublicKey>,
    /// True if the node has the same key after a restart.
    pub(super) is_kept: bool,
    /// When the node first described itself.
    pub(super) since: Instant,
    pub(super) services: BTreeSet<String>,
    /// Links to the node, the best first.
    pub(super) links: Vec<u64>,
    /// True if the node accepts no more streams.
    pub(super) is_leaving: bool,
    /// When the node must have shown that it is alive, if a later node has its name.
    pub(super) trial: Option<Instant>,
    /// The living node that had the name before, if this node is not used because of it.
    pub(super) rival: Option<u64>,
    /// The node of another key that has the name, if this node is not used because of it.
    pub(super) held_by: Option<u64>,
    /// When the node must have shown that it is alive, if others are held because of it.
    pub(super) challenge: Option<Instant>,
}
