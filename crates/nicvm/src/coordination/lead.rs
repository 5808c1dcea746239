//! How early a token is released: before the last bit has left, so that the next sender's first
//! bit follows it without a gap.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use midplane_simhw::time::nanos;

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
#[non_exhaustive]
pub enum Lead {
    /// When the last bit has left; as with the others up to two control messages earlier, where those hold up
    /// the last data: others fill the hole.
    Off,
    /// A fixed time before. The paper released ten cells before the end.
    Fixed(Duration),
    /// As the hand-overs that were seen tell: as early as all but the fastest of them took.
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

/// A word by which whoever sees the queue before a link shortens the lead of who releases its token:
/// another extension of the unit, that measures the way. Clones are the same word.
#[derive(Clone, Debug, Default)]
pub struct LeadTrim(Arc<AtomicU64>);

impl LeadTrim {
    /// Tokens are released later by so much from now on; 0 at first.
    pub fn set(&self, shorter_by: Duration) {
        self.0.store(nanos(shorter_by), Ordering::Relaxed);
    }

    /// By how much they are.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Another estimator's lead, shortened.
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

/// Follows the hand-overs: as early as all but the fastest fifth of the last ones took.
///
/// The queue that a hand-over too early leaves behind drains only in the gaps that others leave, and
/// a gap that finds no queue is lost. Where hand-overs are now and then very late, as on a busy host,
/// their mean is therefore too long a lead: most would come too early by a little, and the few late
/// ones would not make up for it. A quantile from below has a queue with a bound.
#[derive(Debug, Default)]
pub struct SteeredLead {
    /// The last hand-overs, in ns; the oldest is replaced next.
    last: Vec<u64>,
    next: usize,
    sorted: Vec<u64>,
}

impl SteeredLead {
    /// Hand-overs that are remembered.
    const WINDOW: usize = 32;
    /// One in so many of them is faster than the lead.
    const FASTEST: usize = 5;
    /// Hundredths of a steady hand-over that are hidden: a little less than all of it.
    const SHARE: u64 = 97;

    fn quantile(&self, of: usize) -> u64 {
        self.sorted.get(self.sorted.len() / of).copied().unwrap_or(0)
    }
}

impl LeadEstimator for SteeredLead {
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
    fn a_steady_handover_is_hidden_but_for_a_little() {
        let mut lead = SteeredLead::default();
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
        let (mut steady, mut jittery) = (SteeredLead::default(), SteeredLead::default());
        for i in 0..200 {
            steady.on_handover(Duration::from_micros(20));
            jittery.on_handover(Duration::from_micros(if i % 2 == 0 { 14 } else { 26 }));
        }
        assert!(jittery.lead() < steady.lead());
        assert!(jittery.lead() > Duration::from_micros(10));
    }
}
