//! Handles datagrams and timeouts.

use std::ops::Range;

use midplane_simhw::time::Instant;

use super::body::{Acknowledgement, Body};
use super::config::{Ended, RefuseReason, reason};
use super::congestion::{Acked, Lost};
use super::loss::{Kind, Sent};
use super::packet::{
    Accept, HEADER_BYTES, PLAIN_HEADER_BYTES, Packet, VERSION, data_receiver, plain_payload,
};
use super::{CONFIRM_DIAL, CONFIRM_LATE, CONFIRM_OPEN, FIRST_WINDOW, Pipe, UnconfirmedEnd};
use crate::wire::buffer::Buffer;

/// Most packets that are remembered because an older one is neither acknowledged nor lost. A peer that acknowledges nothing
/// reaches it by having acknowledgements sent to it.
const MAX_TRACKED: usize = 1 << 18;

/// The packet is malformed, forged, or was received before.
struct Bad;

impl Pipe {
    /// Handles a datagram of the peer. An invalid one is dropped and counted.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &mut [u8]) {
        self.handle(now, datagram, None);
    }

    /// Handles the datagrams in the range `rest` of a buffer, up to the first one that is not for this connection; each
    /// has `stride` bytes, except the last. Returns where it has stopped. Keeps the buffer instead of copying its bytes
    /// if they are many, and leaves another buffer in its place.
    pub(crate) fn handle_buffer(
        &mut self,
        now: Instant,
        buffer: &mut Buffer,
        rest: Range<usize>,
        stride: usize,
    ) -> usize {
        let (begin, end) = (rest.start, rest.end);
        let mut at = begin;
        while at < end {
            let run = self.handle_run(now, buffer, at..end, stride);
            if run > 0 {
                at += run;
                continue;
            }
            let datagram = &mut buffer[at..end.min(at + stride)];
            if at > begin && data_receiver(datagram) != Some(self.local) {
                break;
            }
            let bytes = datagram.len();
            self.handle(now, datagram, Some(at));
            at += bytes;
        }
        self.receive.end_buffer(buffer, at == end);
        at
    }

    /// Handles the packets at the beginning of `rest` that carry the next bytes and nothing else, as those of a long
    /// stream do. Returns the bytes of their datagrams; 0 if there are none.
    fn handle_run(
        &mut self,
        now: Instant,
        buffer: &Buffer,
        rest: Range<usize>,
        stride: usize,
    ) -> usize {
        let is_plain = self.seal.is_none() && self.is_established() && self.peer_end.is_none();
        if !is_plain || self.receive.has_gap() {
            return 0;
        }
        let (first, from) = (self.acks.end(), self.receive.in_order());
        let (mut number, mut at, mut longest) = (first, rest.start, 0);
        while at < rest.end && number < u64::MAX {
            let datagram = &buffer[at..rest.end.min(at + stride)];
            let offset = self.receive.in_order();
            let Some(payload) = plain_payload(datagram, self.local, number, offset) else { break };
            let start = Some(at + PLAIN_HEADER_BYTES);
            // A packet that is refused, or has no new bytes, is handled on its own.
            if self.receive.insert(offset, payload, start) != Ok(true) {
                break;
            }
            longest = longest.max(payload.len());
            number += 1;
            at += datagram.len();
        }
        if number > first {
            self.now = now;
            let bytes = (self.receive.in_order() - from) as usize;
            self.acks.on_received(now, first..number, (bytes, longest), true);
            self.has_progress = true;
            self.on_used();
            self.on_heard();
            self.check_tracked();
            self.counted.packets_received += number - first;
        }
        at - rest.start
    }

    /// Handles a datagram, which may be at `start` of a buffer.
    fn handle(&mut self, now: Instant, datagram: &mut [u8], start: Option<usize>) {
        self.now = now;
        let handled = match Packet::parse(datagram) {
            Some(Packet::Data { receiver, number }) if receiver == self.local => {
                self.handle_data(number, &mut datagram[HEADER_BYTES..], start)
            }
            Some(Packet::Accept(accept)) if accept.dialer == self.local => {
                self.handle_accept(accept)
            }
            Some(Packet::Cookie { dialer, cookie }) if dialer == self.local => {
                self.handle_cookie(cookie)
            }
            Some(Packet::Reset { unknown }) if unknown == self.remote => self.handle_reset(),
            Some(Packet::Refuse { dialer, reason, version }) if dialer == self.local => {
                self.handle_refuse(reason, version)
            }
            _ => Err(Bad),
        };
        match handled {
            Ok(()) => self.counted.packets_received += 1,
            Err(Bad) => self.counted.dropped += 1,
        }
    }

    fn handle_accept(&mut self, accept: Accept<'_>) -> Result<(), Bad> {
        let mut dialing = self.dialing.take().ok_or(Bad)?;
        if let Some(offers) = &mut dialing.offers {
            self.seal = offers.finish(accept.acceptor, accept.cipher, accept.noise);
            if self.seal.is_none() {
                self.dialing = Some(dialing);
                return Err(Bad);
            }
        }
        self.remote = accept.acceptor;
        self.peer_socket_bytes = accept.socket_bytes;
        self.on_first_window(accept.first_window);
        if !self.peer_requests {
            self.receive.presume(FIRST_WINDOW);
        }
        self.heard_at = self.now;
        self.unconfirmed_end = None;
        // The ping proves the dialer's address to the acceptor.
        self.is_ping_due = true;
        self.has_progress = true;
        Ok(())
    }

    fn handle_cookie(&mut self, cookie: [u8; super::COOKIE_BYTES]) -> Result<(), Bad> {
        let now = self.now;
        let dialing = self.dialing.as_mut().ok_or(Bad)?;
        if dialing.cookie == cookie || now < dialing.cookie_at {
            return Err(Bad);
        }
        dialing.cookie = cookie;
        dialing.cookie_at = now.plus_nanos(dialing.again_after);
        dialing.at = now;
        Ok(())
    }

    fn handle_reset(&mut self) -> Result<(), Bad> {
        if self.dialing.is_some() {
            return Err(Bad);
        }
        let is_closed = self.closing.is_some() && self.send.is_all_acknowledged();
        self.on_unauthenticated_end(if is_closed { Ended::Closed } else { Ended::Restarted });
        Ok(())
    }

    fn handle_refuse(&mut self, said: u8, version: u8) -> Result<(), Bad> {
        if self.dialing.is_none() {
            return Err(Bad);
        }
        self.on_unauthenticated_end(match said {
            _ if version != VERSION => Ended::Version(version),
            reason::VERSION => Ended::Version(version),
            reason::KEY => Ended::KeyMismatch,
            reason::FULL => Ended::Refused(RefuseReason::Full),
            other => Ended::Refused(RefuseReason::Other(other)),
        });
        Ok(())
    }

    /// Ends the connection; with a key, first waits for the peer itself, since this packet may be forged.
    fn on_unauthenticated_end(&mut self, end: Ended) {
        if self.config.key.is_none() {
            self.end(end);
        } else {
            self.end_unless_answered(end);
        }
    }

    /// Pings the peer, and ends the connection unless the peer answers in time.
    fn end_unless_answered(&mut self, end: Ended) {
        self.ping_once();
        let until = self.now.plus_nanos(self.confirm_within());
        self.unconfirmed_end.get_or_insert(UnconfirmedEnd { end, at: until, is_late: false });
    }

    /// Pings the peer once within the time that its answer may take: each ping to an exited process causes another
    /// report.
    fn ping_once(&mut self) {
        if self.pinged_until <= self.now {
            self.pinged_until = self.now.plus_nanos(self.confirm_within());
            self.is_ping_due = true;
        }
    }

    /// Returns the nanoseconds in which the peer itself must answer a ping.
    fn confirm_within(&self) -> u64 {
        if self.dialing.is_some() {
            return CONFIRM_DIAL;
        }
        (5 * self.loss.round_trip()).clamp(CONFIRM_OPEN.0, CONFIRM_OPEN.1)
    }

    /// Handles a network report that no process receives at the peer's address. The report may be forged, so
    /// the peer is pinged. A dial, and any connection if the report certainly concerns it, ends unless the peer
    /// answers soon.
    pub(crate) fn handle_unreachable(&mut self, now: Instant, is_certain: bool) {
        self.now = now;
        self.ping_once();
        if is_certain || self.dialing.is_some() {
            self.end_unless_answered(Ended::Unreachable);
        }
    }

    fn end(&mut self, end: Ended) {
        self.ended.get_or_insert(end);
    }

    fn handle_data(
        &mut self,
        number: u64,
        body: &mut [u8],
        start: Option<usize>,
    ) -> Result<(), Bad> {
        if self.dialing.is_some() || self.acks.has_received(number) {
            return Err(Bad);
        }
        let plain = match &mut self.seal {
            Some(seal) => seal.open(number, body).ok_or(Bad)?,
            None => body,
        };
        self.handle_body(number, plain, start.map(|start| start + HEADER_BYTES))
    }

    /// Handles a body, which may be at `start` of a buffer.
    fn handle_body(&mut self, number: u64, plain: &[u8], start: Option<usize>) -> Result<(), Bad> {
        let body = Body::parse(plain).ok_or(Bad)?;
        let acknowledgement = body.acknowledgement.and_then(Acknowledgement::parse);
        if acknowledgement.as_ref().is_some_and(|(ack, _)| !self.loss.is_sound(ack.ranges())) {
            return Err(Bad);
        }
        if let Some((offset, bytes)) = body.bytes {
            let ends_before = |end: u64| offset + bytes.len() as u64 <= end;
            if self.peer_end.or(body.close).is_some_and(|end| !ends_before(end)) {
                return Err(Bad);
            }
            // The bytes are the last field.
            let start = start.map(|start| start + plain.len() - bytes.len());
            self.has_progress |= self.receive.insert(offset, bytes, start).map_err(|_| Bad)?;
            self.on_used();
        }
        self.wanted = self.wanted.max(body.ask.unwrap_or(0));
        let now = self.now;
        let data_bytes = body.bytes.map_or(0, |(_, bytes)| bytes.len());
        self.acks.on_received(
            now,
            number..number + 1,
            (data_bytes, data_bytes),
            body.asks_for_acknowledgement(),
        );
        if self.receive.has_gap() && body.bytes.is_some() {
            self.acks.make_due(now);
        }
        self.on_heard();
        if let Some((acknowledgement, _)) = &acknowledgement {
            self.handle_acknowledgement(acknowledgement);
        }
        self.check_tracked();
        if let Some(end) = body.close {
            self.acks.make_due(now);
            if end >= self.receive.in_order() {
                self.peer_end.get_or_insert(end);
            }
        }
        if self.peer_end == Some(self.receive.in_order()) {
            self.acks.make_due(now);
            self.has_progress = true;
            self.end(Ended::ClosedByPeer);
        }
        Ok(())
    }

    fn check_tracked(&mut self) {
        if self.loss.tracked() > MAX_TRACKED {
            self.end(Ended::Lost);
        }
    }

    fn on_heard(&mut self) {
        self.heard_at = self.now;
        self.unconfirmed_end = None;
        self.pinged_until = self.now;
        self.keepalive_at = self.now.plus_nanos(self.config.keepalive);
        if self.accept.take().is_some() {
            self.has_progress = true;
        }
    }

    fn handle_acknowledgement(&mut self, acknowledgement: &Acknowledgement) {
        self.peer_window = self.peer_window.max(acknowledgement.window);
        let delay = 1_000 * u64::from(acknowledgement.delay_micros);
        let used = self.loss.in_flight();
        let mut outcome = std::mem::take(&mut self.outcome);
        self.loss.handle_acknowledged(self.now, acknowledgement.ranges(), delay, &mut outcome);
        // A window used by half will limit soon: acknowledgements arrive in batches.
        let is_window_limited = self.is_window_limited || 2 * used >= self.law.window();
        let (mut bytes, mut newest) = (0..0, 0);
        for sent in outcome.acked.drain(..) {
            // Most packets carry the bytes behind those of the packet before.
            if sent.from == bytes.end {
                bytes.end = bytes.end.max(sent.to);
            } else if sent.from < sent.to {
                self.on_bytes_acked(std::mem::replace(&mut bytes, sent.from..sent.to));
            }
            newest = newest.max(sent.acknowledged);
            self.on_acked(&sent, is_window_limited);
        }
        self.on_bytes_acked(bytes);
        self.acks.on_acknowledged(newest);
        let is_closed = self.closing.is_some_and(|closing| closing.is_acknowledged);
        if is_closed && self.send.is_all_acknowledged() {
            self.end(Ended::Closed);
        }
        self.on_lost(&outcome.lost);
        outcome.lost.clear();
        self.outcome = outcome;
    }

    fn on_bytes_acked(&mut self, bytes: Range<u64>) {
        if !bytes.is_empty() {
            self.has_progress |= self.send.on_acknowledged(bytes.start, bytes.end);
            self.on_used();
        }
    }

    fn on_acked(&mut self, sent: &Sent, is_window_limited: bool) {
        match sent.kind {
            Kind::Probe(number) => {
                self.discovery.handle_probed(self.now, number);
                self.on_mtu();
            }
            Kind::Close => {
                if let Some(closing) = &mut self.closing {
                    closing.is_acknowledged = true;
                }
            }
            Kind::Plain | Kind::Settled => {}
        }
        if sent.bytes > 0 {
            let acked = Acked {
                number: sent.number,
                sent: sent.at,
                bytes: u64::from(sent.bytes),
                is_window_limited,
                round_trip: self.loss.round_trip(),
                latest_round_trip: self.loss.latest_round_trip(),
                waited: self.loss.waited(),
                min_round_trip: self.loss.min_round_trip(),
            };
            self.law.on_acked(self.now, acked);
        }
    }

    fn on_lost(&mut self, lost: &[Sent]) {
        let mut span: Option<(Instant, Instant)> = None;
        for sent in lost {
            self.send.on_lost(sent.from, sent.to);
            if sent.kind == Kind::Close
                && let Some(closing) = &mut self.closing
            {
                closing.is_due = true;
            }
            if sent.bytes > 0 {
                self.counted.packets_lost += 1;
                span = Some((span.map_or(sent.at, |(first, _)| first), sent.at));
            }
        }
        let is_news = |sent: &Sent| sent.bytes > 0 && (sent.from == sent.to || sent.has_window);
        if span.is_some() && (self.receive.is_limited() || lost.iter().any(is_news)) {
            self.repeat_window();
        }
        if let Some((first, last)) = span {
            self.requested = 0;
            let is_persistent = last.nanos_since(first) > 3 * self.loss.timeout();
            for sent in lost.iter().filter(|sent| sent.bytes > 0) {
                let (number, bytes) = (sent.number, sent.bytes.into());
                let lost = Lost { number, sent: sent.at, bytes, is_persistent };
                self.law.on_lost(self.now, lost);
            }
        }
    }

    /// Sends the window again: the packet that carried it may have been lost.
    fn repeat_window(&mut self) {
        self.receive.repeat_update();
        self.acks.make_due(self.now);
    }

    fn on_mtu(&mut self) {
        let usable = self.discovery.usable();
        if usable != self.mtu {
            self.mtu = usable;
            self.law.on_mtu(usable);
        }
    }

    /// Handles the system's refusal of datagrams of `bytes` and more, which exceed its interface's MTU.
    pub fn handle_refused(&mut self, now: Instant, bytes: usize) {
        self.now = now;
        self.discovery.handle_refused(now, bytes);
        self.on_mtu();
    }

    /// Handles the timeouts that are due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.ended.is_some() {
            return;
        }
        if let Some(unconfirmed) = &mut self.unconfirmed_end
            && unconfirmed.at <= now
        {
            let late = unconfirmed.at.plus_nanos(CONFIRM_LATE);
            if unconfirmed.is_late || now <= late {
                let end = unconfirmed.end;
                return self.end(end);
            }
            (unconfirmed.at, unconfirmed.is_late) = (now.plus_nanos(CONFIRM_LATE), true);
        }
        if let Some(dialing) = &self.dialing {
            if dialing.give_up <= now {
                self.end(Ended::NoAnswer);
            }
            return;
        }
        if self.idle_at() <= now {
            return self.end(Ended::Lost);
        }
        if self.closing.is_some_and(|closing| closing.give_up <= now) {
            return self.end(Ended::CloseTimedOut);
        }
        if self.paced_until <= now {
            self.paced_until = Instant::FAR_FUTURE;
        }
        if self.keepalive_at <= now {
            self.keepalive_at = now.plus_nanos(self.config.keepalive);
            self.is_ping_due = true;
        }
        if self.trim_at <= now {
            self.trim();
        }
        self.discovery.handle_timeout(now);
        self.on_mtu();
        self.handle_loss_timeout();
    }

    fn handle_loss_timeout(&mut self) {
        let mut outcome = std::mem::take(&mut self.outcome);
        let is_silent = self.loss.handle_timeout(self.now, &mut outcome);
        self.on_lost(&outcome.lost);
        outcome.lost.clear();
        self.outcome = outcome;
        if !is_silent {
            return;
        }
        self.probes = 2;
        self.requested = 0;
        if self.receive.is_limited() || self.loss.oldest().is_none() {
            self.repeat_window();
        }
        match self.loss.oldest() {
            // The oldest bytes are sent again: the peer needs them first.
            Some(sent) => self.send.on_lost(sent.from, sent.to),
            None => self.is_ping_due = true,
        }
        if let Some(closing) = &mut self.closing {
            closing.is_due = true;
        }
    }
}
