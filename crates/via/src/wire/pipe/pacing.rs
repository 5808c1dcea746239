//! Spreads packets over time: a token bucket of bytes that may be sent now.

use midplane_simhw::time::Instant;

/// The bucket fills by this factor faster than one window per round trip, so that it does not delay growth.
const GAIN: f64 = 1.25;
/// Nanoseconds of sending that the bucket holds: a task that is late by at most this is not slower.
const QUANTUM: u64 = 1_000_000;
/// Nanoseconds of sending in one burst, and between two bursts of a task that is late. Timers are exact to some 50 us,
/// so shorter bursts would be slower than the rate. With longer ones, TCP gets most of a fast link that both use.
const BURST: u64 = 100_000;
const SPACING: u64 = 50_000;
/// Least datagrams of a burst, and of the bucket. Longer bursts find the short queue of a link full. A TCP sender,
/// clocked by its acknowledgements, takes each place in the queue that becomes free.
const MIN_PACKETS: u64 = 2;
/// The least rate in bytes a second.
const MIN_RATE: f64 = 1.0;

/// The rate at which the bucket fills, in bytes a nanosecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(f64);

impl Pace {
    /// Returns the pace of a law that sets the rate, in bytes a second.
    pub(super) fn of_rate(rate: u64) -> Self {
        Self((rate as f64).max(MIN_RATE) / 1e9)
    }

    /// Returns the pace of a window over its round trip, in nanoseconds.
    pub(super) fn of_window(window: u64, round_trip: u64) -> Self {
        Self((GAIN * window as f64 / round_trip.max(1) as f64).max(MIN_RATE / 1e9))
    }
}

/// The bucket of bytes that may be sent now.
#[derive(Debug)]
pub(super) struct Pacer {
    tokens: f64,
    filled_at: Instant,
    /// Bytes left of the burst, and when it began.
    burst: f64,
    burst_at: Instant,
}

impl Pacer {
    pub(super) const fn new() -> Self {
        let (filled_at, burst_at) = (Instant::ZERO, Instant::ZERO);
        Self { tokens: f64::INFINITY, filled_at, burst: f64::INFINITY, burst_at }
    }

    /// Fills the bucket for the time since the last fill, and begins another burst if it is time for one.
    pub(super) fn fill(&mut self, now: Instant, Pace(rate): Pace, mtu: usize) {
        let least = (MIN_PACKETS * mtu as u64) as f64;
        let capacity = (rate * QUANTUM as f64).max(least);
        if now >= self.burst_at.plus_nanos(SPACING) {
            (self.burst, self.burst_at) = ((rate * BURST as f64).max(least), now);
        }
        let elapsed = now.nanos_since(self.filled_at) as f64;
        self.tokens = (self.tokens + rate * elapsed).min(capacity);
        self.filled_at = now;
    }

    pub(super) fn has_room(&self) -> bool {
        self.tokens > 0.0 && self.burst > 0.0
    }

    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
        self.burst -= bytes as f64;
    }

    /// Returns when there is room again: for half a burst, since a timer for each packet would cost too much.
    pub(super) fn ready_at(&self, Pace(rate): Pace, mtu: usize) -> Instant {
        let wanted = (rate * BURST as f64 / 2.0).max(mtu as f64) - self.tokens;
        let filled = self.filled_at.plus_nanos((wanted.max(0.0) / rate).ceil() as u64);
        filled.max(self.burst_at.plus_nanos(SPACING))
    }
}
