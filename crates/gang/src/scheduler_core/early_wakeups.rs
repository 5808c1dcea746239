//! Early wake-ups: a job for which data has arrived runs for a short time in the middle of other jobs' slice.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::names::JobId;

/// The jobs to wake, and the early wake-up under way.
#[derive(Debug)]
pub(super) struct EarlyWakeups {
    /// Length of an early wake-up; zero disables them.
    lasts: Duration,
    woken: VecDeque<JobId>,
    /// The slice may not be interrupted before this time.
    not_before: Instant,
    under_way: Option<EarlyWakeup>,
}

#[derive(Debug)]
struct EarlyWakeup {
    jobs: Vec<JobId>,
    /// Jobs of the slice that were stopped.
    stopped: Vec<JobId>,
    /// The rest of the slice.
    left: Duration,
}

/// A switch: the jobs to stop and to start, and the length of the time that follows.
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
    pub(super) const fn new(lasts: Duration) -> Self {
        Self { lasts, woken: VecDeque::new(), not_before: Instant::ZERO, under_way: None }
    }

    /// Requests an early wake-up.
    pub(super) fn wake(&mut self, job: JobId) {
        if !self.lasts.is_zero() && !self.woken.contains(&job) {
            self.woken.push_back(job);
        }
    }

    /// Cancels the requests of jobs whose turn has begun.
    pub(super) fn cancel(&mut self, jobs: &[JobId]) {
        self.woken.retain(|job| !jobs.contains(job));
    }

    /// Removes a job that has ended; returns whether it was the last one of the early wake-up under way.
    pub(super) fn forget(&mut self, job: JobId) -> bool {
        self.woken.retain(|other| *other != job);
        let Some(early) = &mut self.under_way else { return false };
        early.stopped.retain(|other| *other != job);
        let before = early.jobs.len();
        early.jobs.retain(|other| *other != job);
        early.jobs.is_empty() && before > 0
    }

    /// Notes that a slice begins or resumes.
    pub(super) fn on_slice_start(&mut self, now: Instant) {
        self.not_before = now + self.lasts;
    }

    /// Returns when the next early wake-up may begin, if one is requested.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waits = !self.woken.is_empty() && self.under_way.is_none();
        waits.then_some(self.not_before)
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether all woken jobs have ended, which may happen before they start.
    pub(super) fn all_have_ended(&self) -> bool {
        self.under_way.as_ref().is_some_and(|early| early.jobs.is_empty())
    }

    /// Begins an early wake-up, if one is requested and may begin. Wakes as many jobs as fit side by side, and stops
    /// the jobs on their nodes. `nodes` returns the nodes of a job that can run.
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
        let (mut later, all) = (VecDeque::new(), std::mem::take(&mut self.woken));
        for job in all.into_iter().filter(|job| !running.contains(job)) {
            match nodes(job) {
                Some(own) if taken.iter().all(|(_, other)| !overlap(&own, other)) => {
                    taken.push((job, own));
                }
                Some(_) => later.push_back(job),
                None => {}
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
        self.under_way = Some(EarlyWakeup { jobs: start.clone(), stopped: stop.clone(), left });
        Some(Change { stop, start, lasts: self.lasts })
    }

    /// Ends the early wake-up: stops the woken jobs, and resumes those that were stopped for them.
    pub(super) fn end(&mut self) -> Option<Change> {
        let EarlyWakeup { jobs, stopped, left } = self.under_way.take()?;
        Some(Change { stop: jobs, start: stopped, lasts: left })
    }
}
