//! Explains which transport each peer is reached over, and why.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::seal::PublicKey;
use midplane_via::session::{Attempt, Session, Stats, TransportKind};
use midplane_via::wire::endpoint::TokenCounters;
use serde::{Deserialize, Serialize};

use super::Node;
use super::state::placed;
use super::transports::WORDS;

/// The transports of a node's peers, as [`Node::explain`] found them; `Display` has a line for each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The transports that the node may use, in the order of preference: of `shm`, `ofi`, `udp` and `tcp`.
    pub allowed: Vec<&'static str>,
    /// The address of the node's sockets, if it has any.
    pub address: Option<SocketAddr>,
    /// The tokens of nodes that send to this one over UDP, if it [grants](crate::NodeBuilder::receive_tokens) any.
    pub tokens: Option<ReceiveTokens>,
    /// The peers that this node has a session with.
    pub peers: Vec<PeerPath>,
    /// The places that did not answer their last dial, could not be dialed, or whose node is of another cluster.
    pub unanswered: Vec<FailedDial>,
    /// The addresses of the other nodes that [gossip](crate::NodeBuilder::gossip) lists.
    #[cfg(feature = "discovery-gossip")]
    pub gossip: Vec<SocketAddr>,
}

/// The tokens that a node grants to the nodes that send to it over UDP.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReceiveTokens {
    /// Bytes of the buffer of the switch's port before the node: the data in flight of all senders fits in it.
    pub port_buffer: u64,
    /// Tokens that were granted.
    pub granted: u64,
    /// Tokens that have expired: their holders were silent for 200 ms.
    pub expired: u64,
    /// Peers that wait for a token now.
    pub waiting: usize,
}

/// The path to a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerPath {
    /// The peer's name.
    pub name: String,
    /// The random number of this incarnation of the peer.
    pub id: u64,
    /// The transport of new streams: `shm`, `ofi`, `udp` or `tcp`.
    pub transport: &'static str,
    /// The peer's address; `None` through shared memory.
    pub address: Option<SocketAddr>,
    /// For each other transport, why it is not used.
    pub others: Vec<(&'static str, UnusedReason)>,
    /// Bytes of the largest datagram that is known to pass; over UDP only.
    pub mtu: Option<usize>,
    /// The smoothed round-trip time; over UDP only.
    pub round_trip: Option<Duration>,
    /// The [congestion control](crate::NodeBuilder::congestion) of sent data; over UDP only.
    pub congestion: Option<&'static str>,
    /// True if sent data is sealed with the cluster's key. Shared memory is not sealed: only this user's processes can
    /// access it.
    pub is_sealed: bool,
    /// The key of its own that the peer has proven to have; only over sealed sessions.
    pub key: Option<PublicKey>,
    /// Number of open streams.
    pub streams: usize,
    /// Number of streams, open or ended, that have moved to [TCP connections of their own](crate::NodeBuilder::transports).
    pub moved: u64,
}

/// The reason why a peer is not reached over a transport.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum UnusedReason {
    /// `MIDPLANE_TRANSPORTS`, or [`NodeBuilder::transports`](crate::NodeBuilder::transports), excludes it.
    NotAllowed,
    /// The peer is not on this host, or belongs to another user or another cluster there.
    NotOnThisHost,
    /// The peer is on this host, but shared memory could not be set up with it.
    HandshakeFailed(String),
    /// The peer did not answer over it, or answered later than over the chosen one.
    NoAnswer(String),
    /// The peer has dialed this node, and chose the transport.
    PeerHasChosen,
    /// The chosen transport is better.
    NotNeeded,
}

impl fmt::Display for UnusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str("not allowed"),
            Self::NotOnThisHost => f.write_str("not on this host"),
            Self::HandshakeFailed(why) => write!(f, "handshake failed: {why}"),
            Self::NoAnswer(why) => write!(f, "no answer: {why}"),
            Self::PeerHasChosen => f.write_str("the peer has dialed, and chosen"),
            Self::NotNeeded => f.write_str("not needed"),
        }
    }
}

/// A place that did not answer its last dial, could not be dialed, or whose node is of another cluster.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailedDial {
    /// The address, or the number of a node of this host.
    pub place: String,
    /// Number of dials of the place so far.
    pub dials: u32,
    /// The error of the last dial, for each transport that was tried.
    pub error: String,
}

