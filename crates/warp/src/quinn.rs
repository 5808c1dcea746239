//! The rate law as the congestion controller of QUIC connections by `quinn` (feature `quinn`).
//!
//! QUIC's acknowledgements carry no timestamps of the receiver, so the delay is that of the whole
//! round trip, by one clock. It includes queues on the return path, but neither clock offset nor
//! skew. The window is what the rate sends in 1.25 round trips, so that the rate is the limit;
//! quinn paces the window over the round trip.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use midplane_simhw::time as fabric;
use quinn_proto::RttEstimator;
use quinn_proto::congestion;

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

/// Makes a [`WarpController`] for each connection, for `TransportConfig::congestion_controller_factory`.
#[derive(Clone, Debug)]
pub struct WarpFactory {
    backlog: u64,
}

impl WarpFactory {
    /// Configures connections that may each keep `backlog` bytes in queues.
    ///
    /// The backlog is the weight: connections that share a bottleneck share its rate in proportion
    /// to their backlogs. Ten packets, 12,000 bytes, are a good start.
    ///
    /// # Panics
    /// If `backlog` is zero.
    #[must_use]
    pub const fn new(backlog: u64) -> Self {
        assert!(backlog > 0, "a connection without a backlog has no share");
        Self { backlog }
    }
}

impl congestion::ControllerFactory for WarpFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn congestion::Controller> {
        Box::new(WarpController::new(self.backlog, now, current_mtu))
    }
}

/// The congestion controller of one QUIC connection.
#[derive(Clone, Debug)]
pub struct WarpController {
    begin: Instant,
    law: Controller,
    estimator: Estimator,
    acknowledged: u64,
    feedbacks: u32,
    round_trip: Duration,
    mtu: u64,
    now: fabric::Instant,
    drained: fabric::Instant,
    /// The round trip for which the estimator's groups were sized.
    grouped: Duration,
}

/// The round trip that is assumed before the first measurement.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// If the round trip differs from `grouped` by more than this factor, the groups are sized anew.
const FAR_OFF: u32 = 4;

impl WarpController {
    fn new(backlog: u64, begin: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        let floor = mtu as f64 / 4.0 / FIRST_ROUND_TRIP.as_secs_f64();
        let mut config = ControlConfig::new(backlog as f64, floor, f64::MAX);
        config = config.first_delay(FIRST_ROUND_TRIP);
        Self {
            begin,
            law: Controller::new(config, fabric::Instant::ZERO),
            estimator: Estimator::new(grouping(FIRST_ROUND_TRIP)),
            acknowledged: 0,
            feedbacks: 0,
            round_trip: FIRST_ROUND_TRIP,
            mtu,
            now: fabric::Instant::ZERO,
            drained: fabric::Instant::ZERO,
            grouped: FIRST_ROUND_TRIP,
        }
    }

    /// Returns the rate and all measurements of the law.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        self.law.state(self.now)
    }

    fn at(&self, now: Instant) -> fabric::Instant {
        let since = now.saturating_duration_since(self.begin);
        // Starts at 1 ns, since zero means "never".
        fabric::Instant::from_nanos(1 + fabric::nanos(since))
    }

    /// Sizes the groups for the round trip. The first one that quinn reports is its guess of a
    /// third of a second, so the groups are sized anew if they are far off.
    fn measure(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
        if self.grouped > round_trip * FAR_OFF || round_trip > self.grouped * FAR_OFF {
            self.grouped = round_trip;
            self.estimator = Estimator::new(grouping(round_trip));
            self.acknowledged = 0;
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

fn grouping(round_trip: Duration) -> Grouping {
    Grouping::new((fabric::nanos(round_trip) / 8).max(1), 4)
}

impl congestion::Controller for WarpController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.now = self.at(now);
        self.law.on_sent(self.now, usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, _: u64, _: bool, rtt: &RttEstimator) {
        self.measure(rtt.get());
        self.now = self.at(now);
        if self.law.poll_timeout().is_some_and(|at| at <= self.now) {
            self.law.handle_timeout(self.now);
        }
        let stamp = Stamp { sequence: self.acknowledged, sent: self.at(sent) };
        self.acknowledged += 1;
        let Some(estimate) = self.estimator.handle_arrival(stamp, self.now) else { return };
        self.feedbacks = self.feedbacks.wrapping_add(1);
        let arrivals = self.estimator.arrivals();
        let mut feedback = Feedback::new(self.feedbacks, estimate, arrivals, self.now);
        feedback.drain = self.is_drain_due();
        self.law.handle_feedback(self.now, &feedback);
    }

    fn on_congestion_event(&mut self, now: Instant, _: Instant, is_persistent: bool, _: u64) {
        self.now = self.at(now);
        // The law follows delay, not loss. But if nothing has arrived for several round trips, its
        // estimate is worthless.
        if is_persistent {
            self.law.forget();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.feedbacks == 0 {
            return self.initial_window();
        }
        let window = self.law.rate(self.now) * self.round_trip.as_secs_f64() * WINDOW;
        (window as u64).max(MIN_PACKETS * self.mtu)
    }

    fn metrics(&self) -> congestion::ControllerMetrics {
        let mut metrics = congestion::ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = Some((self.law.rate(self.now) * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn congestion::Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
