//! An engine over any carrier of packets: eager and rendezvous messages, windows, cancellation.
//!
//! A message up to a certain size is sent whole (eagerly), with its envelope. For a longer one, the sender sends a
//! request to send (RTS); also if the receiver's window for unexpected messages has no room for the message. Once a
//! receive has matched it, the receiver answers with a clear to send (CTS), and the bytes follow in data packets,
//! straight into the receive's memory. A synchronous message that was sent whole is acknowledged when it matches.
//!
//! If the window has no room for an RTS either, the message waits at its sender. The sender sends a hint, of which
//! the receiver stores only the key. A receive that finds no message asks the senders of matching hints. So a message
//! without a receive never blocks one that has a receive, however small the window.

mod any_carrier;
mod arrivals;
mod config;
mod departures;
mod endings;
mod entry_points;
mod flows;
mod hinted;
mod parts;
mod peer;
mod pool;
mod returning;
mod seeking;
mod seeks;
mod target;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use midplane_simhw::region::Payload;

use super::carrier::{Carrier, Event};
use super::envelope::{Context, Envelope, Peer};
use super::matching::{Key, Matching, UnexpectedMessage};
use super::request::{Failure, Operation, Request, Requests, Status};
use any_carrier::AnyCarrier;
use flows::Limits;
use peer::Link;

pub(super) use pool::Pool;
pub(super) use target::Target;

pub use config::{Config, DEFAULT_EAGER, ENTRY, SOCKET_EAGER, WhenFull};

/// Most bytes of one message.
pub(crate) const MAX_LENGTH: usize = 1 << 30;

/// Counters of the messages that an engine has sent and received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Messages sent whole, with their envelope.
    pub eager: u64,
    /// Messages sent by RTS or hint because of their length.
    pub rendezvous: u64,
    /// Short messages sent by RTS or hint because the receiver's window was full.
    pub demoted: u64,
    /// Messages that matched a posted receive on arrival.
    pub expected: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Messages of ready sends that arrived before their receive: errors of the program.
    pub ready_too_early: u64,
    /// Packets that violate the protocol; from the first one on, their sender counts as lost.
    pub malformed: u64,
    /// Receives that got a longer message than they had room for.
    pub truncated: u64,
}

/// An unexpected message, or an RTS that has just matched.
#[derive(Debug, Default)]
struct Arrived {
    /// The handle of the sender's request, if that waits for an answer; else 0.
    sender: u64,
    length: u32,
    /// Bytes of its sender's window here that the message occupies.
    charge: u32,
    /// The message's bytes; `None` if they are still at the sender, or arriving.
    bytes: Option<Vec<u8>>,
    /// The dropped receive at which the bytes are arriving.
    arriving: Option<Request>,
    /// True if the message waits at its sender, which offers it to other receives if this process returns it.
    hinted: bool,
}

/// The state of an engine except its carrier.
#[derive(Debug)]
struct Core {
    own: Peer,
    config: Config,
    requests: Requests,
    matching: Matching<Request, Arrived>,
    claimed: BTreeMap<Request, UnexpectedMessage<Arrived>>,
    links: Vec<Link>,
    /// Processes that have sent hints, and where messages may still wait.
    hinting: BTreeSet<Peer>,
    /// The number of process losses so far.
    losses: u32,
    /// True once a process has left a collective operation before its end, or revoked a communicator
    /// ([`Link::left`]).
    has_left: bool,
    /// Contexts in which no receive has a wildcard tag.
    by_tag: BTreeSet<Context>,
    /// Bytes of a window here that the messages of one class may occupy.
    limits: Limits,
    /// Bytes of the memory for unexpected messages that are not yet part of a window.
    unshared: usize,
    /// A buffer for one packet.
    scratch: Vec<u8>,
    /// Processes for which packets wait to be sent.
    busy: Vec<Peer>,
    /// True if a process was listed in `busy`, for the first time or again, since the carrier was last armed: if the
    /// carrier has refused its packets, it does not know that a task waits for room.
    listed_since_armed: bool,
    /// Messages of this process to itself.
    to_self: VecDeque<(Envelope, Bytes)>,
    pool: Pool,
    counters: Counters,
    /// Most bytes of an eager message to any process.
    eager: usize,
    /// Most bytes of a message that is eager whatever the carrier's latency.
    always_eager: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    New,
    Running,
    Closing,
    Down,
}

/// Advances requests over a [`Carrier`]: the layer below the messages. An engine is polled, and owned by one thread
/// at a time.
///
/// Messages of one process to another with the same context match receives in the order in which they were
/// started. Receives that match the same message get it in the order in which they were started. A matched pair
/// completes as long as both processes keep calling `advance`; requests progress only within that
/// call and `start`.
#[derive(Debug)]
pub struct Engine {
    carrier: AnyCarrier,
    core: Core,
    phase: Phase,
}

