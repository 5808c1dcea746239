//! One node's keys with all others: what it seals, opens, holds and sends to agree on them.

use std::collections::{BTreeSet, VecDeque};

use thiserror::Error;

use super::basis::Basis;
use super::envelope::{Envelope, EnvelopeKind};
use super::peer::{Held, Peer};
use super::session::{Asked, Attempt, Beginning, Ends, draw};
use super::{Identity, Key};
use crate::drops::DropCause;
use crate::frame::DEFAULT_HOP_LIMIT;
use crate::id::NodeId;
use crate::time::Instant;

/// Nanoseconds after which an unanswered handshake is sent again: longer than any round trip that
/// the protocols above bear.
pub const RETRY: u64 = 100_000_000;
/// Nanoseconds after which a node stops to ask; what waits for keys is dropped then.
pub const GIVE_UP: u64 = 3_000_000_000;
/// Nanoseconds without a frame that could be opened, after which one that can't makes the node begin
/// a handshake: its peer, or itself, has lost the session.
pub const SILENCE: u64 = 500_000_000;
/// Frames to one node that may wait for keys.
pub const HELD_FRAMES: usize = 1_024;
/// Their bytes.
pub const HELD_BYTES: usize = 1 << 20;

/// Why keys can't be used.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SealConfigError {
    /// Nothing to seal with.
    #[error("there is no key; give one")]
    NoKey,
    /// Nobody could tell which of two was meant.
    #[error("two keys have the number {0}; give each its own")]
    DuplicateKey(u32),
    /// The node's own keys are another node's, or for another number of nodes.
    #[error(
        "the keys are of node {named} of {keys}, and this is node {node} of {nodes}; give each peer one, in their order"
    )]
    Identity {
        /// The node that the keys are of.
        named: NodeId,
        /// Number of nodes that have a key.
        keys: usize,
        /// The node.
        node: NodeId,
        /// Number of nodes.
        nodes: usize,
    },
    /// Session keys need them.
    #[error("the system has no random numbers to make session keys of")]
    NoRandom,
}

/// What became of a frame that was to be sealed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It is sealed, and at the end of the buffer.
    Sealed,
    /// There are no keys yet: it has to be held.
    Hold,
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opened {
    /// A frame of this many bytes, at the start of the buffer.
    Frame(usize),
    /// A word about keys.
    Handshake,
}

/// Sessions of one node with all others.
///
/// After [`Seals::hold`], [`Seals::open`] and [`Seals::handle_timeout`], drain
/// [`Seals::poll_transmit`] and re-read [`Seals::poll_timeout`]. The time never goes back.
#[derive(Debug)]
pub struct Seals {
    node: NodeId,
    life: u64,
    /// The first is the one to begin with; all are accepted.
    keys: Vec<Key>,
    /// The node's identity, if nodes have keys of their own.
    identity: Option<Identity>,
    peers: Vec<Peer>,
    /// Nodes with which a handshake is under way that this node has begun.
    asking: BTreeSet<NodeId>,
    /// Datagrams of handshakes that should leave.
    handshakes: VecDeque<(NodeId, Vec<u8>)>,
    /// Nodes whose held frames can be sealed.
    released: VecDeque<NodeId>,
    next_index: u32,
    attempts: u32,
    /// Frames that were held and are no more.
    given_up: u64,
}

impl Seals {
    /// The keys of `node`, one of `peers` nodes. It begins handshakes with the
    /// first key, and answers those with any.
    ///
    /// # Errors
    /// [`SealConfigError`]: there must be a key, their numbers differ, and the system has random numbers.
    pub fn new(node: NodeId, peers: usize, keys: Vec<Key>) -> Result<Self, SealConfigError> {
        check_keys(&keys)?;
        let life = draw().ok_or(SealConfigError::NoRandom)?;
        Ok(Self {
            node,
            life,
            keys,
            identity: None,
            peers: (0..peers).map(|_| Peer::new()).collect(),
            asking: BTreeSet::new(),
            handshakes: VecDeque::new(),
            released: VecDeque::new(),
            // What is on its way from a former life most likely names no session of this one.
            next_index: life as u32,
            attempts: 0,
            given_up: 0,
        })
    }

    /// The same for nodes that are told apart: only the node that `identity` names so speaks as that node.
    /// `keys` of the fabric may be there as well; none need be.
    ///
    /// # Errors
    /// As [`Seals::new`], and [`SealConfigError::Identity`].
    pub fn identified(
        node: NodeId,
        peers: usize,
        mut keys: Vec<Key>,
        identity: Identity,
    ) -> Result<Self, SealConfigError> {
        check_identity(node, peers, &identity)?;
        if keys.is_empty() {
            keys.push(Key::NONE);
        }
        Ok(Self { identity: Some(identity), ..Self::new(node, peers, keys)? })
    }

