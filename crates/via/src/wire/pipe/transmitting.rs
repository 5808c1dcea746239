//! Transmission: trains of packets, as far as window and pacer allow.

use midplane_simhw::time::Instant;

use super::body::{FIELDS_BYTES, flag};
use super::congestion::Sending;
use super::loss::{Kind, Sent};
use super::pacing::Pace;
use super::packet::{
    Dial, HEADER_BYTES, PLAIN_HEADER_BYTES, TAG_BYTES, VERSION, emit_header, plain_header,
};
use super::sealing::Cipher;
use super::{DIAL_AGAIN, Ended, Pipe, Transmit};

/// Most bytes of datagrams in one train.
const TRAIN_BYTES: usize = 65_000;
/// Most bytes of a datagram in a train of several: each must fit an Ethernet packet.
const SEGMENT_BYTES: usize = 1_472;
/// Least room for bytes of the pipe in a packet, after all its other fields.
const MIN_ROOM: usize = 64;
/// Least bytes of a payload that is left out of its packet's buffer: a socket sends it from the send buffer.
const LARGE: u64 = 16 << 10;
/// Round-trip time in nanoseconds below which the peer counts as being on this host.
const SAME_HOST: u64 = 1_000_000;

impl Pipe {
    /// Appends the next datagrams to `out`, at most `most_segments`. All have the same length, except the last,
    /// which may be shorter.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        most_segments: usize,
    ) -> Option<Transmit> {
        let transmit = self.poll_transmit_apart(now, out, most_segments);
        self.parts().into_iter().for_each(|part| out.extend_from_slice(part));
        transmit
    }

    /// Polls as [`Pipe::poll_transmit`] does, but leaves out the payload of a single long datagram:
    /// [`Pipe::parts`] returns it.
    pub(crate) fn poll_transmit_apart(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        most_segments: usize,
    ) -> Option<Transmit> {
        self.now = now;
        self.left_out = None;
        let begin = out.len();
        let segment_bytes = self.poll_train(out, most_segments)?;
        Some(Transmit { bytes: out.len() - begin + self.left_out_bytes(), segment_bytes })
    }

    /// Returns the rest of the datagram that was polled last.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        self.left_out.map_or([&[], &[]], |range| self.send.parts(range))
    }

    fn left_out_bytes(&self) -> usize {
        self.left_out.map_or(0, |(from, to)| (to - from) as usize)
    }

    fn poll_train(&mut self, out: &mut Vec<u8>, most_segments: usize) -> Option<usize> {
        if self.ended.is_some() {
            // A peer that has closed still waits for the acknowledgement of its close.
            let owes = self.ended == Some(Ended::ClosedByPeer) && self.acks.is_due(self.now);
            return if owes { self.emit_packet(out, self.mtu, false) } else { None };
        }
        if self.dialing.is_some() {
            return self.emit_dial(out);
        }
        if let Some((accept, is_due)) = &mut self.accept {
            let emitted = is_due.then(|| accept.len());
            if *is_due {
                out.extend_from_slice(accept);
                *is_due = false;
            }
            return emitted;
        }
        if let Some((number, bytes)) = self.discovery.poll_transmit(self.now) {
            return Some(self.emit_probe(out, number, bytes));
        }
        self.emit_train(out, most_segments)
    }

    fn emit_dial(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let (now, local) = (self.now, self.local);
        let dialing = self.dialing.as_mut().filter(|dialing| dialing.at <= now)?;
        dialing.at = now.plus_nanos(dialing.again_after);
        dialing.again_after = (2 * dialing.again_after).min(DIAL_AGAIN.1);
        let messages = dialing.offers.as_ref().map(|offers| &offers.messages);
        let dial = Dial {
            version: VERSION,
            sealed: messages.is_some(),
            first_window: Some(self.receive.advertised() as u32),
            dialer: local,
            cookie: dialing.cookie,
            socket_bytes: self.config.socket_bytes,
            noise: messages.map_or(&[], |[shared, _]| shared),
            identified: messages.map_or(&[], |[_, identified]| identified),
            cipher: self.config.secrets().map_or(Cipher::ChaCha, |secrets| secrets.cipher),
        };
        let begin = out.len();
        dial.emit(out);
        Some(out.len() - begin)
    }

    /// Returns the bytes that may be in flight, for a peer on this host at most what its system's buffer holds.
    pub(super) fn window(&self) -> u64 {
        let window = self.law.window();
        if self.loss.min_round_trip() < SAME_HOST {
            window.min((self.peer_socket_bytes / 2).max(2 * self.mtu as u64))
        } else {
            window
        }
    }

    /// Returns the rate at which packets are sent.
    fn pace(&self) -> Pace {
        let of_window = || Pace::of_window(self.window(), self.loss.round_trip());
        self.law.rate().map_or_else(of_window, Pace::of_rate)
    }

    fn emit_train(&mut self, out: &mut Vec<u8>, most_segments: usize) -> Option<usize> {
        let (window, pace) = (self.window(), self.pace());
        self.pacer.fill(self.now, pace, self.mtu);
        self.paced_until = Instant::FAR_FUTURE;
        let begin = out.len();
        let (enough, unsent) = (self.most_unsent() / 2, self.send.unsent_bytes());
        let mut first = None;
        let most = if self.mtu > SEGMENT_BYTES { 1 } else { most_segments.max(1) };
        let mut count = 0;
        while count < most {
            let segment = first.unwrap_or(self.mtu);
            if out.len() - begin + segment > TRAIN_BYTES && first.is_some() {
                break;
            }
            let may_send =
                self.probes > 0 || (self.loss.in_flight() < window && self.pacer.has_room());
            if !may_send && (self.send.has_something(self.peer_window) || self.is_close_due()) {
                self.is_window_limited = window == self.law.window();
                if self.loss.in_flight() < window {
                    self.paced_until = self.pacer.ready_at(pace, self.mtu);
                }
            }
            let Some(bytes) = self.emit_packet(out, segment, may_send) else { break };
            first.get_or_insert(bytes);
            if bytes < segment || bytes < self.mtu {
                break;
            }
            count += 1;
            let room = TRAIN_BYTES.saturating_sub(out.len() - begin) / segment;
            count += self.emit_run(out, room.min(most - count), window);
        }
        // Writers that have waited may write again.
        self.has_progress |= unsent >= enough && self.send.unsent_bytes() < enough;
        first
    }

    /// Appends packets of full length that carry the next bytes and nothing else, unless something else is to be sent.
    /// Appends at most `most`, as far as window and pacer allow; returns how many.
    fn emit_run(&mut self, out: &mut Vec<u8>, most: usize, window: u64) -> usize {
        let is_plain = self.seal.is_none() && self.probes == 0 && !self.is_ping_due;
        let is_more_due = self.acks.is_wanted() || self.receive.is_update_due();
        if !is_plain || is_more_due || self.is_blocked() {
            return 0;
        }
        let (now, bytes) = (self.now, self.mtu as u32);
        let payload = (self.mtu - PLAIN_HEADER_BYTES) as u64;
        let mut count = 0;
        while count < most && self.loss.in_flight() < window && self.pacer.has_room() {
            let Some(from) = self.send.next_of_many(payload, self.peer_window) else { break };
            let (number, to) = (self.loss.next_number(), from + payload);
            out.extend_from_slice(&plain_header(self.remote, number, from));
            self.send.copy_to(from, to, out);
            self.loss.on_sent(Sent {
                number,
                at: now,
                bytes,
                from,
                to,
                acknowledged: 0,
                kind: Kind::Plain,
                has_window: false,
            });
            self.pacer.on_sent(self.mtu);
            let sending = Sending { number, bytes: bytes.into(), is_application_limited: false };
            self.law.on_sent(now, sending);
            count += 1;
        }
        self.counted.packets_sent += count as u64;
        count
    }

    /// Appends one packet of at most `most` bytes, if there is something to send; returns its length.
    fn emit_packet(&mut self, out: &mut Vec<u8>, most: usize, may_send: bool) -> Option<usize> {
        let now = self.now;
        let has_bytes = may_send && self.send.has_something(self.peer_window);
        if may_send && !has_bytes {
            self.is_window_limited = false;
        }
        let closes = may_send && self.is_close_due();
        let pings = self.is_ping_due || (self.probes > 0 && !has_bytes && self.loss.is_waiting());
        let asks = self.is_request_due();
        if !has_bytes && !closes && !pings && !asks && !self.acks.is_due(now) {
            self.probes = 0;
            return None;
        }
        // A window update needs an acknowledgement, so that it is sent again if lost.
        let pings = pings || self.receive.is_update_due();
        let number = self.loss.next_number();
        let begin = out.len();
        emit_header(self.remote, number, out);
        let tag = if self.seal.is_some() { TAG_BYTES } else { 0 };
        let most = most - HEADER_BYTES - tag;
        // While bytes are blocked, every packet that needs an acknowledgement requests a window for them.
        let asks = asks || (self.is_blocked() && (has_bytes || closes || pings));
        let what = Content { has_bytes, closes, pings, asks, most };
        let (advertised, is_due) = (self.receive.advertised(), self.receive.is_update_due());
        let carried = self.emit_body(out, what);
        let has_window =
            self.receive.advertised() > advertised || (is_due && !self.receive.is_update_due());
        if let Some(seal) = &mut self.seal {
            seal.seal(number, out, begin + HEADER_BYTES);
        }
        let bytes = out.len() - begin + self.left_out_bytes();
        let kind = match (closes, carried.range.is_some() || pings || asks) {
            (true, _) => Kind::Close,
            (false, true) => Kind::Plain,
            (false, false) => Kind::Settled,
        };
        self.on_sent(bytes, carried, (kind, has_window));
        Some(bytes)
    }

    /// Returns whether the close is the next thing to send.
    fn is_close_due(&self) -> bool {
        self.closing.is_some_and(|closing| closing.is_due) && self.send.is_all_sent()
    }

    /// Appends the body.
    fn emit_body(&mut self, out: &mut Vec<u8>, what: Content) -> Carried {
        let begin = out.len();
        let mut carried = Carried::default();
        out.push(0);
        let mut flags = 0;
        if self.acks.is_wanted() {
            let window = self.receive.advertise();
            if let Some(acknowledgement) = self.acks.take(self.now, window) {
                acknowledgement.emit(out);
                carried.acknowledged = acknowledgement.ranges()[0].1;
                flags |= flag::ACKNOWLEDGE;
            }
        }
        if what.closes {
            out.extend_from_slice(&self.send.written().to_le_bytes());
            flags |= flag::CLOSE;
        }
        if what.pings {
            flags |= flag::PING;
        }
        if what.asks {
            self.requested = self.send.written();
            out.extend_from_slice(&self.requested.to_le_bytes());
            flags |= flag::ASK;
        }
        let room = what.most.saturating_sub(out.len() - begin + 8);
        debug_assert!(what.most > FIELDS_BYTES + MIN_ROOM);
        let next = what.has_bytes.then(|| self.send.next(room, self.peer_window)).flatten();
        carried.range = next.map(|(from, to, is_again)| {
            if is_again {
                self.counted.bytes_retransmitted += to - from;
                carried.is_again = true;
            }
            out.extend_from_slice(&from.to_le_bytes());
            if self.seal.is_none() && self.mtu > SEGMENT_BYTES && to - from >= LARGE {
                self.left_out = Some((from, to));
            } else {
                self.send.copy_to(from, to, out);
            }
            flags |= flag::BYTES;
            (from, to)
        });
        out[begin] = flags;
        carried
    }

    fn on_sent(&mut self, bytes: usize, carried: Carried, (kind, has_window): (Kind, bool)) {
        let now = self.now;
        let Carried { range, is_again, acknowledged } = carried;
        let (from, to) = range.unwrap_or((0, 0));
        let counts = if kind == Kind::Settled { 0 } else { bytes as u32 };
        let number = self.loss.next_number();
        self.loss.on_sent(Sent {
            number,
            at: now,
            bytes: counts,
            from,
            to,
            acknowledged,
            kind,
            has_window,
        });
        self.counted.packets_sent += 1;
        if kind == Kind::Settled {
            return;
        }
        self.is_ping_due = false;
        self.probes = self.probes.saturating_sub(1);
        self.pacer.on_sent(bytes);
        let is_application_limited =
            !self.send.has_something(self.peer_window) && self.loss.in_flight() < self.law.window();
        let sending = Sending { number, bytes: bytes as u64, is_application_limited };
        self.law.on_sent(now, sending);
        if kind == Kind::Close
            && let Some(closing) = &mut self.closing
        {
            closing.is_due = false;
        }
        self.discovery.on_sent(now, bytes);
        if is_again {
            self.discovery.on_sent_again(now, bytes);
        }
    }

    /// Appends a probe of `bytes`, which tests whether the path carries datagrams of that size.
    fn emit_probe(&mut self, out: &mut Vec<u8>, probe: u32, bytes: usize) -> usize {
        let begin = out.len();
        let number = self.loss.next_number();
        emit_header(self.remote, number, out);
        out.push(flag::PROBE);
        let tag = if self.seal.is_some() { TAG_BYTES } else { 0 };
        out.resize(begin + bytes - tag, 0);
        if let Some(seal) = &mut self.seal {
            seal.seal(number, out, begin + HEADER_BYTES);
        }
        // Losing a probe that is too long says nothing about congestion, so it counts 0 bytes.
        let kind = Kind::Probe(probe);
        self.loss.on_sent(Sent {
            number,
            at: self.now,
            bytes: 0,
            from: 0,
            to: 0,
            acknowledged: 0,
            kind,
            has_window: false,
        });
        self.counted.packets_sent += 1;
        out.len() - begin
    }
}

/// The contents of a packet's body.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// The range of the pipe's bytes.
    range: Option<(u64, u64)>,
    /// True if these bytes were lost before.
    is_again: bool,
    /// One past the largest number that it acknowledges; 0 if it acknowledges none.
    acknowledged: u64,
}

/// The contents of a packet in addition to an acknowledgement, in at most `most` bytes.
#[derive(Clone, Copy, Debug)]
struct Content {
    has_bytes: bool,
    closes: bool,
    pings: bool,
    asks: bool,
    most: usize,
}
