//! Receive tokens: bound what the senders of all connections together have in flight to this endpoint.
//!
//! A token is a permission to send some bytes: it advances a connection's window by a quantum. Only the receiver grants
//! tokens, in turn, to the connections whose senders request them. It grants the next one as soon as the bound has
//! room, while the former holders are still sending, so that the switch port before the receiver is never idle for a
//! round trip. The paper's senders pass tokens among themselves, and release them early (DVCM, section 4;
//! `midplane_nicvm::coordination`): there, each sender knows all others. Here, it needs to know none.
//!
//! A sender's request names the offset up to which it has bytes, and the receiver grants no more than that: no token
//! stays unused. In addition, each connection may send a few bytes without a token, as long as a reserve has room for
//! them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use midplane_simhw::time::Instant;

use super::super::pipe::config::FIRST_WINDOW;
use super::super::pipe::{Flow, Pipe};
use super::Endpoint;

/// Range of a port's buffer in bytes. A smaller one holds no token in addition to the headers; one larger than
/// the largest switches have limits nothing.
pub const PORT_BUFFERS: RangeInclusive<u64> = (8 << 10)..=(1 << 30);
/// Default bytes of a port's buffer, 64 KiB: switches with shallow buffers have no more for each port.
pub const DEFAULT_PORT_BUFFER: u64 = 64 << 10;

/// Divisor of the buffer for the part that holds tokens. Packet headers, and bytes sent without a token, fit in
/// the rest.
const TOKENS_PART: u64 = 2;
/// Divisor of the buffer for the part that holds bytes sent without a token. The remainder holds headers,
/// acknowledgements and dials.
const RESERVE_PART: u64 = 4;
/// Tokens into which the bound is divided. More tokens make turns shorter, and take more packets.
const TOKENS: u64 = 4;
/// Most bytes of a token.
const MAX_QUANTUM: u64 = 64 << 10;
/// Bytes that a connection may send without a token: enough for a small request.
const ALLOWANCE: u64 = 1 << 10;
/// Nanoseconds after which a silent holder's token no longer counts: longer than the retransmission of a lost
/// packet takes, and hardly noticeable to a user.
const LEASE: u64 = 200_000_000;

/// Counters of an endpoint's tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TokenCounters {
    /// Tokens that were granted.
    pub granted: u64,
    /// Tokens that no longer count, because their holders were silent.
    pub expired: u64,
    /// Connections that wait for a token now.
    pub waiting: usize,
}

/// The state of one connection.
#[derive(Debug)]
struct Share {
    /// Offset up to which the sender may send.
    limit: u64,
    /// Bytes that have arrived.
    received: u64,
    /// Offset up to which the sender wants to send, limited by the receiver's room.
    wanted: u64,
    /// Bytes that it may send without a token.
    allowance: u64,
    /// Bytes of tokens in flight that count.
    in_flight: u64,
    active_at: Instant,
    alarm: Option<Instant>,
    is_waiting: bool,
    /// True if the bytes in flight no longer count. Then no token is granted until they have arrived.
    is_expired: bool,
}

/// The tokens of an endpoint.
#[derive(Debug)]
pub(super) struct Tokens {
    bound: u64,
    quantum: u64,
    /// Bytes of the reserve that are not yet a connection's allowance.
    reserve: u64,
    in_flight: u64,
    shares: Vec<Option<Share>>,
    waiting: VecDeque<u32>,
    alarms: BTreeSet<(Instant, u32)>,
    counters: TokenCounters,
}