    /// Seals `frame` for node `to`, to the end of `out`, if there are keys.
    ///
    /// # Panics
    /// If there is no node `to`, or the frame is longer than 65,511 bytes.
    #[must_use]
    pub fn seal(
        &mut self,
        to: NodeId,
        (hop_limit, urgent): (u8, bool),
        frame: &[u8],
        out: &mut Vec<u8>,
    ) -> Verdict {
        let envelope = Envelope {
            kind: EnvelopeKind::Frame,
            hop_limit,
            source: self.node,
            destination: to,
            session: 0,
            urgent,
            counter: 0,
        };
        let peer = &mut self.peers[to.index()];
        // What waits goes first.
        if !peer.held.is_empty() {
            return Verdict::Hold;
        }
        match &mut peer.current {
            Some(session) if !session.is_used_up() => {
                session.seal(envelope, frame, out);
                Verdict::Sealed
            }
            _ => Verdict::Hold,
        }
    }

    /// Holds a frame for node `to` until there are keys, and asks for them; `false` if too much
    /// waits already.
    ///
    /// # Panics
    /// If there is no node `to`.
    pub fn hold(&mut self, now: Instant, to: NodeId, urgent: bool, frame: Vec<u8>) -> bool {
        let peer = &mut self.peers[to.index()];
        let bytes = peer.held_bytes + frame.len();
        if peer.held.len() >= HELD_FRAMES || bytes > HELD_BYTES {
            return false;
        }
        peer.held_bytes = bytes;
        peer.held.push_back(Held { frame, urgent });
        if peer.current.as_ref().is_some_and(|session| !session.is_used_up()) {
            // They have just come.
            self.released.push_back(to);
        } else {
            self.begin(now, to);
        }
        true
    }

    /// Opens a datagram for this node into `plain`, which is as long as any datagram. What a handshake
    /// has to be answered with is told by [`Seals::poll_transmit`].
    ///
    /// # Errors
    /// Why it goes no further.
    pub fn open(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        body: &[u8],
        plain: &mut [u8],
    ) -> Result<Opened, DropCause> {
        if envelope.destination != self.node {
            return Err(DropCause::Misrouted);
        }
        if envelope.source == self.node || envelope.source.index() >= self.peers.len() {
            return Err(DropCause::Stranger);
        }
        let opened = match envelope.kind {
            EnvelopeKind::Begin => self.on_begin(envelope, body),
            EnvelopeKind::Answer => self.on_answer(now, envelope, body),
            EnvelopeKind::Frame => self.on_frame(now, envelope, body, plain),
        };
        if opened == Err(DropCause::Unsealed) {
            self.on_unsealed(now, envelope);
        }
        opened
    }

