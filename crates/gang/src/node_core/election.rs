//! Elects the root: a majority of the configured daemons elects one host for a term.
//!
//! The protocol is Raft's (Ongaro and Ousterhout, USENIX ATC 2014, sections 5.2 and 5.4.1); the trial round is from
//! Ongaro's thesis, section 9.6. A daemon votes once in a term, and only for a daemon whose table is no older than its
//! own. A daemon that has lost its root first asks whether the other daemons would vote for it, which changes no term.
//! A daemon that has a root grants no vote, and replies with that root.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;
use serde::{Deserialize, Serialize};

use super::replica::{Durable, Position};

/// Most time slots that a daemon waits before it asks for votes, so that daemons don't ask at the same time.
const MOST_SLOTS: u32 = 16;

/// A message about elections between any two daemons. It may be lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ballot {
    /// The sender asks for a vote in its term; in a trial, whether it would get a vote in the next term.
    Ask { term: u32, position: Position, is_trial: bool },
    /// The reply, with the voter's term.
    Vote { term: u32, is_trial: bool, is_granted: bool },
    /// Names the root of a term.
    Root { term: u32, root: u16 },
}

/// The consequence of an event for this daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// This daemon has become the root of its term.
    Lead,
    /// Another daemon is the root.
    Follow(u16),
    /// This daemon has no root, and is not the root.
    Seek,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Role {
    /// Has no root, and waits before it asks for votes.
    Seeks,
    /// Asks for votes.
    Asks { is_trial: bool, votes: BTreeSet<u16> },
    /// Knows the root of its term.
    Follows(u16),
    /// Is the root of its term.
    Leads,
}

/// A daemon's part in elections.
#[derive(Debug)]
pub(super) struct Election {
    host: u16,
    hosts: u16,
    patience: Duration,
    role: Role,
    /// False until the first timeout.
    has_started: bool,
    /// Number of attempts since there was a root.
    attempts: u32,
    /// When to make the next attempt; `None` while there is a root.
    pub(super) deadline: Option<Instant>,
    /// The ballots to be sent.
    pub(super) out: Vec<(u16, Ballot)>,
}

impl Election {
    pub(super) fn new(host: u16, hosts: u16, patience: Duration) -> Self {
        let (role, deadline) = (Role::Seeks, Some(Instant::ZERO));
        let (has_started, out) = (false, Vec::new());
        Self { host, hosts, patience, role, has_started, attempts: 0, deadline, out }
    }

    /// Returns the number of daemons that are a majority.
    pub(super) const fn majority(&self) -> usize {
        self.hosts as usize / 2 + 1
    }

    /// Records that the root's tree has admitted this daemon.
    pub(super) const fn joined(&mut self) {
        (self.deadline, self.attempts) = (None, 0);
    }

    /// Returns the root that this daemon should join, or has joined.
    pub(super) const fn root(&self) -> Option<u16> {
        match self.role {
            Role::Follows(root) => Some(root),
            Role::Leads => Some(self.host),
            Role::Seeks | Role::Asks { .. } => None,
        }
    }

    /// Gives up the root, and waits before asking for votes.
    pub(super) fn seek(&mut self, now: Instant, own: &Durable) {
        self.role = Role::Seeks;
        let (host, hosts) = (u32::from(self.host), u32::from(self.hosts));
        // Each daemon waits for a different time, in an order that changes with each attempt. In a new cluster, host 0
        // asks first.
        let (slot, each) = match own.term {
            0 => (host, self.patience / 4),
            _ => ((host + hosts - self.attempts % hosts) % hosts, self.patience / 32),
        };
        self.deadline = Some(now + each * slot.min(MOST_SLOTS));
    }

