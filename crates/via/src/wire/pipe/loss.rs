//! Packets in flight: round trips, losses and timeouts (RFC 9002).

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

/// Number of later packets acknowledged after which a packet counts as lost.
const PACKET_THRESHOLD: u64 = 3;
/// Least nanoseconds of a timer.
const GRANULARITY: u64 = 1_000_000;
/// Presumed round-trip time in nanoseconds before one was measured.
const FIRST_ROUND_TRIP: u64 = 100_000_000;
/// Most nanoseconds that a peer may delay an acknowledgement: its own delay, and its scheduler's.
const MAX_ACK_DELAY: u64 = 25_000_000;
/// Most nanoseconds between two probes, so that a path that works again is noticed soon.
const MAX_TIMEOUT: u64 = 2_000_000_000;

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) at: Instant,
    /// Bytes of the datagram if it counts as in flight, else 0.
    pub(super) bytes: u32,
    /// Range of the pipe's bytes that it carries; empty if both are equal.
    pub(super) from: u64,
    pub(super) to: u64,
    /// One past the largest number of the peer's that it acknowledges; 0 if it acknowledges none.
    pub(super) acknowledged: u64,
    pub(super) kind: Kind,
    /// True if it carries a larger window than all packets before it.
    pub(super) has_window: bool,
}

/// The purpose of a packet, beyond its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Acknowledged or lost, or needs no acknowledgement.
    Settled,
    /// Carries bytes, or requests an answer.
    Plain,
    /// Closes the pipe.
    Close,
    /// Probes the path's MTU.
    Probe(u32),
}

/// The result of an acknowledgement or a timeout.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) acked: Vec<Sent>,
    pub(super) lost: Vec<Sent>,
}

/// The packets in flight, and the timers and estimates that follow from them.
#[derive(Debug)]
pub(super) struct Loss {
    sent: VecDeque<Sent>,
    /// Number of the first of these packets.
    first: u64,
    in_flight: u64,
    /// Packets in flight that request an acknowledgement, including those that the window does not count.
    asking: u64,
    /// One past the largest acknowledged number.
    acked_end: u64,
    last_asked_at: Instant,
    smoothed: Option<u64>,
    variance: u64,
    latest: u64,
    /// Nanoseconds of `latest` in which the peer delayed the acknowledgement, as the peer says.
    waited: u64,
    least: u64,
    lost_at: Instant,
    timeouts: u32,
}

