//! One link, at one of its senders: the paper's token protocol (section 4.2), extended to survive holders that crash or
//! are disconnected.
//!
//! ```text
//!            want                    GRANT_LINK
//!  Away ------------> Requested ------------------> Held --start--> Busy
//!    ^                                                |   <-release--  |
//!    +---------------- GRANT_LINK to the next --------+----------------+
//! ```

mod granting;
mod keeping;
mod leaving;

use std::collections::VecDeque;

use midplane_simhw::id::Incarnation;
use midplane_simhw::time::Instant;

use super::lease::Lease;
use super::member::{Parties, Party};
use super::message::{Body, Epoch, Grant};
use crate::planted::{self, Bug};

/// The token, while it is held here.
#[derive(Debug)]
struct Token {
    queue: VecDeque<Party>,
    buffers: u32,
    consumed: u32,
    quantum: u32,
    busy: bool,
}

/// A request that is not granted yet.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// When it was last sent.
    sent: Instant,
    /// The number of repetitions without effect.
    tries: u32,
}

/// A link's messages to other parties.
pub(crate) type Outbox = VecDeque<(Party, Body)>;

/// Counts one link's messages and tokens at one sender.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkCounters {
    /// Tokens received.
    pub grants: u64,
    /// Control messages sent, of any kind.
    pub control_messages: u64,
    /// Control messages sent that ask for support, or give it.
    pub lease_messages: u64,
    /// Tokens given up as lost.
    pub recoveries: u64,
}

/// The parameters of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSetup {
    pub(crate) me: Party,
    pub(crate) senders: usize,
    pub(crate) lease_ns: u64,
    pub(crate) request_timeout_ns: u64,
    /// True if all nodes start together, so that the first sender has the token.
    pub(crate) genesis: bool,
    /// The end of the time in which a restarted sender supports no epoch: its former incarnation may have given one up.
    pub(crate) quiet_until: Instant,
}

/// One link, at one of its senders.
#[derive(Debug)]
pub(crate) struct Link {
    setup: LinkSetup,
    all: Parties,
    epoch: Epoch,
    live: Parties,
    token: Option<Token>,
    suspected: Option<Party>,
    /// Other senders that want the token, in the order in which this sender learned of them.
    waiting: VecDeque<Party>,
    /// Senders that another party named as waiting, in its order; they queue behind those of the next grant.
    named: VecDeque<Party>,
    request: Option<Request>,
    /// The newest epoch given up; this sender supports neither it nor earlier ones.
    given_up: Epoch,
    lease: Lease,
    wants: bool,
    /// When the token arrived.
    granted: Option<Instant>,
    /// When the previous holder's last bit leaves; that holder released the token early.
    before_us: Instant,
    /// Nanoseconds between letting a message through and its first bit.
    early_ns: u64,
    /// When our own last bit leaves.
    our_last: Instant,
    /// The last token granted to another sender, and that sender; `None` once another token arrives.
    given: Option<(Party, Grant)>,
    given_before: u32,
    /// For each sender, the number of its last grant that arrived.
    taken: Vec<u32>,
    /// For each sender that did not answer and has sent nothing since: when that was noticed.
    silent_since: Vec<Option<Instant>>,
    /// All senders except those that have left. An epoch still has these as members if the witness learned of their
    /// departure too late.
    present: Parties,
    /// True once this sender has left.
    left: bool,
    outbox: Outbox,
    counters: LinkCounters,
}

impl Link {
    pub(crate) fn new(setup: LinkSetup) -> Self {
        let all = Parties::first(setup.senders);
        let first = setup.genesis && setup.me == Party(0);
        let token =
            Token { queue: VecDeque::new(), buffers: 0, consumed: 0, quantum: 0, busy: false };
        Self {
            setup,
            all,
            epoch: if setup.genesis { Epoch::GENESIS } else { Epoch::default() },
            live: all,
            token: first.then_some(token),
            suspected: setup.genesis.then_some(Party(0)),
            waiting: VecDeque::new(),
            named: VecDeque::new(),
            request: None,
            given_up: Epoch::default(),
            lease: Lease::new(setup.lease_ns),
            wants: false,
            granted: None,
            before_us: Instant::ZERO,
            early_ns: 0,
            our_last: Instant::ZERO,
            given: None,
            given_before: 0,
            taken: vec![0; setup.senders],
            silent_since: vec![None; setup.senders],
            present: all,
            left: false,
            outbox: VecDeque::new(),
            counters: LinkCounters::default(),
        }
    }

