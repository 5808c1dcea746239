//! The way to one destination: acquires its links' tokens in order, lets messages through, and
//! gives the tokens back early enough.

use std::time::Duration;

use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::{Instant, LineRate, nanos};

use super::config::{Hold, Uncontrolled};
use super::{Coordination, LeadEstimator};
use crate::context::Context;
use crate::extension::TimeoutId;
use crate::timeout::Service;
use crate::transmit::BacklogLimit;

/// Hand-overs' time that a sender keeps the token for, with [`Hold::Auto`].
const HANDOVERS_PER_HOLD: u32 = 16;

/// Where a route is in its round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    /// Nothing to send.
    Idle,
    /// Tokens are missing.
    Acquiring,
    /// All tokens are here, and messages were let through.
    Sending,
    /// All that was let through is on the line, where it ends then.
    Leaving { ends: Instant },
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) destination: NodeId,
    /// Places of its links, in the order in which they are acquired.
    pub(super) links: Vec<usize>,
    pub(super) state: State,
    lead: Box<dyn LeadEstimator>,
    /// Until then the links are used up by what was let through, the reserve included.
    paced_until: Instant,
    /// When the last token came that had been away.
    granted: Option<Instant>,
    /// Smoothed time from a token's arrival to the first bit.
    start_latency_ns: u64,
    /// Bytes sent without a token that were not made up for yet.
    debt: u64,
    debt_at: Instant,
    /// What this turn may send, and what the last one sent beyond it, in bytes.
    quantum: i64,
    overdraft: i64,
}

impl Route {
    pub(super) fn new(
        destination: NodeId,
        links: Vec<usize>,
        lead: Box<dyn LeadEstimator>,
    ) -> Self {
        Self {
            destination,
            links,
            state: State::Idle,
            lead,
            paced_until: Instant::ZERO,
            granted: None,
            start_latency_ns: 0,
            debt: 0,
            debt_at: Instant::ZERO,
            quantum: 0,
            overdraft: 0,
        }
    }

    /// Whether `bytes` more may be sent without a token. What was sent so is made up for by the
    /// links' reserve over time, and by a pause when the token is next here.
    pub(super) fn borrow_debt(
        &mut self,
        now: Instant,
        bytes: u32,
        limit: Uncontrolled,
        reserve: u16,
        rate: LineRate,
    ) -> bool {
        let passed = rate.bytes_in(now.nanos_since(self.debt_at));
        let senders = u64::from(limit.senders_share.max(1));
        self.debt = self.debt.saturating_sub(passed * u64::from(reserve) / 1000 / senders);
        self.debt_at = now;
        if self.debt + u64::from(bytes) > u64::from(limit.burst) {
            return false;
        }
        self.debt += u64::from(bytes);
        true
    }

    const fn timeout(at: usize) -> TimeoutId {
        TimeoutId(1 + at as u32)
    }
}

impl Coordination {
    /// A message waits for the gate.
    pub(super) fn on_held(&mut self, nic: &mut Context<'_>, at: usize) {
        match self.routes[at].state {
            State::Idle => {
                self.routes[at].state = State::Acquiring;
                if self.config.ahead > 0 {
                    let bytes = u64::from(self.config.ahead) + HEADER_BYTES as u64;
                    nic.allow(self.routes[at].destination, bytes);
                }
                self.advance(nic, at);
            }
            State::Acquiring => self.advance(nic, at),
            State::Leaving { .. } => self.evaluate(nic, at),
            State::Sending => {}
        }
    }

