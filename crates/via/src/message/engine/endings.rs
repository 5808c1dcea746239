//! Early ends of requests: cancelled, or their process or communicator lost.

use super::flows::{Flows, UnreportedCredit};
use super::seeks::Seeks;
use super::{Core, ENTRY, Link};
use crate::message::envelope::{Context, Peer};
use crate::message::explain::{Explanation, Missing, Unmatched};
use crate::message::group::Group;
use crate::message::matching::{Key, Pattern};
use crate::message::request::{Failure, Operation, Record, Request, State, Status};

impl Core {
    pub(super) fn cancel_marked(&mut self) {
        for request in self.requests.take_marked() {
            self.cancel(request);
        }
    }

    /// Cancels a request that has not matched; one that has matched continues.
    pub(super) fn cancel(&mut self, request: Request) {
        let Some(record) = self.requests.get(request) else { return };
        match (record.operation, record.state) {
            (Operation::Receive(_), State::Active) => {
                let withdrawn = record.posted.is_some_and(|posted| self.matching.withdraw(posted));
                if withdrawn {
                    self.complete(request, Status::default(), Err(Failure::Cancelled));
                }
            }
            (Operation::Send { to, .. }, State::Waiting) => {
                if let Some(link) = self.link_mut(to) {
                    link.sends.retain(|waiting| *waiting != request);
                }
                self.complete(request, Status::default(), Err(Failure::Cancelled));
            }
            (Operation::Send { to, .. }, State::Active) => {
                let met =
                    self.link(to).is_some_and(|l| l.streams.iter().any(|s| s.send == request));
                if !met {
                    self.withdraw(request);
                }
            }
            _ => {}
        }
    }

    /// Handles the loss of a process: fails every request that waits for it. Also fails every posted receive from any
    /// source in its groups, because the message might have come from that process.
    pub(super) fn lose(&mut self, failure: Failure) {
        let (Failure::PeerLost(peer) | Failure::PeerRestarted(peer)) = failure else { return };
        let losses = self.losses.saturating_add(1);
        let Some(link) = self.link_mut(peer) else { return };
        link.refused = false;
        if std::mem::replace(&mut link.lost, true) {
            return;
        }
        link.lost_at = losses;
        link.answers.clear();
        (link.owed, link.noticed, link.withdrawing) = (0, 0, 0);
        link.withdrawals.clear();
        link.unreported = UnreportedCredit::default();
        link.flows = Flows::default();
        link.sends.clear();
        link.streams.clear();
        link.hinted.clear();
        link.seeks = Seeks::default();
        self.hinting.remove(&peer);
        self.losses = losses;
        let held = self.matching.unexpected();
        let gone: Vec<_> = held
            .filter(|(_, key, arrived)| key.source == peer && arrived.bytes.is_none())
            .map(|(id, ..)| id)
            .collect();
        for id in gone {
            let _ = self.matching.remove(id);
        }
        self.claimed.retain(|_, held| held.key.source != peer || held.message.bytes.is_some());
        self.requests.note_move();
        self.fail(failure, |record| {
            let from = record.transfer.map(|transfer| transfer.peer);
            match record.operation {
                Operation::Send { to, .. } => to == peer,
                Operation::Receive(pattern) => match from.or(pattern.source) {
                    Some(source) => source == peer,
                    None => record.group.as_ref().is_none_or(|group| group.rank(peer).is_some()),
                },
                Operation::Claimed(_) => from == Some(peer),
                Operation::Nothing => false,
            }
        });
    }

    /// Fails the requests of a collective operation that a process has left before its end, or of a communicator that
    /// a process has revoked. Stores as many such notices of a process as its window holds messages; those of the
    /// oldest communicators are dropped first.
    pub(super) fn leave(&mut self, Key { context, source, .. }: Key) {
        self.has_left = true;
        self.requests.note_move();
        let most = self.config.window / ENTRY;
        // Stored at this process's own link: a communicator stays revoked if the process that revoked it returns.
        let holder = if context.is_recovery() { self.own } else { source };
        if let Some(link) = self.link_mut(holder) {
            link.left.insert(context);
            if link.left.len() > most {
                link.left.pop_first();
            }
        }
        if context.is_recovery() {
            self.fail_context(Context(context.0 - 2), Failure::Revoked);
            self.fail_context(Context(context.0 - 1), Failure::Revoked);
        } else {
            self.fail_context(context, Failure::Abandoned);
        }
    }

    /// Returns whether the communicator of this context was revoked. Contexts of recovery are not affected.
    #[inline]
    pub(super) fn is_revoked(&self, context: Context) -> bool {
        self.has_left
            && !context.is_recovery()
            && self.link(self.own).is_some_and(|link| link.left.contains(&context.recovery()))
    }