    // ---- calls of the extension ----

    /// Notes that there are messages to send, and requests the token if it is not here.
    pub(crate) fn want(&mut self, now: Instant) {
        self.wants = true;
        if self.token.is_none() && self.request.is_none() {
            self.request_token(now, 0);
        } else if self.token.is_some() {
            self.keep_lease(now);
        }
    }

    /// Notes that nothing is left to send.
    pub(crate) fn want_no_more(&mut self) {
        self.wants = false;
    }

    /// Returns whether messages may be sent: the token is here, not in use, valid until `until`, and the line is done
    /// with the previous holder's messages. Asks for support if the lease ends soon. `early_ns`: nanoseconds between
    /// this call and the first bit.
    pub(crate) fn is_ready(&mut self, now: Instant, until: Instant, early_ns: u64) -> bool {
        self.early_ns = early_ns;
        if self.token.as_ref().is_none_or(|token| token.busy) {
            return false;
        }
        self.keep_lease(now);
        let valid = self.lease.valid_until(self.epoch) >= until || planted::is(Bug::LeaseIgnored);
        valid && now >= self.line_due()
    }

    /// Marks the token as in use: it stays until [`Link::release`].
    pub(crate) fn start(&mut self) {
        if let Some(token) = &mut self.token {
            token.busy = true;
        }
    }

    /// Ends the use of the token, and passes it to the next sender in line, if there is one. `more`: there is more to
    /// send. `last`: when the last bit sent leaves. Returns whether the token stayed.
    pub(crate) fn release(&mut self, now: Instant, more: bool, last: Instant) -> bool {
        self.wants = more;
        self.our_last = last;
        let Some(token) = &mut self.token else { return false };
        token.busy = false;
        if self.pass_on(now) {
            return false;
        }
        if !more {
            self.broadcast_hint();
        }
        true
    }

    /// Returns how many more messages the receiver has buffers for.
    pub(crate) fn buffers(&self) -> u32 {
        self.token.as_ref().map_or(0, |token| ahead_of(token.buffers, token.consumed))
    }

    /// Notes that `messages` are sent into the receiver's buffers.
    pub(crate) fn consume(&mut self, messages: u32) {
        if let Some(token) = &mut self.token {
            token.consumed = token.consumed.wrapping_add(messages);
        }
    }

    /// Notes that `messages` of those that the token in use was charged for are not sent. A token that has replaced it
    /// meanwhile is not in use.
    pub(crate) fn give_back(&mut self, messages: u32) {
        if let Some(token) = self.token.as_mut().filter(|token| token.busy) {
            token.consumed = token.consumed.wrapping_sub(messages);
        }
    }

    /// Returns the bytes that each holder sends while others wait: the largest number that a sender asks for, which
    /// decreases a little with each turn while all ask for less.
    pub(crate) fn agree_quantum(&mut self, wanted: u32) -> u32 {
        let Some(token) = &mut self.token else { return wanted };
        // The step is divided by the senders, so that it applies to a whole round. Else senders later in the round
        // would get less.
        let step = (token.quantum / (32 * self.setup.senders as u32)).max(1);
        token.quantum = wanted.max(token.quantum.saturating_sub(step));
        token.quantum
    }

    /// Requests buffers from the receiver.
    pub(crate) fn ask_buffers(&mut self) {
        if let Some(token) = &self.token {
            let (epoch, consumed) = (self.epoch, token.consumed);
            self.send(Party::WITNESS, Body::NeedBuffers { epoch, consumed });
        }
    }

