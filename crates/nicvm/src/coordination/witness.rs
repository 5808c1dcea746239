//! The witness of a link: its destination, which makes a new token if the old one is lost.
//!
//! It takes no part while no sender is lost. Only the witness makes tokens, so two tokens of one epoch never exist. It
//! makes one only when it has the old one back, or a lease after a supporter has given up the old epoch. So two valid
//! tokens of different epochs never exist.

use midplane_simhw::id::Incarnation;
use midplane_simhw::time::Instant;

use super::link::Outbox;
use super::member::{Parties, Party};
use super::message::{Body, Epoch, Grant};
use crate::planted::{self, Bug};

/// The exclusion of a sender from the epochs.
#[derive(Clone, Copy, Debug)]
struct Exclusion {
    until: Instant,
    /// Duration of its next exclusion.
    backoff_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Witness {
    senders: usize,
    lease_ns: u64,
    /// The epoch before the first one that this incarnation may make.
    base: Epoch,
    /// True in the first incarnation.
    is_first_incarnation: bool,
    /// The newest epoch that it knows of.
    epoch: Epoch,
    given_up: Epoch,
    live: Parties,
    excluded: Vec<Option<Exclusion>>,
    /// Senders that wait for the new token.
    wanting: Vec<Party>,
    /// When the old token is certainly void.
    due: Option<Instant>,
    /// The sender to which the newest token was granted; the witness itself while no sender wants it.
    holder: Option<Party>,
    quiet_until: Instant,
    outbox: Outbox,
}

impl Witness {
    pub(crate) fn new(
        senders: usize,
        lease_ns: u64,
        incarnation: Incarnation,
        genesis: bool,
        quiet_until: Instant,
    ) -> Self {
        let mut witness = Self {
            senders,
            lease_ns,
            base: Epoch::base(incarnation),
            is_first_incarnation: incarnation == Incarnation::FIRST,
            epoch: if genesis { Epoch::GENESIS } else { Epoch::default() },
            given_up: Epoch::default(),
            live: Parties::first(senders),
            excluded: vec![None; senders],
            wanting: Vec::new(),
            due: None,
            holder: None,
            quiet_until,
            outbox: Outbox::new(),
        };
        if !genesis {
            // So senders that wait for a former incarnation learn of this one at once.
            Parties::first(senders).iter().for_each(|party| witness.request_give_up(party));
        }
        witness
    }

    pub(crate) fn handle(&mut self, now: Instant, from: Party, body: Body) {
        match body {
            Body::RecoverLink { epoch, suspect, gave_up } => {
                self.on_recover(now, from, epoch, suspect, gave_up);
            }
            Body::GrantLink(grant) => self.on_return(now, from, grant),
            Body::AskSupport { epoch, round } => self.on_ask(now, from, epoch, round),
            // The sender returns in its next incarnation, as an excluded sender does. Until then no epoch may have it
            // as a member: its unit may stay up, and peers would wait for its answers.
            Body::Leave { .. } => {
                self.live = self.live.without(from);
                self.exclude(now, from);
                if let Some(Some(out)) = self.excluded.get_mut(usize::from(from.0)) {
                    out.until = Instant::FAR_FUTURE;
                }
            }
            Body::UniReqLink { requesters, .. } => {
                for requester in requesters {
                    self.on_request(now, requester);
                }
            }
            Body::BcastReqLink { requester, .. } => self.on_request(now, requester),
            _ => {}
        }
    }

