//! Orderly departure of a sender: it waits for no other party, and none waits for it.

use midplane_simhw::time::Instant;

use super::super::member::Party;
use super::super::message::{Body, Grant, REQUESTERS};
use super::Link;
use crate::planted::{self, Bug};

impl Link {
    /// Leaves the link: notifies all parties, and passes a token that is here to a waiting sender, or to the witness.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.wants = false;
        self.live = self.live.without(self.setup.me);
        let (epoch, others) = (self.epoch, self.live.with(Party::WITNESS));
        if let Some(token) = &mut self.token {
            token.busy = false;
            if !self.pass_on(now) {
                self.waiting.push_back(Party::WITNESS);
                self.pass_on(now);
            }
        } else {
            // Requests that only this sender knows of are forwarded to all.
            let waiting: Vec<Party> = self.named.drain(..).chain(self.waiting.drain(..)).collect();
            for requesters in waiting.chunks(REQUESTERS) {
                let requesters = requesters.to_vec();
                self.broadcast(&Body::UniReqLink { epoch, requesters }, None);
            }
        }
        for party in others.iter() {
            let taken = self.taken.get(usize::from(party.0)).copied().unwrap_or(0);
            self.send(party, Body::Leave { epoch, taken });
        }
        self.left = true;
    }

    /// Handles the orderly departure of a sender, whose support is no longer needed. The witness must support the epoch
    /// instead, so that it makes no new token without knowing the epoch's holder.
    pub(super) fn on_leave(&mut self, now: Instant, party: Party, taken: u32) {
        self.forget_request(party);
        self.present = self.present.without(party);
        if self.live.contains(party) {
            self.live = self.live.without(party);
            self.lease.forget_round();
        }
        let untaken = |grant: &Grant| grant.number != taken || planted::is(Bug::LeaveReturns);
        if let Some((_, grant)) = self.given.take_if(|(to, grant)| *to == party && untaken(grant)) {
            // The grant arrived after the sender had left, and the sender did not take it.
            self.on_grant(now, Grant { evidence: 0, ..grant }, self.our_last);
        }
        if self.suspected == Some(party) {
            self.suspected = None;
            if let Some(request) = self.request {
                self.request_token(now, request.tries);
            }
        }
        if self.needs_lease() {
            self.keep_lease(now);
        }
    }
}