    /// Returns the later of the token's arrival and the line's availability; once for each arrival.
    pub(crate) fn granted_at(&mut self) -> Option<Instant> {
        let due = self.line_due();
        self.granted.take().map(|granted| granted.max(due))
    }

    /// Returns the earliest instant at which a message may be let through to follow the previous holder's.
    const fn line_due(&self) -> Instant {
        Instant::from_nanos(self.before_us.as_nanos().saturating_sub(self.early_ns))
    }

    /// Returns whether other senders wait for the token, as far as is known here.
    pub(crate) fn has_waiters(&self) -> bool {
        self.next_in_line().is_some()
    }

    /// Returns the party to which the token would be granted.
    pub(crate) fn next_in_line(&self) -> Option<Party> {
        let queued = self.token.iter().flat_map(|token| &token.queue);
        let me = self.setup.me;
        queued
            .chain(&self.waiting)
            .copied()
            .find(|party| *party != me && (self.live.contains(*party) || *party == Party::WITNESS))
    }

    pub(crate) const fn holds(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the epoch of the token and until when it is valid, if it is here.
    pub(crate) fn validity(&self) -> Option<(Epoch, Instant)> {
        self.token.as_ref().map(|_| (self.epoch, self.lease.valid_until(self.epoch)))
    }

    pub(crate) const fn counters(&self) -> LinkCounters {
        self.counters
    }

    // ---- events from other parties ----

    /// Handles a message of another party, whose clock showed `clock` when it was sent; it took at least `trip_ns`.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        from: Party,
        clock: u64,
        trip_ns: u64,
        body: Body,
    ) {
        if self.left {
            return;
        }
        self.lease.on_clock(now, from, clock);
        self.note_silence(from, None);
        self.present = self.present.with(from);
        match body {
            Body::UniReqLink { epoch, requesters } => {
                self.learn_epoch(now, epoch, None, None);
                for requester in requesters {
                    if self.token.is_none() && requester != from {
                        self.on_named(requester);
                    } else {
                        self.on_request(requester, from, true);
                    }
                }
                self.grant_if_free(now);
            }
            Body::BcastReqLink { epoch, requester } => {
                self.learn_epoch(now, epoch, None, None);
                self.on_request(requester, from, false);
                self.grant_if_free(now);
            }
            Body::GrantLink(grant) => {
                let last = clock.saturating_add(u64::from(grant.line_busy_ns));
                let theirs = self.lease.clock_of(now, from).unwrap_or(clock);
                let theirs = theirs.saturating_add(trip_ns);
                if let Some(taken) = self.taken.get_mut(usize::from(from.0)) {
                    *taken = grant.number;
                }
                self.on_grant(now, grant, now.plus_nanos(last.saturating_sub(theirs)));
            }
            Body::OwnLinkHint { epoch, holder, live } => {
                // A holder knows the members better than any other sender.
                let knows_less = from != Party::WITNESS && self.holds() && epoch == self.epoch;
                self.learn_epoch(now, epoch, Some(holder), (!knows_less).then_some(live));
            }
            Body::AskSupport { epoch, round } => self.on_ask(now, from, epoch, round),
            Body::Support { epoch, round } => self.lease.on_support(from, epoch, round),
            Body::AddBuffers { epoch, limit } => {
                if let Some(token) = self.token.as_mut().filter(|_| epoch == self.epoch) {
                    token.buffers = token.buffers.wrapping_add(ahead_of(limit, token.buffers));
                }
            }
            // Only the witness makes epochs.
            Body::GiveUp { epoch } if from == Party::WITNESS => self.on_give_up(now, epoch),
            Body::Leave { taken, .. } => self.on_leave(now, from, taken),
            // These are from the witness, or for it.
            Body::GiveUp { .. } | Body::RecoverLink { .. } | Body::NeedBuffers { .. } => {}
        }
    }

