//! Reliable control messages between units: small, in order, exactly once (DVCM paper, section 2).
//!
//! A sliding window between any pair of units. Each direction is a stream of its own: it is named by
//! the sender's incarnation and a number, opened by a handshake, and given up when the peer restarts
//! or is declared dead; what is left of a former stream is nobody's. An idle pair sends nothing.

mod config;
mod receive;
mod round_trip;
mod send;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, Header, Kind};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane_simhw::time::Instant;
use thiserror::Error;

pub use config::ControlConfig;
use receive::Receiver;
pub use round_trip::RoundTrip;
use send::{Acknowledgement, Sender};

/// Most bytes of one control message (DVCM paper, section 2: "less than 100 bytes").
pub const MAX_MESSAGE: usize = 100;

/// Flag of a [`Kind::Welcome`] that answers a frame for a former life.
const STALE: u8 = 1;
/// Flag of a [`Kind::Control`] that acknowledges, too.
const ACKNOWLEDGES: u8 = 2;

/// The bytes of one control message.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Body {
    bytes: [u8; MAX_MESSAGE],
    length: u8,
}

impl Body {
    fn new(message: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_MESSAGE];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self { bytes, length: message.len() as u8 })
    }
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes)", self.length)
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendError {
    /// A control message is small by design.
    #[error("a control message has at most {MAX_MESSAGE} bytes, not {0}")]
    TooLong(usize),
    /// The peer is slow, or gone and not declared dead yet.
    #[error("{limit} messages to the peer wait already")]
    QueueFull {
        /// Messages that may wait.
        limit: usize,
    },
}

/// What has happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A message, the next of its stream.
    Message {
        /// Who sent it.
        from: NodeId,
        /// The extension that it is for.
        extension: ExtensionId,
        /// Its bytes.
        body: Body,
    },
    /// A peer answered for the first time, or for the first time since it was declared dead.
    PeerUp {
        /// Which one.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A peer has restarted; what was under way to its former life is lost.
    PeerRestarted {
        /// Which one.
        node: NodeId,
        /// Its new life.
        incarnation: Incarnation,
    },
    /// A peer has not answered for too long; what was under way to it may be lost.
    PeerDown {
        /// Which one.
        node: NodeId,
    },
}

/// What a unit's control messages have seen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages put on the line for the first time.
    pub sent: u64,
    /// Messages put on the line again.
    pub resent: u64,
    /// Acknowledgements that went alone.
    pub acknowledgements: u64,
    /// Messages handed over.
    pub delivered: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages that came before their turn and were kept.
    pub out_of_order: u64,
    /// Frames of former lives or streams, or beyond the window.
    pub stale: u64,
    /// Frames that make no sense.
    pub malformed: u64,
    /// Messages that were given up with a peer's life or stream.
    pub abandoned: u64,
}

/// A frame to put on the line.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// Its header, filled in.
    pub header: Header,
    /// Its payload.
    pub body: &'a [u8],
}

#[derive(Debug)]
struct Peer {
    /// The newest life that it was heard in.
    incarnation: Incarnation,
    up: bool,
    heard: Instant,
    sender: Sender,
    receiver: Receiver,
    /// A welcome that is owed: to which life and stream, and whether for a stale frame.
    welcome: Option<(Incarnation, u32, bool)>,
    alarm: Option<Instant>,
}

/// The control messages of one unit, to and from all others.
///
/// After any call that takes `&mut self`: drain [`Control::poll_transmit`], then
/// [`Control::poll_event`], then read [`Control::poll_timeout`] again. `now` never goes back. An
/// early [`Control::handle_timeout`] does nothing.
#[derive(Debug)]
pub struct Control {
    node: NodeId,
    incarnation: Incarnation,
    config: ControlConfig,
    peers: BTreeMap<NodeId, Peer>,
    /// Peers that may have something to send.
    dirty: BTreeSet<NodeId>,
    alarms: BTreeSet<(Instant, NodeId)>,
    events: VecDeque<Event>,
    counters: Counters,
    body: Body,
}

impl Control {
    /// The control messages of `node` in this life.
    #[must_use]
    pub fn new(node: NodeId, incarnation: Incarnation, config: ControlConfig) -> Self {
        Self {
            node,
            incarnation,
            config,
            peers: BTreeMap::new(),
            dirty: BTreeSet::new(),
            alarms: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            body: Body { bytes: [0; MAX_MESSAGE], length: 0 },
        }
    }