impl Tokens {
    /// Makes the tokens for a port whose buffer has `bytes`, clamped to [`PORT_BUFFERS`].
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes.clamp(*PORT_BUFFERS.start(), *PORT_BUFFERS.end());
        let bound = bytes / TOKENS_PART;
        Self {
            bound,
            quantum: (bound / TOKENS).min(MAX_QUANTUM),
            reserve: bytes / RESERVE_PART,
            in_flight: 0,
            shares: Vec::new(),
            waiting: VecDeque::new(),
            alarms: BTreeSet::new(),
            counters: TokenCounters::default(),
        }
    }

    /// Takes the bytes that the next connection's sender may send without a token out of the reserve.
    pub(super) fn draw_allowance(&mut self) -> u64 {
        let allowance = if self.reserve >= ALLOWANCE { ALLOWANCE } else { 0 };
        self.reserve -= allowance;
        allowance
    }

    /// Adds the connection `slot`.
    pub(super) fn add(&mut self, slot: u32, allowance: u64) {
        let index = slot as usize;
        if self.shares.len() <= index {
            self.shares.resize_with(index + 1, || None);
        }
        self.shares[index] = Some(Share {
            limit: allowance,
            received: 0,
            wanted: 0,
            allowance,
            in_flight: 0,
            active_at: Instant::ZERO,
            alarm: None,
            is_waiting: false,
            is_expired: false,
        });
    }

    /// Removes a connection: its bytes in flight no longer count.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(share) = self.shares.get_mut(slot as usize).and_then(Option::take) else { return };
        self.reserve += share.allowance;
        self.in_flight -= share.in_flight;
        if share.is_waiting {
            self.waiting.retain(|waiting| *waiting != slot);
        }
        if let Some(at) = share.alarm {
            self.alarms.remove(&(at, slot));
        }
    }

    /// Updates a connection with the bytes that have arrived and those that its sender wants to send; returns the
    /// offset up to which it may send without another token.
    pub(super) fn observe(&mut self, now: Instant, slot: u32, flow: Flow) -> u64 {
        let quantum = self.quantum;
        let Some(share) = self.shares.get_mut(slot as usize).and_then(Option::as_mut) else {
            return 0;
        };
        if flow.received > share.received {
            share.received = flow.received;
            share.active_at = now;
        }
        if flow.wanted.is_none() && share.limit < FIRST_WINDOW {
            // A sender of an earlier version started with a fixed window, and never requests one.
            self.reserve += std::mem::take(&mut share.allowance);
            (share.limit, share.is_expired) = (FIRST_WINDOW, true);
        }
        // A sender that wants more waits for a token, or it would use its allowance as well.
        let free = share.received + share.allowance;
        if flow.wanted.is_some_and(|wanted| wanted <= free) {
            share.limit = share.limit.max(free);
        }
        share.is_expired &= share.unused() > 0;
        let counts = if share.is_expired { 0 } else { share.unused() };
        self.in_flight = self.in_flight - share.in_flight + counts;
        share.in_flight = counts;
        // A sender that can't send requests is presumed to want more once it has used up its window.
        let presumed = share.limit + if share.unused() == 0 { quantum } else { 0 };
        share.wanted = flow.wanted.unwrap_or(presumed).min(flow.most);
        if !share.is_waiting && share.demand() > 0 {
            share.is_waiting = true;
            self.waiting.push_back(slot);
        }
        share.limit
    }

    /// Grants the next token, if the bound has room; returns the connection, and the offset up to which it may
    /// send.
    #[must_use]
    pub(super) fn poll_grant(&mut self, now: Instant) -> Option<(u32, u64)> {
        while let Some(&slot) = self.waiting.front() {
            let share =
                self.shares[slot as usize].as_mut().expect("a removed connection does not wait");
            let bytes = share.demand().min(self.quantum);
            if bytes > 0 && self.in_flight + bytes > self.bound {
                return None;
            }
            self.waiting.pop_front();
            share.is_waiting = share.demand() > bytes;
            if share.is_waiting {
                self.waiting.push_back(slot);
            }
            if bytes == 0 {
                continue;
            }
            if share.in_flight == 0 {
                share.active_at = now;
            }
            share.limit += bytes;
            share.in_flight += bytes;
            self.in_flight += bytes;
            self.counters.granted += 1;
            if share.alarm.is_none() {
                let at = *share.alarm.insert(now.plus_nanos(LEASE));
                self.alarms.insert((at, slot));
            }
            return Some((slot, share.limit));
        }
        None
    }

    /// Expires the tokens of silent holders: they no longer count.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, slot)) = self.alarms.first().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&(at, slot));
            let Some(share) = &mut self.shares[slot as usize] else { continue };
            let ends = share.active_at.plus_nanos(LEASE);
            share.alarm = (share.in_flight > 0 && ends > now).then_some(ends);
            if let Some(at) = share.alarm {
                self.alarms.insert((at, slot));
            } else if share.in_flight > 0 {
                share.is_expired = true;
                self.in_flight -= std::mem::take(&mut share.in_flight);
                self.counters.expired += 1;
            }
        }
    }

    /// Returns when [`Tokens::handle_timeout`] must be called, if at all.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Returns the counters of tokens.
    pub(super) fn counters(&self) -> TokenCounters {
        TokenCounters { waiting: self.waiting.len(), ..self.counters }
    }
}

impl Share {
    /// Returns the bytes of its tokens that have not arrived.
    const fn unused(&self) -> u64 {
        self.limit.saturating_sub(self.received + self.allowance)
    }

    /// Returns the bytes that it waits for.
    const fn demand(&self) -> u64 {
        if self.is_expired { 0 } else { self.wanted.saturating_sub(self.limit) }
    }
}

impl Endpoint {
    /// Returns the counters of tokens; `None` without
    /// [`receive_tokens`](crate::wire::pipe::Config::receive_tokens).
    #[must_use]
    pub fn token_counters(&self) -> Option<TokenCounters> {
        self.tokens.as_ref().map(Tokens::counters)
    }

    /// Determines the first window of the next connection; `None` if it is not limited.
    pub(super) fn first_window(&mut self) -> Option<u64> {
        self.tokens.as_mut().map(Tokens::draw_allowance)
    }

    pub(super) fn begin_share(&mut self, slot: u32, pipe: &mut Pipe, first_window: Option<u64>) {
        if let Some((tokens, first)) = self.tokens.as_mut().zip(first_window) {
            pipe.limit(first);
            tokens.add(slot, first);
        }
    }

    pub(super) fn end_share(&mut self, slot: u32) {
        if let Some(tokens) = &mut self.tokens {
            tokens.remove(slot);
        }
    }

    /// Expires the tokens of silent holders, and grants them to other connections.
    pub(super) fn expire_tokens(&mut self, now: Instant) {
        if let Some(tokens) = &mut self.tokens {
            tokens.handle_timeout(now);
            self.grant(now);
        }
    }

    /// Updates the tokens with what a connection has received, and grants the next ones.
    pub(super) fn share(&mut self, now: Instant, slot: u32) {
        let (Some(tokens), Some(entry)) = (&mut self.tokens, &mut self.slots[slot as usize].entry)
        else {
            return;
        };
        if entry.pipe.ended().is_some() {
            tokens.remove(slot);
        } else if entry.pipe.is_established() {
            let limit = tokens.observe(now, slot, entry.pipe.flow());
            entry.pipe.raise_limit(now, limit);
        }
        self.grant(now);
    }

    /// Grants the next tokens, and notifies the peers that get them.
    pub(super) fn grant(&mut self, now: Instant) {
        while let Some((slot, limit)) =
            self.tokens.as_mut().and_then(|tokens| tokens.poll_grant(now))
        {
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.pipe.raise_limit(now, limit);
            }
            self.enqueue(slot);
        }
    }
}
