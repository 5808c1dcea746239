//! Time that jobs run ahead of their turns, in early wake-ups, and its repayment: their own next slices are shorter.
//!
//! An early wake-up delays the turns of all jobs. A shorter slice makes up for that. The turns are at most one slice late,
//! so in any interval each job gets what fixed turns give in an interval that is one slice shorter, except for what it has
//! had in advance, which is one slice at most too.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::names::JobId;

/// Time that jobs have run ahead of their turns.
#[derive(Debug)]
pub(super) struct Advances {
    slice: Duration,
    /// Length of an early wake-up.
    early_wakeup: Duration,
    /// By job: what it has run in early wake-ups less what its slices were shortened by.
    by_job: BTreeMap<JobId, Duration>,
    /// Time by which the turns are late.
    lag: Duration,
}

impl Advances {
    pub(super) const fn new(slice: Duration, early_wakeup: Duration) -> Self {
        Self { slice, early_wakeup, by_job: BTreeMap::new(), lag: Duration::ZERO }
    }

    /// Returns the most that a job may be ahead, and all turns late: one slice, or an early wake-up that is longer.
    fn most(&self) -> Duration {
        self.slice.max(self.early_wakeup)
    }

    fn of(&self, job: JobId) -> Duration {
        self.by_job.get(&job).copied().unwrap_or_default()
    }

    /// Returns whether a job may run for one more early wake-up now.
    pub(super) fn allow(&self, job: JobId) -> bool {
        self.lag.max(self.of(job)) + self.early_wakeup <= self.most()
    }

    /// Notes that jobs have run for this long in an early wake-up.
    pub(super) fn note(&mut self, jobs: &[JobId], ran: Duration) {
        self.lag += ran;
        let most = self.most();
        for job in jobs {
            let ahead = self.by_job.entry(*job).or_default();
            *ahead = (*ahead + ran).min(most);
        }
    }

    /// Shortens a slice of jobs by what all of them have run in advance, and returns its length, at least that of an early
    /// wake-up; `None` if they have run for a whole slice in advance.
    pub(super) fn shorten(&mut self, jobs: &[JobId]) -> Option<Duration> {
        let least = jobs.iter().map(|job| self.of(*job)).min().unwrap_or_default();
        if least.is_zero() {
            return Some(self.slice);
        }
        let paid = match least >= self.slice {
            true => self.slice,
            false => least.min(self.slice.saturating_sub(self.early_wakeup)),
        };
        self.lag = self.lag.saturating_sub(paid);
        for job in jobs {
            self.by_job.entry(*job).and_modify(|ahead| *ahead = ahead.saturating_sub(paid));
        }
        (paid < self.slice).then(|| self.slice - paid)
    }

    /// Removes a job that has ended.
    pub(super) fn forget(&mut self, job: JobId) {
        self.by_job.remove(&job);
    }
}
