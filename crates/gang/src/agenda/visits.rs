//! Jobs that are woken by what arrives for them, and run for a moment in the middle of others' slice.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::names::JobId;

/// Who is to come, and who is there.
#[derive(Debug)]
pub(super) struct Visits {
    /// How long one lasts; zero if there are none.
    lasts: Duration,
    woken: VecDeque<JobId>,
    /// The slice may not be interrupted before.
    not_before: Instant,
    under_way: Option<Visit>,
}

#[derive(Debug)]
struct Visit {
    visitors: Vec<JobId>,
    /// Those whose slice it is.
    displaced: Vec<JobId>,
    /// The rest of that slice.
    left: Duration,
}

/// Who stops, who goes on, and for how long.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Change {
    pub(super) stop: Vec<JobId>,
    pub(super) start: Vec<JobId>,
    pub(super) lasts: Duration,
}

const fn overlap(a: &Range<u16>, b: &Range<u16>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Visits {
    pub(super) const fn new(lasts: Duration) -> Self {
        Self { lasts, woken: VecDeque::new(), not_before: Instant::ZERO, under_way: None }
    }

    /// A job is to come.
    pub(super) fn wake(&mut self, job: JobId) {
        if !self.lasts.is_zero() && !self.woken.contains(&job) {
            self.woken.push_back(job);
        }
    }

    /// These have their turn: they need not come before it.
    pub(super) fn came(&mut self, jobs: &[JobId]) {
        self.woken.retain(|job| !jobs.contains(job));
    }

    /// A job is over; whether it was the last visitor.
    pub(super) fn forget(&mut self, job: JobId) -> bool {
        self.woken.retain(|other| *other != job);
        let Some(visit) = &mut self.under_way else { return false };
        visit.displaced.retain(|other| *other != job);
        let before = visit.visitors.len();
        visit.visitors.retain(|other| *other != job);
        visit.visitors.is_empty() && before > 0
    }

    /// A slice has begun, or goes on.
    pub(super) fn begun(&mut self, now: Instant) {
        self.not_before = now + self.lasts;
    }

    /// When somebody can come, if somebody is to.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waits = !self.woken.is_empty() && self.under_way.is_none();
        waits.then_some(self.not_before)
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether all visitors have ended: some do before they come.
    pub(super) fn is_abandoned(&self) -> bool {
        self.under_way.as_ref().is_some_and(|visit| visit.visitors.is_empty())
    }

    /// Those who are to come do, as many as there is room for, if it is time; those whose nodes they need stop.
    /// `nodes` says where a job is that can run.
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
        self.under_way = Some(Visit { visitors: start.clone(), displaced: stop.clone(), left });
        Some(Change { stop, start, lasts: self.lasts })
    }

    /// Visitors go, and those whose slice it is go on.
    pub(super) fn end(&mut self) -> Option<Change> {
        let Visit { visitors, displaced, left } = self.under_way.take()?;
        Some(Change { stop: visitors, start: displaced, lasts: left })
    }
}