    /// Sends again what was not answered, and gives up what was not for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self { peers, asking, handshakes, given_up, .. } = self;
        asking.retain(|&to| {
            let peer = &mut peers[to.index()];
            if peer.give_up_at <= now {
                peer.stop_beginning();
                *given_up += peer.held.len() as u64;
                peer.held.clear();
                peer.held_bytes = 0;
                return false;
            }
            if peer.retry_at <= now {
                peer.retry_at = now.plus_nanos(RETRY);
                let again = peer.beginning.as_ref().map(|begun| (to, begun.datagram.clone()));
                handshakes.extend(again);
            }
            true
        });
    }

    /// When [`Seals::handle_timeout`] has to be called; far in the future if never.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let retries = self.asking.iter().map(|to| self.peers[to.index()].retry_at);
        retries.fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// The next datagram that should leave, at the end of `out`: for whom, and whether it is urgent.
    #[must_use]
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<(NodeId, bool)> {
        if let Some((to, datagram)) = self.handshakes.pop_front() {
            out.extend_from_slice(&datagram);
            return Some((to, true));
        }
        while let Some(&to) = self.released.front() {
            if let Some(Held { frame, urgent }) = self.peers[to.index()].next_held() {
                self.seal_held(to, urgent, &frame, out);
                return Some((to, urgent));
            }
            self.released.pop_front();
        }
        None
    }

    /// Frames given up for want of keys since the last time.
    pub const fn take_given_up(&mut self) -> u64 {
        std::mem::replace(&mut self.given_up, 0)
    }

    /// Whether keys are being asked for: frames may wait for them.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    fn seal_held(&mut self, to: NodeId, urgent: bool, frame: &[u8], out: &mut Vec<u8>) {
        let envelope = Envelope {
            kind: EnvelopeKind::Frame,
            // A frame that waits for keys is the firmware's own: its header says how far it goes.
            hop_limit: crate::frame::Header::parse(frame)
                .map_or(DEFAULT_HOP_LIMIT, |(header, _)| header.hop_limit),
            source: self.node,
            destination: to,
            session: 0,
            urgent,
            counter: 0,
        };
        let session = self.peers[to.index()].current.as_mut();
        session
            .expect("released when there was one, and it is only replaced")
            .seal(envelope, frame, out);
    }

    /// Begins a handshake with `to`, unless one is under way.
    fn begin(&mut self, now: Instant, to: NodeId) {
        let peer = &mut self.peers[to.index()];
        if peer.beginning.is_some() {
            return;
        }
        self.attempts = self.attempts.wrapping_add(1);
        let attempt = Attempt { life: self.life, number: self.attempts };
        let ends = Ends { initiator: self.node, responder: to };
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        let named = self.identity.as_ref().map(|identity| (identity, to));
        let basis = Basis { key: &self.keys[0], named };
        self.asking.insert(to);
        peer.retry_at = now.plus_nanos(RETRY);
        peer.give_up_at = now.plus_nanos(GIVE_UP);
        // Without random numbers nothing is sent, and what waits is given up in time.
        peer.beginning = Beginning::new(basis, ends, index, attempt);
        let datagram = peer.beginning.as_ref().map(|begun| (to, begun.datagram.clone()));
        self.handshakes.extend(datagram);
    }

    fn on_begin(&mut self, envelope: &Envelope, body: &[u8]) -> Result<Opened, DropCause> {
        let key = self.keys.iter().find(|key| key.id() == envelope.session);
        let ends = Ends { initiator: envelope.source, responder: self.node };
        let named = self.identity.as_ref().map(|identity| (identity, envelope.source));
        let basis = key.map(|key| Basis { key, named }).ok_or(DropCause::Unsealed)?;
        let asked = Asked::open(basis, ends, body).ok_or(DropCause::Unsealed)?;
        let peer = &mut self.peers[envelope.source.index()];
        if peer.is_replay(asked.attempt) {
            return Err(DropCause::Replayed);
        }
        // The same once more: its answer was lost, or is on its way.
        let again = peer.pending.as_ref().filter(|pending| pending.attempt == asked.attempt);
        if let Some(pending) = again {
            self.handshakes.push_back((envelope.source, pending.datagram.clone()));
            return Ok(Opened::Handshake);
        }
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        let answered = asked.answer(index).ok_or(DropCause::Unsealed)?;
        self.handshakes.push_back((envelope.source, answered.datagram.clone()));
        peer.pending = Some(answered);
        Ok(Opened::Handshake)
    }

    fn on_answer(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        body: &[u8],
    ) -> Result<Opened, DropCause> {
        let peer = &mut self.peers[envelope.source.index()];
        let Some(begun) = peer.beginning.take_if(|begun| begun.index == envelope.session) else {
            return Err(DropCause::Unsealed);
        };
        match begun.finish(body) {
            Ok(session) => {
                peer.adopt(session);
                peer.heard_at = Some(now);
                peer.stop_beginning();
                self.asking.remove(&envelope.source);
                // At least one frame shows the peer that this node has the keys.
                if peer.held.is_empty() {
                    peer.held.push_back(Held { frame: Vec::new(), urgent: true });
                }
                self.released.push_back(envelope.source);
                Ok(Opened::Handshake)
            }
            Err(begun) => {
                peer.beginning = Some(*begun);
                Err(DropCause::Unsealed)
            }
        }
    }

    fn on_frame(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        body: &[u8],
        plain: &mut [u8],
    ) -> Result<Opened, DropCause> {
        let peer = &mut self.peers[envelope.source.index()];
        let session = peer.session(envelope.session).ok_or(DropCause::Unsealed)?;
        let length = session.open(envelope.counter, body, plain)?;
        if peer.confirm(envelope.session) {
            self.asking.remove(&envelope.source);
            self.released.push_back(envelope.source);
        }
        peer.heard_at = Some(now);
        Ok(if length == 0 { Opened::Handshake } else { Opened::Frame(length) })
    }

    /// What can't be opened may be of a session that one of the two has lost.
    fn on_unsealed(&mut self, now: Instant, envelope: &Envelope) {
        let peer = &self.peers[envelope.source.index()];
        let silent = peer.heard_at.is_none_or(|at| now.nanos_since(at) > SILENCE);
        if envelope.kind == EnvelopeKind::Frame && silent {
            self.begin(now, envelope.source);
        }
    }
}

/// Checks that there is one key for each node.
pub(crate) fn check_identity(
    node: NodeId,
    nodes: usize,
    identity: &Identity,
) -> Result<(), SealConfigError> {
    let (named, keys) = (identity.node(), identity.nodes());
    if (named, keys) == (node, nodes) {
        return Ok(());
    }
    Err(SealConfigError::Identity { named, keys, node, nodes })
}

/// Whether keys can be used together.
pub(crate) fn check_keys(keys: &[Key]) -> Result<(), SealConfigError> {
    if keys.is_empty() {
        return Err(SealConfigError::NoKey);
    }
    let mut ids: Vec<u32> = keys.iter().map(Key::id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(SealConfigError::DuplicateKey(two[0])),
        None => Ok(()),
    }
}
