//! Finds the longest datagram to one peer: packetization-layer path MTU discovery (RFC 8899).
//!
//! No I/O and no clock here. Probes are datagrams of the length to try, with don't-fragment set, and the peer
//! acknowledges each. No report of a router is needed, and none makes a datagram longer. The caller's limit may
//! come from one, though (the system's MTU of a path): a forged report delays growth until the next search
//! upwards.
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
//! Probing needs traffic: the discovery acts when the sender reports a datagram that is as long as allowed, or one
//! that carries lost data again. An idle path, or one that loses none of its short datagrams, costs nothing.

use std::collections::VecDeque;

use crate::time::Instant;

/// Bytes of UDP payload that a sender starts with: RFC 8899's `BASE_PLPMTU`.
pub(crate) const BASE_BYTES: usize = 1_200;
/// Bytes of UDP payload that every path carries: IPv4's 576 minus its header and UDP's.
pub(crate) const MIN_BYTES: usize = 548;
/// Lost probes of one length after which the length counts as too long: RFC 8899's `MAX_PROBES`.
const MAX_PROBES: u32 = 3;
/// Lost probes of a length in use after which it counts as too long: a congested path loses a few in a row,
/// too.
const MAX_CONFIRMATIONS: u32 = 6;
/// Unanswered confirmations in a row after which the base length is tried again.
const MAX_SILENT: u32 = 3;
/// Bytes between the longest length that passes and the shortest that does not, at which a search ends.
const GRAIN: usize = 16;
/// Nanoseconds to wait for a probe while no round trip is known; doubled with each loss.
const FIRST_TIMEOUT: u64 = 100_000_000;
/// Least and most nanoseconds to wait for a probe once a round trip is known: a busy host answers late.
const TIMEOUTS: (u64, u64) = (50_000_000, 1_000_000_000);
/// Nanoseconds between two confirmations that full datagrams still pass, while some are sent.
const CONFIRM: u64 = 1_000_000_000;
/// Nanoseconds from a search to the next one upwards: first, and at most (RFC 8899's `PMTU_RAISE_TIMER`).
const RAISE: (u64, u64) = (10_000_000_000, 600_000_000_000);
/// Nanoseconds between two tries of the base length after it was lost: first, and at most.
const ERROR_RETRY: (u64, u64) = (1_000_000_000, 30_000_000_000);
/// Most probes that are remembered: a late answer still proves that its probe arrived.
const REMEMBERED: usize = 16;
/// MTUs of common links, tunnels and overlays, including IP's header; they are tried before others.
const COMMON_MTUS: [usize; 7] = [9_000, 1_500, 1_492, 1_450, 1_420, 1_400, 1_280];

/// State of the discovery on one path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// No full datagram has been sent yet.
    Idle,
    /// The base length is used, and is being confirmed.
    Base,
    /// Longer lengths are being tried.
    Search,
    /// The longest length is known, and is confirmed from time to time.
    Complete,
    /// Even the base length does not pass.
    Error,
}

/// The probing of one length.
#[derive(Clone, Copy, Debug)]
struct Round {
    bytes: usize,
    lost: u32,
    /// Answers to probes of the base length meanwhile.
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
    /// Bytes of the longest datagram to try: the interface sends no longer one.
    limit: usize,
    /// The same bytes from the next search upwards on: the interface may then send what it has refused before.
    next_limit: usize,
    confirmed: usize,
    /// Bytes of the shortest datagram that is known not to pass; above the limit if there is none.
    too_long: usize,
    round: Option<Round>,
    due: VecDeque<usize>,
    sent: VecDeque<Sent>,
    next_number: u32,
    round_trip: Option<u64>,
    /// When a full datagram starts the next confirmation or try of the base length, and the next search upwards
    /// (`raise_at`).
    confirm_at: Instant,
    raise_at: Instant,
    /// Nanoseconds to the next search upwards, and to the next try of the base length (`retry_after`).
    raise_after: u64,
    retry_after: u64,
    silent: u32,
}

