//! The sessions of one node: seals and opens frames, holds frames without keys, and runs handshakes.

use std::collections::{BTreeSet, VecDeque};

use thiserror::Error;

use super::basis::Basis;
use super::envelope::{Envelope, EnvelopeKind};
use super::peer::{Held, Peer};
use super::session::{Attempt, Beginning, Ends, FirstMessage, draw};
use super::{Identity, Key};
use crate::drops::DropCause;
use crate::frame::DEFAULT_HOP_LIMIT;
use crate::id::NodeId;
use crate::time::Instant;

/// Nanoseconds after which an unanswered handshake is sent again. It is longer than any round trip that the
/// protocols above tolerate.
#[doc(hidden)]
pub const RETRY: u64 = 100_000_000;
/// Nanoseconds after which a node gives a handshake up and drops the frames that wait for it.
pub(crate) const GIVE_UP: u64 = 3_000_000_000;
/// Nanoseconds without an opened frame, after which a frame that fails to open makes the node begin a
/// handshake: one of the two nodes has lost the session.
#[doc(hidden)]
pub const SILENCE: u64 = 500_000_000;
/// Most frames to one node that may wait for keys.
pub(crate) const HELD_FRAMES: usize = 1_024;
/// Most bytes of frames to one node that may wait for keys.
pub(crate) const HELD_BYTES: usize = 1 << 20;

/// The reason why keys cannot be used.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SealConfigError {
    /// There is no key.
    #[error("there is no key; give one")]
    NoKey,
    /// Two keys have the same number.
    #[error("two keys have the number {0}; give each its own")]
    DuplicateKey(u32),
    /// The identity is another node's, or its list has another number of nodes.
    #[error(
        "the keys are of node {named} of {keys}, and this is node {node} of {nodes}; give each peer one, in their order"
    )]
    Identity {
        /// The node of the identity.
        named: NodeId,
        /// Number of nodes on its list.
        keys: usize,
        /// The node.
        node: NodeId,
        /// Number of nodes.
        nodes: usize,
    },
    /// The system has no random numbers, which session keys need.
    #[error("the system has no random numbers to make session keys of")]
    NoRandom,
}

/// The result of sealing a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum Verdict {
    /// The sealed frame is at the end of the buffer.
    Sealed,
    /// There are no session keys yet; the caller must hold the frame.
    Hold,
}

/// The content of an opened datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum Opened {
    /// A frame of this many bytes, at the start of the buffer.
    Frame(usize),
    /// A message about keys.
    Handshake,
}

/// The sessions of one node with all others.
///
/// After [`Seals::hold`], [`Seals::open`] and [`Seals::handle_timeout`], drain
/// [`Seals::poll_transmit`] and re-read [`Seals::poll_timeout`]. The time never goes back.
#[derive(Debug)]
#[doc(hidden)]
pub struct Seals {
    node: NodeId,
    incarnation: u64,
    /// The first key begins handshakes; all are accepted.
    keys: Vec<Key>,
    /// The node's identity, if nodes have identities.
    identity: Option<Identity>,
    peers: Vec<Peer>,
    /// Nodes with which this node has begun a handshake that is under way.
    handshaking: BTreeSet<NodeId>,
    /// Datagrams of handshakes that wait to be sent.
    handshakes: VecDeque<(NodeId, Vec<u8>)>,
    /// Nodes whose held frames can now be sealed.
    released: VecDeque<NodeId>,
    next_index: u32,
    attempts: u32,
    /// Held frames that were dropped since the last report.
    given_up: u64,
}

impl Seals {
    /// Creates the sessions of `node`, one of `peers` nodes. It begins handshakes with the first key, and
    /// answers those with any key.
    ///
    /// # Errors
    /// [`SealConfigError`] if there is no key, two keys have one number, or the system has no random numbers.
    pub fn new(node: NodeId, peers: usize, keys: Vec<Key>) -> Result<Self, SealConfigError> {
        check_keys(&keys)?;
        let incarnation = draw().ok_or(SealConfigError::NoRandom)?;
        Ok(Self {
            node,
            incarnation,
            keys,
            identity: None,
            peers: (0..peers).map(|_| Peer::new()).collect(),
            handshaking: BTreeSet::new(),
            handshakes: VecDeque::new(),
            released: VecDeque::new(),
            // Datagrams from an earlier incarnation then most likely name no session of this one.
            next_index: incarnation as u32,
            attempts: 0,
            given_up: 0,
        })
    }

    /// Does what [`Seals::new`] does, for nodes with identities: only the node that `identity` names can speak
    /// as that node. `keys` of the fabric are optional.
    ///
    /// # Errors
    /// Those of [`Seals::new`], and [`SealConfigError::Identity`].
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

    /// Seals `frame` for node `to` to the end of `out`, if there are session keys.
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
        // Held frames go first.
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

