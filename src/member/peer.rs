//! Links and the nodes behind them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::SILENCE;
use super::hello::Refusal;
use super::place::Target;

/// A session, as membership sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) transport: TransportKind,
    /// The place that this node has dialed for it.
    pub(super) target: Option<Target>,
    /// The node at its other end, once it has described itself.
    pub(super) peer: Option<u64>,
    pub(super) since: Instant,
    /// The peer has not answered within its time: it may be suspended.
    pub(super) is_slow: bool,
    /// Its end was asked for.
    pub(super) is_ending: bool,
    /// A node that had this one's name before it, as the peer reports; 0 for none.
    pub(super) rival: u64,
    /// Why its peer is refused, and when the link ends.
    pub(super) refused: Option<(Refusal, Instant)>,
}

impl Link {
    pub(super) const fn is_refused(&self) -> bool {
        self.refused.is_some() || self.is_ending
    }

    /// Addresses at which its peer is: the place that was dialed, and where datagrams come from.
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

    /// When it ends, unless its peer describes itself, or ends it before.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        let silent = self.since.plus_nanos(SILENCE);
        let refused = self.refused.map(|(_, until)| until);
        let at = refused.or_else(|| self.peer.is_none().then_some(silent));
        at.filter(|_| !self.is_ending)
    }

    /// Places the better of two links to one peer first; both ends agree, but for links that one of them has dialed.
    pub(super) fn order(&self, own: u64, number: u64) -> (bool, u8, u64, u64) {
        let dialer = if self.target.is_some() { own } else { self.peer.unwrap_or(u64::MAX) };
        (self.is_ending, preference(self.transport), dialer, number)
    }
}

/// Returns how far away a transport's peers are: lower is nearer. Peers over TCP are as near as others over UDP.
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
    /// The key that it has proven, or has stated through shared memory.
    pub(super) key: Option<PublicKey>,
    /// It has the same key after a restart.
    pub(super) is_kept: bool,
    /// When it came.
    pub(super) since: Instant,
    pub(super) services: BTreeSet<String>,
    /// Links to it, the best first.
    pub(super) links: Vec<u64>,
    /// It accepts no more streams.
    pub(super) is_leaving: bool,
    /// The time by which it has to show that it lives, if a later node has its name.
    pub(super) trial: Option<Instant>,
    /// The living node that had its name before it, because of which it is not used.
    pub(super) rival: Option<u64>,
    /// The node of another key that has its name, because of which it is not used.
    pub(super) held_by: Option<u64>,
    /// Nodes are held because of this one: by this time it has shown whether it lives.
    pub(super) challenge: Option<Instant>,
}
