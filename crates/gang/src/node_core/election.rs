//! Decides which host is the root: a majority of the configured daemons elects it for a term.
//!
//! As in Raft (Ongaro and Ousterhout, USENIX ATC 2014, sections 5.2 and 5.4.1; the trial round is that of Ongaro's
//! thesis, section 9.6): a daemon votes once in a term, and only for a daemon whose table is no older than its own. A
//! daemon that has lost its root first asks whether the others would vote for it, which changes no term. A daemon that
//! has a root grants nothing, and names that root instead.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;
use serde::{Deserialize, Serialize};

use super::replica::{Durable, Position};

/// Most daemons that wait for each other before they ask for votes.
const MOST_SLOTS: u32 = 16;

/// A message about elections, from any daemon to any other. It may be lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ballot {
    /// The sender asks for a vote in its term; on trial, whether it would get one in the next.
    Ask { term: u32, position: Position, is_trial: bool },
    /// The reply, with the voter's term.
    Vote { term: u32, is_trial: bool, is_granted: bool },
    /// The root of a term.
    Root { term: u32, root: u16 },
}

/// The consequence of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// This daemon is the root of its term.
    Lead,
    /// Another daemon is.
    Follow(u16),
    /// This daemon has no root, and is none.
    Seek,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Role {
    /// Has no root, and waits before it asks.
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
    /// False until this daemon has begun to wait.
    has_started: bool,
    /// Attempts since there was a root.
    attempts: u32,
    /// When to try something else; `None` while there is a root.
    deadline: Option<Instant>,
    out: Vec<(u16, Ballot)>,
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

    /// Returns the ballots to be sent.
    pub(super) fn take_ballots(&mut self) -> Vec<(u16, Ballot)> {
        std::mem::take(&mut self.out)
    }

    /// Notes that the root's tree has admitted this daemon.
    pub(super) const fn joined(&mut self) {
        (self.deadline, self.attempts) = (None, 0);
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the root that this daemon is to join, or has joined.
    pub(super) const fn root(&self) -> Option<u16> {
        match self.role {
            Role::Follows(root) => Some(root),
            Role::Leads => Some(self.host),
            Role::Seeks | Role::Asks { .. } => None,
        }
    }

    /// Gives the root up.
    pub(super) fn seek(&mut self, now: Instant, own: &Durable) {
        self.role = Role::Seeks;
        let (host, hosts) = (u32::from(self.host), u32::from(self.hosts));
        // Daemons wait for each other, in an order that changes with each attempt. In a new cluster host 0 comes first.
        let (slot, each) = match own.term {
            0 => (host, self.patience / 4),
            _ => ((host + hosts - self.attempts % hosts) % hosts, self.patience / 32),
        };
        self.deadline = Some(now + each * slot.min(MOST_SLOTS));
    }

    /// Does what is due.
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

    /// Takes a ballot of another daemon.
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
        // A daemon that has not joined its root knows of it by hearsay alone.
        if let Some(root) = self.root().filter(|_| self.deadline.is_none())
            && !(is_later && self.role == Role::Leads)
        {
            self.out.push((from, Ballot::Root { term: own.term, root }));
            return None;
        }
        // A root of an earlier term than another daemon's can't have that daemon back.
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

    /// Adopts a later term.
    fn outdated(&mut self, now: Instant, term: u32, own: &mut Durable) -> Option<Turn> {
        // Its root learns of the later term by itself.
        if matches!(self.role, Role::Follows(_)) {
            return None;
        }
        (own.term, own.vote) = (term, None);
        self.seek(now, own);
        Some(Turn::Seek)
    }

    /// Asks all others for votes.
    fn ask(&mut self, now: Instant, own: &mut Durable, is_trial: bool) -> Option<Turn> {
        if !is_trial {
            (own.term, own.vote) = (own.term.saturating_add(1), Some(self.host));
        }
        self.role = Role::Asks { is_trial, votes: BTreeSet::from([self.host]) };
        self.deadline = Some(now + self.patience / 8);
        let ask = Ballot::Ask { term: own.term, position: own.position, is_trial };
        self.tell_all(ask);
        None
    }

    fn tell_all(&mut self, ballot: Ballot) {
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
        self.tell_all(Ballot::Root { term: own.term, root: self.host });
        Some(Turn::Lead)
    }
}
