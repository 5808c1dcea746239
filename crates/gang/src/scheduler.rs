//! Gang scheduling in virtual time: the root daemon switches jobs at the end of each slice.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use midplane_simhw::host::Host;

use crate::daemon::{Action, Daemon, DaemonError};
use crate::names::JobId;
use crate::schedule::{AdmitError, Policy, Request};
use crate::scheduler_core::{Event, PreemptWhenAlone, SchedulerConfig, SchedulerCore};

pub use crate::scheduler_core::{JobRecord, Phases, Switch};

/// A job to be submitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Submission {
    /// Number of nodes, and priority.
    pub request: Request,
    /// Number of ranks.
    pub ranks: u16,
    /// The program, as passed to [`Start`](crate::daemon::Start).
    pub program: u32,
}

/// Submits jobs to a scheduler, and wakes them. Clones share one scheduler.
#[derive(Clone, Debug, Default)]
pub struct SchedulerClient(Arc<Mutex<Inbox>>);

#[derive(Debug, Default)]
struct Inbox {
    submissions: Vec<Submission>,
    arrivals: Vec<JobId>,
    /// The scheduler's task, while it waits.
    waker: Option<Waker>,
}

impl SchedulerClient {
    /// Submits a job, which starts at the end of the current slice.
    pub fn submit(&self, submission: Submission) {
        self.inbox().submissions.push(submission);
    }

    /// Wakes a job early: data has arrived for it from outside ([`SchedulerCore::wake`]).
    pub fn wake(&self, job: JobId) {
        let mut inbox = self.inbox();
        inbox.arrivals.push(job);
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once a job was woken, or `until` completes.
    async fn arrival(&self, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        poll_fn(|context| {
            let mut inbox = self.inbox();
            if !inbox.arrivals.is_empty() {
                return Poll::Ready(());
            }
            inbox.waker = Some(context.waker().clone());
            drop(inbox);
            until.as_mut().poll(context)
        })
        .await;
    }
}

/// Runs a [`SchedulerCore`] on the root daemon.
pub struct Scheduler<H: Host> {
    root: Daemon<H>,
    scheduler_core: SchedulerCore<u32>,
    client: SchedulerClient,
    switches: Vec<Switch>,
    refused: Vec<(Submission, AdmitError)>,
    /// True once the order to quit was given.
    has_quit: bool,
}

impl<H: Host> fmt::Debug for Scheduler<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("scheduler_core", &self.scheduler_core)
            .finish_non_exhaustive()
    }
}

impl<H: Host> Scheduler<H> {
    /// Creates a scheduler on the root daemon.
    ///
    /// Sets [`PreemptWhenAlone::Always`]: daemons report ended ranks only in answers to orders, so a job that runs
    /// alone must get some too.
    #[must_use]
    pub fn new(root: Daemon<H>, policy: Box<dyn Policy>, config: SchedulerConfig) -> Self {
        let scheduler_core = SchedulerCore::new(
            policy,
            SchedulerConfig { preempt_when_alone: PreemptWhenAlone::Always, ..config },
        );
        let (client, switches, refused) = (SchedulerClient::default(), Vec::new(), Vec::new());
        Self { root, scheduler_core, client, switches, refused, has_quit: false }
    }

    /// Returns a handle that submits jobs.
    #[must_use]
    pub fn client(&self) -> SchedulerClient {
        self.client.clone()
    }

    /// Runs until no job is left and none is submitted, then has the daemons quit.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, no further order is given. The next call continues with the last order's result.
    pub async fn run(&mut self) -> Result<(), DaemonError> {
        let host = self.root.host().clone();
        if let Some(outcome) = self.root.dropped_order().await {
            let outcome = outcome?;
            if self.has_quit {
                return Ok(());
            }
            self.scheduler_core.handle_outcome(host.now(), &outcome);
        }
        loop {
            let Inbox { submissions, arrivals, .. } = std::mem::take(&mut *self.client.inbox());
            for submission in submissions {
                let Submission { request, ranks, program } = submission;
                if let Err(error) = self.scheduler_core.submit(request, ranks, program) {
                    self.refused.push((submission, error));
                }
            }
            arrivals.into_iter().for_each(|job| self.scheduler_core.wake(job));
            while let Some(action) = self.scheduler_core.poll_order(host.now()) {
                let outcome = self.root.order(action).await?;
                self.scheduler_core.handle_outcome(host.now(), &outcome);
            }
            while let Some(event) = self.scheduler_core.poll_event() {
                if let Event::Switched(switch) = event {
                    self.switches.push(switch);
                }
            }
            match self.scheduler_core.poll_timeout() {
                Some(at) => self.client.arrival(host.sleep_until(at)).await,
                None => {
                    self.has_quit = true;
                    self.root.order(Action::Quit).await?;
                    return Ok(());
                }
            }
        }
    }

    /// Returns all switches so far.
    #[must_use]
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// Returns all jobs so far.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, JobRecord> {
        self.scheduler_core.jobs()
    }

    /// Returns the submissions that were not admitted, and why.
    #[must_use]
    pub fn refused(&self) -> &[(Submission, AdmitError)] {
        &self.refused
    }
}
