//! What a node has to do with one other: handshakes, sessions, frames that wait for keys.

use std::collections::VecDeque;

use super::session::{Answered, Attempt, Beginning, Session};
use crate::time::Instant;

/// A frame that waits for keys.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) frame: Vec<u8>,
    pub(super) urgent: bool,
}

/// One other node.
#[derive(Debug)]
pub(super) struct Peer {
    /// A handshake that this node has begun and that has not been answered.
    pub(super) beginning: Option<Beginning>,
    /// When to send its datagram again; far in the future if there is none.
    pub(super) retry_at: Instant,
    /// When to stop that.
    pub(super) give_up_at: Instant,
    /// What frames are sealed with.
    pub(super) current: Option<Session>,
    /// What they were sealed with before: some may be on their way.
    pub(super) previous: Option<Session>,
    /// One that the peer has begun and not used yet: a replayed beginning gets no further.
    pub(super) pending: Option<Answered>,
    /// The last attempt of the peer's that it did use.
    pub(super) confirmed: Option<Attempt>,
    pub(super) held: VecDeque<Held>,
    pub(super) held_bytes: usize,
    /// When a frame of the peer's was last opened.
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
            pending: None,
            confirmed: None,
            held: VecDeque::new(),
            held_bytes: 0,
            heard_at: None,
        }
    }

    /// From here on frames are sealed with `session`.
    pub(super) fn adopt(&mut self, session: Session) {
        self.previous = self.current.replace(session);
    }

    /// No handshake of this node's is under way.
    pub(super) fn stop_beginning(&mut self) {
        self.beginning = None;
        self.retry_at = Instant::FAR_FUTURE;
    }

    /// The session that this node calls by that number.
    pub(super) fn session(&mut self, index: u32) -> Option<&mut Session> {
        let pending = self.pending.as_mut().map(|answered| &mut answered.session);
        let known = [self.current.as_mut(), self.previous.as_mut(), pending];
        known.into_iter().flatten().find(|session| session.index == index)
    }

    /// The peer has used the session of that number: if it has begun it and not used it before, it
    /// has the keys, and from here on they are used. Whether that is so.
    pub(super) fn confirm(&mut self, index: u32) -> bool {
        let first = self.pending.take_if(|answered| answered.session.index == index);
        let Some(Answered { session, attempt, .. }) = first else { return false };
        self.confirmed = Some(attempt);
        self.adopt(session);
        self.stop_beginning();
        true
    }

    /// Whether the peer has begun so before, and used the session: what it says now is a replay.
    pub(super) fn is_replay(&self, attempt: Attempt) -> bool {
        // Numbers count within one life. What comes of a beginning of another life is of no use to
        // anybody but who has that handshake's own secrets.
        self.confirmed
            .is_some_and(|last| last.life == attempt.life && attempt.number <= last.number)
    }

    pub(super) fn next_held(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.held_bytes -= held.frame.len();
        Some(held)
    }
}
