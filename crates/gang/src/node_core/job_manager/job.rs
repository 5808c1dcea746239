//! The root's record of a job, and the admission of jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::JobManager;
use super::barrier::Barrier;
use super::checking::Checks;
use super::saving::Saves;
use crate::names::JobId;
use crate::node_core::message::{ClientId, Program, Reply};
use crate::node_core::order::Launch;
use crate::node_core::replica::{Entry, MOST_BYTES, Stage, bytes_of};
use crate::node_core::user::Caller;
use crate::schedule::{AdmitError, Request};

/// A job, and its client.
#[derive(Debug)]
pub(super) struct Job {
    /// `None` while the job's client has not found this root.
    pub(super) client: Option<ClientId>,
    /// The job as the other daemons have stored it, except for times and preemptions since the last change.
    pub(super) entry: Entry,
    /// The host of each rank.
    pub(super) hosts: Vec<u16>,
    /// Hosts whose ranks' output may be incomplete.
    pub(super) open: BTreeSet<u16>,
    pub(super) is_launched: bool,
    /// True if a host could not start the job, so that none of its ranks runs.
    pub(super) is_refused: bool,
    /// True if the job was removed from all hosts.
    pub(super) is_removed: bool,
    /// When the job's streams are closed, even if output is missing.
    pub(super) linger_until: Option<Instant>,
    pub(super) admitted_at: Instant,
    /// The job's age when this root took over.
    pub(super) earlier: Duration,
    pub(super) ran: Duration,
    pub(super) runs_since: Option<Instant>,
    pub(super) barrier: Barrier,
    pub(super) checks: Checks,
    pub(super) saves: Saves,
}

impl Job {
    /// Creates the record of a job on these hosts. Another root may have admitted the job.
    pub(super) fn new(
        now: Instant,
        client: Option<ClientId>,
        entry: Entry,
        hosts: Vec<u16>,
    ) -> Self {
        let [earlier, ran] = entry.seconds.map(Duration::from_secs_f64);
        Self {
            client,
            open: hosts.iter().copied().collect(),
            hosts,
            is_launched: entry.stage != Stage::Admitted,
            entry,
            is_refused: false,
            is_removed: false,
            linger_until: None,
            admitted_at: now,
            earlier,
            ran,
            runs_since: None,
            barrier: Barrier::default(),
            checks: Checks::default(),
            saves: Saves::default(),
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        self.earlier + now.since(self.admitted_at)
    }

    pub(super) fn ran(&self, now: Instant) -> Duration {
        self.ran + self.runs_since.map_or(Duration::ZERO, |began| now.since(began))
    }

    pub(super) fn pause(&mut self, at: Instant) {
        self.ran = self.ran(at);
        self.runs_since = None;
    }
}

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
                self.refuse(client, format!(
                    "--ranks {ranks}: there are {there} slots; start daemons with more (--slots), or on more hosts"
                ));
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
        // Without a take-over, no table of all jobs is sent.
        let others = self.jobs.values().filter(|_| self.changes.is_some());
        let held: usize = others.map(|it| bytes_of(&it.entry.launch)).sum();
        let is_too_much = held + bytes_of(launch) > MOST_BYTES;
        is_too_much.then(|| {
            format!(
                "the commands, environments and ranks of all jobs would take more than {MOST_BYTES} bytes of each \
                 daemon: wait until other jobs have ended, or run this one with a smaller environment (env -i)"
            )
        })
    }
}
