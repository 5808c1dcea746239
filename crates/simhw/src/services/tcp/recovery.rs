//! Resends lost segments as soon as Linux does.
//!
//! `smoltcp` resends one lost segment of a window at once, and all others after a timeout of at least 1 s. Linux
//! resends each lost segment of a window within a round trip. It probes for a lost tail after two round trips (RFC
//! 8985, section 7), and its timeout is at least 200 ms (`TCP_RTO_MIN`). A [`Recovery`] observes the packets of a
//! connection. Where Linux would resend, it returns duplicate acknowledgements, which make `smoltcp` resend the first
//! missing segment.

use std::time::Duration;

use super::packet::{ACK, FIN, RST, SYN};
use crate::time::Instant;

/// Acknowledgements after which `smoltcp` resends: one that resets its count, and three duplicates.
pub(super) const ACKNOWLEDGEMENTS: usize = 4;

/// The least retransmission timeout of Linux.
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
/// Time that Linux adds to two round trips before it probes.
const PROBE_MARGIN: Duration = Duration::from_millis(2);
/// Most times that the timeout doubles.
const DOUBLINGS: u32 = 9;
/// Bytes of the headers of IP and of TCP, without options.
const HEADERS: usize = 40;

/// The fields of a packet that concern sequence numbers.
struct Fields {
    sequence: u32,
    /// The sequence number after the packet.
    end: u32,
    acknowledged: Option<u32>,
    is_empty: bool,
    has_fin: bool,
}

impl Fields {
    fn of(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let (sequence, acknowledged, flags) = (word(24)?, word(28)?, *packet.get(33)?);
        let headers = 20 + usize::from(*packet.get(32)? >> 4) * 4;
        let length = packet.len().saturating_sub(headers) as u32;
        let length = length + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let acknowledges = flags & (ACK | SYN | RST) == ACK;
        Some(Self {
            sequence,
            end: sequence.wrapping_add(length),
            acknowledged: acknowledges.then_some(acknowledged),
            is_empty: length == 0,
            has_fin: flags & FIN != 0,
        })
    }
}

/// Returns whether a sequence number is after another one.
const fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// Tracks the losses of a connection's sending direction.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The first unacknowledged sequence number, and the one after the last that was sent; `None` before the first.
    flight: Option<(u32, u32)>,
    /// The sequence number of FIN, once FIN was sent.
    fin: Option<u32>,
    duplicates: u32,
    /// The sequence number after the last that had been sent when a loss was found, until it is acknowledged.
    recovering: Option<u32>,
    /// The segment whose round trip is measured: its end, and when it was sent.
    timed: Option<(u32, Instant)>,
    round_trip: Option<Duration>,
    /// When the last segment was acknowledged, or the last probe was sent.
    since: Instant,
    probes: u32,
    /// The headers of the last acknowledgement.
    last: Option<[u8; HEADERS]>,
    /// The sequence number after the last that was received.
    received: u32,
}

impl Recovery {
    /// Records a packet that the connection sends.
    pub(super) fn on_sent(&mut self, now: Instant, packet: &[u8]) {
        let Some(fields) = Fields::of(packet).filter(|fields| !fields.is_empty) else { return };
        let (acked, sent) = *self.flight.get_or_insert((fields.sequence, fields.sequence));
        if acked == sent {
            self.since = now;
        }
        if fields.has_fin {
            self.fin = Some(fields.end.wrapping_sub(1));
        }
        if is_after(fields.end, sent) {
            self.flight = Some((acked, fields.end));
            self.timed.get_or_insert((fields.end, now));
        }
    }

    /// Records a packet that the connection has received; returns whether a further lost segment must be resent.
    pub(super) fn on_received(&mut self, now: Instant, packet: &[u8]) -> bool {
        let Some(fields) = Fields::of(packet) else { return false };
        let (Some(acknowledged), Some((acked, sent))) = (fields.acknowledged, self.flight) else {
            return false;
        };
        if self.last.is_none() || is_after(fields.end, self.received) {
            self.received = fields.end;
        }
        self.last = packet.first_chunk().copied();
        if is_after(acknowledged, sent) || is_after(acked, acknowledged) || acked == sent {
            return false;
        }
        if acknowledged == acked {
            self.duplicates += u32::from(fields.is_empty);
            if self.duplicates == 3 && self.recovering.is_none() {
                self.recovering = Some(sent);
            }
            return false;
        }
        self.flight = Some((acknowledged, sent));
        self.measure(now, acknowledged);
        (self.since, self.probes, self.duplicates) = (now, 0, 0);
        match self.recovering {
            Some(until) if is_after(until, acknowledged) => !self.is_only_fin(),
            _ => {
                self.recovering = None;
                false
            }
        }
    }

    /// Measures the round trip, except while segments are resent (Karn's algorithm).
    fn measure(&mut self, now: Instant, acknowledged: u32) {
        match self.timed {
            Some((end, _)) if is_after(end, acknowledged) && self.recovering.is_none() => {}
            timed => {
                if let (Some((_, sent)), None) = (timed, self.recovering) {
                    let (sample, smoothed) = (now.since(sent), self.round_trip);
                    self.round_trip = Some(smoothed.map_or(sample, |it| (it * 7 + sample) / 8));
                }
                self.timed = None;
            }
        }
    }

    /// Returns whether only FIN is unacknowledged. Duplicate acknowledgements would then stop `smoltcp`'s timer without
    /// resending a segment.
    fn is_only_fin(&self) -> bool {
        self.fin.is_some() && self.flight.map(|(acked, _)| acked) == self.fin
    }

    /// Returns when the connection must resend unless an acknowledgement arrives before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let (acked, sent) = self.flight?;
        let (round_trip, _) = (self.round_trip?, self.last?);
        let wait = match self.probes {
            _ if acked == sent || self.is_only_fin() => return None,
            0 => round_trip * 2 + PROBE_MARGIN,
            probes => (round_trip + LEAST_TIMEOUT) * (1 << (probes - 1).min(DOUBLINGS)),
        };
        Some(self.since + wait)
    }

    /// Returns whether the connection must resend now.
    pub(super) fn on_time(&mut self, now: Instant) -> bool {
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        if is_due {
            self.since = now;
            self.probes += 1;
            self.recovering = self.flight.map(|(_, sent)| sent);
        }
        is_due
    }

    /// Returns a copy of the peer's last acknowledgement; [`ACKNOWLEDGEMENTS`] of them make `smoltcp` resend. `None` if
    /// the peer's window is closed.
    pub(super) fn acknowledgement(&self) -> Option<[u8; HEADERS]> {
        let (mut packet, (acked, _)) = (self.last?, self.flight?);
        let window = u16::from_be_bytes([packet[34], packet[35]]);
        packet[2..4].copy_from_slice(&(HEADERS as u16).to_be_bytes());
        packet[24..28].copy_from_slice(&self.received.to_be_bytes());
        packet[28..32].copy_from_slice(&acked.to_be_bytes());
        packet[32] = 5 << 4;
        packet[33] = ACK;
        // The window differs from the peer's last one, so that the first copy does not count as a duplicate.
        packet[34..36].copy_from_slice(&window.checked_sub(1)?.to_be_bytes());
        Some(packet)
    }
}