    /// Holds a frame for node `to` until there are session keys, and begins a handshake for them. Returns
    /// `false` if 1,024 frames or 1 MiB are held.
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
            // The keys have just been agreed on.
            self.released.push_back(to);
        } else {
            self.begin(now, to);
        }
        true
    }

    /// Opens a datagram for this node into `plain`, which must be as long as any datagram.
    /// [`Seals::poll_transmit`] returns the answer to a handshake.
    ///
    /// # Errors
    /// The cause for which the datagram must be dropped.
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

    /// Sends unanswered handshakes again, and gives up those that have been unanswered for 3 s.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self { peers, handshaking, handshakes, given_up, .. } = self;
        handshaking.retain(|&to| {
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

    /// Returns when to call [`Seals::handle_timeout`]; far in the future if never.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let retries = self.handshaking.iter().map(|to| self.peers[to.index()].retry_at);
        retries.fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// Writes the next datagram to send to the end of `out`; returns its receiver, and whether it is urgent.
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

    /// Returns the number of frames dropped for lack of keys since the last call.
    pub(crate) const fn take_given_up(&mut self) -> u64 {
        std::mem::replace(&mut self.given_up, 0)
    }

    /// Returns whether a handshake is under way; frames may wait for its keys.
    #[must_use]
    pub(crate) fn is_handshaking(&self) -> bool {
        !self.handshaking.is_empty()
    }

    fn seal_held(&mut self, to: NodeId, urgent: bool, frame: &[u8], out: &mut Vec<u8>) {
        let envelope = Envelope {
            kind: EnvelopeKind::Frame,
            // A held frame is the firmware's own: its header has the hop limit.
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
            .expect("a peer is released once it has a session, which is only replaced")
            .seal(envelope, frame, out);
    }

    /// Begins a handshake with `to`, unless one is under way.
    fn begin(&mut self, now: Instant, to: NodeId) {
        let peer = &mut self.peers[to.index()];
        if peer.beginning.is_some() {
            return;
        }
        self.attempts = self.attempts.wrapping_add(1);
        let attempt = Attempt { incarnation: self.incarnation, number: self.attempts };
        let ends = Ends { initiator: self.node, responder: to };
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        let named = self.identity.as_ref().map(|identity| (identity, to));
        let basis = Basis { key: &self.keys[0], named };
        self.handshaking.insert(to);
        peer.retry_at = now.plus_nanos(RETRY);
        peer.give_up_at = now.plus_nanos(GIVE_UP);
        // Without random numbers nothing is sent, and the held frames are dropped at the timeout.
        peer.beginning = Beginning::new(basis, ends, index, attempt);
        let datagram = peer.beginning.as_ref().map(|begun| (to, begun.datagram.clone()));
        self.handshakes.extend(datagram);
    }

    fn on_begin(&mut self, envelope: &Envelope, body: &[u8]) -> Result<Opened, DropCause> {
        let key = self.keys.iter().find(|key| key.id() == envelope.session);
        let ends = Ends { initiator: envelope.source, responder: self.node };
        let named = self.identity.as_ref().map(|identity| (identity, envelope.source));
        let basis = key.map(|key| Basis { key, named }).ok_or(DropCause::Unsealed)?;
        let first = FirstMessage::open(basis, ends, body).ok_or(DropCause::Unsealed)?;
        let peer = &mut self.peers[envelope.source.index()];
        if peer.is_replay(first.attempt) {
            return Err(DropCause::Replayed);
        }
        // The initiator has sent this attempt again: the answer was lost, or is on its way.
        if let Some(pending) = peer.pending(first.attempt) {
            self.handshakes.push_back((envelope.source, pending.datagram.clone()));
            return Ok(Opened::Handshake);
        }
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        let answered = first.answer(index).ok_or(DropCause::Unsealed)?;
        self.handshakes.push_back((envelope.source, answered.datagram.clone()));
        peer.await_use(answered);
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
                self.handshaking.remove(&envelope.source);
                // At least one frame must show the peer that this node has the keys.
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
            self.handshaking.remove(&envelope.source);
            self.released.push_back(envelope.source);
        }
        peer.heard_at = Some(now);
        Ok(if length == 0 { Opened::Handshake } else { Opened::Frame(length) })
    }

    /// Begins a handshake if a frame failed to open because one of the two nodes may have lost the session.
    fn on_unsealed(&mut self, now: Instant, envelope: &Envelope) {
        let peer = &self.peers[envelope.source.index()];
        let silent = peer.heard_at.is_none_or(|at| now.nanos_since(at) > SILENCE);
        if envelope.kind == EnvelopeKind::Frame && silent {
            self.begin(now, envelope.source);
        }
    }
}

/// Checks that the identity is of `node` and its list has `nodes` keys.
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

/// Checks that there is a key, and that no two keys have the same number.
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