    /// What may be let through at once: the hold's quantum, what a lease allows, what the receiver
    /// has buffers for.
    fn limit(&mut self, nic: &Context<'_>, at: usize) -> BacklogLimit {
        let route = &self.routes[at];
        let rate = self.config.rate.unwrap_or_else(|| nic.line_rate());
        let bytes = match self.config.hold {
            Hold::Message => 1,
            Hold::Bytes(bytes) => bytes,
            Hold::Auto => rate.bytes_in(nanos(route.lead.handover() * HANDOVERS_PER_HOLD)),
        };
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
        let links = route.links.clone();
        let agreed = links.iter().map(|link| self.agree_quantum(*link, wanted)).max();
        // What passed the quantum last time is taken off: shares are fair in bytes.
        let route = &mut self.routes[at];
        route.quantum = i64::from(agreed.unwrap_or(wanted)) - route.overdraft;
        let bytes = u64::try_from(route.quantum).unwrap_or(0).max(1);
        let messages = match (self.config.buffers, self.config.hold) {
            (true, _) => links.iter().map(|link| self.buffers(*link)).min().unwrap_or(0),
            (false, Hold::Message) => 1,
            (false, _) => u32::MAX,
        };
        BacklogLimit { bytes, messages }
    }

    fn agree_quantum(&mut self, link: usize, wanted: u32) -> u32 {
        let link = self.places[link].link.as_mut();
        link.map_or(wanted, |link| link.agree_quantum(wanted))
    }

    fn buffers(&self, link: usize) -> u32 {
        self.places[link].link.as_ref().map_or(0, super::Link::buffers)
    }

    /// Goes on acquiring; lets messages through once all tokens are here.
    pub(super) fn advance(&mut self, nic: &mut Context<'_>, at: usize) {
        let now = nic.now();
        let any = BacklogLimit { bytes: 1, messages: 1 };
        if nic.backlog(self.routes[at].destination, any).is_none() {
            self.abandon(nic, at);
            return;
        }
        // A lease's quarter at most: a holder always knows in time that it has lost its token.
        let quarter = nanos(self.config.lease) / 4;
        let cap = nic.line_rate().bytes_in(quarter);
        let until = now.plus_nanos(quarter);
        for link in self.routes[at].links.clone() {
            let place = &mut self.places[link];
            if place.user.is_some_and(|user| user != at) {
                return;
            }
            let Some(state) = &mut place.link else { return };
            if place.user.is_none() {
                state.want(now);
                if !state.is_ready(now, until) {
                    return;
                }
                // A start that had to wait for something else tells nothing of hand-overs.
                self.routes[at].granted = state.granted_at().filter(|granted| *granted == now);
                state.start();
                place.user = Some(at);
            }
        }
        self.let_through(nic, at, cap);
    }

    fn let_through(&mut self, nic: &mut Context<'_>, at: usize, cap: u64) {
        let limit = self.limit(nic, at);
        let destination = self.routes[at].destination;
        let Some(backlog) = nic.backlog(destination, limit) else {
            // The tokens are here, but no buffer of the receiver: it is asked once.
            for link in self.routes[at].links.clone() {
                if let Some(state) = &mut self.places[link].link {
                    state.ask_buffers();
                }
            }
            return;
        };
        let bytes = backlog.bytes.min(cap.max(nic.mtu_bytes()));
        if self.config.buffers {
            for link in self.routes[at].links.clone() {
                if let Some(state) = &mut self.places[link].link {
                    state.consume(backlog.messages);
                }
            }
        }
        nic.allow(destination, bytes);
        let route = &mut self.routes[at];
        let most = i64::try_from(bytes).unwrap_or(i64::MAX);
        route.overdraft = (most - route.quantum).clamp(0, route.quantum.max(0) * 4);
        route.state = State::Sending;
    }

