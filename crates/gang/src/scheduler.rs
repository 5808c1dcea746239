//! Gang scheduling: the root of the daemons switches jobs at the end of each slice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::time::Instant;

use crate::daemon::{Action, Daemon, DaemonError, Launch, Outcome};
use crate::names::{Epoch, JobId};
use crate::schedule::{AdmitError, Policy, Request};

/// How many times the daemons wait for each other in one switch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phases {
    /// Freeze, save, restore, run: a broadcast and a barrier each, as in the paper.
    Four,
    /// Freeze, then all the rest: two.
    Two,
}

/// A job to be run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Submission {
    /// Nodes, and its priority.
    pub request: Request,
    /// Ranks.
    pub ranks: u16,
    /// What it runs.
    pub program: u32,
}

/// Takes jobs for a scheduler. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Front(Arc<Mutex<Vec<Submission>>>);

impl Front {
    /// Submits a job: it begins at the end of the slice.
    pub fn submit(&self, submission: Submission) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(submission);
    }

    fn take(&self) -> Vec<Submission> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One switch of jobs: what it took, as the root saw it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switch {
    /// When it began.
    pub at: Instant,
    /// Until all processes were stopped and all channels steady, everywhere.
    pub freeze: Duration,
    /// Until all contexts were saved.
    pub save: Duration,
    /// Until all contexts were restored.
    pub restore: Duration,
    /// Until all processes went on. With [`Phases::Two`], save and restore are part of it.
    pub run: Duration,
    /// Jobs that ran before it.
    pub stopped: Vec<JobId>,
    /// Jobs that ran after it.
    pub started: Vec<JobId>,
}

impl Switch {
    /// When it ended.
    #[must_use]
    pub fn end(&self) -> Instant {
        self.at + self.freeze + self.save + self.restore + self.run
    }
}

/// A job, as the scheduler knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobRecord {
    /// Where it is, and what it runs.
    pub launch: Launch,
    /// Its epoch.
    pub epoch: Epoch,
    /// When it was found to have ended.
    pub ended: Option<Instant>,
}

/// Switches jobs.
pub struct Scheduler<H> {
    root: Daemon<H>,
    policy: Box<dyn Policy>,
    slice: Duration,
    phases: Phases,
    front: Front,
    jobs: BTreeMap<JobId, JobRecord>,
    running: Vec<JobId>,
    next_job: u32,
    switches: Vec<Switch>,
    refused: Vec<(Submission, AdmitError)>,
}

impl<H: Host> fmt::Debug for Scheduler<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl<H: Host> Scheduler<H> {
    /// Schedules from the root of the daemons.
    #[must_use]
    pub fn new(root: Daemon<H>, policy: Box<dyn Policy>, slice: Duration, phases: Phases) -> Self {
        Self {
            root,
            policy,
            slice,
            phases,
            front: Front::default(),
            jobs: BTreeMap::new(),
            running: Vec::new(),
            next_job: 1,
            switches: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Where jobs are submitted.
    #[must_use]
    pub fn front(&self) -> Front {
        self.front.clone()
    }

    /// Schedules until no job is left and none is submitted; the daemons quit then.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn run(&mut self) -> Result<(), DaemonError> {
        loop {
            self.take_jobs().await?;
            let next = self.policy.turn();
            if next.is_empty() && self.running.is_empty() {
                self.root.order(Action::Quit).await?;
                return Ok(());
            }
            let outcome = self.switch(next).await?;
            self.bury(&outcome).await?;
            if !self.running.is_empty() {
                let host = self.root.host();
                host.sleep_until(host.now() + self.slice).await;
            }
        }
    }

    async fn take_jobs(&mut self) -> Result<(), DaemonError> {
        for submission in self.front.take() {
            let Submission { request, ranks, program } = submission;
            let job = JobId(self.next_job);
            match self.policy.admit(job, request) {
                Err(error) => self.refused.push((submission, error)),
                Ok(nodes) => {
                    self.next_job += 1;
                    let (first, count) = (nodes.start, nodes.len() as u16);
                    let launch = Launch { job, first, nodes: count, ranks, program };
                    self.root.order(Action::Launch(launch)).await?;
                    let record = JobRecord { launch, epoch: Epoch(0), ended: None };
                    self.jobs.insert(job, record);
                }
            }
        }
        Ok(())
    }

    /// Stops what runs and starts `next`, even if it is the same: as the paper's did.
    async fn switch(&mut self, next: Vec<JobId>) -> Result<Outcome, DaemonError> {
        let host = self.root.host().clone();
        let stopped = std::mem::take(&mut self.running);
        let mut run = Vec::new();
        for job in &next {
            if let Some(record) = self.jobs.get_mut(job) {
                record.epoch = record.epoch.next();
                run.push((*job, record.epoch));
            }
        }
        let at = host.now();
        let since = |earlier: Instant| Duration::from_nanos(host.now().nanos_since(earlier));
        self.root.order(Action::Freeze(stopped.clone())).await?;
        let freeze = since(at);
        let (mut save, mut restore) = (Duration::ZERO, Duration::ZERO);
        let outcome = match self.phases {
            Phases::Four => {
                self.root.order(Action::Save(stopped.clone())).await?;
                save = since(at + freeze);
                self.root.order(Action::Restore(next.clone())).await?;
                restore = since(at + freeze + save);
                self.root.order(Action::Run(run)).await?
            }
            Phases::Two => self.root.order(Action::Switch { stop: stopped.clone(), run }).await?,
        };
        let run = since(at + freeze + save + restore);
        self.running.clone_from(&next);
        self.switches.push(Switch { at, freeze, save, restore, run, stopped, started: next });
        Ok(outcome)
    }

    /// Jobs whose processes have all ended are gone.
    async fn bury(&mut self, outcome: &Outcome) -> Result<(), DaemonError> {
        let now = self.root.host().now();
        let mut gone = Vec::new();
        for (job, record) in &mut self.jobs {
            if record.ended.is_none() && outcome.ended(*job) >= record.launch.ranks {
                record.ended = Some(now);
                gone.push(*job);
            }
        }
        for job in gone {
            self.policy.remove(job);
            self.running.retain(|other| *other != job);
            self.root.order(Action::End(job)).await?;
        }
        Ok(())
    }

    /// Every switch so far.
    #[must_use]
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// Every job so far.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, JobRecord> {
        &self.jobs
    }

    /// Jobs that were not taken, and why.
    #[must_use]
    pub fn refused(&self) -> &[(Submission, AdmitError)] {
        &self.refused
    }
}
