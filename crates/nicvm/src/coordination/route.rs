//! The route to one destination: acquires its links' tokens in order, lets messages through, and releases the tokens
//! early enough.

use std::time::Duration;

use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::{Instant, LineRate, nanos};

use super::Coordination;
use super::config::{DEFAULT_RESERVE, Hold, Uncontrolled};
use super::lead::{Lead, LeadEstimator};
use super::member::Party;
use crate::context::Context;
use crate::extension::TimeoutId;
use crate::planted::{self, Bug};
use crate::timeout::Service;
use crate::transmit::BacklogLimit;

/// With [`Hold::Auto`], a sender keeps the token for the time of this many hand-overs.
const HANDOVERS_PER_HOLD: u64 = 48;

/// With [`Hold::Auto`], longest time in ns for the token to pass all senders of a link, if messages are short compared
/// with their share of it.
const ROTATION_NS: u64 = 200_000_000;

/// Bytes of a grant with a few senders in line. Its acknowledgement has no payload, so the grant takes more than half
/// of the round trip.
pub(super) const GRANT_BYTES: usize = 78;

/// The state of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    /// Nothing to send.
    Idle,
    /// Tokens are missing.
    Acquiring,
    /// All tokens are here, and messages were let through.
    Sending,
    /// All messages that were let through are on the line until `ends`.
    Leaving { ends: Instant },
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) destination: NodeId,
    /// Indices of its links, in the order in which they are acquired.
    pub(super) links: Vec<usize>,
    pub(super) state: State,
    lead: Box<dyn LeadEstimator>,
    /// The instant until which the links carry the messages that have passed, including the reserve.
    paced_until: Instant,
    /// When the last token arrived that had been away.
    granted: Option<Instant>,
    /// Smoothed time from a token's arrival to the first bit.
    start_latency_ns: u64,
    /// Smoothed time of a hand-over.
    handover_ns: u64,
    /// Bytes sent without a token, or ahead of it, that the reserve has not yet paid for.
    debt: u64,
    debt_at: Instant,
    /// Bytes that this turn may send, and bytes that the last turn sent beyond its quantum.
    quantum: i64,
    overdraft: i64,
    /// When the route's timeout is due.
    alarm: Option<Instant>,
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
            handover_ns: 0,
            debt: 0,
            debt_at: Instant::ZERO,
            quantum: 0,
            overdraft: 0,
            alarm: None,
        }
    }

    /// Returns whether `bytes` more may be sent without a token, and charges them. The links' reserve pays for them
    /// over time; a pause at the next token pays for the rest.
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
    /// Handles a message that the gate holds.
    pub(super) fn on_held(&mut self, nic: &mut Context<'_>, at: usize) {
        match self.routes[at].state {
            State::Idle => self.begin(nic, at),
            State::Acquiring => self.advance(nic, at),
            State::Leaving { .. } => self.evaluate(nic, at),
            State::Sending => {}
        }
    }

    /// Begins to acquire the tokens, and lets through the bytes that may be sent ahead of them.
    fn begin(&mut self, nic: &mut Context<'_>, at: usize) {
        self.routes[at].state = State::Acquiring;
        if self.config.ahead > 0 {
            let bytes = u64::from(self.config.ahead) + HEADER_BYTES as u64;
            nic.allow(self.routes[at].destination, bytes, Instant::FAR_FUTURE);
        }
        self.advance(nic, at);
    }

    /// Returns how much may be let through at once: limited by the quantum and the receiver's buffers.
    fn limit(&mut self, nic: &Context<'_>, at: usize) -> BacklogLimit {
        let route = &self.routes[at];
        let rate = self.config.rate.unwrap_or_else(|| nic.line_rate());
        let bytes = match self.config.hold {
            Hold::Message => 1,
            Hold::Bytes(bytes) => bytes,
            Hold::Auto => {
                let senders =
                    route.links.iter().map(|link| self.places[*link].config.senders.len());
                let share = ROTATION_NS / senders.max().unwrap_or(1) as u64;
                rate.bytes_in((route.handover_ns * HANDOVERS_PER_HOLD).min(share))
            }
        };
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
        let links = route.links.clone();
        let agreed = links.iter().map(|link| self.agree_quantum(*link, wanted)).max();
        // The excess of the last turn is subtracted, so that shares are fair in bytes.
        let route = &mut self.routes[at];
        route.quantum = i64::from(agreed.unwrap_or(wanted)) - route.overdraft;
        let bytes = u64::try_from(route.quantum).unwrap_or(0).max(1);
        let messages = if self.config.hold == Hold::Message { 1 } else { u32::MAX };
        let buffers = self.buffer_link(at).map_or(u32::MAX, |link| self.buffers(link));
        BacklogLimit { bytes, messages: messages.min(buffers) }
    }

    /// Returns the link whose token carries the receiver's buffers: the last on the path.
    fn buffer_link(&self, at: usize) -> Option<usize> {
        let Route { destination, links, .. } = &self.routes[at];
        let last = |link: &&usize| self.places[**link].config.witness == *destination;
        links.iter().find(last).copied().filter(|_| self.config.buffers)
    }

    /// Returns whether a message has left in part, and takes one of the receiver's buffers.
    fn has_begun(&self, nic: &Context<'_>, at: usize) -> bool {
        let rest = BacklogLimit { bytes: 1, messages: 0 };
        self.buffer_link(at).is_some() && nic.backlog(self.routes[at].destination, rest).is_some()
    }

    fn agree_quantum(&mut self, link: usize, wanted: u32) -> u32 {
        let link = self.places[link].link.as_mut();
        link.map_or(wanted, |link| link.agree_quantum(wanted))
    }

    fn buffers(&self, link: usize) -> u32 {
        self.places[link].link.as_ref().map_or(0, super::Link::buffers)
    }

    /// Continues to acquire tokens; lets messages through once all are here.
    pub(super) fn advance(&mut self, nic: &mut Context<'_>, at: usize) {
        let now = nic.now();
        let any = BacklogLimit { bytes: 1, messages: 1 };
        if nic.backlog(self.routes[at].destination, any).is_none() {
            self.abandon(nic, at);
            return;
        }
        // At most a quarter of a lease, so that a holder learns in time that it has lost its token.
        let quarter = nanos(self.config.lease) / 4;
        let cap = nic.line_rate().bytes_in(quarter);
        let until = now.plus_nanos(quarter);
        for link in self.routes[at].links.clone() {
            if !self.acquire(nic, at, link, until) {
                return;
            }
        }
        self.let_through(nic, at, cap);
    }

    /// Returns whether the route has the link's token, valid until `until`; if not, requests what is missing.
    fn acquire(&mut self, nic: &Context<'_>, at: usize, link: usize, until: Instant) -> bool {
        let now = nic.now();
        let place = &mut self.places[link];
        let Some(state) = &mut place.link else { return false };
        match place.user {
            Some(user) if user != at => return false,
            // The token arrived while another was missing, and its lease may have ended since.
            Some(_) if state.holds() => {
                state.want(now);
                let is_valid = state.validity().is_some_and(|(_, end)| end >= until);
                if is_valid {
                    // It may be a newer token, which replaced a void one.
                    state.start();
                } else if state.next_in_line() == Some(Party::WITNESS) {
                    // A supporter is down: the witness makes a token without it.
                    place.user = None;
                    state.release(now, true, now);
                }
                return is_valid;
            }
            _ => place.user = None,
        }
        state.want(now);
        if !state.is_ready(now, until, self.routes[at].start_latency_ns) {
            return false;
        }
        // A start that was delayed by other frames is no sample of the start latency.
        let line_is_free = nic.line_free_at() <= now;
        self.routes[at].granted =
            state.granted_at().filter(|granted| *granted == now && line_is_free);
        state.start();
        place.user = Some(at);
        true
    }

    fn let_through(&mut self, nic: &mut Context<'_>, at: usize, cap: u64) {
        let mut limit = self.limit(nic, at);
        let destination = self.routes[at].destination;
        let most = cap.max(nic.mtu_bytes_to(destination));
        // Messages that don't begin in this turn need no buffer yet.
        limit.bytes = limit.bytes.min(most);
        if self.has_begun(nic, at) {
            limit.messages = 0;
        }
        let buffers = self.buffer_link(at).and_then(|link| self.places[link].link.as_mut());
        let Some(backlog) = nic.backlog(destination, limit) else {
            // The tokens are here, but the receiver has no buffer.
            if let Some(link) = buffers {
                link.ask_buffers();
            }
            return;
        };
        let bytes = backlog.bytes.min(most);
        let mut messages = u32::MAX;
        if let Some(link) = buffers {
            messages = backlog.messages;
            link.consume(messages);
        }
        nic.allow_messages(destination, bytes, messages, self.valid_until(at));
        self.next_route = at + 1;
        let route = &mut self.routes[at];
        let taken = i64::try_from(bytes).unwrap_or(i64::MAX);
        route.overdraft = (taken - route.quantum).clamp(0, route.quantum.max(0) * 4);
        route.state = State::Sending;
    }

    /// Returns when the first lease of the route's tokens ends. Frames that control messages delay until then do not
    /// leave.
    fn valid_until(&self, at: usize) -> Instant {
        if planted::is(Bug::LeaseIgnored) {
            return Instant::FAR_FUTURE;
        }
        let links =
            self.routes[at].links.iter().filter_map(|link| self.places[*link].link.as_ref());
        let ends = links.filter_map(super::Link::validity).map(|(_, end)| end);
        ends.min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Handles the report that all messages let through are on the line, which they leave at `leaves`.
    pub(super) fn on_drained(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        begins: Instant,
        leaves: Instant,
    ) {
        let now = nic.now();
        let on_line = leaves.nanos_since(begins);
        if self.routes[at].state != State::Sending {
            // The bytes were sent ahead of the token.
            self.routes[at].debt += nic.line_rate().bytes_in(on_line);
            return;
        }
        let rate = self.config.rate.unwrap_or_else(|| nic.line_rate());
        let mut debt_ns = rate.nanos_for(self.routes[at].debt);
        let shared = self.routes[at].links.iter().any(|l| self.places[*l].config.senders.len() > 1);
        let unset = if shared { DEFAULT_RESERVE } else { 0 };
        let reserve = u64::from(self.config.reserve.unwrap_or(unset));
        let route = &mut self.routes[at];
        if let Some(granted) = route.granted.take() {
            // Bytes sent ahead filled the gap that the hand-over left.
            let gap = route.lead.handover().saturating_sub(route.lead.lead());
            debt_ns = debt_ns.saturating_sub(nanos(gap));
            let latency = begins.nanos_since(granted);
            route.start_latency_ns = match route.start_latency_ns {
                0 => latency,
                // Follows the fastest starts; slower ones raise it by a sixteenth of the difference.
                known => latency.min(known + (latency.saturating_sub(known)) / 16),
            };
        }
        let on_link = rate.nanos_for(nic.line_rate().bytes_in(on_line)).max(on_line);
        let used = on_link + on_link * reserve / 1000 + debt_ns;
        route.debt = 0;
        route.debt_at = now;
        route.paced_until = route.paced_until.max(begins).plus_nanos(used);
        route.state = State::Leaving { ends: route.paced_until.max(leaves) };
        let destination = route.destination;
        if let Some(link) = self.buffer_link(at).and_then(|link| self.places[link].link.as_mut()) {
            link.give_back(nic.services.transmit.allowed_messages(destination));
        }
        nic.allow(destination, 0, now);
        self.evaluate(nic, at);
    }

    /// Releases the tokens if that is due; otherwise sets the timeout.
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
            // No other sender waits: the next messages are let through before the line runs dry.
            Duration::from_millis(2)
        } else {
            route.lead.lead()
        };
        // Up to two control messages that were sent in between leave a gap, which queued frames fill.
        let passed = Duration::from_nanos(nic.frame_nanos(GRANT_BYTES) * 2);
        let due = ends + nic.line_lag().saturating_sub(passed) - early;
        if due <= now && self.has_begun(nic, at) {
            // The tokens stay until the message has left: it takes the buffer that the next holder may need.
            self.routes[at].alarm = None;
            nic.cancel_timeout(Route::timeout(at));
            self.routes[at].state = State::Acquiring;
            self.advance(nic, at);
        } else if due <= now {
            // A late timer delays the hand-over as a longer path would.
            let late = self.routes[at].alarm.take().map_or(0, |alarm| now.nanos_since(alarm));
            self.release(nic, at, more, late, due + early);
        } else {
            self.routes[at].alarm = Some(due);
            nic.set_timeout_at(Route::timeout(at), Service::Exact, due);
        }
    }

    /// Releases the tokens, and begins anew if there is more to send. `ends`: when the last bit leaves.
    fn release(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        more: bool,
        late_ns: u64,
        ends: Instant,
    ) {
        let now = nic.now();
        // With an adaptive lead, the next holder waits for the line; with a fixed one it does not.
        let last = if self.config.lead == Lead::Adaptive { ends } else { now };
        nic.cancel_timeout(Route::timeout(at));
        self.routes[at].state = State::Idle;
        for link in self.routes[at].links.clone().into_iter().rev() {
            let place = &mut self.places[link];
            place.user = None;
            let Some(state) = &mut place.link else { continue };
            let before = state.next_in_line();
            // Links are acquired in order, so only the first token is requested again: one held while waiting for an
            // earlier link would block others.
            let asks = more && self.routes[at].links.first() == Some(&link);
            if !state.release(now, asks, last)
                && let Some(next) = before.and_then(|party| place.node(party))
                && let Some(trip) = nic.round_trip(next)
            {
                let route = &mut self.routes[at];
                let latency = Duration::from_nanos(route.start_latency_ns + late_ns);
                let longer = nic.frame_nanos(GRANT_BYTES).saturating_sub(nic.frame_nanos(0));
                let longer = Duration::from_nanos(longer);
                // The lead must not exceed the fastest hand-over; the length of a hold follows the usual one. The first
                // round trip may include waiting for other work, so it is not used alone.
                if trip.variation * 2 < trip.smoothed {
                    // Jitter up to an eighth comes from waiting for a cell or two, and does not count.
                    let jitter = trip.variation.saturating_sub(trip.smoothed / 8);
                    let fastest = (trip.min + longer).saturating_sub(jitter) / 2;
                    route.lead.on_handover(fastest + latency);
                }
                let usual = nanos((trip.smoothed + longer) / 2 + latency);
                route.handover_ns = match route.handover_ns {
                    0 => usual,
                    known => (known * 7 + usual) / 8,
                };
            }
        }
        if !planted::is(Bug::RouteUnwoken) {
            self.wake_others(nic, at);
        }
        if more {
            self.begin(nic, at);
        }
    }

    /// Advances routes that waited for a link that this one used.
    fn wake_others(&mut self, nic: &mut Context<'_>, at: usize) {
        for other in self.in_turn() {
            if other != at && self.routes[other].state == State::Acquiring {
                self.advance(nic, other);
            }
        }
    }

    /// Returns all routes in turn, beginning after the one that sent last.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (next, routes) = (self.next_route, self.routes.len());
        (0..routes).map(move |step| (next + step) % routes)
    }

    /// Ends a round in which nothing is left to send.
    fn abandon(&mut self, nic: &mut Context<'_>, at: usize) {
        let now = nic.now();
        self.routes[at].state = State::Idle;
        nic.allow(self.routes[at].destination, 0, now);
        for link in self.routes[at].links.clone() {
            let place = &mut self.places[link];
            let Some(state) = &mut place.link else { continue };
            if place.user == Some(at) || place.user.is_none() && state.holds() {
                // A token that is not needed is passed to the next waiting sender.
                place.user = None;
                state.release(now, false, now);
            } else if place.user.is_none() {
                state.want_no_more();
            }
        }
        self.wake_others(nic, at);
    }
}
