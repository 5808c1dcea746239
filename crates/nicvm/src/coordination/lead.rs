//! The lead: how long before the last bit leaves a token is released, so that the next sender's first bit follows
//! without a gap.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use midplane_simhw::time::nanos;

/// Estimates how early a token can be released so that no two messages meet.
///
/// A lead that is too long by one cell lets the queue at the link grow by one cell at every
/// hand-over; a lead that is too short leaves the link idle for the difference.
pub(super) trait LeadEstimator: fmt::Debug + Send {
    /// Records a hand-over to another node: the time from the decision to release until the next sender's first bit
    /// could leave.
    fn on_handover(&mut self, handover: Duration);

    /// Returns how early to release the token.
    fn lead(&self) -> Duration;

    /// Returns the estimated time of a hand-over.
    fn handover(&self) -> Duration;
}

/// The time before the end of a message at which its token is released.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Lead {
    /// When the last bit has left. If control messages delay the last data, release is up to two control messages' time
    /// earlier, as with the other variants: queued frames of other senders fill the gap.
    Off,
    /// A fixed time before the last bit leaves. The paper released ten cells before the end.
    Fixed(Duration),
    /// Follows the measured hand-overs: as early as all but the fastest of them took.
    Adaptive,
}

impl Lead {
    /// Creates the estimator.
    #[must_use]
    pub(super) fn build(self) -> Box<dyn LeadEstimator> {
        match self {
            Self::Off => Box::<FixedLead>::default(),
            Self::Fixed(lead) => Box::new(FixedLead { lead, handovers: AdaptiveLead::default() }),
            Self::Adaptive => Box::<AdaptiveLead>::default(),
        }
    }
}

/// A shared value by which another extension of the unit shortens the lead: one that measures the queue before a link
/// and so sees that tokens are released too early. Clones share the value.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct LeadTrim(Arc<AtomicU64>);

impl LeadTrim {
    /// Sets by how much later tokens are released from now on; 0 at first.
    pub fn set(&self, shorter_by: Duration) {
        self.0.store(nanos(shorter_by), Ordering::Relaxed);
    }

    /// Returns by how much the lead is shortened.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Another estimator's lead, shortened by a trim.
#[derive(Debug)]
pub(super) struct TrimmedLead {
    pub(super) lead: Box<dyn LeadEstimator>,
    pub(super) trim: LeadTrim,
}

impl LeadEstimator for TrimmedLead {
    fn on_handover(&mut self, handover: Duration) {
        self.lead.on_handover(handover);
    }

    fn lead(&self) -> Duration {
        self.lead.lead().saturating_sub(self.trim.get())
    }

    fn handover(&self) -> Duration {
        self.lead.handover()
    }
}

/// A constant lead.
#[derive(Debug, Default)]
pub(crate) struct FixedLead {
    lead: Duration,
    handovers: AdaptiveLead,
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

/// A lead that follows the hand-overs: as long as all but the fastest fifth of the last 32 took.
///
/// A hand-over that comes too early leaves a queue at the link, which drains only in the gaps that other hand-overs
/// leave; a gap without a queue is lost capacity. On a busy host a few hand-overs are very late, so their mean would be
/// too long a lead: most hand-overs would come a little too early, and the few late ones could not drain the queue. A
/// low quantile keeps the queue bounded.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveLead {
    /// The last hand-overs, in ns; the oldest is replaced next.
    last: Vec<u64>,
    next: usize,
    sorted: Vec<u64>,
}

impl AdaptiveLead {
    /// Number of hand-overs that are remembered.
    const WINDOW: usize = 32;
    /// The lead is the sample at rank count / FASTEST: one in five is faster.
    const FASTEST: usize = 5;
    /// Hundredths of that sample that make the lead, to stay a little below it.
    const SHARE: u64 = 97;

    fn quantile(&self, of: usize) -> u64 {
        self.sorted.get(self.sorted.len() / of).copied().unwrap_or(0)
    }
}

impl LeadEstimator for AdaptiveLead {
    fn on_handover(&mut self, handover: Duration) {
        let sample = nanos(handover);
        if self.last.len() < Self::WINDOW {
            self.last.push(sample);
        } else {
            self.last[self.next] = sample;
            self.next = (self.next + 1) % Self::WINDOW;
        }
        self.sorted.clone_from(&self.last);
        self.sorted.sort_unstable();
    }

    fn lead(&self) -> Duration {
        Duration::from_nanos(self.quantile(Self::FASTEST) / 100 * Self::SHARE)
    }

    fn handover(&self) -> Duration {
        Duration::from_nanos(self.quantile(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_handover_is_hidden_almost_entirely() {
        let mut lead = AdaptiveLead::default();
        assert_eq!(lead.lead(), Duration::ZERO);
        for _ in 0..50 {
            lead.on_handover(Duration::from_micros(20));
        }
        assert!(lead.lead() > Duration::from_micros(19) && lead.lead() < Duration::from_micros(20));
    }

    #[test]
    fn a_trim_shortens_the_lead_and_nothing_else() {
        let trim = LeadTrim::default();
        let fixed = Lead::Fixed(Duration::from_micros(50)).build();
        let mut lead = TrimmedLead { lead: fixed, trim: trim.clone() };
        lead.on_handover(Duration::from_micros(20));
        trim.set(Duration::from_micros(30));
        assert_eq!(lead.lead(), Duration::from_micros(20));
        trim.set(Duration::from_micros(80));
        assert_eq!((lead.lead(), lead.handover()), (Duration::ZERO, Duration::from_micros(20)));
    }

    #[test]
    fn jitter_shortens_the_lead() {
        let (mut steady, mut jittery) = (AdaptiveLead::default(), AdaptiveLead::default());
        for i in 0..200 {
            steady.on_handover(Duration::from_micros(20));
            jittery.on_handover(Duration::from_micros(if i % 2 == 0 { 14 } else { 26 }));
        }
        assert!(jittery.lead() < steady.lead());
        assert!(jittery.lead() > Duration::from_micros(10));
    }
}
