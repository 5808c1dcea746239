//! Admission of jobs.

use midplane_simhw::time::Instant;

use super::{Job, JobManager};
use crate::names::JobId;
use crate::node_core::message::{Program, Reply};
use crate::node_core::order::Launch;
use crate::node_core::replica::{Entry, MOST_BYTES, Stage, bytes_of};
use crate::node_core::user::Caller;
use crate::schedule::{AdmitError, Request};

impl JobManager {
    /// Admits or refuses a job, and replies to its client. The ranks of a restored job start from states that this
    /// root has.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        Caller { client, user }: Caller,
        (request, ranks): (Request, u16),
        (program, is_restored): (Program, bool),
    ) -> Option<JobId> {
        let program = Program { images: program.images && is_restored, ..program };
        let launch = match self.scheduler_core.submit(request, ranks, (program, user)) {
            Ok(launch) => launch,
            Err(AdmitError::TooLarge { there, .. }) => {
                self.refuse(client, format!("--ranks {ranks}: there are {there} slots"));
                return None;
            }
            Err(error) => {
                self.refuse(client, format!("--ranks {ranks}: {error}"));
                return None;
            }
        };
        let job = launch.job;
        let hosts = self.hosts_of(&launch);
        if let Some(why) = self.refusal(&launch, &hosts) {
            self.scheduler_core.end(now, job);
            self.refuse(client, why);
            return None;
        }
        let entry = Entry {
            launch,
            weight: request.weight,
            stage: Stage::Admitted,
            is_restored,
            ends: vec![None; ranks.into()],
            why: None,
            seconds: [0.0; 2],
            preemptions: 0,
        };
        let record = Job::new(now, Some(client), entry, hosts);
        self.jobs.insert(job, record);
        self.record(now, job);
        self.reply(client, Reply::Accepted(job));
        Some(job)
    }

    /// Returns why a job can't be admitted on its hosts; `None` if it can.
    fn refusal(&self, launch: &Launch, hosts: &[u16]) -> Option<String> {
        if let Some(host) = hosts.iter().find(|host| !self.hosts.contains(host)) {
            return Some(format!("host {host} ({}) can't be reached", self.name(*host)));
        }
        let held: usize = self.jobs.values().map(|it| bytes_of(&it.entry.launch)).sum();
        let is_too_much = self.changes.is_some() && held + bytes_of(launch) > MOST_BYTES;
        is_too_much.then(|| {
            format!(
                "the commands, environments and ranks of all jobs would take more than {MOST_BYTES} bytes of each \
                 daemon: wait until other jobs have ended, or run this one with a smaller environment (env -i)"
            )
        })
    }
}
