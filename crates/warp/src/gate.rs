//! Conditional send: the sender learns from one word whether it may send, without a lock, a clock
//! or a call (Heddaya and Park 1994, section 4.2).
//!
//! The paper's word is a flag. With a flag all senders stop at once and start at once. A flag that
//! is set while nothing is sent is never cleared. So the word here is a credit of bytes: a
//! [`GateKeeper`] on the NIC adds credit at the allowed rate, and a sender takes the credit of what
//! it sends. Since the rate has a floor, credit always returns. If the keeper is dropped, the gate stays
//! open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

/// The most credit of any gate, in bytes.
const MOST: u64 = 1 << 47;

/// The reason why a message was not sent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The rate allows no more bytes now; the caller may send a later value instead.
    Congested,
}

/// The outcome of a conditional send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a message that was skipped has not been sent"]
pub enum CSend<T> {
    /// The message was sent; carries what `send` returned.
    Sent(T),
    /// The message was neither built nor sent.
    Skipped(Reason),
}

impl<T> CSend<T> {
    /// Returns true if the message was sent.
    pub const fn is_sent(&self) -> bool {
        matches!(self, Self::Sent(_))
    }
}

#[derive(Debug)]
struct GateState {
    /// The credit in bytes.
    credit: AtomicU64,
    /// Bytes of credit a second that the keeper adds.
    rate: AtomicU64,
    /// Queueing delay of the path, in nanoseconds.
    queue: AtomicU64,
    /// The most credit, in bytes. A longer message costs this much, or it could never be sent.
    depth: u64,
}

/// The sender's side of a gate. Clones share one credit.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<GateState>,
}

impl Gate {
    /// Returns true if a message of `bytes` may be sent now; costs one atomic load.
    #[must_use]
    #[inline]
    pub fn is_open(&self, bytes: u32) -> bool {
        self.state.credit.load(Ordering::Relaxed) >= self.cost(bytes)
    }

    /// Calls `send`, which builds and sends a message of `bytes`, if the gate has credit for it. Never
    /// waits.
    ///
    /// # Examples
    /// ```
    /// use midplane_warp::gate::{CSend, GateKeeper};
    /// use midplane_simhw::time::Instant;
    ///
    /// let (mut keeper, gate) = GateKeeper::new(1_500);
    /// assert!(gate.c_send(1_000, || "sent").is_sent());
    /// assert!(!gate.c_send(1_000, || unreachable!("no credit, so it is not built")).is_sent());
    /// // A millisecond at 1 MB/s is 1,000 bytes.
    /// keeper.add_credit(Instant::ZERO, 1e6);
    /// keeper.add_credit(Instant::from_nanos(1_000_000), 1e6);
    /// assert_eq!(gate.c_send(1_000, || "again"), CSend::Sent("again"));
    /// ```
    #[inline]
    pub fn c_send<T>(&self, bytes: u32, send: impl FnOnce() -> T) -> CSend<T> {
        match self.take(bytes) {
            Ok(()) => CSend::Sent(send()),
            Err(reason) => CSend::Skipped(reason),
        }
    }

    /// Takes the credit for a message of `bytes` that the caller has yet to build.
    ///
    /// # Errors
    /// The [`Reason`] why the message would not be sent.
    #[inline]
    pub fn try_reserve(&self, bytes: u32) -> Result<Permit<'_>, Reason> {
        self.take(bytes).map(|()| Permit { gate: self, bytes })
    }

    /// Returns the bytes that may be sent within `horizon` at the present rate.
    #[must_use]
    pub fn budget(&self, horizon: Duration) -> u64 {
        let credit = self.state.credit.load(Ordering::Relaxed);
        let rate = self.state.rate.load(Ordering::Relaxed);
        let more = u128::from(rate) * u128::from(nanos(horizon)) / 1_000_000_000;
        credit.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    }

    /// Returns the queueing delay of the path in the last feedback; 0 before the first.
    ///
    /// A message that is sent now waits about that long. A sender of latest values loses little if
    /// it gathers newer values meanwhile, and larger messages shorten the queue.
    #[must_use]
    pub fn queue_delay(&self) -> Duration {
        Duration::from_nanos(self.state.queue.load(Ordering::Relaxed))
    }

    #[inline]
    fn take(&self, bytes: u32) -> Result<(), Reason> {
        let cost = self.cost(bytes);
        let mut credit = self.state.credit.load(Ordering::Relaxed);
        loop {
            let less = credit.checked_sub(cost).ok_or(Reason::Congested)?;
            // The word publishes no other data, so relaxed ordering is enough.
            match self.state.credit.compare_exchange_weak(
                credit,
                less,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(other) => credit = other,
            }
        }
    }

    #[inline]
    fn cost(&self, bytes: u32) -> u64 {
        u64::from(bytes).min(self.state.depth)
    }

    fn give(&self, bytes: u64, most: u64) {
        let add = |credit: u64| Some(credit.saturating_add(bytes).min(most.max(credit)));
        let _ = self.state.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// Credit for one message. If dropped without [`Permit::spend`], returns the credit to the gate.
#[derive(Debug)]
#[must_use = "if dropped, it returns its credit"]
pub struct Permit<'a> {
    gate: &'a Gate,
    bytes: u32,
}

impl Permit<'_> {
    /// Consumes the credit, once the message has been sent.
    pub fn spend(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.gate.give(self.gate.cost(self.bytes), MOST);
        }
    }
}