impl Node {
    /// Explains over which transport each peer is reached, why the others are not used, and which places did not
    /// answer.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let shared = &self.0.shared;
        let here = shared.network().local();
        let sessions = shared.sessions_of_peers();
        let path = |(id, name, session, streams): (_, _, Arc<Session>, _)| {
            let stats = session.stats();
            PeerPath { streams, ..self.path(id, name, &session, &stats, here.contains(&id)) }
        };
        Explanation {
            allowed: self.0.allowed.words().collect(),
            address: self.0.search.address,
            tokens: self.tokens(),
            peers: sessions.into_iter().map(path).collect(),
            unanswered: self.unanswered(),
            #[cfg(feature = "discovery-gossip")]
            gossip: {
                let gossip = self.0.search.gossip.as_ref();
                gossip.map(|gossip| gossip.addresses()).unwrap_or_default()
            },
        }
    }

    /// Returns the tokens that the node grants, if it grants any.
    pub(super) fn tokens(&self) -> Option<ReceiveTokens> {
        let (port_buffer, counters) =
            self.0.port_buffer.zip(self.0.shared.sessions().token_counters())?;
        let TokenCounters { granted, expired, waiting, .. } = counters;
        Some(ReceiveTokens { port_buffer, granted, expired, waiting })
    }

    /// Describes the path to a peer.
    pub(super) fn path(
        &self,
        id: u64,
        name: String,
        session: &Session,
        stats: &Stats,
        is_here: bool,
    ) -> PeerPath {
        let chosen = session.transport();
        let others = WORDS.into_iter().filter(|word| *word != chosen.name());
        let others = others.map(|word| (word, self.why_not(word, id, session, is_here)));
        PeerPath {
            name,
            id,
            transport: chosen.name(),
            address: chosen.address(),
            others: others.collect(),
            mtu: stats.pipe.map(|pipe| pipe.mtu),
            round_trip: stats.pipe.map(|pipe| Duration::from_nanos(pipe.round_trip)),
            congestion: stats.pipe.map(|pipe| pipe.congestion),
            is_sealed: self.0.is_sealed && chosen != TransportKind::Shm,
            key: session.peer_key(),
            streams: stats.open,
            moved: stats.moved,
        }
    }

    fn why_not(&self, word: &str, id: u64, session: &Session, is_here: bool) -> UnusedReason {
        let rank = |name: &str| WORDS.iter().position(|word| *word == name);
        if !self.0.allowed.allows(word) {
            return UnusedReason::NotAllowed;
        }
        if rank(word) > rank(session.transport().name()) {
            return UnusedReason::NotNeeded;
        }
        if word == WORDS[0] {
            return match self.0.shared.dials.local_error(id) {
                _ if !is_here => UnusedReason::NotOnThisHost,
                _ if !cfg!(target_os = "linux") => {
                    UnusedReason::HandshakeFailed("it needs Linux".into())
                }
                Some(why) => UnusedReason::HandshakeFailed(why),
                None => UnusedReason::NoAnswer("it is dialed with the next search".into()),
            };
        }
        if word == TransportKind::Ofi.name() {
            let why = "this node or the peer has no such NIC, or they have different providers";
            return UnusedReason::NoAnswer(why.into());
        }
        match session.attempts().map(|attempts| attempts.udp()) {
            None | Some(Attempt::None) => UnusedReason::PeerHasChosen,
            Some(attempt @ (Attempt::Failed(_) | Attempt::KeyMismatch)) => {
                UnusedReason::NoAnswer(attempt.to_string())
            }
            Some(_) => UnusedReason::NoAnswer("TCP has answered before".into()),
        }
    }

    /// Returns the places that did not answer their last dial, those whose node is of another cluster, and those that
    /// could not be dialed.
    pub(super) fn unanswered(&self) -> Vec<FailedDial> {
        let shared = &self.0.shared;
        let strangers = shared.strangers().into_iter();
        let strangers = strangers.map(|(target, why)| (target, shared.dials.count(target), why));
        let dialed = shared.dials.unanswered().into_iter().chain(strangers);
        let dialed = dialed.map(|(target, dials, error)| (placed(&target), dials, error));
        let problems = self.0.search.places.problems().into_iter();
        let all = dialed.chain(problems.map(|(place, error)| (place, 0, error)));
        all.map(|(place, dials, error)| FailedDial { place, dials, error }).collect()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allowed: {}", self.allowed.join(", "))?;
        if let Some(address) = self.address {
            write!(f, "; at {address}")?;
        }
        if let Some(tokens) = self.tokens {
            write!(
                f,
                "; senders over UDP share a port's buffer of {} bytes by tokens",
                tokens.port_buffer
            )?;
            write!(
                f,
                ": {} granted, {} expired, {} peers wait",
                tokens.granted, tokens.expired, tokens.waiting
            )?;
        }
        for peer in &self.peers {
            write!(f, "\n{peer}")?;
        }
        for FailedDial { place, dials, error } in &self.unanswered {
            write!(f, "\n{place}: no peer after {dials} dials: {error}")?;
        }
        #[cfg(feature = "discovery-gossip")]
        for address in &self.gossip {
            write!(f, "\n{address}: named by gossip")?;
        }
        Ok(())
    }
}

impl fmt::Display for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.transport)?;
        match self.address {
            None if self.transport == "shm" => {
                f.write_str(", as it is on this host and the handshake through it succeeded")?
            }
            None => f.write_str(", as both have the same provider of libfabric")?,
            Some(address) => write!(f, " to {address}, as it answers there")?,
        }
        if self.transport != "shm" {
            f.write_str(if self.is_sealed { "; sealed" } else { "; not sealed" })?;
            if let Some(key) = self.key {
                write!(f, ", key {key}")?;
            }
        }
        if let Some(mtu) = self.mtu {
            write!(f, "; datagrams of {mtu} bytes")?;
        }
        if let Some(time) = self.round_trip {
            write!(f, "; round trip {time:.1?}")?;
        }
        if let Some(name) = self.congestion {
            write!(f, "; congestion control: {name}")?;
        }
        if self.moved > 0 {
            write!(f, "; streams that moved to TCP connections: {}", self.moved)?;
        }
        for (word, why) in &self.others {
            write!(f, "; {word}: {why}")?;
        }
        Ok(())
    }
}
