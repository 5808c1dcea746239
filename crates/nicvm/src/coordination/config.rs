//! What sender coordination is told: which links there are, and how they are used.

use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::time::LineRate;
use thiserror::Error;

use super::lead::{Lead, LeadEstimator, LeadTrim, TrimmedLead};
use super::member::MAX_SENDERS;

/// A link that is coordinated: its token goes round among its senders.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkConfig {
    /// Its number, the same on all nodes; links of one route are acquired in this order. Who waits
    /// for one holds those before it, so the links that most routes share have the lowest numbers.
    pub number: u16,
    /// The node behind it, which makes new tokens where one is lost, and no other part.
    pub witness: NodeId,
    /// The nodes that send over it, in the same order on all nodes; at most [`MAX_SENDERS`].
    pub senders: Vec<NodeId>,
}

/// How long one sender keeps a token when others wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Hold {
    /// For one message, as in the paper.
    Message,
    /// For as many messages as have this many bytes, at least one.
    Bytes(u64),
    /// For so many hand-overs' time that a hand-over costs little, at least one message.
    Auto,
}

/// What may be sent without a token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Uncontrolled {
    /// Largest message, in bytes; 0: none.
    pub message: u32,
    /// Most bytes of such messages, headers included, that one sender may have sent without having
    /// made up for them.
    pub burst: u32,
    /// Senders among which the reserve is divided that such messages use over time.
    pub senders_share: u32,
}

impl Uncontrolled {
    /// Messages of up to `message` bytes, in bursts that all of `senders` together may send into a
    /// buffer of `buffer` bytes at once without filling more than half of it.
    #[must_use]
    pub fn for_buffer(message: u32, buffer: u32, senders: usize) -> Self {
        let senders_share = u32::try_from(senders.max(1)).unwrap_or(u32::MAX);
        let share = buffer / 2 / senders_share;
        Self { message: message.min(share), burst: share, senders_share }
    }
}

/// A lease: 200 ms is long against any control message and short against a user's patience.
pub const DEFAULT_LEASE: Duration = Duration::from_millis(200);

/// The share of a link that coordinated messages leave to others and to the draining of queues,
/// in thousandths.
pub const DEFAULT_RESERVE: u16 = 5;

/// What sender coordination is told. All nodes of a cluster are told the same.
#[derive(Clone, Debug)]
pub struct CoordinationConfig {
    pub(crate) links: Vec<LinkConfig>,
    /// For each destination the numbers of the links on the way there.
    pub(crate) routes: Vec<(NodeId, Vec<u16>)>,
    pub(crate) lead: Lead,
    pub(crate) trims: Vec<(NodeId, LeadTrim)>,
    pub(crate) hold: Hold,
    pub(crate) uncontrolled: Uncontrolled,
    pub(crate) ahead: u32,
    pub(crate) lease: Duration,
    pub(crate) patience: Duration,
    pub(crate) reserve: Option<u16>,
    pub(crate) rate: Option<LineRate>,
    pub(crate) buffers: bool,
    pub(crate) genesis: bool,
}

/// Why a configuration can't be.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Two links have one number.
    #[error("two links have the number {0}; give each its own")]
    DuplicateLink(u16),
    /// A route names a link that is not there.
    #[error(
        "the route to node {destination} names link {link}, which there is not; add the link first"
    )]
    UnknownLink {
        /// Where the route leads.
        destination: NodeId,
        /// The number that no link has.
        link: u16,
    },
    /// A link has no senders, or too many.
    #[error("link {link} has {senders} senders: 1 to {MAX_SENDERS} can take turns")]
    Senders {
        /// Which link.
        link: u16,
        /// How many it has.
        senders: usize,
    },
    /// A sender is named twice, or is the link's own destination.
    #[error("node {node} can't be a sender of link {link} once more, or to itself")]
    Sender {
        /// Which link.
        link: u16,
        /// Which node.
        node: NodeId,
    },
    /// Bytes that go ahead of the token need buffers that nobody has promised.
    #[error("sending ahead of the token and buffers in the token exclude each other; choose one")]
    AheadWithBuffers,
}

