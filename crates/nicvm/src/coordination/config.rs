//! The configuration of sender coordination: the links, and how they are used.

use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::time::LineRate;
use thiserror::Error;

use super::lead::{Lead, LeadEstimator, LeadTrim, TrimmedLead};
use super::member::MAX_SENDERS;

/// A coordinated link: its token passes among its senders.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkConfig {
    /// Its number, the same on all nodes. The links of a route are acquired in the order of their numbers. A sender
    /// that waits for one link holds those before it, so the links that most routes share should have the lowest
    /// numbers.
    pub number: u16,
    /// The link's destination node, which makes a new token if one is lost, and takes no other part.
    pub witness: NodeId,
    /// The nodes that send over it, in the same order on all nodes; at most [`MAX_SENDERS`].
    pub senders: Vec<NodeId>,
}

/// Time for which one sender keeps a token while others wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Hold {
    /// For one message, as in the paper.
    Message,
    /// For messages of this many bytes in all; at least one message.
    Bytes(u64),
    /// For the time of 48 hand-overs, so that a hand-over costs little; at least one message.
    Auto,
}

/// The messages that may be sent without a token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Uncontrolled {
    /// Largest message, in bytes; 0 for none.
    pub message: u32,
    /// Burst of such messages for each sender, in bytes with headers; refills from the sender's share of the reserve.
    pub burst: u32,
    /// Number of senders that share the reserve.
    pub senders_share: u32,
}

impl Uncontrolled {
    /// Allows messages of up to `message` bytes. All of `senders` together may send their bursts into a buffer of
    /// `buffer` bytes at once without filling more than half of it.
    #[must_use]
    #[doc(hidden)]
    pub fn for_buffer(message: u32, buffer: u32, senders: usize) -> Self {
        let senders_share = u32::try_from(senders.max(1)).unwrap_or(u32::MAX);
        let share = buffer / 2 / senders_share;
        Self { message: message.min(share), burst: share, senders_share }
    }
}

/// Default lease: 200 ms is long compared with a control message's delay, and short compared with a user's patience.
const DEFAULT_LEASE: Duration = Duration::from_millis(200);

/// Longest lease: exclusions last up to 64 leases, which must stay within the range of [`Duration`] and clocks.
const LONGEST_LEASE: Duration = Duration::from_secs(3_600);

/// Default share of a link, in thousandths, that coordinated messages leave to other traffic and to the draining of
/// queues.
pub(super) const DEFAULT_RESERVE: u16 = 5;

/// The configuration of sender coordination; the same on all nodes of a cluster.
#[derive(Clone, Debug)]
pub struct CoordinationConfig {
    pub(crate) links: Vec<LinkConfig>,
    /// For each destination, the numbers of the links on the path to it.
    pub(crate) routes: Vec<(NodeId, Vec<u16>)>,
    pub(crate) lead: Lead,
    pub(crate) trims: Vec<(NodeId, LeadTrim)>,
    pub(crate) hold: Hold,
    pub(crate) uncontrolled: Uncontrolled,
    pub(crate) ahead: u32,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) reserve: Option<u16>,
    pub(crate) rate: Option<LineRate>,
    pub(crate) buffers: bool,
    pub(crate) genesis: bool,
}

/// Inconsistency in a configuration.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Two links have the same number.
    #[error("two links have the number {0}; give each its own")]
    DuplicateLink(u16),
    /// A route names a link that is not configured.
    #[error(
        "the route to node {destination} names link {link}, which does not exist; add the link first"
    )]
    UnknownLink {
        /// The route's destination.
        destination: NodeId,
        /// The unknown number.
        link: u16,
    },
    /// A link has no senders, or more than [`MAX_SENDERS`].
    #[error("link {link} has {senders} senders: 1 to {MAX_SENDERS} can take turns")]
    Senders {
        /// The link.
        link: u16,
        /// Its number of senders.
        senders: usize,
    },
    /// A sender is listed twice, or is the link's own destination.
    #[error(
        "node {node} is listed twice as a sender of link {link}, or is its destination: remove it"
    )]
    Sender {
        /// The link.
        link: u16,
        /// The sender.
        node: NodeId,
    },
    /// Bytes sent ahead of the token would need buffers that only the token grants.
    #[error("sending ahead of the token and buffers in the token exclude each other; choose one")]
    AheadWithBuffers,
}

impl CoordinationConfig {
    /// Creates a configuration without links.
    #[must_use]
    pub fn new() -> Self {
        Self {
            links: Vec::new(),
            routes: Vec::new(),
            lead: Lead::Adaptive,
            trims: Vec::new(),
            hold: Hold::Auto,
            uncontrolled: Uncontrolled::default(),
            ahead: 0,
            lease: DEFAULT_LEASE,
            request_timeout: DEFAULT_LEASE * 2,
            reserve: None,
            rate: None,
            buffers: false,
            genesis: false,
        }
    }

    /// Creates a star in which `senders` send to each of `receivers`: the number of the link into a receiver is its
    /// node's number.
    #[must_use]
    pub fn star(receivers: &[NodeId], senders: &[NodeId]) -> Self {
        let mut config = Self::new();
        for receiver in receivers {
            let others = senders.iter().copied().filter(|sender| sender != receiver).collect();
            config =
                config.link(LinkConfig { number: receiver.0, witness: *receiver, senders: others });
            config = config.route(*receiver, vec![receiver.0]);
        }
        config
    }

