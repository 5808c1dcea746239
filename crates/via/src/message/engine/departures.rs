//! Departing packets: messages in their order, answers, and data packets of rendezvous messages.

use bytes::Bytes;

use super::any_carrier::AnyCarrier;
use super::config::{MAX_WITHDRAWALS, planned_eager};
use super::flows::Class;
use super::peer::Link;
use super::{Arrived, Core, Counters, ENTRY, WhenFull};
use crate::message::carrier::{Carrier as _, Refusal};
use crate::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};
use crate::message::matching::Key;
use crate::message::request::{Failure, Mode, Operation, Request, State, Status};

/// Most data packets of rendezvous messages sent to one process in a turn.
const PARTS: usize = 8;

/// The destination of a message, and its mode.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) mode: Mode,
    pub(super) to: Peer,
    pub(super) context: Context,
    pub(super) tag: Tag,
}

impl Route {
    pub(super) fn of(operation: Operation) -> Option<Self> {
        let Operation::Send { mode, to, context, tag } = operation else { return None };
        Some(Self { mode, to, context, tag })
    }

    const fn marks(self) -> Marks {
        match self.mode {
            Mode::Standard => Marks::NONE,
            Mode::Buffered => Marks::BUFFERED,
            Mode::Synchronous => Marks::SYNCHRONOUS,
            Mode::Ready => Marks::READY,
        }
    }
}

/// The result of an attempt to send a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Attempt {
    /// The message was sent. If `answered`, the receiver will answer it; otherwise the send is done.
    Left {
        answered: bool,
    },
    NotNow,
    Failed(Failure),
}

impl Core {
    /// Sends a message now, if nothing is queued before it; returns `false` if the caller must queue it.
    #[inline]
    pub(super) fn send_at_once(
        &mut self,
        carrier: &mut AnyCarrier,
        request: Request,
        route: Route,
        bytes: &[u8],
    ) -> bool {
        if !self.leaves_whole(carrier, route, bytes.len()) {
            return false;
        }
        let message = (bytes.len(), bytes);
        let attempt = self.attempt(carrier, request.to_handle(), route, message);
        self.conclude(request, self.sent(route, bytes.len()), attempt)
    }

    /// Sends a message without a request; returns `None` if it can't be sent now or needs an answer.
    #[inline]
    pub(super) fn send_alone(
        &mut self,
        carrier: &mut AnyCarrier,
        route: Route,
        bytes: &[u8],
    ) -> Option<(Status, Result<(), Failure>)> {
        let alone = matches!(route.mode, Mode::Standard | Mode::Ready);
        if !alone || !self.leaves_whole(carrier, route, bytes.len()) {
            return None;
        }
        match self.attempt(carrier, 0, route, (bytes.len(), bytes)) {
            Attempt::Left { .. } => Some((self.sent(route, bytes.len()), Ok(()))),
            Attempt::NotNow => None,
            Attempt::Failed(failure) => Some((Status::default(), Err(failure))),
        }
    }

    /// Returns whether a message can be sent whole, with nothing queued before it.
    #[inline]
    fn leaves_whole(&self, carrier: &AnyCarrier, route: Route, length: usize) -> bool {
        self.link(route.to).is_some_and(|link| {
            self.is_short(carrier, route.to, length)
                && link.known
                && link.has_window(self.class(route), ENTRY + length)
                && link.sends.is_empty()
                && !link.hinted.holds(self.class(route))
                && route.to != self.own
        })
    }

    /// Returns whether one more copy of a message takes less time than a handshake.
    #[inline]
    pub(super) fn is_short(&self, carrier: &AnyCarrier, to: Peer, length: usize) -> bool {
        let is_planned = |to| length <= planned_eager(carrier.latency(to));
        length <= self.always_eager || length <= self.eager && to != self.own && is_planned(to)
    }

    const fn sent(&self, route: Route, length: usize) -> Status {
        Status { source: self.own, tag: route.tag, length }
    }

    /// Applies an attempt's result to its request; returns `false` if the attempt must be repeated.
    #[inline]
    fn conclude(&mut self, request: Request, sent: Status, attempt: Attempt) -> bool {
        match attempt {
            Attempt::NotNow => return false,
            Attempt::Left { answered: false } => self.complete(request, sent, Ok(())),
            Attempt::Left { answered: true } => {
                if let Some(record) = self.requests.get_mut(request) {
                    record.state = State::Active;
                    record.status = sent;
                }
            }
            Attempt::Failed(failure) => self.complete(request, Status::default(), Err(failure)),
        }
        true
    }

