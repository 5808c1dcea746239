//! The state of one peer: handshakes, sessions, and frames that wait for keys.

use std::collections::VecDeque;

use super::session::{Answered, Attempt, Beginning, Session};
use crate::time::Instant;

/// Most sessions that a peer has begun and not used. Replayed first messages begin some as well: they displace an honest
/// one only if so many arrive within the round trip before its first use.
const MAX_PENDING: usize = 8;

/// A frame that waits for session keys.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) frame: Vec<u8>,
    pub(super) urgent: bool,
}

/// The state of one peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// A handshake that this node has begun and the peer has not answered.
    pub(super) beginning: Option<Beginning>,
    /// When to send the handshake's datagram again; far in the future if there is none.
    pub(super) retry_at: Instant,
    /// When to give the handshake up.
    pub(super) give_up_at: Instant,
    /// The session that seals frames.
    pub(super) current: Option<Session>,
    /// The session before `current`: frames sealed with it may still arrive.
    pub(super) previous: Option<Session>,
    /// Sessions that the peer has begun but not used yet, the oldest first. A replayed first message gets no further than
    /// this.
    pending: VecDeque<Answered>,
    /// The peer's last attempt whose session it has used.
    pub(super) confirmed: Option<Attempt>,
    pub(super) held: VecDeque<Held>,
    pub(super) held_bytes: usize,
    /// When a frame of the peer was last opened.
    pub(super) heard_at: Option<Instant>,
}

impl Peer {
    pub(super) const fn new() -> Self {
        Self {
            beginning: None,
            retry_at: Instant::FAR_FUTURE,
            give_up_at: Instant::FAR_FUTURE,
            current: None,
            previous: None,
            pending: VecDeque::new(),
            confirmed: None,
            held: VecDeque::new(),
            held_bytes: 0,
            heard_at: None,
        }
    }

    /// Seals frames with `session` from now on.
    pub(super) fn adopt(&mut self, session: Session) {
        self.previous = self.current.replace(session);
    }

    /// Ends this node's own handshake, if one is under way.
    pub(super) fn stop_beginning(&mut self) {
        self.beginning = None;
        self.retry_at = Instant::FAR_FUTURE;
    }

    /// Returns the session with this node's number `index`.
    pub(super) fn session(&mut self, index: u32) -> Option<&mut Session> {
        let known = [self.current.as_mut(), self.previous.as_mut()].into_iter().flatten();
        let pending = self.pending.iter_mut().map(|answered| &mut answered.session);
        known.chain(pending).find(|session| session.index == index)
    }

    /// Handles a frame that opened in session `index`. If the peer began that session and this is its first
    /// use, the peer has the keys: adopts the session and returns `true`.
    pub(super) fn confirm(&mut self, index: u32) -> bool {
        let at = self.pending.iter().position(|answered| answered.session.index == index);
        let first = at.and_then(|at| self.pending.remove(at));
        let Some(Answered { session, attempt, .. }) = first else { return false };
        self.confirmed = Some(attempt);
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|answered| !self.is_replay(answered.attempt));
        self.pending = pending;
        self.adopt(session);
        self.stop_beginning();
        true
    }

    /// Returns the session that the peer has begun by this attempt.
    pub(super) fn pending(&self, attempt: Attempt) -> Option<&Answered> {
        self.pending.iter().find(|pending| pending.attempt == attempt)
    }

    /// Keeps a session that the peer has begun until the peer uses it.
    pub(super) fn await_use(&mut self, answered: Answered) {
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(answered);
    }

    /// Returns whether the peer has used this attempt's session, or a later one: its first message is then a
    /// replay.
    pub(super) fn is_replay(&self, attempt: Attempt) -> bool {
        // Attempts are numbered within one incarnation. A replay from another incarnation gives a session that
        // only the owner of that handshake's secrets could use.
        self.confirmed.is_some_and(|last| {
            last.incarnation == attempt.incarnation && attempt.number <= last.number
        })
    }

    pub(super) fn next_held(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.held_bytes -= held.frame.len();
        Some(held)
    }
}
