//! Conditional send: whether a message may be sent is one word, read by the sender without a lock,
//! a clock or a call (Heddaya and Park 1994, section 4.2).
//!
//! The paper's word is a flag. With a flag all senders stop at once and start at once, and a flag
//! that is set while nobody sends is never cleared. So the word here is a credit of bytes: the
//! keeper, on the NIC, pours in what the rate allows, a sender takes from it what it sends, and
//! since a rate has a floor the credit always comes back. A gate that is shut on purpose opens again
//! when its time has passed, or when its keeper is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

/// Low bits of the word: the credit in bytes, up to 2^48. Above them: why it may be too little.
const CREDIT: u64 = (1 << 48) - 1;
const SHUT: u64 = 1 << 48;

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The network takes no more just now; a later value may be sent instead.
    Congested,
    /// The destination cannot be reached; the gate opens for a try when its time has passed.
    Shut,
}

/// What a conditional send did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a message that was skipped has not been sent"]
pub enum CSend<T> {
    /// The message was handed over; this is what came of it.
    Sent(T),
    /// Nothing was built and nothing was sent.
    Skipped(Reason),
}

impl<T> CSend<T> {
    /// Whether it was sent.
    pub const fn is_sent(&self) -> bool {
        matches!(self, Self::Sent(_))
    }
}

#[derive(Debug, Default)]
struct Words {
    gate: AtomicU64,
    /// Bytes a second that the keeper pours in.
    rate: AtomicU64,
}

/// The sender's side of a gate; clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    words: Arc<Words>,
}

impl Gate {
    /// Whether `bytes` may be sent now: one load.
    #[must_use]
    #[inline]
    pub fn is_open(&self, bytes: u32) -> bool {
        self.words.gate.load(Ordering::Relaxed) & CREDIT >= u64::from(bytes)
    }

    /// Sends a message of `bytes` if the network takes it: `send` builds and sends it, and is not
    /// called otherwise. Never waits.
    ///
    /// # Examples
    /// ```
    /// use midplane_warp::gate::{CSend, GateKeeper};
    /// use midplane_simhw::time::Instant;
    ///
    /// let (mut keeper, gate) = GateKeeper::new(1_500);
    /// assert!(gate.c_send(1_000, || "sent").is_sent());
    /// assert!(!gate.c_send(1_000, || unreachable!("it is not even built")).is_sent());
    /// // A millisecond at 1 MB/s is 1,000 bytes.
    /// keeper.pour(Instant::ZERO, 1e6);
    /// keeper.pour(Instant::from_nanos(1_000_000), 1e6);
    /// assert_eq!(gate.c_send(1_000, || "again"), CSend::Sent("again"));
    /// ```
    #[inline]
    pub fn c_send<T>(&self, bytes: u32, send: impl FnOnce() -> T) -> CSend<T> {
        match self.take(bytes) {
            Ok(()) => CSend::Sent(send()),
            Err(reason) => CSend::Skipped(reason),
        }
    }

    /// Takes the credit for a message of `bytes` that is still to be built.
    ///
    /// # Errors
    /// The [`Reason`] why it would not be sent.
    #[inline]
    pub fn try_reserve(&self, bytes: u32) -> Result<Permit<'_>, Reason> {
        self.take(bytes).map(|()| Permit { gate: self, bytes })
    }

    /// Bytes that may be sent within `horizon`, as far as is known now.
    #[must_use]
    pub fn budget(&self, horizon: Duration) -> u64 {
        let word = self.words.gate.load(Ordering::Relaxed);
        if word & SHUT != 0 {
            return 0;
        }
        let rate = self.words.rate.load(Ordering::Relaxed);
        let more = u128::from(rate) * u128::from(nanos(horizon)) / 1_000_000_000;
        (word & CREDIT).saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    }

    #[inline]
    fn take(&self, bytes: u32) -> Result<(), Reason> {
        let mut word = self.words.gate.load(Ordering::Relaxed);
        loop {
            if word & CREDIT < u64::from(bytes) {
                return Err(if word & SHUT != 0 { Reason::Shut } else { Reason::Congested });
            }
            // No data is handed over by the word: the order of other accesses does not matter.
            let less = word - u64::from(bytes);
            match self.words.gate.compare_exchange_weak(
                word,
                less,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(other) => word = other,
            }
        }
    }

    fn give(&self, bytes: u64, most: u64) {
        // What comes back to a gate that was shut meanwhile does not open it.
        let add = |word: u64| {
            if word & SHUT != 0 {
                return None;
            }
            let credit = (word & CREDIT).saturating_add(bytes).min(most.max(word & CREDIT));
            Some(credit.min(CREDIT))
        };
        let _ = self.words.gate.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// Credit for a message; dropped without [`Permit::spend`] it goes back.
#[derive(Debug)]
#[must_use = "dropped, the credit goes back"]
pub struct Permit<'a> {
    gate: &'a Gate,
    bytes: u32,
}

impl Permit<'_> {
    /// The message has been sent.
    pub fn spend(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.gate.give(self.bytes.into(), CREDIT);
        }
    }
}

/// The NIC's side of a gate.
#[derive(Debug)]
pub struct GateKeeper {
    gate: Gate,
    depth: u64,
    /// When it poured last, and the fraction of a byte that was left.
    poured: Option<(Instant, f64)>,
    shut_until: Option<Instant>,
}

