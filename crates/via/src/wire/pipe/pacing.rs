//! Spreads a window over its round trip: a token bucket of bytes that may be sent now.

use midplane_simhw::time::Instant;

/// The bucket fills by this factor faster than one window per round trip, so that it does not delay growth.
const GAIN: f64 = 1.25;
/// Nanoseconds of sending that the bucket holds: timers are no finer than a millisecond.
const QUANTUM: u64 = 2_000_000;
/// Datagrams that the bucket holds at least.
const MIN_PACKETS: u64 = 10;

/// The bucket of bytes that may be sent now.
#[derive(Debug)]
pub(super) struct Pacer {
    tokens: f64,
    filled_at: Instant,
}

impl Pacer {
    pub(super) const fn new() -> Self {
        Self { tokens: f64::INFINITY, filled_at: Instant::ZERO }
    }

    /// Fills the bucket for the time since the last fill.
    pub(super) fn fill(&mut self, now: Instant, window: u64, round_trip: u64, mtu: usize) {
        let rate = GAIN * window as f64 / round_trip.max(1) as f64;
        let capacity = (rate * QUANTUM as f64).max((MIN_PACKETS * mtu as u64) as f64);
        let elapsed = now.nanos_since(self.filled_at) as f64;
        self.tokens = (self.tokens + rate * elapsed).min(capacity);
        self.filled_at = now;
    }

    pub(super) fn has_room(&self) -> bool {
        self.tokens > 0.0
    }

    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Returns when an eighth of the quantum will be filled: a timer for each packet would cost too much.
    pub(super) fn ready_at(&self, window: u64, round_trip: u64, mtu: usize) -> Instant {
        let rate = GAIN * window as f64 / round_trip.max(1) as f64;
        let wanted = (rate * QUANTUM as f64 / 8.0).max(mtu as f64) - self.tokens;
        self.filled_at.plus_nanos((wanted.max(0.0) / rate).ceil() as u64)
    }
}
