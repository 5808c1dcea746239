//! A sender goes, in good order: it waits for nobody, and nobody for it.

use midplane_simhw::time::Instant;

use super::super::member::Party;
use super::super::message::{Body, Epoch, Grant, REQUESTERS};
use super::Link;

impl Link {
    /// This sender goes: all others hear of it, and a token that is here goes to who waits for it, or
    /// back to the witness, which is the one that stays.
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
            // Whose words have come this far is not forgotten with us.
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

    /// A sender has gone, in good order: its support is not needed any more, but the witness's is,
    /// which makes no new token without knowing that.
    pub(super) fn on_leave(&mut self, now: Instant, party: Party, epoch: Epoch, taken: u32) {
        self.forget_request(party);
        if epoch == self.epoch && self.live.contains(party) {
            self.live = self.live.without(party);
            self.lease.forget_round();
        }
        if let Some((_, grant)) =
            self.given.take_if(|(to, grant)| *to == party && grant.number != taken)
        {
            // It came too late for the one who was to have it, and who takes nothing any more.
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
