//! Jobs whose Virtual Interfaces are on no NIC while they stand still, and the switches in which some of
//! them come or go: those take a phase more.

use std::collections::{BTreeMap, BTreeSet};

use crate::interfaces::{HostInterfaces, Moved, NotWhole, check_whole};
use crate::names::JobId;

/// Whose interfaces are away, and who comes and goes in the switch that is being made.
#[derive(Debug, Default)]
pub(super) struct Departures {
    away: BTreeSet<JobId>,
    /// Their interfaces are to be forgotten in this switch.
    leaving: Vec<JobId>,
    /// Where restored interfaces are, once that is known; `None` in a switch without any.
    moved: Option<Vec<Moved>>,
}

impl Departures {
    /// These jobs stand still, with these interfaces. Which of them keep theirs, and why.
    pub(super) fn stopped(
        &mut self,
        jobs: &[JobId],
        interfaces: &[HostInterfaces],
    ) -> Vec<(JobId, NotWhole)> {
        let mut by_job: BTreeMap<JobId, Vec<&HostInterfaces>> = BTreeMap::new();
        for of in interfaces.iter().filter(|of| jobs.contains(&of.job)) {
            by_job.entry(of.job).or_default().push(of);
        }
        self.leaving.clear();
        let mut stay = Vec::new();
        for (job, hosts) in by_job {
            match check_whole(&hosts) {
                Ok(()) => self.leaving.push(job),
                Err(why) => stay.push((job, why)),
            }
        }
        stay
    }

    /// Whose interfaces are to be forgotten, if any come or go in the switch that starts these jobs.
    pub(super) fn begin(&mut self, started: &[JobId]) -> Option<Vec<JobId>> {
        let leaving = std::mem::take(&mut self.leaving);
        self.away.extend(&leaving);
        let comes = started.iter().any(|job| self.away.contains(job));
        if leaving.is_empty() && !comes {
            return None;
        }
        self.away.retain(|job| !started.contains(job));
        self.moved = Some(Vec::new());
        Some(leaving)
    }

    /// Where restored interfaces are.
    pub(super) fn arrived(&mut self, moved: &[Moved]) {
        if let Some(all) = &mut self.moved {
            all.extend_from_slice(moved);
        }
    }

    /// The switch comes to its last phase: where restored interfaces are, if there may be any.
    pub(super) fn finish(&mut self) -> Option<Vec<Moved>> {
        self.moved.take()
    }

    /// A job is over.
    pub(super) fn forget(&mut self, job: JobId) {
        self.away.remove(&job);
        self.leaving.retain(|other| *other != job);
    }
}
