//! Early wake-ups: a job for which data has arrived runs for a short time in the middle of other jobs' slice.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::names::JobId;

/// The requested early wake-ups, and the one in progress.
#[derive(Debug)]
pub(super) struct EarlyWakeups {
    woken: VecDeque<JobId>,
    /// For each job, the jobs of its last slice, including itself.
    rows: BTreeMap<JobId, Vec<JobId>>,
    advances: Advances,
    /// The slice may not be interrupted before this time.
    not_before: Instant,
    under_way: Option<EarlyWakeup>,
}

#[derive(Debug)]
struct EarlyWakeup {
    jobs: Vec<JobId>,
    /// Jobs of the interrupted slice that were suspended.
    stopped: Vec<JobId>,
    /// Remaining time of the interrupted slice.
    left: Duration,
    /// When the woken jobs were started; `None` before.
    began: Option<Instant>,
}

/// A switch: the jobs to suspend and to start, and the length of the time that follows.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Change {
    pub(super) stop: Vec<JobId>,
    pub(super) start: Vec<JobId>,
    pub(super) lasts: Duration,
}

const fn overlap(a: &Range<u16>, b: &Range<u16>) -> bool {
    a.start < b.end && b.start < a.end
}

impl EarlyWakeups {
    /// Creates the state of early wake-ups of length `lasts`, between slices of length `slice`.
    pub(super) fn new(lasts: Duration, slice: Duration) -> Self {
        Self {
            woken: VecDeque::new(),
            rows: BTreeMap::new(),
            advances: Advances::new(slice, lasts),
            not_before: Instant::ZERO,
            under_way: None,
        }
    }

    /// Requests an early wake-up.
    pub(super) fn wake(&mut self, job: JobId) {
        if !self.advances.early_wakeup.is_zero() && !self.woken.contains(&job) {
            self.woken.push_back(job);
        }
    }

    /// Begins a slice of `jobs`: cancels their requests, and returns the slice's length. It is shortened by the time
    /// that all of them have run ahead. Returns `None`, and cancels nothing, if that is the whole slice.
    pub(super) fn begin_turn(&mut self, jobs: &[JobId]) -> Option<Duration> {
        if !self.advances.early_wakeup.is_zero() {
            self.rows.extend(jobs.iter().map(|job| (*job, jobs.to_vec())));
        }
        let lasts = self.advances.shorten(jobs)?;
        self.woken.retain(|job| !jobs.contains(job));
        Some(lasts)
    }

    /// Removes a job that has ended. Returns whether it was the last job of the early wake-up in progress.
    pub(super) fn forget(&mut self, job: JobId) -> bool {
        self.woken.retain(|other| *other != job);
        self.rows.remove(&job);
        self.advances.forget(job);
        let Some(early) = &mut self.under_way else { return false };
        early.stopped.retain(|other| *other != job);
        let before = early.jobs.len();
        early.jobs.retain(|other| *other != job);
        early.jobs.is_empty() && before > 0
    }

    /// Records that a slice begins or resumes, or that the woken jobs were started.
    pub(super) fn on_slice_start(&mut self, now: Instant) {
        self.not_before = now + self.advances.early_wakeup;
        if let Some(early) = &mut self.under_way {
            early.began = Some(now);
        }
    }

    /// Returns when the next early wake-up may begin; `None` if none is requested that is allowed in this slice.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waits = self.woken.iter().any(|job| self.advances.allow(*job));
        (waits && self.under_way.is_none()).then_some(self.not_before)
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether all woken jobs have ended, which may happen before they start.
    pub(super) fn all_have_ended(&self) -> bool {
        self.under_way.as_ref().is_some_and(|early| early.jobs.is_empty())
    }