    /// All that was let through has been handed to the line, which it leaves at `leaves`.
    pub(super) fn on_drained(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        begins: Instant,
        leaves: Instant,
    ) {
        if self.routes[at].state != State::Sending {
            return;
        }
        let now = nic.now();
        let on_line = leaves.nanos_since(begins);
        let rate = self.config.rate.unwrap_or_else(|| nic.line_rate());
        let debt_ns = rate.nanos_for(self.routes[at].debt);
        let shared = self.routes[at].links.iter().any(|l| self.places[*l].config.senders.len() > 1);
        let reserve = if shared { u64::from(self.config.reserve) } else { 0 };
        let route = &mut self.routes[at];
        let mut begins = begins;
        if let Some(granted) = route.granted.take() {
            let latency = begins.nanos_since(granted);
            // A line that makes up for time that it was idle does so at its own cost: before the
            // token came, the link was another's.
            begins = begins.max(granted);
            route.start_latency_ns = match route.start_latency_ns {
                0 => latency,
                known => (known * 7 + latency) / 8,
            };
        }
        let slower = (nic.line_rate().bits_per_second() / rate.bits_per_second()).max(1);
        let used = on_line * slower + on_line * slower * reserve / 1000 + debt_ns;
        route.debt = 0;
        route.debt_at = now;
        route.paced_until = route.paced_until.max(begins).plus_nanos(used);
        route.state = State::Leaving { ends: route.paced_until.max(leaves) };
        nic.allow(route.destination, 0);
        self.evaluate(nic, at);
    }

    /// Whether the tokens go on now, or the next messages may follow, or neither yet.
    pub(super) fn evaluate(&mut self, nic: &mut Context<'_>, at: usize) {
        let State::Leaving { ends } = self.routes[at].state else { return };
        let now = nic.now();
        let waiters = self.routes[at]
            .links
            .iter()
            .any(|link| self.places[*link].link.as_ref().is_some_and(super::Link::has_waiters));
        let route = &self.routes[at];
        let any = BacklogLimit { bytes: 1, messages: 1 };
        let more = nic.backlog(route.destination, any).is_some();
        let early = if more && !waiters {
            // Nobody waits: the line need not run dry before the next messages follow.
            Duration::from_millis(2)
        } else {
            route.lead.lead()
        };
        let due = ends - early;
        if due <= now {
            self.give_back(nic, at, more);
        } else {
            nic.set_timeout_at(Route::timeout(at), Service::Exact, due);
        }
    }

    /// Gives the tokens back, and begins anew if there is more to send.
    fn give_back(&mut self, nic: &mut Context<'_>, at: usize, more: bool) {
        let now = nic.now();
        nic.cancel_timeout(Route::timeout(at));
        self.routes[at].state = State::Idle;
        for link in self.routes[at].links.clone().into_iter().rev() {
            let place = &mut self.places[link];
            place.user = None;
            let Some(state) = &mut place.link else { continue };
            let before = state.next_in_line();
            if !state.release(now, more)
                && let Some(next) = before.and_then(|party| place.node(party))
                && let Some(trip) = nic.round_trip(next)
            {
                let route = &mut self.routes[at];
                let latency = Duration::from_nanos(route.start_latency_ns);
                // The fast half of the ways there: what comes later than it leaves a gap, no queue.
                let way = (trip.smoothed - (trip.variation / 2).min(trip.smoothed)) / 2;
                route.lead.on_handover(way + latency);
            }
        }
        if more {
            self.routes[at].state = State::Acquiring;
            self.advance(nic, at);
        }
        self.wake_others(nic, at);
    }

    /// Routes that waited for a link that this one used may go on.
    fn wake_others(&mut self, nic: &mut Context<'_>, at: usize) {
        for other in 0..self.routes.len() {
            if other != at && self.routes[other].state == State::Acquiring {
                self.advance(nic, other);
            }
        }
    }

    /// There is nothing to send any more, whatever was asked for.
    fn abandon(&mut self, nic: &mut Context<'_>, at: usize) {
        let now = nic.now();
        self.routes[at].state = State::Idle;
        nic.allow(self.routes[at].destination, 0);
        for link in self.routes[at].links.clone() {
            let place = &mut self.places[link];
            let Some(state) = &mut place.link else { continue };
            if place.user == Some(at) {
                place.user = None;
                state.release(now, false);
            } else if place.user.is_none() {
                state.want_no_more();
            }
        }
        self.wake_others(nic, at);
    }
}