    /// Carries out what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, own: &mut Durable) -> Option<Turn> {
        self.deadline.take_if(|at| *at <= now)?;
        if !std::mem::replace(&mut self.has_started, true) {
            self.seek(now, own);
            return None;
        }
        match self.role {
            Role::Seeks => self.ask(now, own, true),
            Role::Leads => None,
            Role::Asks { .. } | Role::Follows(_) => {
                self.attempts += 1;
                self.seek(now, own);
                Some(Turn::Seek)
            }
        }
    }

    /// Handles a ballot of another daemon.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        from: u16,
        ballot: Ballot,
        own: &mut Durable,
    ) -> Option<Turn> {
        match ballot {
            Ballot::Ask { term, position, is_trial } => {
                self.asked(now, from, (term, position, is_trial), own)
            }
            Ballot::Vote { term, .. } if term > own.term => self.outdated(now, term, own),
            Ballot::Vote { term, is_trial, is_granted } => {
                let is_it = |role: &mut Role| match role {
                    Role::Asks { is_trial: own_trial, votes } => {
                        *own_trial == is_trial && votes.insert(from)
                    }
                    _ => false,
                };
                if !is_granted || term != own.term || !is_it(&mut self.role) {
                    return None;
                }
                self.count(now, own)
            }
            Ballot::Root { term, root } => {
                let is_news = term > own.term || term == own.term && self.root().is_none();
                if !is_news || root >= self.hosts || root == self.host {
                    return None;
                }
                if term > own.term {
                    (own.term, own.vote) = (term, None);
                }
                self.role = Role::Follows(root);
                self.deadline = Some(now + self.patience / 2);
                Some(Turn::Follow(root))
            }
        }
    }

    fn asked(
        &mut self,
        now: Instant,
        from: u16,
        (term, position, is_trial): (u32, Position, bool),
        own: &mut Durable,
    ) -> Option<Turn> {
        let is_later = term > own.term;
        // Only a daemon that has joined its root names it; until then it knows the root only from a ballot.
        if let Some(root) = self.root().filter(|_| self.deadline.is_none())
            && !(is_later && self.role == Role::Leads)
        {
            self.out.push((from, Ballot::Root { term: own.term, root }));
            return None;
        }
        // A daemon with a later term does not join a root of an earlier term, so such a root gives up.
        let turn = if is_later { self.outdated(now, term, own) } else { None };
        let is_current = term == own.term && position >= own.position;
        let is_granted = match is_trial {
            true => is_current,
            false => is_current && own.vote.is_none_or(|vote| vote == from),
        };
        if is_granted && !is_trial {
            own.vote = Some(from);
            self.seek(now, own);
            self.deadline = self.deadline.map(|at| at + self.patience / 8);
        }
        self.out.push((from, Ballot::Vote { term: own.term, is_trial, is_granted }));
        turn
    }

    /// Adopts a later term, unless this daemon has a root.
    fn outdated(&mut self, now: Instant, term: u32, own: &mut Durable) -> Option<Turn> {
        // A follower keeps its root, which learns of the later term by itself.
        if matches!(self.role, Role::Follows(_)) {
            return None;
        }
        (own.term, own.vote) = (term, None);
        self.seek(now, own);
        Some(Turn::Seek)
    }

    /// Asks all other daemons for votes.
    fn ask(&mut self, now: Instant, own: &mut Durable, is_trial: bool) -> Option<Turn> {
        if !is_trial {
            (own.term, own.vote) = (own.term.saturating_add(1), Some(self.host));
        }
        self.role = Role::Asks { is_trial, votes: BTreeSet::from([self.host]) };
        self.deadline = Some(now + self.patience / 8);
        let ask = Ballot::Ask { term: own.term, position: own.position, is_trial };
        self.send_all(ask);
        None
    }

    fn send_all(&mut self, ballot: Ballot) {
        let others = (0..self.hosts).filter(|host| *host != self.host);
        self.out.extend(others.map(|host| (host, ballot)));
    }

    fn count(&mut self, now: Instant, own: &mut Durable) -> Option<Turn> {
        let Role::Asks { is_trial, votes } = &self.role else { return None };
        if votes.len() < self.majority() {
            return None;
        }
        if *is_trial {
            return self.ask(now, own, false);
        }
        self.role = Role::Leads;
        self.joined();
        self.send_all(Ballot::Root { term: own.term, root: self.host });
        Some(Turn::Lead)
    }
}