/// The NIC's side of a gate.
#[derive(Debug)]
pub struct GateKeeper {
    gate: Gate,
    depth: u64,
    /// When credit was last added, and the fraction of a byte that remained.
    last_added: Option<(Instant, f64)>,
}

impl GateKeeper {
    /// Creates a full gate that holds up to `depth` bytes of credit.
    ///
    /// `depth` should be two messages or more, or late calls of [`GateKeeper::add_credit`] cost rate. A
    /// message of more than `depth` bytes takes all credit.
    ///
    /// # Panics
    /// If `depth` is zero or above 2^47.
    #[must_use]
    pub fn new(depth: u64) -> (Self, Gate) {
        assert!(depth > 0 && depth <= MOST, "the depth of a gate is from 1 to 2^47 bytes");
        let (rate, queue) = (AtomicU64::new(0), AtomicU64::new(0));
        let state = GateState { credit: AtomicU64::new(0), rate, queue, depth };
        let gate = Gate { state: Arc::new(state) };
        gate.give(depth, depth);
        let keeper = Self { gate: gate.clone(), depth, last_added: None };
        (keeper, gate)
    }

    /// Adds the credit that `rate` bytes a second have earned since the last call.
    pub fn add_credit(&mut self, now: Instant, rate: f64) {
        let rate = if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        self.gate.state.rate.store(rate as u64, Ordering::Relaxed);
        let (last, rest) = self.last_added.unwrap_or((now, 0.0));
        let due = rest + rate * now.nanos_since(last) as f64 / 1e9;
        let whole = due.min(self.depth as f64).floor();
        self.last_added = Some((now, if due > whole + 1.0 { 0.0 } else { due - whole }));
        self.gate.give(whole as u64, self.depth);
    }

    /// Sets the delay that [`Gate::queue_delay`] returns.
    pub fn set_queue_delay(&self, delay: Duration) {
        self.gate.state.queue.store(nanos(delay), Ordering::Relaxed);
    }

    /// Returns when to call [`GateKeeper::add_credit`] next, so that a message of `bytes` waits no longer
    /// than `rate` requires. Returns `None` while the gate is full.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant, rate: f64, bytes: u32) -> Option<Instant> {
        if self.credit() >= self.depth {
            return None;
        }
        let missing = u64::from(bytes).min(self.depth).saturating_sub(self.credit()).max(1);
        let wait = (missing as f64 / rate.max(1.0) * 1e9).min(1e12);
        Some(now.plus_nanos(wait as u64))
    }

    /// Returns the credit in the gate, in bytes.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.gate.state.credit.load(Ordering::Relaxed)
    }
}

impl Drop for GateKeeper {
    /// Leaves the gate open, since no keeper adds credit any more. The port behind it then reports
    /// the error.
    fn drop(&mut self) {
        self.gate.state.credit.store(MOST, Ordering::Relaxed);
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
    fn a_dropped_permit_returns_its_credit() {
        let (_keeper, gate) = GateKeeper::new(100);
        drop(gate.try_reserve(100).unwrap());
        gate.try_reserve(100).unwrap().spend();
        assert_eq!(gate.try_reserve(1).unwrap_err(), Reason::Congested);
    }

    #[test]
    fn a_gate_whose_keeper_is_gone_stays_open() {
        let (keeper, gate) = GateKeeper::new(100);
        assert!(gate.c_send(100, || ()).is_sent() && !gate.is_open(1));
        drop(keeper);
        assert!(gate.c_send(100, || ()).is_sent() && gate.is_open(100));
    }

    #[test]
    fn all_clones_of_a_gate_show_the_last_queueing_delay() {
        let (keeper, gate) = GateKeeper::new(100);
        let clone = gate.clone();
        assert_eq!(gate.queue_delay(), Duration::ZERO);
        for micros in [700, 300] {
            keeper.set_queue_delay(Duration::from_micros(micros));
            assert_eq!(clone.queue_delay(), Duration::from_micros(micros));
        }
    }

    proptest! {
        #[test]
        fn no_more_is_sent_than_the_rate_and_the_depth_allow(
            gaps in proptest::collection::vec(1_u64..2_000, 1..200), rate in 1e3..1e9,
        ) {
            let (mut keeper, gate) = GateKeeper::new(3_000);
            let (mut now, mut sent) = (0, 0);
            for gap in gaps {
                keeper.add_credit(at(now), rate);
                while gate.c_send(100, || ()).is_sent() {
                    sent += 100;
                }
                now += gap;
            }
            let most = 3_000.0 + rate * now as f64 / 1e6;
            prop_assert!(sent as f64 <= most + 1.0, "{} of {}", sent, most);
        }

        /// No state of a gate is final while its keeper adds credit.
        #[test]
        fn every_gate_opens_again_while_its_keeper_adds_credit(
            rate in 1e3..1e9, take in 0_u32..3_000,
        ) {
            let (mut keeper, gate) = GateKeeper::new(3_000);
            keeper.add_credit(at(0), rate);
            let _ = gate.c_send(take, || ());
            let mut now = at(0);
            for _ in 0..10 {
                if gate.is_open(1_500) {
                    break;
                }
                now = keeper.poll_timeout(now, rate, 1_500).expect("not full");
                now = now.plus_nanos(1_000);
                keeper.add_credit(now, rate);
            }
            prop_assert!(gate.is_open(1_500));
            let most = (3_000.0 / rate * 1e9) as u64 + 20_000;
            prop_assert!(now.as_nanos() <= most, "{} of {}", now, most);
        }
    }
}
