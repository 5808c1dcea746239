//! A link's lease: which parties support its token, and recovery when they do not.

use midplane_simhw::time::Instant;

use super::super::member::{Parties, Party};
use super::super::message::{Body, Epoch};
use super::{Link, Request};
use crate::planted::{self, Bug};

impl Link {
    /// Returns whether a lease is needed: the token is here, and in use or wanted.
    pub(super) fn needs_lease(&self) -> bool {
        self.token.as_ref().is_some_and(|token| self.wants || token.busy)
    }

    /// Returns the parties, other than this one, that must support the epoch.
    pub(super) fn supporters(&self) -> Parties {
        let live = self.live.and(self.present);
        let others = live.without(self.setup.me);
        if live == self.all { others } else { others.with(Party::WITNESS) }
    }

    pub(super) fn keep_lease(&mut self, now: Instant) {
        let supporters = self.supporters();
        if supporters.is_empty() {
            self.lease.learn(self.epoch, now);
        }
        if !self.lease.should_ask(now, self.epoch) {
            return;
        }
        let epoch = self.epoch;
        let round = self.lease.ask(now, epoch, supporters);
        for party in supporters.iter() {
            self.send(party, Body::AskSupport { epoch, round });
        }
    }

    pub(super) fn on_ask(&mut self, now: Instant, from: Party, epoch: Epoch, round: u32) {
        self.learn_epoch(now, epoch, None, None);
        let kept = epoch > self.given_up || planted::is(Bug::GivenUpSupported);
        let ours = epoch == self.epoch && kept;
        if ours {
            // Holders ask members alone.
            self.live = self.live.with(self.setup.me);
        }
        if ours && now >= self.setup.quiet_until {
            self.send(from, Body::Support { epoch, round });
        } else if epoch < self.epoch {
            let (epoch, live) = (self.epoch, self.live);
            let holder = if self.holds() { Some(self.setup.me) } else { self.suspected };
            if let Some(holder) = holder {
                self.send(from, Body::OwnLinkHint { epoch, holder, live });
            }
        }
    }

    /// Reports to the witness that the token is lost, and gives it up. If the token is here but unusable, returns it to
    /// the witness.
    pub(super) fn recover(&mut self, now: Instant, suspect: Option<Party>) {
        self.counters.recoveries += 1;
        if self.token.is_none() {
            // The witness may have asked to give up an epoch that this sender does not know otherwise, and its answer
            // may have been lost.
            self.given_up = self.given_up.max(self.epoch);
            let epoch = self.given_up;
            self.send(Party::WITNESS, Body::RecoverLink { epoch, suspect, gave_up: true });
            self.request.get_or_insert(Request { sent: now, tries: 1 });
        } else {
            let epoch = self.epoch;
            self.send(Party::WITNESS, Body::RecoverLink { epoch, suspect, gave_up: false });
            self.on_request(Party::WITNESS, Party::WITNESS, false);
            self.grant_if_free(now);
        }
    }

    /// Notes since when a party does not answer; `None` if it does.
    pub(super) fn note_silence(&mut self, party: Party, since: Option<Instant>) {
        if let Some(entry) = self.silent_since.get_mut(usize::from(party.0)) {
            *entry = since;
        }
    }

    /// Returns the senders that must support the epoch and are known not to answer. That knowledge expires after a
    /// lease: excluded parties exchange no messages that would show a return.
    pub(super) fn silent(&self, now: Instant) -> Parties {
        let is_silent = |party: &Party| {
            let since = self.silent_since.get(usize::from(party.0)).copied().flatten();
            since.is_some_and(|since| now.nanos_since(since) < self.setup.lease_ns)
        };
        let others = self.live.without(self.setup.me);
        others.iter().filter(is_silent).fold(Parties::default(), Parties::with)
    }

    /// Returns a token that has just arrived to the witness, which excludes the parties that do not answer.
    pub(super) fn return_token(&mut self, now: Instant) {
        let epoch = self.epoch;
        for suspect in self.silent(now).iter() {
            let body = Body::RecoverLink { epoch, suspect: Some(suspect), gave_up: false };
            self.send(Party::WITNESS, body);
        }
        self.counters.recoveries += 1;
        self.on_request(Party::WITNESS, Party::WITNESS, false);
        self.grant_if_free(now);
    }

    pub(super) fn on_give_up(&mut self, now: Instant, epoch: Epoch) {
        self.given_up = self.given_up.max(epoch);
        if self.epoch <= self.given_up {
            self.token = None;
            self.suspected = None;
        }
        let request = Request { sent: now, tries: 1 };
        if self.wants && self.token.is_none() {
            self.request.get_or_insert(request);
        }
        self.send(Party::WITNESS, Body::RecoverLink { epoch, suspect: None, gave_up: true });
    }
}