    /// Begins an early wake-up, if one is requested and allowed. Wakes as many jobs as fit on different nodes, with
    /// the jobs that share their slices, and suspends the jobs on these nodes. `nodes` returns the nodes of a job that
    /// can run.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        left: Duration,
        running: &[JobId],
        nodes: impl Fn(JobId) -> Option<Range<u16>>,
    ) -> Option<Change> {
        if self.woken.is_empty() || now < self.not_before || left.is_zero() || running.is_empty() {
            return None;
        }
        let mut taken: Vec<(JobId, Range<u16>)> = Vec::new();
        let mut later = VecDeque::new();
        for job in std::mem::take(&mut self.woken) {
            if running.contains(&job) || taken.iter().any(|(other, _)| *other == job) {
                continue;
            }
            let Some(own) = nodes(job) else { continue };
            if !self.advances.allow(job) || taken.iter().any(|(_, other)| overlap(&own, other)) {
                later.push_back(job);
                continue;
            }
            taken.push((job, own));
            // Jobs of the same slice run too. Otherwise the slice could not be shortened, because they would not have
            // run ahead.
            for beside in self.rows.get(&job).into_iter().flatten() {
                let fits = |own: &Range<u16>| taken.iter().all(|(_, other)| !overlap(own, other));
                if let Some(own) =
                    nodes(*beside).filter(|own| !running.contains(beside) && fits(own))
                {
                    taken.push((*beside, own));
                }
            }
        }
        self.woken = later;
        let in_the_way = |job: &&JobId| {
            nodes(**job).is_some_and(|own| taken.iter().any(|(_, other)| overlap(&own, other)))
        };
        let stop: Vec<JobId> = running.iter().filter(in_the_way).copied().collect();
        let start: Vec<JobId> = taken.iter().map(|(job, _)| *job).collect();
        if start.is_empty() {
            return None;
        }
        let (jobs, stopped) = (start.clone(), stop.clone());
        self.under_way = Some(EarlyWakeup { jobs, stopped, left, began: None });
        Some(Change { stop, start, lasts: self.advances.early_wakeup })
    }

    /// Ends the early wake-up: suspends the woken jobs, and resumes those that were suspended for them. `running` has
    /// run meanwhile, including the woken jobs.
    pub(super) fn end(&mut self, now: Instant, running: &[JobId]) -> Option<Change> {
        let EarlyWakeup { jobs, stopped, left, began } = self.under_way.take()?;
        // Jobs that have ended repay nothing.
        if !jobs.is_empty() {
            let took = began.map_or(Duration::ZERO, |began| now.since(began));
            self.advances.note(running, took);
        }
        Some(Change { stop: jobs, start: stopped, lasts: left })
    }
}

/// Records the time that jobs run ahead of their slices in early wake-ups. Jobs repay it by shorter slices.
///
/// An early wake-up delays the slices of all jobs, and a shorter slice later makes up for the delay. Slices are at
/// most one slice length late. So in any interval, each job gets the time that it would get without early wake-ups in
/// an interval one slice shorter. The time that it has run ahead before, also at most one slice, is taken off.
#[derive(Debug)]
struct Advances {
    slice: Duration,
    /// Length of an early wake-up; zero disables them.
    early_wakeup: Duration,
    /// For each job, its time in early wake-ups, less the time by which its slices were shortened.
    by_job: BTreeMap<JobId, Duration>,
    /// Time by which slices are late.
    lag: Duration,
}

impl Advances {
    const fn new(slice: Duration, early_wakeup: Duration) -> Self {
        Self { slice, early_wakeup, by_job: BTreeMap::new(), lag: Duration::ZERO }
    }

    /// Returns the most time that a job may be ahead and slices may be late: one slice, or one early wake-up if that
    /// is longer.
    fn most(&self) -> Duration {
        self.slice.max(self.early_wakeup)
    }

    fn of(&self, job: JobId) -> Duration {
        self.by_job.get(&job).copied().unwrap_or_default()
    }

    /// Returns whether a job may have another early wake-up now.
    fn allow(&self, job: JobId) -> bool {
        self.lag.max(self.of(job)) + self.early_wakeup <= self.most()
    }

    /// Records that jobs have run for this long in an early wake-up.
    fn note(&mut self, jobs: &[JobId], ran: Duration) {
        let most = self.most();
        self.lag = (self.lag + ran).min(most);
        for job in jobs {
            let ahead = self.by_job.entry(*job).or_default();
            *ahead = (*ahead + ran).min(most);
        }
    }

    /// Shortens a slice of jobs by the time that all of them have run ahead. Returns its length, at least that of an
    /// early wake-up; `None` if they have run ahead for a whole slice.
    fn shorten(&mut self, jobs: &[JobId]) -> Option<Duration> {
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

    /// Removes a job that has ended. The time that only it would have repaid delays no early wake-up of others.
    fn forget(&mut self, job: JobId) {
        self.by_job.remove(&job);
        self.lag = self.lag.min(self.by_job.values().sum());
    }
}
