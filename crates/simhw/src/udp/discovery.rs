//! Finds how long datagrams to one peer may be: packetisation-layer path MTU discovery (RFC 8899).
//!
//! No I/O and no clock here. Probes are datagrams of the length in question, with don't-fragment set; the
//! peer acknowledges each. No word of a router is needed, and none makes a datagram longer. The caller's
//! limit may come from one, though (the system's MTU of a path): a forged word delays growth until the next
//! search upwards.
//!
//! ```text
//!          full datagram sent            acknowledged              nothing left to try
//!   Idle ----------------------> Base ------------------> Search ----------------------> Complete
//!                                 |  ^                       ^                              |
//!                            lost |  | full datagram, later  +------ raise, black hole -----+
//!                                 v  |
//!                                 Error: only the least length that every path carries
//! ```
//!
//! Probing needs traffic: a machine acts when its sender reports a datagram that is as long as it may be.
//! An idle path costs nothing, and neither does one of short datagrams.

use std::collections::VecDeque;

use crate::time::Instant;

/// Bytes of UDP payload that a sender starts with: RFC 8899's `BASE_PLPMTU`.
pub const BASE_BYTES: usize = 1_200;
/// Bytes of UDP payload that every path carries: IPv4's 576 less its header and UDP's.
pub const LEAST_BYTES: usize = 548;
/// Probes of one length that are lost before that length counts as too long: RFC 8899's `MAX_PROBES`.
const MAX_PROBES: u32 = 3;
/// The same of a length in use: a crowded path loses a few in a row, too.
const MAX_CONFIRMATIONS: u32 = 6;
/// Confirmations in a row without any answer, after which the base length is tried anew.
const MAX_SILENT: u32 = 3;
/// Bytes between the longest that passes and the shortest that doesn't, at which a search ends.
const GRAIN: usize = 16;
/// Nanoseconds that a probe is waited for, while no round trip is known; doubled with each loss.
const FIRST_TIMEOUT: u64 = 100_000_000;
/// Least and most of that once one is: a busy host answers late.
const TIMEOUTS: (u64, u64) = (50_000_000, 1_000_000_000);
/// Nanoseconds between two confirmations that full datagrams still pass, while some are sent.
const CONFIRM: u64 = 1_000_000_000;
/// Nanoseconds from a search to the next one upwards: first, and at most (RFC 8899's `PMTU_RAISE_TIMER`).
const RAISE: (u64, u64) = (10_000_000_000, 600_000_000_000);
/// Nanoseconds between two tries of the base length after it was lost: first, and at most.
const ERROR_RETRY: (u64, u64) = (1_000_000_000, 30_000_000_000);
/// Probes that are remembered: an answer that comes late still proves that its probe arrived.
const REMEMBERED: usize = 16;
/// MTUs of common links, tunnels and overlays, IP's header counted: tried before others.
const COMMON_MTUS: [usize; 7] = [9_000, 1_500, 1_492, 1_450, 1_420, 1_400, 1_280];

/// State of the discovery on one path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// No full datagram was sent yet.
    Idle,
    /// The base length is being confirmed, and used meanwhile.
    Base,
    /// Longer ones are being tried.
    Search,
    /// The longest is known; it is confirmed now and then.
    Complete,
    /// Not even the base length passes.
    Error,
}

/// A length that is being probed.
#[derive(Clone, Copy, Debug)]
struct Round {
    bytes: usize,
    lost: u32,
    /// Losses while a probe of the base length passed.
    answered_below: u32,
    /// When the last probe counts as lost.
    expires: Instant,
}

/// A probe that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u32,
    bytes: usize,
    at: Instant,
}

/// Discovers the longest datagram to one peer.
///
/// After any call that takes the time, drain [`Discovery::poll_transmit`] and re-read
/// [`Discovery::poll_timeout`]. The time never goes back.
#[derive(Debug)]
pub struct Discovery {
    phase: Phase,
    /// Bytes of IP's and UDP's headers.
    headers: usize,
    /// Bytes of the longest datagram that is worth a try: the interface takes no longer one.
    limit: usize,
    confirmed: usize,
    /// Bytes of the shortest datagram that is known not to pass; past the limit if there is none.
    too_long: usize,
    round: Option<Round>,
    due: VecDeque<usize>,
    sent: VecDeque<Sent>,
    next_number: u32,
    round_trip: Option<u64>,
    /// When a full datagram starts the next confirmation, search or try of the base length.
    confirm_at: Instant,
    raise_at: Instant,
    /// Nanoseconds to the next search upwards, and to the next try of the base length.
    raise_after: u64,
    retry_after: u64,
    silent: u32,
}

