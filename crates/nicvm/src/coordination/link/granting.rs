//! Requests for the token, and its grant to the next sender.

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use super::super::member::Party;
use super::super::message::{Body, Epoch, Grant, QUEUE_IN_GRANT, REQUESTERS};
use super::{Link, Request, Token};
use crate::planted::{self, Bug};

impl Link {
    pub(super) fn request_token(&mut self, now: Instant, tries: u32) {
        self.request = Some(Request { sent: now, tries });
        let (epoch, me) = (self.epoch, self.setup.me);
        // Holders grant no token to an excluded sender; the witness admits it again.
        let left_out = (!self.live.contains(me)).then_some(Party::WITNESS);
        match left_out.or(self.suspected).filter(|holder| *holder != me) {
            Some(holder) => self.send(holder, Body::UniReqLink { epoch, requesters: vec![me] }),
            None => {
                let body = Body::BcastReqLink { epoch, requester: me };
                self.broadcast(&body, None);
                // If this sender has never known a token, the witness knows most about it.
                if epoch == Epoch::default() {
                    self.send(Party::WITNESS, body);
                }
            }
        }
    }

    /// Handles a request for the token. A sender without the token broadcasts the request, unless it waits for the
    /// token itself: then it queues the requester until the token arrives.
    pub(super) fn on_request(&mut self, requester: Party, from: Party, asked_us_alone: bool) {
        if requester == self.setup.me {
            return;
        }
        if self.token.is_none() && self.request.is_none() && asked_us_alone && from == requester {
            let body = Body::BcastReqLink { epoch: self.epoch, requester };
            self.broadcast(&body, Some(requester));
        }
        let queue = match &mut self.token {
            Some(token) => &mut token.queue,
            None => &mut self.waiting,
        };
        if queue.contains(&requester) {
            return;
        }
        if requester == Party::WITNESS {
            queue.push_front(requester);
        } else {
            queue.push_back(requester);
        }
    }

    pub(super) fn forget_request(&mut self, party: Party) {
        self.waiting.retain(|other| *other != party);
        self.named.retain(|other| *other != party);
        if let Some(token) = &mut self.token {
            token.queue.retain(|other| *other != party);
        }
    }

    /// Notes a waiting sender that another party named; it is queued when the token arrives here.
    pub(super) fn on_named(&mut self, requester: Party) {
        if requester != self.setup.me && !self.named.contains(&requester) {
            self.named.push_back(requester);
        }
    }

    pub(super) fn grant_if_free(&mut self, now: Instant) {
        if self.token.as_ref().is_some_and(|token| !token.busy) {
            self.pass_on(now);
        }
    }

    /// Grants the token to the next in line; returns `false` if no party waits.
    pub(super) fn pass_on(&mut self, now: Instant) -> bool {
        let Some(token) = &mut self.token else { return false };
        let (me, live) = (self.setup.me, self.live);
        for party in self.waiting.drain(..) {
            if !token.queue.contains(&party) {
                token.queue.push_back(party);
            }
        }
        token
            .queue
            .retain(|party| *party != me && (live.contains(*party) || *party == Party::WITNESS));
        let Some(next) = token.queue.pop_front() else { return false };
        let Some(mut token) = self.token.take() else { return false };
        if planted::is(Bug::TokenCopied) {
            let (buffers, consumed, quantum) = (token.buffers, token.consumed, token.quantum);
            let queue = VecDeque::new();
            self.token = Some(Token { queue, buffers, consumed, quantum, busy: false });
        }
        if self.wants {
            token.queue.push_back(me);
            self.request = Some(Request { sent: now, tries: 0 });
        }
        self.suspected = Some(next);
        let last = self.our_last.max(self.before_us);
        let rest = token.queue.split_off(token.queue.len().min(QUEUE_IN_GRANT));
        // The rest of the queue is sent first: a receiver that does not want the token passes it on at once.
        let rest: Vec<Party> = rest.into();
        for requesters in rest.chunks(REQUESTERS) {
            let requesters = requesters.to_vec();
            self.send(next, Body::UniReqLink { epoch: self.epoch, requesters });
        }
        // 0 stands for no grant.
        self.given_before = self.given_before.wrapping_add(1).max(1);
        let grant = Grant {
            epoch: self.epoch,
            number: self.given_before,
            evidence: self.lease.evidence_for(next, self.epoch),
            asked_us: self.lease.asked_us(now),
            live,
            buffers: token.buffers,
            consumed: token.consumed,
            quantum: token.quantum,
            line_busy_ns: u32::try_from(last.nanos_since(now)).unwrap_or(u32::MAX),
            queue: token.queue.into(),
        };
        self.given = Some((next, grant.clone()));
        self.send(next, Body::GrantLink(grant));
        true
    }

    pub(super) fn broadcast_hint(&mut self) {
        let (epoch, live) = (self.epoch, self.live);
        // Sent once while the token stays: senders that know the holder need no repetition.
        if self.suspected != Some(self.setup.me) {
            self.suspected = Some(self.setup.me);
            self.broadcast(&Body::OwnLinkHint { epoch, holder: self.setup.me, live }, None);
        }
    }

    /// Handles a grant from a sender whose last bit leaves at `last`.
    pub(super) fn on_grant(&mut self, now: Instant, grant: Grant, last: Instant) {
        let held = self.token.is_some() && grant.epoch == self.epoch;
        if grant.epoch < self.epoch || grant.epoch <= self.given_up || held {
            return;
        }
        self.counters.grants += 1;
        self.given = None;
        self.before_us = last;
        // Within an epoch senders may leave, and none joins. Members alone are granted the token.
        let known = self.live.with(self.setup.me);
        self.live = if grant.epoch == self.epoch { known.and(grant.live) } else { grant.live };
        self.epoch = grant.epoch;
        self.suspected = None;
        self.request = None;
        if grant.evidence > 0 {
            // Evidence in the future is a conversion error: it is limited to now.
            let evidence = if planted::is(Bug::GrantRenews) { u64::MAX } else { grant.evidence };
            self.lease.learn(grant.epoch, Instant::from_nanos(evidence).min(now));
        }
        self.lease.learn_asked(now, grant.asked_us);
        let mut queue: VecDeque<Party> = grant.queue.into();
        // Senders that queue at a void token that is still here wait for this one.
        let void = self.token.take().map_or_else(VecDeque::new, |token| token.queue);
        let void = void.into_iter().filter(|party| *party != Party::WITNESS);
        for party in void.chain(self.named.drain(..)) {
            if !queue.contains(&party) {
                queue.push_back(party);
            }
        }
        let token = Token {
            queue,
            buffers: grant.buffers,
            consumed: grant.consumed,
            quantum: grant.quantum,
            busy: false,
        };
        self.token = Some(token);
        self.granted = Some(now);
        if !self.silent(now).is_empty() {
            self.return_token(now);
        } else if self.wants {
            self.keep_lease(now);
        } else if !self.pass_on(now) {
            self.broadcast_hint();
        }
    }
}
