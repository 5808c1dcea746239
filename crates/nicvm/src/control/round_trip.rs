//! Round-trip time estimation of one peer.

use std::time::Duration;

use super::config::{
    ACKNOWLEDGEMENT_DELAY_NANOS, ControlConfig, INITIAL_TIMEOUT_NANOS, MIN_TIMEOUT_NANOS,
};

/// Samples in one period of the minimum; the minimum covers the last full period and the present one.
const PERIOD: u32 = 64;

/// Round-trip times of one peer, without the time that acknowledgements were delayed there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoundTrip {
    /// Smallest of the last 64 to 128 samples (of all, while they are fewer).
    pub min: Duration,
    /// Mean, with each sample weighing 1/8.
    pub smoothed: Duration,
    /// Mean deviation, with each sample weighing 1/4.
    pub variation: Duration,
}

/// The round-trip estimator.
///
/// Mean and deviation follow Jacobson and Karels, "Congestion Avoidance and Control" (SIGCOMM 1988), with the constants
/// of RFC 6298. The choice of samples follows Karn and Partridge, "Improving Round-Trip Time Estimates in Reliable
/// Transport Protocols" (SIGCOMM 1987): a message sent twice gives no sample, and a doubled timeout stays until a
/// message sent once gives one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    smoothed: u64,
    variation: u64,
    min: u64,
    former_min: u64,
    samples: u32,
    doublings: u32,
}

impl Estimate {
    /// Adds a sample: a message sent once was acknowledged `nanos` later.
    pub(super) fn on_sample(&mut self, nanos: u64) {
        let nanos = nanos.max(1);
        if self.smoothed == 0 {
            *self = Self { doublings: self.doublings, ..Self::first(nanos) };
            return;
        }
        let deviation = self.smoothed.abs_diff(nanos);
        self.variation = self.variation - self.variation / 4 + deviation / 4;
        self.smoothed = (self.smoothed - self.smoothed / 8 + nanos / 8).max(1);
        self.samples += 1;
        if self.samples == PERIOD {
            self.samples = 0;
            self.former_min = self.min;
            self.min = nanos;
        }
        self.min = self.min.min(nanos);
    }

    /// Doubles the timeout, because an acknowledgement or a welcome did not come in time.
    pub(super) const fn on_timeout(&mut self) {
        self.doublings = self.doublings.saturating_add(1);
    }

    /// Resets the timeout to its estimate, without doublings.
    pub(super) const fn forget_doublings(&mut self) {
        self.doublings = 0;
    }

    /// Returns the nanoseconds to wait for an acknowledgement before resending.
    pub(super) fn timeout(&self, config: &ControlConfig) -> u64 {
        let once = if self.smoothed == 0 {
            INITIAL_TIMEOUT_NANOS
        } else {
            self.smoothed
                .saturating_add(self.variation.saturating_mul(4))
                .saturating_add(ACKNOWLEDGEMENT_DELAY_NANOS)
        };
        let once = once.max(MIN_TIMEOUT_NANOS);
        let factor = 1_u64 << self.doublings.min(32);
        once.saturating_mul(factor).min(config.timeout_cap_nanos()).max(1)
    }

    pub(super) fn read(&self) -> Option<RoundTrip> {
        (self.smoothed != 0).then(|| RoundTrip {
            min: Duration::from_nanos(self.min.min(self.former_min)),
            smoothed: Duration::from_nanos(self.smoothed),
            variation: Duration::from_nanos(self.variation),
        })
    }

    const fn first(nanos: u64) -> Self {
        Self {
            smoothed: nanos,
            variation: nanos / 2,
            min: nanos,
            former_min: nanos,
            samples: 1,
            doublings: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_round_trips_converge_and_an_old_minimum_expires() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.read(), None);
        estimate.on_sample(10_000);
        for _ in 0..3 * PERIOD {
            estimate.on_sample(50_000);
        }
        let trip = estimate.read().unwrap();
        assert_eq!(trip.min, Duration::from_micros(50));
        assert!(trip.smoothed.abs_diff(Duration::from_micros(50)) < Duration::from_micros(1));
        assert!(trip.variation < Duration::from_micros(1));
    }

    #[test]
    fn resend_waits_double_up_to_an_eighth_of_dead_after() {
        let config = ControlConfig::default();
        let mut estimate = Estimate::default();
        let mut waits = Vec::new();
        for _ in 0..5 {
            waits.push(estimate.timeout(&config) / 1_000);
            estimate.on_timeout();
        }
        assert_eq!(waits, [10_000, 20_000, 40_000, 62_500, 62_500]);
        for _ in 0..100 {
            estimate.on_timeout();
        }
        assert_eq!(estimate.timeout(&config), 62_500_000);
        estimate.forget_doublings();
        assert_eq!(estimate.timeout(&config), 10_000_000);
    }
}
