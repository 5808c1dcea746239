//! Receive tokens: bounds what the senders of all connections together have in flight to this endpoint.
//!
//! A token is a permission to send some bytes: a connection's window that is moved on by a quantum. The receiver alone
//! grants tokens, in turn, to the connections whose senders ask. It grants the next one as soon as the bound has room, so
//! while the holders before are still sending: the port before the receiver never idles for a round trip. The paper's
//! senders pass tokens among themselves, and release them early (DVCM, section 4; `midplane_nicvm::coordination`): there
//! each sender knows all others. Here it needs to know nothing.
//!
//! A sender asks by naming the offset up to which it has bytes, and is granted no more than that: no token is kept
//! unused. Besides, each connection may send a few bytes without a token, as long as a reserve has room for them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use midplane_simhw::time::Instant;

use super::super::pipe::config::FIRST_WINDOW;
use super::super::pipe::{Flow, Pipe};
use super::Endpoint;

/// Bytes of a port's buffer that tokens can be made for: less holds no token beside the headers, more than the largest
/// switches have bounds nothing.
pub const PORT_BUFFERS: RangeInclusive<u64> = (8 << 10)..=(1 << 30);
/// 64 KiB: switches with shallow buffers hold that much for each port, and no more.
pub const DEFAULT_PORT_BUFFER: u64 = 64 << 10;

/// The part of the buffer for tokens; the headers of the packets and all that is sent without a token fit in the rest.
const TOKENS_PART: u64 = 2;
/// The part for bytes that are sent without a token. What remains is for headers, acknowledgements and dials.
const RESERVE_PART: u64 = 4;
/// Tokens among which the bound is divided: the more, the shorter is a turn, and the more packets tell of tokens.
const TOKENS: u64 = 4;
/// Bytes of a token at most.
const MOST_QUANTUM: u64 = 64 << 10;
/// Bytes that a connection may send without a token: a small request.
const ALLOWANCE: u64 = 1 << 10;
/// Nanoseconds for which a token counts without a sign of its holder: longer than a packet that was lost takes to be sent
/// again, and what a user hardly notices.
const LEASE: u64 = 200_000_000;

/// Counters of an endpoint's tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TokenCounters {
    /// Tokens that were granted.
    pub granted: u64,
    /// Tokens that count no longer, as their holders were silent.
    pub expired: u64,
    /// Connections that wait for a token now.
    pub waiting: usize,
}

/// State of one connection.
#[derive(Debug)]
struct Share {
    /// Offset up to which the sender may send.
    limit: u64,
    /// Bytes that have arrived.
    received: u64,
    /// Offset up to which the sender wants to send, and the receiver has room.
    wanted: u64,
    /// Bytes that it may send without a token.
    allowance: u64,
    /// Bytes of tokens in flight that count.
    in_flight: u64,
    active_at: Instant,
    alarm: Option<Instant>,
    is_waiting: bool,
    /// What is in flight counts no longer; no token is granted until it has arrived.
    is_expired: bool,
}

/// The tokens of an endpoint.
#[derive(Debug)]
pub(super) struct Tokens {
    bound: u64,
    quantum: u64,
    /// Bytes of the reserve that are no connection's allowance.
    reserve: u64,
    in_flight: u64,
    shares: Vec<Option<Share>>,
    waiting: VecDeque<u32>,
    alarms: BTreeSet<(Instant, u32)>,
    counters: TokenCounters,
}

impl Tokens {
    /// Makes the tokens for a port whose buffer has `bytes`, brought into [`PORT_BUFFERS`].
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes.clamp(*PORT_BUFFERS.start(), *PORT_BUFFERS.end());
        let bound = bytes / TOKENS_PART;
        Self {
            bound,
            quantum: (bound / TOKENS).min(MOST_QUANTUM),
            reserve: bytes / RESERVE_PART,
            in_flight: 0,
            shares: Vec::new(),
            waiting: VecDeque::new(),
            alarms: BTreeSet::new(),
            counters: TokenCounters::default(),
        }
    }

    /// Draws the bytes that the sender of the next connection may send without a token.
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

    /// Forgets a connection: what it has in flight counts no longer.
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

    /// Takes note of what has arrived over a connection, and of what its sender wants; returns the offset up to which it may
    /// send without another token.
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
            // A sender of an earlier version began with a window of its own, and asks for nothing.
            self.reserve += std::mem::take(&mut share.allowance);
            (share.limit, share.is_expired) = (FIRST_WINDOW, true);
        }
        // A sender with more than that takes its turn: else its allowances would come on top of its tokens.
        let free = share.received + share.allowance;
        if flow.wanted.is_some_and(|wanted| wanted <= free) {
            share.limit = share.limit.max(free);
        }
        share.is_expired &= share.unused() > 0;
        let counts = if share.is_expired { 0 } else { share.unused() };
        self.in_flight = self.in_flight - share.in_flight + counts;
        share.in_flight = counts;
        // One that can't ask wants more once it has used up what it had.
        let presumed = share.limit + if share.unused() == 0 { quantum } else { 0 };
        share.wanted = flow.wanted.unwrap_or(presumed).min(flow.most);
        if !share.is_waiting && share.demand() > 0 {
            share.is_waiting = true;
            self.waiting.push_back(slot);
        }
        share.limit
    }

    /// Grants the next token, if the bound has room: the connection, and the offset up to which it may send.
    #[must_use]
    pub(super) fn poll_grant(&mut self, now: Instant) -> Option<(u32, u64)> {
        while let Some(&slot) = self.waiting.front() {
            let share =
                self.shares[slot as usize].as_mut().expect("one that is gone waits no more");
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

    /// Counts the tokens of silent holders no longer.
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

    /// When [`Tokens::handle_timeout`] has to be called, if it has.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Returns what was counted.
    pub(super) fn counters(&self) -> TokenCounters {
        TokenCounters { waiting: self.waiting.len(), ..self.counters }
    }
}

impl Share {
    /// Bytes of tokens that have not arrived.
    const fn unused(&self) -> u64 {
        self.limit.saturating_sub(self.received + self.allowance)
    }

    /// Bytes that it waits for.
    const fn demand(&self) -> u64 {
        if self.is_expired { 0 } else { self.wanted.saturating_sub(self.limit) }
    }
}

impl Endpoint {
    /// Returns what was counted of tokens; `None` without
    /// [`receive_tokens`](crate::wire::pipe::Config::receive_tokens).
    #[must_use]
    pub fn token_counters(&self) -> Option<TokenCounters> {
        self.tokens.as_ref().map(Tokens::counters)
    }

    /// Draws the first window of the next connection; none if it is not limited.
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

    /// Lets others have the tokens of silent holders.
    pub(super) fn expire_tokens(&mut self, now: Instant) {
        if let Some(tokens) = &mut self.tokens {
            tokens.handle_timeout(now);
            self.grant(now);
        }
    }

    /// Has the tokens see what a connection has received, and who gets the next ones.
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

    /// Tells the peers that get the next tokens.
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