impl GateKeeper {
    /// A gate that holds up to `depth` bytes of credit, and is full: two messages at least, or the
    /// grain of pouring costs rate.
    ///
    /// # Panics
    /// If `depth` is zero or above 2^47.
    #[must_use]
    pub fn new(depth: u64) -> (Self, Gate) {
        assert!(depth > 0 && depth <= CREDIT / 2, "a gate holds from one byte to 2^47");
        let gate = Gate { words: Arc::default() };
        gate.give(depth, depth);
        let keeper = Self { gate: gate.clone(), depth, poured: None, shut_until: None };
        (keeper, gate)
    }

    /// Pours in what `rate` bytes a second have come to since it last poured.
    pub fn pour(&mut self, now: Instant, rate: f64) {
        if self.shut_until.is_some_and(|until| now >= until) {
            self.open();
        }
        let rate = if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        self.gate.words.rate.store(rate as u64, Ordering::Relaxed);
        let (last, rest) = self.poured.unwrap_or((now, 0.0));
        let due = rest + rate * now.nanos_since(last) as f64 / 1e9;
        let whole = due.min(self.depth as f64).floor();
        self.poured = Some((now, if due > whole + 1.0 { 0.0 } else { due - whole }));
        if self.shut_until.is_none() {
            self.gate.give(whole as u64, self.depth);
        }
    }

    /// When to pour next, so that a message of `bytes` is held up no longer than `rate` asks for;
    /// `None` while the gate is full.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant, rate: f64, bytes: u32) -> Option<Instant> {
        if let Some(until) = self.shut_until {
            return Some(until);
        }
        if self.credit() >= self.depth {
            return None;
        }
        let missing = u64::from(bytes).min(self.depth).saturating_sub(self.credit()).max(1);
        let wait = (missing as f64 / rate.max(1.0) * 1e9).min(1e12);
        Some(now.plus_nanos(wait as u64))
    }

    /// Takes the credit away until `until`: nothing is sent before, and then a try is.
    pub fn shut(&mut self, until: Instant) {
        self.shut_until = Some(until);
        self.gate.words.gate.store(SHUT, Ordering::Relaxed);
    }

    /// Bytes of credit in the gate.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.gate.words.gate.load(Ordering::Relaxed) & CREDIT
    }

    fn open(&mut self) {
        self.shut_until = None;
        self.gate.words.gate.store(self.depth, Ordering::Relaxed);
    }
}

impl Drop for GateKeeper {
    /// Nobody will pour any more: the gate stays open, and the port behind it says what is wrong.
    fn drop(&mut self) {
        self.gate.words.gate.store(CREDIT / 2, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn a_skipped_message_is_not_built() {
        let (_keeper, gate) = GateKeeper::new(100);
        assert_eq!(gate.c_send(60, || 7), CSend::Sent(7));
        let mut is_built = false;
        assert_eq!(gate.c_send(60, || is_built = true), CSend::Skipped(Reason::Congested));
        assert!(!is_built && gate.is_open(40) && !gate.is_open(41));
    }

    #[test]
    fn a_permit_that_is_dropped_goes_back() {
        let (_keeper, gate) = GateKeeper::new(100);
        drop(gate.try_reserve(100).unwrap());
        gate.try_reserve(100).unwrap().spend();
        assert_eq!(gate.try_reserve(1).unwrap_err(), Reason::Congested);
    }

    #[test]
    fn a_gate_that_is_shut_opens_when_its_time_has_passed_or_its_keeper_is_gone() {
        let (mut keeper, gate) = GateKeeper::new(100);
        keeper.shut(at(50));
        keeper.pour(at(49), 1e9);
        assert_eq!(gate.c_send(1, || ()), CSend::Skipped(Reason::Shut));
        assert_eq!(gate.budget(Duration::from_secs(1)), 0);
        assert_eq!(keeper.poll_timeout(at(49), 1e9, 1), Some(at(50)));
        keeper.pour(at(50), 1e9);
        assert!(gate.c_send(1, || ()).is_sent());
        keeper.shut(at(1_000_000));
        drop(keeper);
        assert!(gate.c_send(1, || ()).is_sent());
    }

    proptest! {
        #[test]
        fn however_it_is_poured_no_more_is_sent_than_the_rate_and_the_depth(
            gaps in proptest::collection::vec(1_u64..2_000, 1..200), rate in 1e3..1e9,
        ) {
            let (mut keeper, gate) = GateKeeper::new(3_000);
            let (mut now, mut sent) = (0, 0);
            for gap in gaps {
                keeper.pour(at(now), rate);
                while gate.c_send(100, || ()).is_sent() {
                    sent += 100;
                }
                now += gap;
            }
            let most = 3_000.0 + rate * now as f64 / 1e6;
            prop_assert!(sent as f64 <= most + 1.0, "{} of {}", sent, most);
        }

        /// No state of the gate is one that it does not leave.
        #[test]
        fn every_gate_opens_again_while_its_keeper_pours_at_any_rate(
            shut in proptest::option::of(0_u64..10_000), rate in 1e3..1e9, take in 0_u32..3_000,
        ) {
            let (mut keeper, gate) = GateKeeper::new(3_000);
            keeper.pour(at(0), rate);
            let _ = gate.c_send(take, || ());
            if let Some(until) = shut {
                keeper.shut(at(until));
            }
            let mut now = at(0);
            for _ in 0..10 {
                if gate.is_open(1_500) {
                    break;
                }
                now = keeper.poll_timeout(now, rate, 1_500).expect("not full");
                now = now.plus_nanos(1_000);
                keeper.pour(now, rate);
            }
            prop_assert!(gate.is_open(1_500));
            let most = shut.unwrap_or(0) * 1_000 + (3_000.0 / rate * 1e9) as u64 + 20_000;
            prop_assert!(now.as_nanos() <= most, "{} of {}", now, most);
        }
    }
}