impl Discovery {
    /// A path on which datagrams of up to `limit` bytes are worth a try, behind `headers` bytes of IP's and
    /// UDP's.
    pub fn new(headers: usize, limit: usize) -> Self {
        let limit = limit.max(LEAST_BYTES);
        Self {
            phase: Phase::Idle,
            headers,
            limit,
            confirmed: BASE_BYTES.min(limit),
            too_long: limit + 1,
            round: None,
            due: VecDeque::new(),
            sent: VecDeque::new(),
            next_number: 0,
            round_trip: None,
            confirm_at: Instant::ZERO,
            raise_at: Instant::ZERO,
            raise_after: RAISE.0,
            retry_after: ERROR_RETRY.0,
            silent: 0,
        }
    }

    /// Bytes that a datagram may have now.
    pub const fn usable(&self) -> usize {
        self.confirmed
    }

    /// State of the discovery.
    #[cfg(test)]
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the next full datagram starts a search upwards: the time to say anew what is worth a try.
    pub fn is_raising(&self, now: Instant) -> bool {
        self.phase == Phase::Complete && self.round.is_none() && self.raise_at <= now
    }

    /// The interface takes datagrams of up to `limit` bytes now.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(self.confirmed);
    }

    /// The sender has sent a datagram of `bytes`: if it was a full one, what is due begins.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        if bytes < self.confirmed || self.round.is_some() {
            return;
        }
        match self.phase {
            Phase::Idle => self.begin_base(now),
            Phase::Error if self.confirm_at <= now => self.begin_base(now),
            Phase::Complete if self.is_raising(now) => {
                self.too_long = self.limit + 1;
                self.search(now);
            }
            Phase::Complete if self.confirm_at <= now => self.begin(now, self.confirmed),
            // A search without a round has ended at once: it needs nothing.
            _ => {}
        }
    }

    /// The peer has received the probe `number`.
    pub fn handle_probed(&mut self, now: Instant, number: u32) {
        let Some(at) = self.sent.iter().position(|sent| sent.number == number) else { return };
        let Some(Sent { bytes, at, .. }) = self.sent.remove(at) else { return };
        let took = now.nanos_since(at);
        self.round_trip =
            Some(self.round_trip.map_or(took, |smooth| smooth - smooth / 8 + took / 8));
        self.silent = 0;
        if bytes > self.limit {
            return;
        }
        // One that was given up and comes late refutes what was concluded from it.
        if bytes >= self.too_long {
            self.too_long = self.limit + 1;
        }
        if bytes >= self.confirmed || self.phase == Phase::Error {
            self.confirmed = bytes;
        }
        match &mut self.round {
            Some(round) if bytes < round.bytes => {
                round.answered_below += 1;
                return;
            }
            Some(_) => self.end_round(),
            None => {}
        }
        match self.phase {
            Phase::Base | Phase::Error => {
                self.retry_after = ERROR_RETRY.0;
                self.search(now);
            }
            Phase::Search => self.search(now),
            Phase::Complete => self.confirm_at = now.plus_nanos(CONFIRM),
            Phase::Idle => {}
        }
    }

    /// The system has refused a datagram of `bytes` as longer than its interface allows.
    pub fn handle_refused(&mut self, now: Instant, bytes: usize) {
        self.limit = self.limit.min(bytes.saturating_sub(1)).max(LEAST_BYTES);
        self.too_long = self.too_long.min(self.limit + 1);
        let shrinks = self.confirmed > self.limit;
        if shrinks {
            self.confirmed = if BASE_BYTES <= self.limit { BASE_BYTES } else { LEAST_BYTES };
        }
        if shrinks || self.round.is_some_and(|round| round.bytes > self.limit) {
            self.end_round();
            self.search(now);
        }
    }

    /// Counts as lost what was not answered in time.
    pub fn handle_timeout(&mut self, now: Instant) {
        let patience = self.timeout();
        let Some(round) = &mut self.round else { return };
        if now < round.expires {
            return;
        }
        round.lost += 1;
        let Round { bytes, lost, answered_below, .. } = *round;
        let in_use = self.phase == Phase::Complete;
        if lost < if in_use { MAX_CONFIRMATIONS } else { MAX_PROBES } {
            round.expires = now.plus_nanos(patience << lost.min(MAX_PROBES - 1));
            self.due.push_back(bytes);
            // Whether it is the length that is lost, a shorter one tells.
            if in_use && bytes > BASE_BYTES {
                self.due.push_back(BASE_BYTES);
            }
            return;
        }
        self.end_round();
        match self.phase {
            Phase::Search => {
                self.too_long = bytes;
                self.search(now);
            }
            Phase::Complete => self.on_unconfirmed(now, answered_below > 0),
            Phase::Base | Phase::Error | Phase::Idle => {
                self.phase = Phase::Error;
                self.confirmed = LEAST_BYTES;
                self.confirm_at = now.plus_nanos(self.retry_after);
                self.retry_after = (2 * self.retry_after).min(ERROR_RETRY.1);
            }
        }
    }

    /// When [`Discovery::handle_timeout`] has to be called; far in the future if never.
    pub fn poll_timeout(&self) -> Instant {
        self.round.map_or(Instant::FAR_FUTURE, |round| round.expires)
    }

    /// The next probe that should leave: its number and the bytes of its datagram.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(u32, usize)> {
        let bytes = self.due.pop_front()?;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { number, bytes, at: now });
        Some((number, bytes))
    }

    /// Full datagrams were not confirmed: they are lost for their length if shorter ones pass.
    fn on_unconfirmed(&mut self, now: Instant, shorter_pass: bool) {
        if shorter_pass {
            self.too_long = self.confirmed;
            self.confirmed = BASE_BYTES.min(self.confirmed);
            self.raise_after = RAISE.0;
            self.phase = Phase::Search;
            self.search(now);
            return;
        }
        // A dead peer and a crowded path say nothing about lengths.
        self.silent += 1;
        self.confirm_at = now.plus_nanos(CONFIRM);
        if self.silent >= MAX_SILENT {
            self.silent = 0;
            self.begin_base(now);
        }
    }

    fn begin_base(&mut self, now: Instant) {
        let base = BASE_BYTES.min(self.limit);
        self.phase = Phase::Base;
        self.confirmed = self.confirmed.min(base);
        self.too_long = self.limit + 1;
        self.begin(now, base);
    }

    /// Probes the next length, or ends the search.
    fn search(&mut self, now: Instant) {
        if let Some(bytes) = self.next_length() {
            self.phase = Phase::Search;
            return self.begin(now, bytes);
        }
        let has_ended = self.phase != Phase::Complete;
        self.phase = Phase::Complete;
        self.confirm_at = now.plus_nanos(CONFIRM);
        self.raise_at = now.plus_nanos(self.raise_after);
        if has_ended {
            self.raise_after = (2 * self.raise_after).min(RAISE.1);
        }
    }

    /// The longest first; then common ones, the longest first; then the middle of what is left.
    fn next_length(&self) -> Option<usize> {
        if self.too_long > self.limit {
            return (self.confirmed < self.limit).then_some(self.limit);
        }
        let between = |bytes: &usize| *bytes > self.confirmed && *bytes < self.too_long;
        let common = COMMON_MTUS.iter().map(|mtu| mtu - self.headers).find(between);
        let middle = usize::midpoint(self.confirmed, self.too_long);
        common.or_else(|| (self.too_long - self.confirmed > GRAIN).then_some(middle))
    }

    fn begin(&mut self, now: Instant, bytes: usize) {
        self.due.clear();
        self.due.push_back(bytes);
        let expires = now.plus_nanos(self.timeout());
        self.round = Some(Round { bytes, lost: 0, answered_below: 0, expires });
    }

    fn end_round(&mut self) {
        self.round = None;
        self.due.clear();
    }

    /// Nanoseconds that a probe is waited for.
    fn timeout(&self) -> u64 {
        self.round_trip.map_or(FIRST_TIMEOUT, |took| (4 * took).clamp(TIMEOUTS.0, TIMEOUTS.1))
    }
}

#[cfg(test)]
mod tests;