    pub(super) fn queue_send(&mut self, request: Request, to: Peer, bytes: Bytes) {
        if let Some(record) = self.requests.get_mut(request) {
            record.state = State::Waiting;
            record.bytes = bytes;
        }
        if let Some(link) = self.link_mut(to) {
            link.sends.push_back(request);
        }
        self.list(to);
    }

    /// Attempts to send a message of `length` bytes. `bytes` is empty if the message is in registered memory.
    #[inline]
    fn attempt(
        &mut self,
        carrier: &mut AnyCarrier,
        handle: u64,
        route: Route,
        (length, bytes): (usize, &[u8]),
    ) -> Attempt {
        let Some(link) = self.links.get(route.to.0 as usize) else { return Attempt::NotNow };
        let is_short = bytes.len() == length && self.is_short(carrier, route.to, length);
        let kind = match self.form(link, route, (length, is_short)) {
            Ok(kind) => kind,
            Err(attempt) => return attempt,
        };
        let fits = kind == Kind::Eager;
        let answered = !fits || route.mode == Mode::Synchronous;
        let envelope = Envelope {
            length: u32::try_from(length).expect("at most MAX_LENGTH"),
            tag: route.tag,
            kind,
            marks: route.marks(),
            source: self.own,
            context: route.context,
            sequence: if kind.is_matched() { link.next_out } else { 0 },
            to: 0,
            from: if answered { handle } else { 0 },
        };
        let payload = if fits { bytes } else { &[] };
        match self.post(carrier, route.to, &envelope, payload) {
            Ok(()) => {}
            Err(Refusal::Full) => return Attempt::NotNow,
            Err(Refusal::Lost) => {
                self.link_mut(route.to).expect("links are never removed").refused = true;
                return Attempt::Failed(Failure::PeerLost(route.to));
            }
        }
        self.count_departure(fits, is_short);
        let class = self.class(route);
        let link = self.link_mut(route.to).expect("links are never removed");
        if kind == Kind::Hint {
            link.hinted.insert(Request::from_handle(handle), route.context, route.tag);
        } else {
            let charge = Arrived::charge(kind, envelope.length);
            link.next_out = link.next_out.wrapping_add(1);
            link.charged += u64::from(charge);
            link.flows.take(class, charge);
        }
        Attempt::Left { answered }
    }

    /// Returns the class of a message. Messages of one class keep their order.
    #[inline]
    fn class(&self, route: Route) -> Class {
        let by_tag = !self.by_tag.is_empty() && self.by_tag.contains(&route.context);
        Class { context: route.context, tag: by_tag.then_some(route.tag) }
    }

    /// Decides how a message is sent: whole, by RTS, or by hint. No message overtakes one of its class that waits
    /// here.
    #[inline]
    fn form(
        &self,
        link: &Link,
        route: Route,
        (length, short): (usize, bool),
    ) -> Result<Kind, Attempt> {
        if link.lost {
            return Err(Attempt::Failed(Failure::PeerLost(route.to)));
        }
        if !link.open {
            return Err(Attempt::NotNow);
        }
        let full = !link.has_window(self.class(route), ENTRY + length);
        let key = Key { context: route.context, source: self.own, tag: route.tag };
        let refuses = self.config.when_full == WhenFull::Refuse && route.mode != Mode::Ready;
        if short && full && refuses && !key.is_notice() && !route.context.is_recovery() {
            return Err(Attempt::Failed(Failure::Refused(route.to)));
        }
        if !link.hinted.holds(self.class(route)) {
            if short && !full {
                return Ok(Kind::Eager);
            }
            let by_rts = !short || self.config.when_full == WhenFull::Rendezvous;
            if by_rts && link.has_window(self.class(route), ENTRY) {
                return Ok(Kind::Rts);
            }
        }
        // The receiver assumes that a hint was sent after every answer that it follows.
        if link.answers.is_empty() { Ok(Kind::Hint) } else { Err(Attempt::NotNow) }
    }