    /// Returns why a probe of a group's messages that began after `losses` losses can't find one any more: its
    /// communicator was revoked, its source was lost, or, if it has none, any process of the group was lost meanwhile.
    pub(super) fn probe_failure(
        &self,
        pattern: &Pattern,
        group: &Group,
        losses: u32,
    ) -> Option<Failure> {
        if self.is_revoked(pattern.context) {
            return Some(Failure::Revoked);
        }
        let failure = |peer: Peer, has_source| {
            let link = self.link(peer)?;
            if link.lost && (has_source || link.lost_at > losses) {
                return Some(Failure::PeerLost(peer));
            }
            (link.lost_at > losses).then_some(Failure::PeerRestarted(peer))
        };
        match pattern.source {
            Some(peer) => failure(peer, true),
            None if self.losses == losses => None,
            None => group.members().iter().find_map(|peer| failure(*peer, false)),
        }
    }

    /// Fails every request of a context. A transfer in progress completes, because the other process may not know of
    /// the failure. A send that waits for an answer fails once its receiver has returned the message.
    fn fail_context(&mut self, context: Context, failure: Failure) {
        let is_active_send = |record: &Record| {
            matches!(record.operation, Operation::Send { context: at, .. } if at == context)
                && record.state == State::Active
        };
        let active = self.requests.iter().filter(|(_, record)| is_active_send(record));
        for request in active.map(|(request, _)| request).collect::<Vec<_>>() {
            if let Some(record) = self.requests.get_mut(request) {
                record.result = Err(failure);
            }
            self.cancel(request);
        }
        self.fail(failure, |record| match record.operation {
            Operation::Send { context: at, .. } => at == context && record.state == State::Waiting,
            Operation::Receive(pattern) => pattern.context == context && record.transfer.is_none(),
            Operation::Claimed(_) | Operation::Nothing => false,
        });
    }

    /// Handles the return of a lost process: removes the state and the messages of the former one.
    pub(super) fn regain(&mut self, peer: Peer) {
        self.lose(Failure::PeerRestarted(peer));
        let Some(link) = self.link_mut(peer).filter(|link| link.known) else { return };
        let (listed, lost_at, window) = (link.listed, link.lost_at, link.window);
        *link = Link { known: true, listed, lost_at, window, ..Link::default() };
        let held = self.matching.unexpected().filter(|(_, key, _)| key.source == peer);
        for id in held.map(|(id, ..)| id).collect::<Vec<_>>() {
            if let Some(held) = self.matching.remove(id) {
                self.pool.put(held.message.bytes.unwrap_or_default());
            }
        }
        self.claimed.retain(|_, held| held.key.source != peer);
        self.requests.note_move();
        self.list(peer);
    }

    pub(super) fn fail_all(&mut self, failure: Failure) {
        self.fail(failure, |_| true);
    }

    /// Fails every request in progress for which `concerns` returns true.
    fn fail(&mut self, failure: Failure, concerns: impl Fn(&Record) -> bool) {
        let concerned: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, record)| matches!(record.state, State::Waiting | State::Active))
            .filter(|(_, record)| concerns(record))
            .map(|(request, record)| (request, record.posted))
            .collect();
        for (request, posted) in concerned {
            if let Some(posted) = posted {
                self.matching.withdraw(posted);
            }
            let source = match failure {
                Failure::PeerLost(peer) | Failure::PeerRestarted(peer) => peer,
                _ => Peer::default(),
            };
            self.complete(request, Status { source, ..Status::default() }, Err(failure));
        }
    }

    /// Returns the peer that all requests in progress wait for, if there is exactly one.
    pub(super) fn missing(&self) -> Option<Peer> {
        let under_way =
            |(_, record): &(_, &Record)| matches!(record.state, State::Waiting | State::Active);
        let mut peers =
            self.requests.iter().filter(under_way).map(|(_, record)| match record.operation {
                Operation::Send { to, .. } => Some(to),
                Operation::Receive(pattern) => pattern.source,
                Operation::Claimed(key) => Some(key.source),
                _ => None,
            });
        let first = peers.next()??;
        peers.all(|peer| peer == Some(first)).then_some(first)
    }

    pub(super) fn explain(&self) -> Explanation {
        let mut explanation = Explanation::default();
        for (request, record) in self.requests.iter() {
            let missing = match (record.operation, record.state) {
                (_, State::Built | State::Done) => continue,
                (Operation::Send { to, context, tag, .. }, State::Waiting) => {
                    Missing::Window { to, context, tag, length: record.message_bytes() }
                }
                (Operation::Send { to, context, tag, .. }, State::Active) => {
                    Missing::Receive { to, context, tag, length: record.status.length }
                }
                (Operation::Receive(pattern), _) if record.transfer.is_none() => {
                    Missing::Message(pattern)
                }
                (operation, _) => {
                    let Some(transfer) = record.transfer else { continue };
                    let key = Self::key_of(operation, record.status);
                    Missing::Rest { key, filled: transfer.filled, length: transfer.wanted }
                }
            };
            explanation.waiting.push((request, missing));
        }
        for (_, key, arrived) in self.matching.unexpected() {
            let announced = arrived.bytes.is_none();
            let unmatched = explanation.unmatched.entry(key).or_insert_with(Unmatched::default);
            unmatched.messages += 1;
            unmatched.announced += usize::from(announced);
            unmatched.bytes += u64::from(arrived.length);
        }
        let lost = |(index, link): (usize, &Link)| link.lost.then_some(Peer(index as u32));
        explanation.lost = self.links.iter().enumerate().filter_map(lost).collect();
        explanation
    }
}