    /// Handles a peer that no longer answers, or that has restarted and lost its state.
    pub(crate) fn on_lost(&mut self, now: Instant, party: Party, restarted: bool) {
        // Its new incarnation does not know which grants the former one took.
        self.given.take_if(|(to, _)| *to == party);
        self.forget_request(party);
        if restarted {
            self.lease.forget_clock(party);
        }
        self.note_silence(party, (!restarted).then_some(now));
        let concerns = if restarted {
            // This applies even if the token is not wanted here: the former incarnation may have been the last to know
            // of it.
            self.token.is_none() && self.suspected == Some(party)
        } else {
            self.live.contains(party) && (self.request.is_some() || self.needs_lease())
        };
        if concerns && party != Party::WITNESS {
            self.recover(now, if restarted { None } else { Some(party) });
        }
    }

    /// Handles the witness's incarnation. Tokens that a former incarnation made are void: this one neither supports
    /// them nor has promised their buffers.
    pub(crate) fn on_witness(&mut self, now: Instant, incarnation: Incarnation) {
        let base = Epoch::base(incarnation);
        let known = self.epoch > Epoch::default() && self.epoch < base && self.given_up < base;
        // No witness made the genesis token, so the first incarnation supports it.
        if known && incarnation != Incarnation::FIRST && !self.left {
            self.on_give_up(now, base);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Some(request) = self.request
            && now >= self.retry_at(request)
        {
            if request.tries == 0 {
                self.suspected = None;
                self.request_token(now, 1);
            } else {
                self.request = Some(Request { sent: now, tries: request.tries + 1 });
                self.recover(now, None);
            }
        }
        if self.needs_lease() {
            self.keep_lease(now);
        }
    }

    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let retry = self.request.map(|request| self.retry_at(request));
        let lease = self.needs_lease().then(|| self.lease.next_check(self.epoch));
        let due = self.line_due();
        let line = (self.wants && self.holds() && due > now).then_some(due);
        [retry, lease, line].into_iter().flatten().min()
    }

    pub(crate) fn poll_send(&mut self) -> Option<(Party, Body)> {
        self.outbox.pop_front()
    }

    // ---- the protocol ----

    fn retry_at(&self, request: Request) -> Instant {
        // Back off, so that a partitioned cluster is not flooded with repeated requests.
        let request_timeout =
            self.setup.request_timeout_ns.saturating_mul(1 << request.tries.min(4));
        request.sent.plus_nanos(request_timeout)
    }

    fn send(&mut self, to: Party, body: Body) {
        self.counters.control_messages += 1;
        if matches!(body, Body::AskSupport { .. } | Body::Support { .. }) {
            self.counters.lease_messages += 1;
        }
        self.outbox.push_back((to, body));
    }

    fn broadcast(&mut self, body: &Body, except: Option<Party>) {
        let others = self.all.without(self.setup.me);
        for party in others.iter().filter(|party| Some(*party) != except) {
            self.send(party, body.clone());
        }
    }

    /// Records an epoch that another party names; a newer one voids the token of the present one.
    fn learn_epoch(
        &mut self,
        now: Instant,
        epoch: Epoch,
        holder: Option<Party>,
        live: Option<Parties>,
    ) {
        if epoch < self.epoch || epoch <= self.given_up {
            return;
        }
        let newer = epoch > self.epoch;
        if newer {
            self.epoch = epoch;
            self.token = None;
            self.suspected = None;
            // Every sender counts as a member until a party that knows the members names them. An excluded sender asks
            // the witness until it is asked for support.
            let me = self.setup.me;
            let any = if self.live.contains(me) { self.all } else { self.all.without(me) };
            self.live = live.unwrap_or(any);
        } else if let Some(live) = live {
            self.live = self.live.and(live);
        }
        if let Some(holder) = holder
            && self.token.is_none()
        {
            self.suspected = Some(holder);
            self.waiting.retain(|party| *party != holder);
        }
        if newer && self.wants && self.token.is_none() {
            self.request_token(now, 0);
        }
    }
}

/// Returns by how much `count` is ahead of `other`; 0 if it is not. Counts of messages wrap around.
pub(super) const fn ahead_of(count: u32, other: u32) -> u32 {
    let ahead = count.wrapping_sub(other);
    if ahead as i32 > 0 { ahead } else { 0 }
}
