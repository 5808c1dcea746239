//! Configuration of a gang scheduler, and its record of a switch.

use std::num::NonZeroU32;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::names::JobId;

/// Number of orders in one switch; each ends with a barrier over all daemons.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phases {
    /// Freeze, save, restore, run: four broadcasts with a barrier each, as in the paper.
    Four,
    /// Two broadcasts: freeze, then all else. A node saves its frozen contexts while other nodes still freeze.
    Two,
}

/// Decides whether a job that also runs in the next slice is preempted at the end of its slice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PreemptWhenAlone {
    /// The job keeps running.
    Never,
    /// The job is suspended and started again, as in the paper's measurements.
    Always,
    /// The job is suspended and started again at the ends of this many slices, then keeps running for as many, and so
    /// on. So one run shows the cost of preemption.
    Alternately(NonZeroU32),
}

impl PreemptWhenAlone {
    /// Returns whether the job is suspended after `slices` earlier slices.
    pub(super) const fn is_stopped(self, slices: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Alternately(each) => (slices / each.get()).is_multiple_of(2),
        }
    }
}

/// Configuration of a gang scheduler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SchedulerConfig {
    /// Length of a slice.
    pub slice: Duration,
    /// Number of orders in a switch.
    pub phases: Phases,
    /// Decides whether a job that also runs in the next slice is preempted.
    pub preempt_when_alone: PreemptWhenAlone,
    /// Time for which a job runs when it is woken before its slice because data has arrived for it from outside; zero
    /// disables early wake-ups. The job's own next slices are shorter by the time that it has run early, and it runs
    /// at most one slice early.
    pub early_wakeup: Duration,
}

/// One switch of jobs, with the durations of its phases as the root measures them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switch {
    /// When the switch began.
    pub at: Instant,
    /// Time until all processes were suspended and all channels quiescent, on all nodes.
    pub freeze: Duration,
    /// Time until all contexts were saved.
    pub save: Duration,
    /// Time until all contexts were restored; zero with [`Phases::Two`].
    pub restore: Duration,
    /// Time until all processes were resumed. With [`Phases::Two`], this includes saving and restoring.
    pub run: Duration,
    /// Jobs that were suspended.
    pub stopped: Vec<JobId>,
    /// Jobs that were started.
    pub started: Vec<JobId>,
}

impl Switch {
    /// Returns when the switch ended.
    #[must_use]
    pub fn end(&self) -> Instant {
        self.at + self.took()
    }

    /// Returns the duration of the whole switch.
    pub(crate) fn took(&self) -> Duration {
        self.freeze + self.save + self.restore + self.run
    }
}
