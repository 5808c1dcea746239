//! The rate law for a sender that knows only when each packet was sent and acknowledged.
//!
//! Acknowledgements of QUIC and of similar protocols carry no timestamps of the receiver, so the delay is that of the
//! whole round trip, by one clock. It includes queues on the return path, but neither clock offset nor skew.

use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

use crate::control::{ControlConfig, Controller, ControllerState};
use crate::estimate::{Estimator, Grouping};
use crate::feedback::Feedback;
use crate::stamp::Stamp;

/// The window in round trips of the rate; above 1, so that the rate is the limit and not the
/// window.
const WINDOW: f64 = 1.25;
/// The least window in packets. QUIC acknowledges every other packet.
const MIN_PACKETS: u64 = 4;
/// The window in packets before the first acknowledgement (RFC 9002, section 7.2).
const INITIAL_PACKETS: u64 = 10;
/// Round trips between two drains. A drain measures the delay of the empty path.
const DRAIN_EVERY: f64 = 500.0;
/// The round trip that is assumed before the first measurement.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// If the round trip differs from `grouped` by more than this factor, the groups are sized anew.
const FAR_OFF: u32 = 4;
/// The shortest round trip that the law can follow: groups of messages are an eighth of it.
const MIN_ROUND_TRIP: Duration = Duration::from_micros(1);
/// Most bytes of a window.
const MAX_WINDOW: u64 = 1 << 40;

/// The rate law of one sender, fed with acknowledgements.
///
/// `now` may go back: it then counts as the latest time before.
#[derive(Clone, Debug)]
pub struct RoundTripController {
    law: Controller,
    estimator: Estimator,
    acknowledged: u64,
    feedbacks: u32,
    round_trip: Duration,
    backlog: f64,
    mtu: u64,
    now: Instant,
    drained: Instant,
    /// The round trip for which the estimator's groups were sized.
    grouped: Duration,
}

impl RoundTripController {
    /// Creates the law of a sender that may keep `backlog` bytes in queues, and sends packets of up to `mtu` bytes.
    ///
    /// The backlog is the weight: senders that share a bottleneck share its rate in proportion to their backlogs. Ten
    /// packets, 12,000 bytes, are a good start.
    ///
    /// # Panics
    /// If `backlog` or `mtu` is zero.
    #[must_use]
    pub fn new(backlog: u64, mtu: u64, now: Instant) -> Self {
        let backlog = backlog as f64;
        Self {
            law: law(backlog, mtu, FIRST_ROUND_TRIP, now),
            estimator: Estimator::new(grouping(FIRST_ROUND_TRIP)),
            acknowledged: 0,
            feedbacks: 0,
            round_trip: FIRST_ROUND_TRIP,
            backlog,
            mtu,
            now,
            drained: now,
            grouped: FIRST_ROUND_TRIP,
        }
    }

    /// Records that a packet of `bytes` was sent.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.pass_to(now);
        self.law.on_sent(self.now, bytes);
    }

    /// Handles the acknowledgement of a packet sent at `sent`, whose round trip took `took`, without the time for which
    /// the receiver delayed the acknowledgement: a delay that varies counts as a queue. `round_trip` is the smoothed time.
    pub fn on_acknowledged(
        &mut self,
        now: Instant,
        sent: Instant,
        took: Duration,
        round_trip: Duration,
    ) {
        self.pass_to(now);
        self.measure(round_trip.max(MIN_ROUND_TRIP));
        if self.law.poll_timeout().is_some_and(|at| at <= self.now) {
            self.law.handle_timeout(self.now);
        }
        let sent = sent.min(self.now);
        let stamp = Stamp { sequence: self.acknowledged, sent };
        self.acknowledged += 1;
        let arrived = (sent + took).min(self.now);
        let Some(estimate) = self.estimator.handle_arrival(stamp, arrived) else { return };
        self.feedbacks = self.feedbacks.wrapping_add(1);
        let arrivals = self.estimator.arrivals();
        let mut feedback = Feedback::new(self.feedbacks, estimate, arrivals, self.now);
        feedback.drain = self.is_drain_due();
        self.law.handle_feedback(self.now, &feedback);
    }

    /// Discards the estimate of the path, of which nothing has arrived for several round trips. The law follows
    /// delay: single losses change nothing.
    pub const fn forget(&mut self) {
        self.law.forget();
    }

    /// Changes the largest packet to `bytes`.
    #[doc(hidden)]
    pub const fn set_mtu(&mut self, bytes: u64) {
        self.mtu = bytes;
    }

    /// Returns the bytes that may be in flight: what the rate sends in 1.25 round trips, so that the rate is the limit.
    #[must_use]
    pub fn window(&self) -> u64 {
        if self.feedbacks == 0 {
            return INITIAL_PACKETS * self.mtu;
        }
        let window = self.rate() * self.round_trip.as_secs_f64() * WINDOW;
        (window as u64).clamp(MIN_PACKETS * self.mtu, MAX_WINDOW)
    }

    /// Returns the allowed rate in bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.law.rate(self.now)
    }

    /// Returns the rate and all measurements of the law.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        self.law.state(self.now)
    }

    fn pass_to(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Sizes the groups and the least rate for the round trip. The first one that a protocol reports may be a guess, so they
    /// are sized anew if they are far off. Before there is feedback, the law begins anew as well.
    fn measure(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
        if self.grouped > round_trip * FAR_OFF || round_trip > self.grouped * FAR_OFF {
            self.grouped = round_trip;
            self.estimator = Estimator::new(grouping(round_trip));
            self.acknowledged = 0;
            if self.feedbacks == 0 {
                self.law = law(self.backlog, self.mtu, round_trip, self.now);
            } else {
                self.law.set_floor(floor(self.mtu, round_trip));
            }
        }
    }

    fn is_drain_due(&mut self) -> bool {
        let every = self.round_trip.mul_f64(DRAIN_EVERY);
        let is_due = self.now.since(self.drained) >= every;
        if is_due {
            self.drained = self.now;
        }
        is_due
    }
}

/// Returns the law of a sender on a path without feedback so far.
fn law(backlog: f64, mtu: u64, round_trip: Duration, now: Instant) -> Controller {
    let config = ControlConfig::new(backlog, floor(mtu, round_trip), f64::MAX);
    Controller::new(config.first_delay(round_trip), now)
}

/// Returns the least rate: a packet in four round trips, of at most 100 ms. At a lower one, feedback would be older than the law
/// accepts.
fn floor(mtu: u64, round_trip: Duration) -> f64 {
    mtu as f64 / 4.0 / round_trip.min(FIRST_ROUND_TRIP).as_secs_f64()
}

fn grouping(round_trip: Duration) -> Grouping {
    Grouping::new((nanos(round_trip) / 8).max(1), 4)
}