impl CoordinationConfig {
    /// No links yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            links: Vec::new(),
            routes: Vec::new(),
            lead: Lead::Steered,
            trims: Vec::new(),
            hold: Hold::Auto,
            uncontrolled: Uncontrolled::default(),
            ahead: 0,
            lease: DEFAULT_LEASE,
            patience: DEFAULT_LEASE * 2,
            reserve: None,
            rate: None,
            buffers: false,
            genesis: false,
        }
    }

    /// A star in which `senders` send to each of `receivers`: the link into a receiver has its
    /// node's number.
    #[must_use]
    pub fn star(receivers: &[NodeId], senders: &[NodeId]) -> Self {
        let mut config = Self::new();
        for receiver in receivers {
            let others = senders.iter().copied().filter(|sender| sender != receiver).collect();
            config.link(LinkConfig { number: receiver.0, witness: *receiver, senders: others });
            config.route(*receiver, vec![receiver.0]);
        }
        config
    }

    /// Adds a link.
    pub fn link(&mut self, link: LinkConfig) -> &mut Self {
        self.links.push(link);
        self
    }

    /// Messages to `destination` need the tokens of those of `links` that their sender is named a
    /// sender of. To a destination without a route nothing is coordinated.
    pub fn route(&mut self, destination: NodeId, mut links: Vec<u16>) -> &mut Self {
        links.sort_unstable();
        links.dedup();
        self.routes.push((destination, links));
        self
    }

    /// How early tokens are released; [`Lead::Steered`] unless set.
    pub fn lead(&mut self, lead: Lead) -> &mut Self {
        self.lead = lead;
        self
    }

    /// The lead of this node's tokens on the way to `destination` is shortened as `trim` says.
    pub fn trim_lead(&mut self, destination: NodeId, trim: LeadTrim) -> &mut Self {
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

    /// How long a sender keeps a token when others wait; [`Hold::Auto`] unless set.
    pub fn hold(&mut self, hold: Hold) -> &mut Self {
        self.hold = hold;
        self
    }

    /// What may be sent without a token; nothing unless set.
    pub fn uncontrolled(&mut self, uncontrolled: Uncontrolled) -> &mut Self {
        self.uncontrolled = uncontrolled;
        self
    }

    /// Bytes of a message that are sent before its token is there: the paper's other method. All
    /// senders' together must fit the switch's buffer. 0 unless set.
    pub fn ahead(&mut self, bytes: u32) -> &mut Self {
        self.ahead = bytes;
        self
    }

    /// How long a holder may send without having heard from all others; a lost token is replaced
    /// after about that long. [`DEFAULT_LEASE`] unless set; at least a millisecond.
    pub fn lease(&mut self, lease: Duration) -> &mut Self {
        self.lease = lease.max(Duration::from_millis(1));
        self.patience = self.lease * 2;
        self
    }

    /// How long a sender waits for a token before it asks again, and then calls it lost. Longer than
    /// all others together may keep it. Two leases unless set.
    pub fn patience(&mut self, patience: Duration) -> &mut Self {
        self.patience = patience.max(Duration::from_millis(1));
        self
    }

    /// Thousandths of the time that coordinated messages take on a link, up to 900, that they leave
    /// free after it: for what is sent without a token, and for others' traffic. To leave a share `b`
    /// of the link to others takes `1000 b / (1 - b)`. Unless set, [`DEFAULT_RESERVE`] where several
    /// senders share a link, and none where one has it for itself.
    pub fn reserve(&mut self, thousandths: u16) -> &mut Self {
        self.reserve = Some(thousandths.min(900));
        self
    }

    /// The rate of the slowest link that is coordinated; the NIC's own unless set.
    pub fn rate(&mut self, rate: LineRate) -> &mut Self {
        self.rate = Some(rate);
        self
    }

    /// Whether tokens carry the receiver's buffers, those of all its ports together: a message is
    /// then sent only where one is lent to it, and none without the token. Off unless set.
    pub fn buffers(&mut self, buffers: bool) -> &mut Self {
        self.buffers = buffers;
        self
    }

    /// Whether all nodes start together and for the first time, so that each link's first sender may
    /// begin with its token. Unless set, the first token is asked of the witness, a lease after the
    /// start: a node that has restarted can't tell that it has.
    pub fn genesis(&mut self, genesis: bool) -> &mut Self {
        self.genesis = genesis;
        self
    }

    /// Checks that links and routes fit together.
    ///
    /// # Errors
    /// [`ConfigError`] names the first thing that does not.
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
