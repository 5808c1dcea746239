//! The rate law as the congestion controller of QUIC connections by `quinn` (feature `quinn`).
//!
//! A `RoundTripController` with the times of QUIC's acknowledgements. quinn paces its window over the round trip.
//!
//! ```
//! use std::sync::Arc;
//!
//! use midplane_warp::quinn::{WarpController, WarpFactory};
//!
//! let mut transport = quinn::TransportConfig::default();
//! transport.congestion_controller_factory(Arc::new(WarpFactory::new(12_000)));
//! // `ServerConfig::transport_config` and `ClientConfig::transport_config` take `Arc::new(transport)`: the law
//! // controls what the end sends that has it.
//!
//! /// Returns the rate of a connection in bytes a second; `None` if it has another controller.
//! fn rate(connection: &quinn::Connection) -> Option<f64> {
//!     let controller = connection.congestion_state().into_any().downcast::<WarpController>().ok()?;
//!     Some(controller.state().rate)
//! }
//! ```

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use midplane_simhw::time as fabric;
use midplane_warp_core::round_trip::RoundTripController;
use quinn_proto::RttEstimator;
use quinn_proto::congestion;

use crate::control::ControllerState;

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
        assert!(
            backlog > 0,
            "the backlog must be above 0 bytes: without one, a connection has no share"
        );
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
    law: RoundTripController,
    initial_window: u64,
}

impl WarpController {
    fn new(backlog: u64, begin: Instant, mtu: u16) -> Self {
        let law = RoundTripController::new(backlog, mtu.into(), fabric::Instant::from_nanos(1));
        Self { begin, initial_window: law.window(), law }
    }

    /// Returns the rate and all measurements of the law.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        self.law.state()
    }

    fn at(&self, now: Instant) -> fabric::Instant {
        let since = now.saturating_duration_since(self.begin);
        // Starts at 1 ns, since zero means "never".
        fabric::Instant::from_nanos(1 + fabric::nanos(since))
    }
}

impl congestion::Controller for WarpController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.law.on_sent(self.at(now), usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, _: u64, _: bool, rtt: &RttEstimator) {
        // quinn does not tell how long the peer had delayed the acknowledgement.
        let took = now.saturating_duration_since(sent);
        self.law.on_acknowledged(self.at(now), self.at(sent), took, rtt.get());
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, is_persistent: bool, _: u64) {
        // The law follows delay, not loss. But if nothing has arrived for several round trips, its
        // estimate is worthless.
        if is_persistent {
            self.law.forget();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.law.set_mtu(new_mtu.into());
    }

    fn window(&self) -> u64 {
        self.law.window()
    }

    fn metrics(&self) -> congestion::ControllerMetrics {
        let mut metrics = congestion::ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = Some((self.law.rate() * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn congestion::Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
