//! Links and the nodes behind them.

use std::collections::BTreeSet;

use midplane_simhw::time::Instant;
use midplane_via::session::Transport;

use super::place::Target;

/// A session, as membership sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) transport: Transport,
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
}

impl Link {
    /// Places the better of two links to one peer first; both ends agree, but for links that one of them has dialed.
    pub(super) fn order(&self, own: u64, number: u64) -> (bool, u8, u64, u64) {
        let dialer = if self.target.is_some() { own } else { self.peer.unwrap_or(u64::MAX) };
        (self.is_ending, preference(self.transport), dialer, number)
    }
}

/// Returns how far away a transport's peers are: lower is nearer. Peers over TCP are as near as others over UDP.
pub(super) const fn distance(transport: Transport) -> u8 {
    match transport {
        Transport::Shm => 0,
        _ => 1,
    }
}

/// Ranks the transports to one peer: the lowest is used.
const fn preference(transport: Transport) -> u8 {
    match transport {
        Transport::Shm => 0,
        Transport::Tcp(_) => 2,
        _ => 1,
    }
}

/// A node that has described itself.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) services: BTreeSet<String>,
    /// Links to it, the best first.
    pub(super) links: Vec<u64>,
    /// It accepts no more streams.
    pub(super) is_leaving: bool,
    /// Another node of its name has come later: by this time it has shown whether it lives.
    pub(super) trial: Option<Instant>,
    /// The living node that had its name before it, because of which it is not used.
    pub(super) rival: Option<u64>,
}