    #[inline]
    const fn count_departure(&mut self, fits: bool, short: bool) {
        let Counters { eager, rendezvous, demoted, .. } = &mut self.counters;
        match (fits, short) {
            (true, _) => *eager += 1,
            (false, true) => *demoted += 1,
            (false, false) => *rendezvous += 1,
        }
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        carrier: &mut AnyCarrier,
        to: Peer,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if to == self.own {
            self.to_self.push_back((*envelope, Bytes::copy_from_slice(payload)));
            return Ok(());
        }
        carrier.post(to, envelope, payload)
    }

    /// Queues an answer to a packet of `to`.
    pub(super) fn answer(
        &mut self,
        to: Peer,
        kind: Kind,
        marks: Marks,
        handles: (u64, u64),
        length: u32,
    ) {
        let envelope = Envelope {
            length,
            tag: Tag(0),
            kind,
            marks,
            source: self.own,
            context: Context(0),
            sequence: 0,
            to: handles.0,
            from: handles.1,
        };
        self.push_answer(to, envelope);
    }

    /// Queues a packet that is sent before any message to the same process.
    pub(super) fn push_answer(&mut self, to: Peer, envelope: Envelope) {
        if let Some(link) = self.link_mut(to).filter(|link| !link.lost) {
            link.owed += usize::from(is_owed(envelope.kind));
            link.noticed += usize::from(is_to_notice(&envelope));
            link.answers.push_back(envelope);
            self.list(to);
        }
    }

    /// Asks the receiver to return a message that waits for its CTS or its acknowledgement.
    pub(super) fn withdraw(&mut self, send: Request) {
        let operation = self.requests.get(send).map(|record| record.operation);
        let Some(Operation::Send { to, .. }) = operation else { return };
        let Some(link) = self.link_mut(to) else { return };
        if link.withdrawing >= MAX_WITHDRAWALS {
            return link.withdrawals.push_back(send);
        }
        link.withdrawing += 1;
        self.ask_back(send);
    }

    /// Sends the next queued withdrawal, after one was answered.
    pub(super) fn next_withdrawal(&mut self, peer: Peer) {
        while let Some(send) = self.link_mut(peer).and_then(|link| link.withdrawals.pop_front()) {
            let record = self.requests.get(send);
            let waits = record.is_some_and(|record| record.state == State::Active);
            let met = self.link(peer).is_some_and(|l| l.streams.iter().any(|s| s.send == send));
            if waits && !met {
                return self.withdraw(send);
            }
        }
    }

    fn ask_back(&mut self, send: Request) {
        let Some(record) = self.requests.get(send) else { return };
        let Operation::Send { to, context, tag, .. } = record.operation else { return };
        let envelope = Envelope {
            length: 0,
            tag,
            kind: Kind::Withdraw,
            marks: Marks::NONE,
            source: self.own,
            context,
            sequence: 0,
            to: 0,
            from: send.to_handle(),
        };
        if let Some(link) = self.link_mut(to) {
            link.hinted.set_cancelling(send, true);
        }
        self.push_answer(to, envelope);
    }

    /// Returns the room that a message occupied to its sender's window.
    #[inline]
    pub(super) fn free(&mut self, key: Key, charge: u32) {
        if charge == 0 {
            return;
        }
        let limit = self.limits.stream;
        let Some(link) = self.link_mut(key.source) else { return };
        link.freed += u64::from(charge);
        link.unreported.add(key.context, key.tag, charge, limit);
        // Stored messages may stay for ever: report credit before the rest of the window is used up.
        let (unused, free) = (link.granted() - link.arrived, link.freed - link.reported);
        link.unreported.due |= free >= unused;
        if link.unreported.due {
            self.list(key.source);
        }
    }

    /// Reports all free room, however little, to a process whose window is exhausted.
    pub(super) fn report_all_credit(&mut self, peer: Peer) {
        let Some(link) = self.link_mut(peer) else { return };
        if !link.unreported.is_empty() {
            link.unreported.due = true;
            self.list(peer);
        }
    }