impl Discovery {
    /// Creates the discovery of a path on which datagrams of up to `limit` bytes may be tried, with `headers`
    /// bytes of IP and UDP headers.
    pub fn new(headers: usize, limit: usize) -> Self {
        let limit = limit.max(MIN_BYTES);
        Self {
            phase: Phase::Idle,
            headers,
            limit,
            next_limit: limit,
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

    /// Returns the bytes that a datagram may have now.
    pub const fn usable(&self) -> usize {
        self.confirmed
    }

    /// Returns the state of the discovery.
    #[cfg(test)]
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether the next full datagram starts a search upwards; the caller then updates the limit.
    pub(crate) fn is_raising(&self, now: Instant) -> bool {
        self.phase == Phase::Complete && self.round.is_none() && self.raise_at <= now
    }

    /// Sets the limit of the next search upwards: the interface now sends datagrams of up to `limit` bytes.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.next_limit = limit.max(self.confirmed);
    }

    /// Handles a sent datagram of `bytes`: a full one starts the probing that is due.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        if bytes < self.confirmed || self.round.is_some() {
            return;
        }
        match self.phase {
            Phase::Idle => self.begin_base(now),
            Phase::Error if self.confirm_at <= now => self.begin_base(now),
            Phase::Complete if self.is_raising(now) => {
                self.limit = self.next_limit;
                self.too_long = self.limit + 1;
                self.search(now);
            }
            Phase::Complete if self.confirm_at <= now => self.begin(now, self.confirmed),
            // A search without a round has ended at once.
            _ => {}
        }
    }

    /// Handles a datagram of `bytes` that carries lost data again: the path may have become too narrow for datagrams
    /// of this length, even if longer ones passed before. Starts the probing that is due.
    pub fn on_sent_again(&mut self, now: Instant, bytes: usize) {
        if bytes <= MIN_BYTES || self.round.is_some() {
            return;
        }
        match self.phase {
            Phase::Idle => self.begin_base(now),
            Phase::Complete if self.confirm_at <= now => self.begin(now, self.confirmed),
            _ => {}
        }
    }

    /// Handles the peer's acknowledgement of the probe `number`.
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
        // A late answer to a probe that counted as lost refutes the conclusion from it.
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

    /// Handles a datagram of `bytes` that the system refused as longer than its interface allows. The next search upwards
    /// tries such lengths again.
    pub fn handle_refused(&mut self, now: Instant, bytes: usize) {
        self.limit = self.limit.min(bytes.saturating_sub(1)).max(MIN_BYTES);
        self.too_long = self.too_long.min(self.limit + 1);
        let shrinks = self.confirmed > self.limit;
        if shrinks {
            self.confirmed = if BASE_BYTES <= self.limit { BASE_BYTES } else { MIN_BYTES };
            self.raise_after = RAISE.0;
        }
        if shrinks || self.round.is_some_and(|round| round.bytes > self.limit) {
            self.end_round();
            self.search(now);
        }
    }

    /// Handles the timeout of a probe: counts it as lost.
    pub fn handle_timeout(&mut self, now: Instant) {
        let timeout = self.timeout();
        let Some(round) = &mut self.round else { return };
        if now < round.expires {
            return;
        }
        round.lost += 1;
        let Round { bytes, lost, answered_below, .. } = *round;
        let in_use = self.phase == Phase::Complete;
        if lost < if in_use { MAX_CONFIRMATIONS } else { MAX_PROBES } {
            round.expires = now.plus_nanos(timeout << lost.min(MAX_PROBES - 1));
            self.due.push_back(bytes);
            // A shorter probe shows whether the length is the cause of the loss.
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
                self.confirmed = MIN_BYTES;
                self.confirm_at = now.plus_nanos(self.retry_after);
                self.retry_after = (2 * self.retry_after).min(ERROR_RETRY.1);
            }
        }
    }

    /// Returns when to call [`Discovery::handle_timeout`]; far in the future if never.
    pub fn poll_timeout(&self) -> Instant {
        self.round.map_or(Instant::FAR_FUTURE, |round| round.expires)
    }

    /// Takes the next probe to send: its number and the bytes of its datagram.
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

    /// Handles full datagrams that were not confirmed: their length is the cause if shorter ones pass.
    fn on_unconfirmed(&mut self, now: Instant, shorter_pass: bool) {
        if shorter_pass {
            self.too_long = self.confirmed;
            self.confirmed = BASE_BYTES.min(self.confirmed);
            self.raise_after = RAISE.0;
            self.phase = Phase::Search;
            self.search(now);
            return;
        }
        // A failed peer or a congested path says nothing about lengths.
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

    /// Returns the next length to try: the limit first, then common lengths from the longest down, then the
    /// middle of the rest.
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

    /// Returns the nanoseconds to wait for a probe.
    fn timeout(&self) -> u64 {
        self.round_trip.map_or(FIRST_TIMEOUT, |took| (4 * took).clamp(TIMEOUTS.0, TIMEOUTS.1))
    }
}

#[cfg(test)]
mod tests;
