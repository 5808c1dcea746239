//! How long frames take to a peer and back.

use std::time::Duration;

/// How long frames take to a peer and back, the peer's own delay taken out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoundTrip {
    /// The least that was seen.
    pub least: Duration,
    /// Smoothed: Jacobson and Karels, "Congestion avoidance and control" (1988), gain 1/8.
    pub smoothed: Duration,
    /// Smoothed deviation from it, gain 1/4.
    pub variation: Duration,
    /// Bytes by which messages were longer than what answered them, smoothed with gain 1/8: the way
    /// there took longer than the way back by the time that these take on the line.
    pub longer: u32,
}

impl RoundTrip {
    /// After the first sample.
    pub(super) fn first(sample: Duration, longer: u32) -> Self {
        Self { least: sample, smoothed: sample, variation: sample / 2, longer }
    }

    /// After one more sample.
    pub(super) fn with(self, sample: Duration, longer: u32) -> Self {
        let error = self.smoothed.abs_diff(sample);
        Self {
            least: self.least.min(sample),
            smoothed: (self.smoothed * 7 + sample) / 8,
            variation: (self.variation * 3 + error) / 4,
            longer: (self.longer * 7 + longer) / 8,
        }
    }

    /// Time after which an answer is overdue.
    pub(super) fn timeout(self) -> Duration {
        self.smoothed + self.variation * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_round_trip_has_a_tight_timeout() {
        let sample = Duration::from_micros(100);
        let mut trip = RoundTrip::first(sample, 0);
        for _ in 0..100 {
            trip = trip.with(sample, 0);
        }
        assert!(trip.timeout() < Duration::from_micros(110));
        let trip = trip.with(Duration::from_micros(900), 0);
        assert!(trip.timeout() > Duration::from_micros(800));
        assert_eq!(trip.least, sample);
    }
}