    /// Sends a process its credit; returns `false` if the carrier has no room for a packet.
    fn send_credit(&mut self, carrier: &mut AnyCarrier, peer: Peer) -> bool {
        let limits = self.limits;
        let mut packet = std::mem::take(&mut self.scratch);
        while let Some(link) = self.link(peer).filter(|link| link.owes_credit()) {
            let (count, sum) = link.unreported.emit(carrier.room(), &mut packet);
            let envelope = Envelope {
                length: packet.len() as u32,
                tag: Tag(0),
                kind: Kind::Credit,
                marks: Marks::NONE,
                source: self.own,
                context: Context(0),
                sequence: 0,
                to: link.granted() + sum,
                from: limits.to_word(),
            };
            if self.post(carrier, peer, &envelope, &packet) == Err(Refusal::Full) {
                self.scratch = packet;
                return false;
            }
            let link = self.link_mut(peer).expect("links are never removed");
            link.greeted = true;
            link.reported += sum;
            link.unreported.reported(count);
        }
        self.scratch = packet;
        true
    }

    /// Sends all packets that can be sent now; returns whether more could be sent in another turn.
    pub(super) fn flush(&mut self, carrier: &mut AnyCarrier) -> bool {
        let mut at = 0;
        let mut more = false;
        while at < self.busy.len() {
            let peer = self.busy[at];
            more |= self.flush_link(carrier, peer);
            let idle = self.link(peer).is_none_or(Link::is_idle);
            if idle {
                if let Some(link) = self.link_mut(peer) {
                    link.listed = false;
                }
                self.busy.swap_remove(at);
                self.requests.note_move();
            } else {
                at += 1;
            }
        }
        more
    }

    fn flush_link(&mut self, carrier: &mut AnyCarrier, peer: Peer) -> bool {
        while let Some(envelope) = self.link(peer).and_then(|link| link.answers.front().copied()) {
            if envelope.kind == Kind::Cts && peer != self.own {
                self.offer_memory(carrier, peer, envelope.from);
            }
            if self.post(carrier, peer, &envelope, &[]) == Err(Refusal::Full) {
                return false;
            }
            let link = self.link_mut(peer).expect("links are never removed");
            link.answers.pop_front();
            link.owed -= usize::from(is_owed(envelope.kind));
            link.noticed -= usize::from(is_to_notice(&envelope));
        }
        if !self.send_credit(carrier, peer) {
            return false;
        }
        while let Some(send) = self.link(peer).and_then(|link| link.sends.front().copied()) {
            let record = self.requests.get(send).filter(|record| record.state == State::Waiting);
            let Some((route, length, bytes)) = record.and_then(|record| {
                let route = Route::of(record.operation)?;
                Some((route, record.message_bytes(), record.bytes.clone()))
            }) else {
                self.link_mut(peer).expect("links are never removed").sends.pop_front();
                continue;
            };
            let attempt = self.attempt(carrier, send.to_handle(), route, (length, &bytes));
            if !self.conclude(send, self.sent(route, length), attempt) {
                break;
            }
            self.link_mut(peer).expect("links are never removed").sends.pop_front();
        }
        for _ in 0..PARTS {
            let Some(stream) = self.link_mut(peer).and_then(|link| link.streams.pop_front()) else {
                return false;
            };
            if !self.send_part(carrier, peer, stream) {
                return false;
            }
        }
        self.link(peer).is_some_and(|link| !link.streams.is_empty())
    }

    /// Returns whether another process may wait for a packet that only this one can send.
    pub(super) fn owes_answers(&self) -> bool {
        self.requests.iter().any(|(_, record)| {
            matches!(record.operation, Operation::Send { .. })
                && record.state != State::Done
                && record.state != State::Built
        }) || !self.to_self.is_empty()
    }
}

/// Returns whether a packet answers a question that its receiver may repeat without limit.
const fn is_owed(kind: Kind) -> bool {
    matches!(kind, Kind::Withdrawn | Kind::Sought)
}

/// Returns whether a packet is the CTS for a notice, which no receive matches.
const fn is_to_notice(envelope: &Envelope) -> bool {
    matches!(envelope.kind, Kind::Cts) && envelope.from == 0
}

impl Arrived {
    /// Returns the bytes of its sender's window that a message occupies.
    pub(super) const fn charge(kind: Kind, length: u32) -> u32 {
        match kind {
            // A peer may claim any length: the sum saturates beyond any window.
            Kind::Eager => (ENTRY as u32).saturating_add(length),
            _ => ENTRY as u32,
        }
    }
}