    /// Handles a sender's restart. Its exclusion ends; but if its former incarnation may have held the token, the
    /// sender must give that up.
    pub(crate) fn on_restarted(&mut self, party: Party) {
        if let Some(entry) = self.excluded.get_mut(usize::from(party.0)) {
            *entry = None;
        }
        if self.holder.is_none_or(|holder| holder == party) {
            self.request_give_up(party);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.mint(now, Vec::new());
            return;
        }
        let back = self
            .wanting
            .iter()
            .any(|party| !self.live.contains(*party) && self.may_return(now, *party));
        if back && self.due.is_none() {
            self.recall(now);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.due.is_some() {
            return self.due;
        }
        let outside = self.wanting.iter().filter(|party| !self.live.contains(**party));
        outside.map(|party| self.exclusion(*party).map_or(Instant::ZERO, |out| out.until)).min()
    }

    pub(crate) fn poll_send(&mut self) -> Option<(Party, Body)> {
        self.outbox.pop_front()
    }

    fn exclusion(&self, party: Party) -> Option<Exclusion> {
        self.excluded.get(usize::from(party.0)).copied().flatten()
    }

    fn may_return(&self, now: Instant, party: Party) -> bool {
        self.exclusion(party).is_none_or(|out| out.until <= now)
    }

    fn on_recover(
        &mut self,
        now: Instant,
        from: Party,
        epoch: Epoch,
        suspect: Option<Party>,
        gave_up: bool,
    ) {
        if usize::from(from.0) >= self.senders {
            return;
        }
        let outdated = epoch < self.epoch && self.epoch > self.base;
        if outdated && self.live.contains(from) {
            self.hint(from);
            return;
        }
        if !self.wanting.contains(&from) {
            self.wanting.push(from);
        }
        if outdated {
            // The sender is excluded: it gets its turn when the exclusion is over.
            self.handle_timeout(now);
            return;
        }
        if let Some(suspect) = suspect {
            self.exclude(now, suspect);
        }
        if gave_up && epoch < self.base {
            // A former incarnation of this witness may have made tokens that this one does not know of.
            self.outbox.push_back((from, Body::GiveUp { epoch: self.base }));
        } else if gave_up && self.due.is_none() {
            self.recall(now);
        }
    }

    /// Handles a token that is returned. A token of a former incarnation is no proof: that incarnation may have made a
    /// newer one.
    fn on_return(&mut self, now: Instant, from: Party, grant: Grant) {
        if grant.epoch < self.epoch {
            return;
        }
        if grant.epoch > self.base || self.is_first_incarnation {
            // This incarnation has made no other epoch.
            if grant.epoch == self.epoch {
                self.mint(now, grant.queue);
            }
        } else {
            self.outbox.push_back((from, Body::GiveUp { epoch: self.base }));
        }
    }

    fn exclude(&mut self, now: Instant, suspect: Party) {
        let lease_ns = self.lease_ns;
        if let Some(entry) = self.excluded.get_mut(usize::from(suspect.0)) {
            let backoff_ns = entry.map_or(lease_ns, |out| out.backoff_ns);
            let until = now.plus_nanos(backoff_ns).max(entry.map_or(now, |out| out.until));
            *entry = Some(Exclusion { until, backoff_ns: (backoff_ns * 2).min(lease_ns * 64) });
        }
        self.wanting.retain(|party| *party != suspect);
    }

    /// Requests the old token, and waits for it or for the end of its lease.
    fn recall(&mut self, now: Instant) {
        self.given_up = self.given_up.max(self.epoch);
        if self.holder == Some(Party::WITNESS) {
            self.mint(now, Vec::new());
            return;
        }
        // A thousandth more, because clocks drift.
        let wait = self.lease_ns + self.lease_ns / 1000 + 1;
        let due = now.plus_nanos(if planted::is(Bug::TokenEarly) { wait / 4 } else { wait });
        self.due = Some(due.max(self.quiet_until));
        let body = Body::BcastReqLink { epoch: self.epoch, requester: Party::WITNESS };
        for party in self.live.iter() {
            self.outbox.push_back((party, body.clone()));
        }
    }

    /// Makes a new token and grants it to the first sender that wants it.
    fn mint(&mut self, now: Instant, queue: Vec<Party>) {
        self.due = None;
        self.epoch = Epoch(self.epoch.max(self.base).0 + 1);
        let senders = Parties::first(self.senders);
        self.live = senders
            .iter()
            .filter(|party| self.may_return(now, *party))
            .fold(Parties::default(), Parties::with);
        let mut next = std::mem::take(&mut self.wanting);
        next.extend(queue);
        let (mut wanting, mut outside) = (Vec::new(), Vec::new());
        for party in next {
            let list = if self.live.contains(party) { &mut wanting } else { &mut outside };
            if !list.contains(&party) && senders.contains(party) {
                list.push(party);
            }
        }
        self.wanting = outside;
        if wanting.is_empty() {
            self.holder = Some(Party::WITNESS);
        } else {
            self.grant(wanting.remove(0), wanting);
        }
        let holder = self.holder;
        for party in senders.iter().filter(|party| Some(*party) != holder) {
            self.hint(party);
        }
    }

    fn grant(&mut self, to: Party, mut queue: Vec<Party>) {
        queue.truncate(super::message::QUEUE_IN_GRANT);
        self.holder = Some(to);
        let grant = Grant {
            epoch: self.epoch,
            number: 0,
            evidence: 0,
            asked_us: u32::MAX,
            live: self.live,
            buffers: 0,
            consumed: 0,
            quantum: 0,
            line_busy_ns: 0,
            queue,
        };
        self.outbox.push_back((to, Body::GrantLink(grant)));
    }

    /// Handles a request from a sender that presumes the token here.
    fn on_request(&mut self, now: Instant, requester: Party) {
        if usize::from(requester.0) >= self.senders {
            return;
        }
        if !self.live.contains(requester) {
            if !self.wanting.contains(&requester) {
                self.wanting.push(requester);
            }
            self.handle_timeout(now);
        } else if self.holder == Some(Party::WITNESS) {
            self.grant(requester, Vec::new());
        } else if self.epoch == Epoch::default() {
            self.request_give_up(requester);
        } else {
            self.hint(requester);
        }
    }

    /// Asks a sender to give up all older tokens; it answers when it has.
    fn request_give_up(&mut self, party: Party) {
        let epoch = if self.epoch == Epoch::default() { self.base } else { self.epoch };
        self.outbox.push_back((party, Body::GiveUp { epoch }));
    }

    fn hint(&mut self, to: Party) {
        if let Some(holder) = self.holder {
            let body = Body::OwnLinkHint { epoch: self.epoch, holder, live: self.live };
            self.outbox.push_back((to, body));
        }
    }

    fn on_ask(&mut self, now: Instant, from: Party, epoch: Epoch, round: u32) {
        if epoch == self.epoch && epoch > self.given_up && now >= self.quiet_until {
            self.outbox.push_back((from, Body::Support { epoch, round }));
        } else if epoch < self.epoch {
            self.hint(from);
        }
    }
}
