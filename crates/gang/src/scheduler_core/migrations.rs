//! Jobs whose Virtual Interfaces are saved and on no NIC. A switch that saves or restores interfaces needs an
//! additional phase.

use std::collections::{BTreeMap, BTreeSet};

use crate::interfaces::{HostInterfaces, RestoredInterface, check_cut};
use crate::names::JobId;

/// The jobs whose interfaces are on no NIC, and the changes of the switch in progress.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    /// Jobs whose interfaces are on no NIC.
    pub(super) away: BTreeSet<JobId>,
    /// Jobs whose interfaces the NICs must forget in this switch.
    leaving: Vec<JobId>,
    /// Old and new locations of interfaces restored in this switch; `None` if it neither restores nor forgets any.
    moved: Option<Vec<RestoredInterface>>,
}

impl Migrations {
    /// Handles the interfaces of suspended jobs.
    pub(super) fn stopped(&mut self, jobs: &[JobId], interfaces: &[HostInterfaces]) {
        let mut by_job: BTreeMap<JobId, Vec<&HostInterfaces>> = BTreeMap::new();
        for of in interfaces.iter().filter(|of| jobs.contains(&of.job)) {
            by_job.entry(of.job).or_default().push(of);
        }
        let whole = by_job.into_iter().filter(|(_, hosts)| check_cut(hosts).is_ok());
        self.leaving = whole.map(|(job, _)| job).collect();
    }

    /// Returns the jobs whose interfaces the NICs must forget; `None` if the switch neither forgets interfaces nor
    /// restores those of `started`.
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

    /// Records the new locations of restored interfaces.
    pub(super) fn restored(&mut self, moved: &[RestoredInterface]) {
        if let Some(all) = &mut self.moved {
            all.extend_from_slice(moved);
        }
    }

    /// Ends the switch. Returns the new locations of restored interfaces; `None` if it neither forgot nor restored
    /// any.
    pub(super) fn finish(&mut self) -> Option<Vec<RestoredInterface>> {
        self.moved.take()
    }

    /// Removes a job that has ended.
    pub(super) fn forget(&mut self, job: JobId) {
        self.away.remove(&job);
        self.leaving.retain(|other| *other != job);
    }
}
