//! Warp: the rate law of `midplane-warp-core`, fed with acknowledgements.

use std::time::Duration;

use midplane_simhw::time::Instant;
use midplane_warp_core::round_trip::RoundTripController;

use super::{Acked, Controller, Lost, Sending, Start};

/// Bytes that a connection may keep in queues: ten packets of 1,200 bytes.
const BACKLOG: u64 = 12_000;
/// Time for which a peer may delay the acknowledgement of a large packet.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(1);
/// Most bytes of a window.
const MAX_WINDOW: u64 = 1 << 40;

/// Warp, which follows the delay and keeps queues short.
#[derive(Clone, Debug)]
pub struct Warp(RoundTripController);

impl Warp {
    /// Makes the controller of a connection.
    #[must_use]
    pub fn new(start: Start) -> Self {
        Self(RoundTripController::new(BACKLOG, start.mtu.max(1) as u64, start.now))
    }
}

impl Controller for Warp {
    fn name(&self) -> &'static str {
        "warp"
    }

    fn on_sent(&mut self, now: Instant, sending: Sending) {
        self.0.on_sent(now, sending.bytes as usize);
    }

    fn on_acked(&mut self, now: Instant, acked: Acked) {
        // The older packets of an acknowledgement have waited for the newest one, for an unknown time.
        let took = now.nanos_since(acked.sent);
        if took == acked.latest_round_trip {
            let took = took - acked.waited.min(took);
            let round_trip = acked.round_trip.saturating_sub(acked.waited).max(took);
            let [took, round_trip] = [took, round_trip].map(Duration::from_nanos);
            self.0.on_acknowledged(now, acked.sent, took, round_trip);
        }
    }

    fn on_lost(&mut self, _: Instant, lost: Lost) {
        if lost.is_persistent {
            self.0.forget();
        }
    }

    fn on_mtu(&mut self, bytes: usize) {
        self.0.set_mtu(bytes as u64);
    }

    fn window(&self) -> u64 {
        // The rate is the limit, also while an acknowledgement waits at the peer.
        let waiting = (self.0.rate() * ACKNOWLEDGED_WITHIN.as_secs_f64()) as u64;
        self.0.window().saturating_add(waiting).min(MAX_WINDOW)
    }

    fn rate(&self) -> Option<u64> {
        Some(self.0.rate() as u64)
    }
}