    /// Adds a link.
    #[must_use]
    pub fn link(mut self, link: LinkConfig) -> Self {
        self.links.push(link);
        self
    }

    /// Sets the links on the path to `destination`. A sender needs the tokens of those `links` that list it as a
    /// sender. Messages to a destination without a route are not coordinated.
    #[must_use]
    pub fn route(mut self, destination: NodeId, mut links: Vec<u16>) -> Self {
        links.sort_unstable();
        links.dedup();
        self.routes.push((destination, links));
        self
    }

    /// Sets how early tokens are released; [`Lead::Adaptive`] by default.
    #[must_use]
    pub fn lead(mut self, lead: Lead) -> Self {
        self.lead = lead;
        self
    }

    /// Lets `trim` shorten the lead of this node's tokens on the path to `destination`.
    #[must_use]
    #[doc(hidden)]
    pub fn trim_lead(mut self, destination: NodeId, trim: LeadTrim) -> Self {
        self.trims.push((destination, trim));
        self
    }

    pub(super) fn lead_to(&self, destination: NodeId) -> Box<dyn LeadEstimator> {
        let lead = self.lead.build();
        match self.trims.iter().find(|(to, _)| *to == destination) {
            Some((_, trim)) => Box::new(TrimmedLead { lead, trim: trim.clone() }),
            None => lead,
        }
    }

    /// Sets how long a sender keeps a token while others wait; [`Hold::Auto`] by default.
    #[must_use]
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// Sets the messages that may be sent without a token; none by default.
    #[must_use]
    pub fn uncontrolled(mut self, uncontrolled: Uncontrolled) -> Self {
        self.uncontrolled = uncontrolled;
        self
    }

    /// Sets how many bytes of a message are sent before its token arrives: the paper's other method. The bytes of all
    /// senders together must fit the switch's buffer. Default: 0.
    #[must_use]
    pub fn ahead(mut self, bytes: u32) -> Self {
        self.ahead = bytes;
        self
    }

    /// Sets how long a holder may send without a new confirmation by all other senders; a lost token is replaced after
    /// about that long. From 1 ms to 1 h; 200 ms by default. Also sets the request timeout to two leases.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(1), LONGEST_LEASE);
        self.request_timeout = self.lease * 2;
        self
    }

    /// Sets how long a sender waits for a token before it asks again. After twice as long again, it reports the token
    /// lost. It should exceed the time for which all others together may keep the token. At least 1 ms; two leases by
    /// default.
    #[must_use]
    pub fn request_timeout(mut self, request_timeout: Duration) -> Self {
        self.request_timeout = request_timeout.max(Duration::from_millis(1));
        self
    }

    /// Sets the pause after coordinated messages, in thousandths of the time that they occupy a link, up to 900. It
    /// leaves room for messages without a token and for other traffic. To leave a share `b` of the link to others, set
    /// `1000 b / (1 - b)`. By default 5 if several senders share a link, and none if one has it for
    /// itself.
    #[must_use]
    pub fn reserve(mut self, thousandths: u16) -> Self {
        self.reserve = Some(thousandths.min(900));
        self
    }

    /// Sets the rate of the slowest coordinated link; the NIC's own by default.
    #[must_use]
    pub fn rate(mut self, rate: LineRate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets whether tokens carry the receiver's buffers, those of all its ports together. Then a message is sent only
    /// if a buffer is posted for it, and none without the token. A sender keeps the token until the messages that have
    /// begun have left, so the request timeout should exceed the time that the longest message takes: else such
    /// messages are lost. A sender that is suspended in the middle of a message may lose it. Off by default.
    #[must_use]
    pub fn buffers(mut self, buffers: bool) -> Self {
        self.buffers = buffers;
        self
    }

    /// Sets whether all nodes start together and for the first time, so that each link's first sender begins with its
    /// token. Otherwise the first token is requested from the witness, a lease after the start. Off by default, because
    /// a node that has restarted can't tell that it has.
    #[must_use]
    pub fn genesis(mut self, genesis: bool) -> Self {
        self.genesis = genesis;
        self
    }

    /// Checks that links and routes are consistent.
    ///
    /// # Errors
    /// [`ConfigError`] names the first inconsistency.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (at, link) in self.links.iter().enumerate() {
            if self.links[..at].iter().any(|other| other.number == link.number) {
                return Err(ConfigError::DuplicateLink(link.number));
            }
            let senders = link.senders.len();
            if senders == 0 || senders > MAX_SENDERS {
                return Err(ConfigError::Senders { link: link.number, senders });
            }
            for (place, node) in link.senders.iter().enumerate() {
                if link.senders[..place].contains(node) || *node == link.witness {
                    return Err(ConfigError::Sender { link: link.number, node: *node });
                }
            }
        }
        for (destination, links) in &self.routes {
            let unknown = |link: &&u16| !self.links.iter().any(|known| known.number == **link);
            if let Some(link) = links.iter().find(unknown) {
                return Err(ConfigError::UnknownLink { destination: *destination, link: *link });
            }
        }
        if self.buffers && self.ahead > 0 {
            return Err(ConfigError::AheadWithBuffers);
        }
        Ok(())
    }
}

impl Default for CoordinationConfig {
    fn default() -> Self {
        Self::new()
    }
}
