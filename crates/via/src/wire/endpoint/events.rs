//! The events and datagrams of an endpoint.

use std::net::{IpAddr, SocketAddr};

use super::super::pipe::{Ended, Transmit};

/// Names a connection of an endpoint. The id of a released one is never reused for a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PipeId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A peer has dialed, from this address, and the connection is established.
    Accepted(PipeId, SocketAddr),
    /// A dial of this side is established.
    Established(PipeId),
    /// There is more to read, or room to write. Reported once, until [`Endpoint::pipe`](super::Endpoint::pipe)
    /// is called.
    Progress(PipeId),
    /// The connection has ended. Received bytes stay readable until
    /// [`Endpoint::release`](super::Endpoint::release).
    Ended(PipeId, Ended),
}

/// Datagrams to send to one address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outgoing {
    /// The address that they go to.
    pub to: SocketAddr,
    /// The address of this host that they come from; `None` if the system chooses it.
    pub from: Option<IpAddr>,
    /// The connection that they belong to; `None` for gossip, and for answers to datagrams of no connection.
    pub pipe: Option<PipeId>,
    /// The sizes of the datagrams.
    pub transmit: Transmit,
}

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Datagrams of no connection: malformed, from another address, or late.
    pub strangers: u64,
    /// Dials that were refused, or answered with a cookie.
    pub turned_away: u64,
    /// Answers to datagrams of no connection that were dropped.
    pub replies_dropped: u64,
}
