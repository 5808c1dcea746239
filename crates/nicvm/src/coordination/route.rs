//! The way to one destination: acquires its links' tokens in order, lets messages through, and
//! gives the tokens back early enough.

use std::time::Duration;

use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::{Instant, LineRate, nanos};

use super::Coordination;
use super::config::{DEFAULT_RESERVE, Hold, Uncontrolled};
use super::lead::{Lead, LeadEstimator};
use crate::context::Context;
use crate::extension::TimeoutId;
use crate::timeout::Service;
use crate::transmit::BacklogLimit;

/// Hand-overs' time that a sender keeps the token for, with [`Hold::Auto`].
const HANDOVERS_PER_HOLD: u64 = 48;

/// Most nanoseconds in which the token goes round all senders of a link, with [`Hold::Auto`] and
/// messages that are short against their share of it.
const ROTATION_NS: u64 = 200_000_000;

/// Bytes of a grant with a few in line. What answers it has none: the way there takes longer.
pub(super) const GRANT_BYTES: usize = 78;

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
    /// Smoothed time that a hand-over takes.
    handover_ns: u64,
    /// Bytes sent without a token, or ahead of it, that were not made up for yet.
    debt: u64,
    debt_at: Instant,
    /// What this turn may send, and what the last one sent beyond it, in bytes.
    quantum: i64,
    overdraft: i64,
    /// What the timeout is set to.
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
            State::Idle => self.begin(nic, at),
            State::Acquiring => self.advance(nic, at),
            State::Leaving { .. } => self.evaluate(nic, at),
            State::Sending => {}
        }
    }

    /// Begins to acquire the tokens; what may go ahead of them goes.
    fn begin(&mut self, nic: &mut Context<'_>, at: usize) {
        self.routes[at].state = State::Acquiring;
        if self.config.ahead > 0 {
            let bytes = u64::from(self.config.ahead) + HEADER_BYTES as u64;
            nic.allow(self.routes[at].destination, bytes);
        }
        self.advance(nic, at);
    }

    /// What may be let through at once: the hold's quantum, what a lease allows, what the receiver
    /// has buffers for.
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
        // What passed the quantum last time is taken off: shares are fair in bytes.
        let route = &mut self.routes[at];
        route.quantum = i64::from(agreed.unwrap_or(wanted)) - route.overdraft;
        let bytes = u64::try_from(route.quantum).unwrap_or(0).max(1);
        let messages = if self.config.hold == Hold::Message { 1 } else { u32::MAX };
        let buffers = self.buffer_link(at).map_or(u32::MAX, |link| self.buffers(link));
        BacklogLimit { bytes, messages: messages.min(buffers) }
    }

    /// The link whose token carries the receiver's buffers: the last on the way.
    fn buffer_link(&self, at: usize) -> Option<usize> {
        let Route { destination, links, .. } = &self.routes[at];
        let last = |link: &&usize| self.places[**link].config.witness == *destination;
        links.iter().find(last).copied().filter(|_| self.config.buffers)
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
            if !self.acquire(nic, at, link, until) {
                return;
            }
        }
        self.let_through(nic, at, cap);
    }

    /// Whether the route has the link's token, valid until `until`; asks for what it takes if not.
    fn acquire(&mut self, nic: &Context<'_>, at: usize, link: usize, until: Instant) -> bool {
        let now = nic.now();
        let place = &mut self.places[link];
        let Some(state) = &mut place.link else { return false };
        match place.user {
            Some(user) if user != at => return false,
            // It came while another token was missing, and may have lapsed since.
            Some(_) if state.holds() => {
                return state.validity().is_some_and(|(_, end)| end >= until);
            }
            _ => place.user = None,
        }
        state.want(now);
        if !state.is_ready(now, until, self.routes[at].start_latency_ns) {
            return false;
        }
        // A start that had to wait for something else tells nothing of hand-overs.
        let line_is_free = nic.line_free_at() <= now;
        self.routes[at].granted =
            state.granted_at().filter(|granted| *granted == now && line_is_free);
        state.start();
        place.user = Some(at);
        true
    }

    fn let_through(&mut self, nic: &mut Context<'_>, at: usize, cap: u64) {
        let limit = self.limit(nic, at);
        let destination = self.routes[at].destination;
        let buffers = self.buffer_link(at).and_then(|link| self.places[link].link.as_mut());
        let Some(backlog) = nic.backlog(destination, limit) else {
            // The tokens are here, but no buffer of the receiver.
            if let Some(link) = buffers {
                link.ask_buffers();
            }
            return;
        };
        let bytes = backlog.bytes.min(cap.max(nic.mtu_bytes_to(destination)));
        if let Some(link) = buffers {
            link.consume(backlog.messages);
        }
        nic.allow(destination, bytes);
        self.next_route = at + 1;
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
        let now = nic.now();
        let on_line = leaves.nanos_since(begins);
        if self.routes[at].state != State::Sending {
            // It went ahead of the token.
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
            // What went ahead filled the gap that the hand-over left.
            let gap = route.lead.handover().saturating_sub(route.lead.lead());
            debt_ns = debt_ns.saturating_sub(nanos(gap));
            let latency = begins.nanos_since(granted);
            route.start_latency_ns = match route.start_latency_ns {
                0 => latency,
                // What the fastest starts take, which slower ones raise but slowly.
                known => latency.min(known + (latency.saturating_sub(known)) / 16),
            };
        }
        let on_link = rate.nanos_for(nic.line_rate().bytes_in(on_line)).max(on_line);
        let used = on_link + on_link * reserve / 1000 + debt_ns;
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
        // A control message or two that passed leave a hole behind, which what is queued fills.
        let passed = Duration::from_nanos(nic.frame_nanos(GRANT_BYTES) * 2);
        let due = ends + nic.line_lag().saturating_sub(passed) - early;
        if due <= now {
            // A timer that is late delays the hand-over as a long way does.
            let late = self.routes[at].alarm.take().map_or(0, |alarm| now.nanos_since(alarm));
            self.give_back(nic, at, more, late, due + early);
        } else {
            self.routes[at].alarm = Some(due);
            nic.set_timeout_at(Route::timeout(at), Service::Exact, due);
        }
    }

    /// Gives the tokens back, and begins anew if there is more to send. `ends`: when the last bit
    /// leaves.
    fn give_back(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        more: bool,
        late_ns: u64,
        ends: Instant,
    ) {
        let now = nic.now();
        // Where the lead is steered, who is next waits for the line. A fixed one is what it is.
        let last = if self.config.lead == Lead::Steered { ends } else { now };
        nic.cancel_timeout(Route::timeout(at));
        self.routes[at].state = State::Idle;
        for link in self.routes[at].links.clone().into_iter().rev() {
            let place = &mut self.places[link];
            place.user = None;
            let Some(state) = &mut place.link else { continue };
            let before = state.next_in_line();
            // Links are asked for in order: a token that waits for one before it is in the way.
            let asks = more && self.routes[at].links.first() == Some(&link);
            if !state.release(now, asks, last)
                && let Some(next) = before.and_then(|party| place.node(party))
                && let Some(trip) = nic.round_trip(next)
            {
                let route = &mut self.routes[at];
                let latency = Duration::from_nanos(route.start_latency_ns + late_ns);
                let longer = nic.frame_nanos(GRANT_BYTES).saturating_sub(nic.frame_nanos(0));
                let longer = Duration::from_nanos(longer);
                // The lead must not be longer than the fastest hand-over; a hold is as long as
                // usual ones make worth while.
                // The first round trip may have waited for much else: it alone tells nothing.
                if trip.variation * 2 < trip.smoothed {
                    // An eighth is what waiting for a cell or two makes.
                    let jitter = trip.variation.saturating_sub(trip.smoothed / 8);
                    let fastest = (trip.least + longer).saturating_sub(jitter) / 2;
                    route.lead.on_handover(fastest + latency);
                }
                let usual = nanos((trip.smoothed + longer) / 2 + latency);
                route.handover_ns = match route.handover_ns {
                    0 => usual,
                    known => (known * 7 + usual) / 8,
                };
            }
        }
        self.wake_others(nic, at);
        if more {
            self.begin(nic, at);
        }
    }

    /// Routes that waited for a link that this one used may go on.
    fn wake_others(&mut self, nic: &mut Context<'_>, at: usize) {
        for other in self.in_turn() {
            if other != at && self.routes[other].state == State::Acquiring {
                self.advance(nic, other);
            }
        }
    }

    /// All routes, the one after the last that sent first: each has its turn at a link of several.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (next, routes) = (self.next_route, self.routes.len());
        (0..routes).map(move |step| (next + step) % routes)
    }

    /// There is nothing to send any more, whatever was asked for.
    fn abandon(&mut self, nic: &mut Context<'_>, at: usize) {
        let now = nic.now();
        self.routes[at].state = State::Idle;
        nic.allow(self.routes[at].destination, 0);
        for link in self.routes[at].links.clone() {
            let place = &mut self.places[link];
            let Some(state) = &mut place.link else { continue };
            if place.user == Some(at) || place.user.is_none() && state.holds() {
                // A token that has come for nothing goes on to whoever waits for it.
                place.user = None;
                state.release(now, false, now);
            } else if place.user.is_none() {
                state.want_no_more();
            }
        }
        self.wake_others(nic, at);
    }
}
