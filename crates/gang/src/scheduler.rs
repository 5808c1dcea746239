//! Gang scheduling in virtual time: the root daemon admits jobs, and switches them at the end of each slice.

use std::collections::BTreeMap;
use std::fmt;

use midplane_simhw::host::Host;
use midplane_simhw::time::Instant;

use crate::daemon::{Daemon, DaemonError, Inbox, Launch, NodeEvent};
use crate::names::JobId;
use crate::node_core::message::{End, Reply};
use crate::node_core::{ClientId, Input, JobManager, RootConfig};
use crate::schedule::Policy;
use crate::scheduler_core::SchedulerConfig;

pub use crate::daemon::Submission;
pub use crate::scheduler_core::{Phases, Switch};

/// Submits jobs to a scheduler, and wakes them. Clones share one scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerClient(Inbox);

impl SchedulerClient {
    /// Submits a job, which starts at the end of the current slice. Jobs get numbers from 1 in the order of their
    /// submission, if none is refused.
    pub fn submit(&self, submission: Submission) {
        self.0.push(NodeEvent::Submit(submission));
    }

    /// Wakes a job before its slice, because data has arrived for it from outside ([`SchedulerConfig::early_wakeup`]).
    pub fn wake(&self, job: JobId) {
        self.0.push(NodeEvent::Core(Input::Fed(job)));
    }
}

/// A job that was admitted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobRecord {
    /// The submission.
    pub submission: Submission,
    /// When the job was removed from all nodes.
    pub ended: Option<Instant>,
    /// True if all of the job's ranks have completed; false if it was ended because a node was lost or a step failed.
    pub is_complete: bool,
}

/// Schedules jobs, in the root daemon.
pub struct Scheduler<H: Host> {
    daemon: Daemon<H>,
    /// Submissions that have no reply yet.
    asked: BTreeMap<ClientId, Submission>,
    next_client: ClientId,
    jobs: BTreeMap<JobId, JobRecord>,
    refused: Vec<(Submission, String)>,
}

impl<H: Host> fmt::Debug for Scheduler<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = &self.jobs;
        f.debug_struct("Scheduler").field("jobs", jobs).finish_non_exhaustive()
    }
}

impl<H: Host> Scheduler<H> {
    /// Makes the daemon of node 0 the root.
    #[must_use]
    pub fn new(mut daemon: Daemon<H>, policy: Box<dyn Policy>, config: SchedulerConfig) -> Self {
        daemon.core.become_root(RootConfig {
            policy,
            scheduler: config,
            geometry: None,
            most_saved: 0,
            check_every: std::time::Duration::MAX,
            names: Vec::new(),
            has_streams: false,
        });
        let (asked, jobs, refused) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { daemon, asked, next_client: 1, jobs, refused }
    }

    /// Returns a client, which submits jobs.
    #[must_use]
    pub fn client(&self) -> SchedulerClient {
        SchedulerClient(self.daemon.inbox.clone())
    }

    /// Runs until all jobs have ended and none is submitted, and then makes the daemons quit. Jobs are admitted, and the
    /// daemons quit, once all daemons are connected, or one of them is lost; a daemon that connects after such an end has an error.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, no job is lost, and the next call continues. After two seconds of virtual time
    /// without a poll, the other daemons treat the root as lost.
    pub async fn run(&mut self) -> Result<(), DaemonError> {
        loop {
            self.daemon.progress()?;
            self.take_replies();
            if self.daemon.has_quit {
                return Ok(());
            }
            self.submit();
            let is_over =
                self.asked.is_empty() && self.jobs.values().all(|job| job.ended.is_some());
            // A daemon that connects later would not receive the order to quit.
            if is_over && self.daemon.submissions.is_empty() && self.is_ready() {
                self.daemon.core.handle(self.daemon.host().now(), Input::Quit);
            }
            self.daemon.progress()?;
            // If a reply has already arrived, no event need be awaited.
            if !self.daemon.has_quit && self.daemon.replies.is_empty() {
                self.daemon.turn().await?;
            }
        }
    }

    /// Returns whether all daemons are connected, or one was lost.
    fn is_ready(&self) -> bool {
        self.daemon.core.root().is_some_and(JobManager::is_ready)
    }

    fn submit(&mut self) {
        if !self.is_ready() {
            return;
        }
        for submission in std::mem::take(&mut self.daemon.submissions) {
            let (client, now) = (self.next_client, self.daemon.host().now());
            self.next_client += 1;
            self.asked.insert(client, submission);
            let Submission { request, ranks, program } = submission;
            let program = Launch::program(program);
            self.daemon.core.handle(now, Input::Submit(client, (request, ranks), program));
        }
    }

    fn take_replies(&mut self) {
        for (client, reply) in std::mem::take(&mut self.daemon.replies) {
            match reply {
                Reply::Accepted(job) => {
                    if let Some(submission) = self.asked.remove(&client) {
                        let record = JobRecord { submission, ended: None, is_complete: false };
                        self.jobs.insert(job, record);
                    }
                }
                Reply::Refused(why) => {
                    let submission = self.asked.remove(&client);
                    self.refused.extend(submission.map(|submission| (submission, why)));
                }
                Reply::Over(over) => {
                    if let Some(record) = self.jobs.get_mut(&over.job) {
                        record.ended = Some(self.daemon.host().now());
                        let all = |(_, end): &(u16, Option<End>)| *end == Some(End::Exited(0));
                        record.is_complete = over.why.is_none() && over.ranks.iter().all(all);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the last 4,096 switches.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.daemon.core.root().into_iter().flat_map(JobManager::switches)
    }

    /// Returns all jobs so far.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, JobRecord> {
        &self.jobs
    }

    /// Returns the submissions that were refused, with the reasons.
    #[must_use]
    pub fn refused(&self) -> &[(Submission, String)] {
        &self.refused
    }
}