    /// Sends a message; to the own node it is an event at once.
    ///
    /// # Errors
    /// [`SendError`] says which limit was passed; nothing is sent then.
    pub fn send(
        &mut self,
        now: Instant,
        to: NodeId,
        extension: ExtensionId,
        message: &[u8],
    ) -> Result<(), SendError> {
        let body = Body::new(message).ok_or(SendError::TooLong(message.len()))?;
        if to == self.node {
            self.events.push_back(Event::Message { from: to, extension, body });
            return Ok(());
        }
        let limit = self.config.queue;
        let peer = self.peer(now, to);
        if peer.sender.len() >= limit {
            return Err(SendError::QueueFull { limit });
        }
        peer.sender.push(now, extension, body);
        self.touch(to);
        Ok(())
    }

    /// Takes in a frame of any kind but data. Whatever its bytes, it is used or counted.
    pub fn handle_frame(&mut self, now: Instant, header: &Header, body: &[u8]) {
        let from = header.source;
        if header.destination != self.node || from == self.node || header.kind == Kind::Data {
            self.counters.malformed += 1;
            return;
        }
        if header.incarnation == Incarnation::UNKNOWN {
            self.counters.malformed += 1;
            return;
        }
        match header.kind {
            Kind::Hello => self.on_hello(now, header),
            Kind::Welcome => self.on_welcome(now, header),
            Kind::Control => self.on_control(now, header, body),
            Kind::Acknowledge => {
                if self.is_current(now, header) {
                    self.on_acknowledgement(now, header);
                }
            }
            Kind::Data => unreachable!("refused above"),
        }
        self.touch(from);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, node)) = self.alarms.first()
            && at <= now
        {
            self.alarms.pop_first();
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.alarm = None;
            if peer.sender.is_dead(now, peer.heard, &self.config) {
                self.declare_down(node);
            } else {
                peer.sender.handle_timeout(now);
            }
            // What is due now leaves, and then the next alarm is set.
            self.dirty.insert(node);
        }
    }

    /// The next frame to put on the line, if there is one; it counts as sent.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        while let Some(&node) = self.dirty.first() {
            let header = self.next_frame(now, node);
            if header.is_none() {
                self.dirty.remove(&node);
            }
            self.set_alarm(node);
            if let Some(header) = header {
                let body = &self.body.bytes[..usize::from(header.length)];
                return Some(Transmit { header, body });
            }
        }
        None
    }

    /// The next thing that has happened.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Control::handle_timeout`]; `None`: only a frame or a message can wake us.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// How long frames take to a peer and back; `None` before the first came back.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<RoundTrip> {
        self.peers.get(&peer)?.sender.round_trip()
    }

    /// What was seen.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn peer(&mut self, now: Instant, node: NodeId) -> &mut Peer {
        self.peers.entry(node).or_insert_with(|| Peer {
            incarnation: Incarnation::UNKNOWN,
            up: false,
            heard: now,
            sender: Sender::default(),
            receiver: Receiver::default(),
            welcome: None,
            alarm: None,
        })
    }

    fn touch(&mut self, node: NodeId) {
        if self.peers.contains_key(&node) {
            self.dirty.insert(node);
            self.set_alarm(node);
        }
    }

    fn set_alarm(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let due =
            [peer.sender.poll_timeout(peer.heard, &self.config), peer.receiver.acknowledge_at()];
        let next = due.into_iter().flatten().min();
        if peer.alarm != next {
            if let Some(old) = peer.alarm {
                self.alarms.remove(&(old, node));
            }
            if let Some(at) = next {
                self.alarms.insert((at, node));
            }
            peer.alarm = next;
        }
    }

    // ---- what arrives ----

    /// Takes note of the life that a frame came from; `false` if it is a former one.
    fn meet(&mut self, now: Instant, from: NodeId, incarnation: Incarnation) -> bool {
        let peer = self.peer(now, from);
        let known = peer.incarnation;
        if known != incarnation && !incarnation.is_newer_than(known) {
            self.counters.stale += 1;
            return false;
        }
        peer.heard = now;
        if known == incarnation {
            if !std::mem::replace(&mut peer.up, true) {
                self.events.push_back(Event::PeerUp { node: from, incarnation });
            }
            return true;
        }
        peer.incarnation = incarnation;
        peer.up = true;
        peer.receiver = Receiver::default();
        if known == Incarnation::UNKNOWN {
            self.events.push_back(Event::PeerUp { node: from, incarnation });
        } else {
            self.counters.abandoned += peer.sender.restart();
            self.events.push_back(Event::PeerRestarted { node: from, incarnation });
        }
        true
    }

    fn on_hello(&mut self, now: Instant, header: &Header) {
        if !self.meet(now, header.source, header.incarnation) {
            return;
        }
        let stream = low(header.words[0]);
        let peer = self.peer(now, header.source);
        if peer.receiver.open(stream) {
            peer.welcome = Some((header.incarnation, stream, false));
        } else {
            self.counters.stale += 1;
        }
    }

    fn on_welcome(&mut self, now: Instant, header: &Header) {
        if header.destination_incarnation != self.incarnation {
            self.counters.stale += 1;
            return;
        }
        if !self.meet(now, header.source, header.incarnation) {
            return;
        }
        if header.flags & STALE == 0 {
            let stream = low(header.words[0]);
            self.peer(now, header.source).sender.on_welcome(stream);
        }
    }

    /// Whether a frame is between this life and the sender's present one.
    fn is_current(&mut self, now: Instant, header: &Header) -> bool {
        let known = self.peers.get(&header.source).map(|peer| peer.incarnation);
        if header.destination_incarnation != self.incarnation {
            self.counters.stale += 1;
            // It takes us for our former self: it is told, unless it is a former self, too.
            if known.is_none_or(|known| !known.is_newer_than(header.incarnation)) {
                let peer = self.peer(now, header.source);
                peer.welcome = Some((header.incarnation, low(header.words[0]), true));
            }
            return false;
        }
        if known != Some(header.incarnation) {
            self.counters.stale += 1;
            return false;
        }
        self.meet(now, header.source, header.incarnation)
    }

    fn on_control(&mut self, now: Instant, header: &Header, message: &[u8]) {
        let Some(body) = Body::new(message) else {
            self.counters.malformed += 1;
            return;
        };
        if !self.is_current(now, header) {
            return;
        }
        if header.flags & ACKNOWLEDGES != 0 {
            self.on_acknowledgement(now, header);
        }
        let acknowledge = now + self.config.acknowledge_after;
        let peer = self.peers.get_mut(&header.source).expect("met above");
        let taken = peer.receiver.take(
            low(header.words[0]),
            header.sequence,
            (header.extension, body),
            (now, acknowledge),
        );
        match taken {
            receive::Taken::Stale => self.counters.stale += 1,
            receive::Taken::Duplicate => self.counters.duplicates += 1,
            receive::Taken::Kept => self.counters.out_of_order += 1,
            receive::Taken::Next => {}
        }
        while let Some((extension, body)) = peer.receiver.next() {
            self.counters.delivered += 1;
            self.events.push_back(Event::Message { from: header.source, extension, body });
        }
    }

    fn on_acknowledgement(&mut self, now: Instant, header: &Header) {
        let Some(peer) = self.peers.get_mut(&header.source) else { return };
        let acknowledgement = Acknowledgement {
            stream: high(header.words[0]),
            next: header.acknowledgement,
            bitmap: header.words[1] >> 16,
            delay_ns: (header.words[1] & 0xFFFF) * 1000,
            bytes: header.length,
        };
        peer.sender.on_acknowledgement(now, acknowledgement, &self.config);
    }

    fn declare_down(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        self.counters.abandoned += peer.sender.restart();
        peer.up = false;
        self.events.push_back(Event::PeerDown { node });
    }

    // ---- what leaves ----

    fn next_frame(&mut self, now: Instant, node: NodeId) -> Option<Header> {
        let base = Header {
            source: self.node,
            destination: node,
            incarnation: self.incarnation,
            hop_limit: DEFAULT_HOP_LIMIT,
            ..Header::default()
        };
        let peer = self.peers.get_mut(&node)?;
        if let Some((incarnation, stream, stale)) = peer.welcome.take() {
            return Some(Header {
                kind: Kind::Welcome,
                destination_incarnation: incarnation,
                flags: if stale { STALE } else { 0 },
                words: [u64::from(stream), 0],
                ..base
            });
        }
        if let Some(stream) = peer.sender.poll_hello(now, &self.config) {
            return Some(Header { kind: Kind::Hello, words: [u64::from(stream), 0], ..base });
        }
        let base = Header { destination_incarnation: peer.incarnation, ..base };
        if let Some((sequence, extension, body, again)) =
            peer.sender.poll_message(now, &self.config)
        {
            self.body = body;
            self.counters.sent += u64::from(!again);
            self.counters.resent += u64::from(again);
            let acknowledges = peer.receiver.stream().is_some();
            let header = Header {
                kind: Kind::Control,
                extension,
                sequence,
                length: u16::from(body.length),
                flags: if acknowledges { ACKNOWLEDGES } else { 0 },
                ..base
            };
            return Some(acknowledge(header, now, peer));
        }
        if peer.receiver.acknowledge_at().is_some_and(|at| at <= now) {
            self.counters.acknowledgements += 1;
            return Some(acknowledge(Header { kind: Kind::Acknowledge, ..base }, now, peer));
        }
        None
    }
}

/// Puts the acknowledgement of what the peer has sent into a frame to it.
fn acknowledge(header: Header, now: Instant, peer: &mut Peer) -> Header {
    let (stream, next, bitmap, delay_ns) = peer.receiver.acknowledge(now);
    let delay_us = (delay_ns / 1000).min(0xFFFF);
    Header {
        acknowledgement: next,
        words: [u64::from(peer.sender.stream()) | u64::from(stream) << 32, bitmap << 16 | delay_us],
        ..header
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