impl Loss {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            first: 0,
            in_flight: 0,
            asking: 0,
            acked_end: 0,
            last_asked_at: Instant::ZERO,
            smoothed: None,
            variance: FIRST_ROUND_TRIP / 2,
            latest: FIRST_ROUND_TRIP,
            waited: 0,
            least: u64::MAX,
            lost_at: Instant::FAR_FUTURE,
            timeouts: 0,
        }
    }

    /// Returns the number of the next packet.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// Returns how many packets are remembered: those since the oldest that is neither acknowledged nor lost.
    pub(super) fn tracked(&self) -> usize {
        self.sent.len()
    }

    /// Records the packet with the next number.
    pub(super) fn on_sent(&mut self, sent: Sent) {
        if sent.kind == Kind::Settled && self.sent.is_empty() {
            self.first += 1;
            return;
        }
        if sent.kind != Kind::Settled {
            self.in_flight += u64::from(sent.bytes);
            self.asking += 1;
            self.last_asked_at = sent.at;
        }
        self.sent.push_back(sent);
    }

    /// Returns whether the peer acknowledges only numbers that were sent.
    pub(super) fn is_sound(&self, ranges: &[(u64, u64)]) -> bool {
        ranges[0].1 <= self.next_number()
    }

    /// Settles the acknowledged packets into `outcome`, the oldest first; detects losses.
    pub(super) fn handle_acknowledged(
        &mut self,
        now: Instant,
        ranges: &[(u64, u64)],
        delay: u64,
        outcome: &mut Outcome,
    ) {
        let largest = ranges[0].1;
        if largest > self.first && largest > self.acked_end {
            let sent = self.sent[(largest - 1 - self.first) as usize];
            if sent.kind != Kind::Settled {
                self.measure(now.nanos_since(sent.at), delay);
            }
        }
        self.acked_end = self.acked_end.max(largest);
        for &(from, to) in ranges.iter().rev() {
            for number in from.max(self.first)..to {
                self.settle((number - self.first) as usize, &mut outcome.acked);
            }
        }
        if !outcome.acked.is_empty() {
            self.timeouts = 0;
        }
        self.detect(now, outcome);
    }

    fn settle(&mut self, index: usize, into: &mut Vec<Sent>) {
        let sent = &mut self.sent[index];
        if sent.kind != Kind::Settled {
            into.push(*sent);
            self.in_flight -= u64::from(sent.bytes);
            self.asking -= 1;
            sent.kind = Kind::Settled;
        }
    }

    fn measure(&mut self, took: u64, delay: u64) {
        self.latest = took;
        self.waited = delay.min(MAX_ACK_DELAY).min(took);
        self.least = self.least.min(took);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(took);
            self.variance = took / 2;
            return;
        };
        let delay = delay.min(MAX_ACK_DELAY);
        let adjusted = if took >= self.least + delay { took - delay } else { took };
        self.variance = (3 * self.variance + smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = Some((7 * smoothed + adjusted) / 8);
    }

    /// Detects lost packets: by number, and by time.
    fn detect(&mut self, now: Instant, outcome: &mut Outcome) {
        self.lost_at = Instant::FAR_FUTURE;
        let threshold = (self.round_trip().max(self.latest) * 9 / 8).max(GRANULARITY);
        let end = self.acked_end.saturating_sub(self.first).min(self.sent.len() as u64);
        for index in 0..end as usize {
            let Sent { at, kind, .. } = self.sent[index];
            if kind == Kind::Settled {
                continue;
            }
            let behind = self.acked_end - 1 - (self.first + index as u64);
            let lost_at = at.plus_nanos(threshold);
            if behind >= PACKET_THRESHOLD || lost_at <= now {
                self.settle(index, &mut outcome.lost);
            } else {
                self.lost_at = self.lost_at.min(lost_at);
            }
        }
        while self.sent.front().is_some_and(|sent| sent.kind == Kind::Settled) {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    /// Detects losses that are due; returns whether probes are due instead, because the peer is silent.
    pub(super) fn handle_timeout(&mut self, now: Instant, outcome: &mut Outcome) -> bool {
        if self.lost_at <= now {
            self.detect(now, outcome);
            return false;
        }
        if self.probe_at() > now {
            return false;
        }
        self.timeouts += 1;
        // The next probe is timed from here even if none can be sent now.
        self.last_asked_at = now;
        true
    }

    /// Returns the oldest packet that carries bytes and is not acknowledged.
    pub(super) fn oldest(&self) -> Option<Sent> {
        self.sent.iter().find(|sent| sent.kind != Kind::Settled && sent.from < sent.to).copied()
    }

    /// Releases memory in reserve, beyond twice what is in use.
    pub(super) fn trim(&mut self) {
        self.sent.shrink_to(2 * self.sent.len());
    }

    /// Returns when the oldest packet in flight was sent.
    pub(super) fn oldest_at(&self) -> Option<Instant> {
        self.sent.iter().find(|sent| sent.kind != Kind::Settled).map(|sent| sent.at)
    }

    fn probe_at(&self) -> Instant {
        if self.asking == 0 {
            return Instant::FAR_FUTURE;
        }
        let timeout = self.timeout() << self.timeouts.min(16);
        self.last_asked_at.plus_nanos(timeout.min(MAX_TIMEOUT.max(self.timeout())))
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.lost_at.min(self.probe_at())
    }

    /// Returns the nanoseconds after which a silent peer is probed.
    pub(super) fn timeout(&self) -> u64 {
        self.round_trip() + (4 * self.variance).max(GRANULARITY) + MAX_ACK_DELAY
    }

    /// Returns the smoothed round-trip time in nanoseconds.
    pub(super) fn round_trip(&self) -> u64 {
        self.smoothed.unwrap_or(FIRST_ROUND_TRIP)
    }

    /// Returns the round-trip time in nanoseconds that was measured last.
    pub(super) const fn latest_round_trip(&self) -> u64 {
        self.latest
    }

    /// Returns the nanoseconds of the last measured round trip in which the peer delayed the acknowledgement.
    pub(super) const fn waited(&self) -> u64 {
        self.waited
    }

    /// Returns the shortest round-trip time in nanoseconds; `u64::MAX` before one was measured.
    pub(super) const fn min_round_trip(&self) -> u64 {
        self.least
    }

    pub(super) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.asking > 0
    }
}
