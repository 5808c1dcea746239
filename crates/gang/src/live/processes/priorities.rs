//! Priorities of the jobs' processes on this host.

use super::Processes;
use crate::live::job_cgroup::{self, JobCgroup};
use crate::live::process::relax_threads;
use crate::names::JobId;

impl Processes {
    /// Raises the priority of processes that are to stop: they must get a processor to stop, and do nothing else with
    /// it.
    pub(super) fn hurry(&mut self, jobs: &[JobId]) {
        for job in jobs {
            for (_, held) in self.members.range_mut((*job, 0)..=(*job, u16::MAX)) {
                held.process.hurry();
            }
        }
        self.hurried.extend(jobs);
    }

    /// Restores the priorities of processes that were to stop, and of threads and processes that they have started
    /// meanwhile, unless some have still to stop.
    pub(crate) fn relax(&mut self) {
        if self.waits.is_some() {
            return;
        }
        for job in std::mem::take(&mut self.hurried) {
            let (mut ranks, mut nice) = (Vec::new(), None);
            for (_, held) in self.members.range_mut((job, 0)..=(job, u16::MAX)) {
                let pid = held.process.pid().as_raw_nonzero().get();
                if let Some(own) = held.process.relax() {
                    relax_threads(pid, own);
                    nice.get_or_insert(own);
                }
                ranks.push(pid);
            }
            let Some(nice) = nice else { continue };
            let group = self.cgroups.get(&job).map(JobCgroup::folder);
            let all = group.and_then(|it| job_cgroup::processes(it).ok()).into_iter().flatten();
            all.filter(|pid| !ranks.contains(pid)).for_each(|pid| relax_threads(pid, nice));
        }
    }
}
