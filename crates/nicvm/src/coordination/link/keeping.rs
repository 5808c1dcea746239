//! A link's lease: who stands by its token, and what follows when nobody does.

use midplane_simhw::time::Instant;

use super::super::member::{Parties, Party};
use super::super::message::{Body, Epoch};
use super::{Link, Request};

impl Link {
    /// A holder that has something to send, or is sending, keeps its lease.
    pub(super) fn needs_lease(&self) -> bool {
        self.token.as_ref().is_some_and(|token| self.wants || token.busy)
    }

    /// Who must stand by the epoch, beside ourselves.
    pub(super) fn supporters(&self) -> Parties {
        let others = self.live.without(self.setup.me);
        if self.live == self.all { others } else { others.with(Party::WITNESS) }
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
        let ours =
            epoch == self.epoch && epoch > self.given_up && self.live.contains(self.setup.me);
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

    /// Tells the witness that the token is lost, and stands by it no more; or, where it is here and
    /// of no use, gives it back.
    pub(super) fn recover(&mut self, now: Instant, suspect: Option<Party>) {
        self.counters.recoveries += 1;
        let epoch = self.epoch;
        let gave_up = self.token.is_none();
        self.send(Party::WITNESS, Body::RecoverLink { epoch, suspect, gave_up });
        if gave_up {
            self.given_up = self.given_up.max(epoch);
            self.request.get_or_insert(Request { sent: now, tries: 1 });
        } else {
            self.on_request(Party::WITNESS, Party::WITNESS, false);
            self.grant_if_free(now);
        }
    }

    /// Whether a sender that must stand by the epoch is known not to answer.
    pub(super) fn is_unsupported(&self) -> bool {
        !self.live.without(self.setup.me).and(self.down).is_empty()
    }

    /// Returns a token that has just come to the witness, which leaves out all who do not answer.
    pub(super) fn give_back(&mut self, now: Instant) {
        let epoch = self.epoch;
        for suspect in self.live.without(self.setup.me).and(self.down).iter() {
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
