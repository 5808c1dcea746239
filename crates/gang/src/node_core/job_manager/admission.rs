//! Admission of jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::barrier::Barrier;
use super::checking::Checks;
use super::saving::Saves;
use super::{Job, JobManager};
use crate::names::JobId;
use crate::node_core::message::{Program, Reply};
use crate::node_core::order::Launch;
use crate::node_core::replica::{MOST_BYTES, Stage, bytes_of};
use crate::node_core::user::Caller;
use crate::schedule::{AdmitError, Request};

impl JobManager {
    /// Admits a job or refuses it, and replies to its front end.
    pub(in crate::node_core) fn submit(
        &mut self,
        now: Instant,
        caller: Caller,
        (request, ranks): (Request, u16),
        program: Program,
    ) -> Option<JobId> {
        self.admit(now, caller, (request, ranks), (program, false))
    }

    /// Admits a job whose ranks may start from states that this root has.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        Caller { client, user }: Caller,
        (request, ranks): (Request, u16),
        (program, is_restored): (Program, bool),
    ) -> Option<JobId> {
        let program = Program { images: program.images && is_restored, ..program };
        let job = match self.scheduler_core.submit(request, ranks, (program, user)) {
            Ok(job) => job,
            Err(AdmitError::TooLarge { there, .. }) => {
                self.refuse(client, format!("--ranks {ranks}: there are {there} slots"));
                return None;
            }
            Err(error) => {
                self.refuse(client, format!("--ranks {ranks}: {error}"));
                return None;
            }
        };
        let launch = self.scheduler_core.jobs()[&job].launch.clone();
        let places = self.cluster.places(&launch);
        let hosts: Vec<u16> = places.iter().map(|place| place.node.0).collect();
        if let Some(why) = self.refusal(&launch, &hosts) {
            self.scheduler_core.end(now, job);
            self.refuse(client, why);
            return None;
        }
        let open = if self.has_streams { hosts.iter().copied().collect() } else { BTreeSet::new() };
        let record = Job {
            client: Some(client),
            launch,
            weight: request.weight,
            stage: Stage::Admitted,
            is_restored,
            open,
            hosts,
            ends: vec![None; ranks.into()],
            is_launched: false,
            is_refused: false,
            is_removed: false,
            linger_until: None,
            why: None,
            admitted_at: now,
            earlier: Duration::ZERO,
            ran: Duration::ZERO,
            runs_since: None,
            preemptions: 0,
            stayed: 0,
            why_stayed: None,
            barrier: Barrier::default(),
            checks: Checks::default(),
            saves: Saves::default(),
        };
        self.jobs.insert(job, record);
        self.record(now, job);
        self.reply(client, Reply::Accepted(job));
        Some(job)
    }

    /// Returns why a job can't be admitted on its hosts.
    fn refusal(&self, launch: &Launch, hosts: &[u16]) -> Option<String> {
        if let Some(host) = hosts.iter().find(|host| !self.hosts.contains(host)) {
            return Some(format!("host {host} ({}) can't be reached", self.name(*host)));
        }
        let held: usize = self.jobs.values().map(|it| bytes_of(&it.launch)).sum();
        let is_too_much = self.changes.is_some() && held + bytes_of(launch) > MOST_BYTES;
        is_too_much.then(|| {
            format!(
                "the commands, environments and ranks of all jobs would take more than {MOST_BYTES} bytes of each \
                 daemon: wait until other jobs have ended, or run this one with a smaller environment (env -i)"
            )
        })
    }
}