impl Engine {
    /// Makes an engine that is not initialised yet.
    #[must_use]
    pub fn new(carrier: impl Carrier + 'static, config: Config) -> Self {
        // Half a window: one message of the largest size can travel while another waits.
        let most = carrier.room().min(config.window / 2 - ENTRY);
        let eager = config.eager.unwrap_or(usize::MAX).min(most);
        let always_eager = config.eager.unwrap_or(DEFAULT_EAGER).min(most);
        let core = Core {
            own: carrier.own(),
            config,
            requests: Requests::new(),
            // At random, so that no sender can choose tags that make matching slow. No result depends on it: nothing
            // iterates over the tables.
            matching: Matching::new(RandomState::new().hash_one(0)),
            claimed: BTreeMap::new(),
            links: Vec::new(),
            hinting: BTreeSet::new(),
            losses: 0,
            has_left: false,
            by_tag: BTreeSet::new(),
            limits: config.limits(eager),
            unshared: config.total,
            scratch: Vec::with_capacity(flows::PACKET_BYTES),
            busy: Vec::new(),
            listed_since_armed: false,
            to_self: VecDeque::new(),
            pool: Pool::default(),
            counters: Counters::default(),
            eager,
            always_eager,
        };
        Self { carrier: AnyCarrier::new(carrier), core, phase: Phase::New }
    }

    /// Returns the engine's counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.core.counters
    }

    /// Returns the bytes of unexpected messages stored here, including [`ENTRY`] for each.
    #[must_use]
    #[doc(hidden)]
    pub fn unexpected_bytes(&self) -> u64 {
        self.core.links.iter().map(|link| link.arrived - link.freed).sum()
    }

    /// Handles arrived packets, at most a batch. If `stops_early`, stops once a request has completed, so that the
    /// caller gets its outcome sooner. Returns whether more may have arrived.
    #[inline]
    fn take_in(&mut self, stops_early: bool, target: &mut Target<'_>) -> bool {
        let before = self.core.requests.completed();
        for _ in 0..self.core.config.batch {
            if stops_early && self.core.requests.completed() != before {
                return true;
            }
            if let Some((envelope, bytes)) = self.core.to_self.pop_front() {
                let (own, payload) = (self.core.own, Payload::from(&bytes[..]));
                self.core.on_packet(own, &envelope, payload, target);
                continue;
            }
            match self.carrier.poll() {
                Some(event) => self.core.on_event(&event, target),
                None => return false,
            }
        }
        true
    }

    /// Polls the carrier if the operation's peer is lost, or the carrier has refused a packet to it: the peer may have
    /// returned. Otherwise an operation for a lost process would fail without ever polling.
    #[inline]
    fn poll_if_lost(&mut self, operation: Operation) {
        let peer = match operation {
            Operation::Send { to, .. } => Some(to),
            Operation::Receive(pattern) => pattern.source,
            Operation::Claimed(_) | Operation::Nothing => None,
        };
        if peer.and_then(|peer| self.core.link(peer)).is_some_and(|link| link.lost || link.refused)
        {
            self.take_in(false, &mut Target::default());
        }
    }

    /// Sends all packets that can be sent now; returns whether more could be sent at once.
    #[inline]
    fn flush(&mut self) -> bool {
        !self.core.busy.is_empty() && self.core.flush(&mut self.carrier)
    }

    #[inline]
    fn progress(&mut self, stops_early: bool, target: &mut Target<'_>) -> bool {
        if self.core.requests.has_marked() {
            self.core.cancel_marked();
        }
        let more = self.take_in(stops_early, target) | self.flush();
        more || !self.core.to_self.is_empty()
    }
}

impl Core {
    #[inline]
    fn on_event(&mut self, event: &Event<'_>, target: &mut Target<'_>) {
        match event {
            Event::Packet { from, envelope, payload } => {
                self.on_packet(*from, envelope, *payload, target);
            }
            Event::Lost(peer) | Event::Broken(peer) => self.lose(Failure::PeerLost(*peer)),
            Event::Restarted(peer) => self.lose(Failure::PeerRestarted(*peer)),
            Event::Returned(peer) => self.regain(*peer),
            Event::Placed { from, envelope } => self.on_placed(*from, envelope),
            Event::Released(send) => self.on_released(*send),
            Event::Handled => {}
        }
    }

    #[inline]
    fn link(&self, peer: Peer) -> Option<&Link> {
        self.links.get(peer.0 as usize)
    }

    #[inline]
    fn link_mut(&mut self, peer: Peer) -> Option<&mut Link> {
        self.links.get_mut(peer.0 as usize)
    }

    fn add(&mut self, peer: Peer, share: usize) {
        // Messages of this process to itself take no share of the total.
        let is_own = peer == self.own;
        let window = if is_own { self.config.window } else { self.config.window.min(share) };
        self.unshared -= if is_own { 0 } else { window };
        let index = peer.0 as usize;
        if self.links.len() <= index {
            self.links.resize_with(index + 1, Link::default);
        }
        let link = &mut self.links[index];
        (link.known, link.window) = (true, window as u64);
        self.list(peer);
    }

    /// Lists a process among those for which packets wait to be sent.
    fn list(&mut self, peer: Peer) {
        let Some(link) = self.link_mut(peer) else { return };
        if !std::mem::replace(&mut link.listed, true) {
            self.busy.push(peer);
        }
        // Also if it was listed before: the packets listed then may wait for credit, and this one for the carrier.
        self.listed_since_armed = true;
    }

    #[inline]
    fn complete(&mut self, request: Request, status: Status, result: Result<(), Failure>) {
        self.requests.complete(request, status, result);
    }

    /// Returns the status of a request's message before any byte is delivered.
    fn blank(key: Key) -> Status {
        Status { source: key.source, tag: key.tag, length: 0 }
    }
}
