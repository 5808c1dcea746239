//! How early a token is released: before the last bit has left, so that the next sender's first
//! bit follows it without a gap.

use std::fmt;
use std::time::Duration;

/// Estimates how early a token can be released so that no two messages meet.
///
/// A lead that is too long by one cell lets the queue at the link grow by one cell at every
/// hand-over; a lead that is too short leaves the link idle for the difference.
pub trait LeadEstimator: fmt::Debug + Send {
    /// A hand-over to another node is seen to take this long: from the decision to release until
    /// the next sender's first bit could leave.
    fn on_handover(&mut self, handover: Duration);

    /// How early to release.
    fn lead(&self) -> Duration;

    /// How long a hand-over takes, as far as is known.
    fn handover(&self) -> Duration;
}

/// How early tokens are released.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lead {
    /// When the last bit has left.
    Off,
    /// A fixed time before. The paper released ten cells before the end.
    Fixed(Duration),
    /// As the hand-overs that were seen tell: their mean, less their jitter.
    Steered,
}

impl Lead {
    /// The estimator that does so.
    #[must_use]
    pub fn build(self) -> Box<dyn LeadEstimator> {
        match self {
            Self::Off => Box::<FixedLead>::default(),
            Self::Fixed(lead) => Box::new(FixedLead { lead, handovers: SteeredLead::default() }),
            Self::Steered => Box::<SteeredLead>::default(),
        }
    }
}

/// Always the same lead.
#[derive(Debug, Default)]
pub struct FixedLead {
    lead: Duration,
    handovers: SteeredLead,
}

impl LeadEstimator for FixedLead {
    fn on_handover(&mut self, handover: Duration) {
        self.handovers.on_handover(handover);
    }

    fn lead(&self) -> Duration {
        self.lead
    }

    fn handover(&self) -> Duration {
        self.handovers.handover()
    }
}

/// Follows the hand-overs: a smoothed mean less a multiple of the smoothed deviation, as a
/// retransmission timer is set (Jacobson and Karels, 1988), but from below.
///
/// The queue that a hand-over too early leaves behind drains in the gaps that others leave: with
/// the mean lead a little short, it has a bound.
#[derive(Debug, Default)]
pub struct SteeredLead {
    mean_ns: Option<f64>,
    deviation_ns: f64,
}

impl SteeredLead {
    /// Weight of a new sample.
    const GAIN: f64 = 1.0 / 8.0;
    /// Deviations that the lead stays below the mean.
    const MARGIN: f64 = 0.5;
    /// The share of the mean that a steady hand-over may hide: a little less than all of it.
    const SHARE: f64 = 0.97;
}

impl LeadEstimator for SteeredLead {
    fn on_handover(&mut self, handover: Duration) {
        let sample = handover.as_nanos() as f64;
        match self.mean_ns {
            None => self.mean_ns = Some(sample),
            Some(mean) => {
                let error = sample - mean;
                self.mean_ns = Some(mean + Self::GAIN * error);
                self.deviation_ns += Self::GAIN * (error.abs() - self.deviation_ns);
            }
        }
    }

    fn lead(&self) -> Duration {
        let mean = self.mean_ns.unwrap_or(0.0);
        let lead = mean * Self::SHARE - self.deviation_ns * Self::MARGIN;
        Duration::from_nanos(lead.max(0.0) as u64)
    }

    fn handover(&self) -> Duration {
        Duration::from_nanos(self.mean_ns.unwrap_or(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_handover_is_hidden_but_for_a_little() {
        let mut lead = SteeredLead::default();
        assert_eq!(lead.lead(), Duration::ZERO);
        for _ in 0..50 {
            lead.on_handover(Duration::from_micros(20));
        }
        assert!(lead.lead() > Duration::from_micros(19) && lead.lead() < Duration::from_micros(20));
    }

    #[test]
    fn jitter_shortens_the_lead() {
        let (mut steady, mut jittery) = (SteeredLead::default(), SteeredLead::default());
        for i in 0..200 {
            steady.on_handover(Duration::from_micros(20));
            jittery.on_handover(Duration::from_micros(if i % 2 == 0 { 14 } else { 26 }));
        }
        assert!(jittery.lead() < steady.lead());
        assert!(jittery.lead() > Duration::from_micros(10));
    }
}
