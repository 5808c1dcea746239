//! Orders of the root, the steps of a node's own part of them, and their outcomes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::Program;
use super::user::User;
use crate::context::ChannelContext;
use crate::names::{Epoch, JobId};

/// A job to start. Its ranks are assigned to its slots in turn.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) job: JobId,
    /// The job's first slot.
    pub(crate) first: u16,
    /// Number of the job's slots.
    pub(crate) nodes: u16,
    /// Number of the job's ranks.
    pub(crate) ranks: u16,
    pub(crate) program: Program,
    /// The user who submitted the job.
    pub(crate) user: User,
}

/// Orders of the root to all daemons.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Action {
    /// Open a job's contexts and start its processes, suspended.
    Launch(Launch),
    /// Suspend the processes of jobs, and wait until their channels are quiescent.
    Freeze(Vec<JobId>),
    /// The same as [`Action::Freeze`], before an [`Action::Run`] that saves the jobs. Once a node has reported, it may
    /// save the contexts while other nodes still freeze.
    Leave(Vec<JobId>),
    /// Save and restore contexts. [`Action::Run`] follows once all nodes have reported.
    Exchange {
        /// Jobs to save, which are frozen on all nodes.
        stop: Vec<JobId>,
        /// Jobs to restore.
        start: Vec<JobId>,
    },
    /// Save jobs, and start jobs, whose contexts are restored if they are saved.
    ///
    /// All jobs of `stop` are frozen on all nodes, so each node may proceed on its own. A node that is not ready
    /// refuses messages that arrive too early.
    Run {
        /// Jobs to save.
        stop: Vec<JobId>,
        /// Jobs to start, with their new epochs.
        run: Vec<(JobId, Epoch)>,
    },
    /// End a job, and kill its processes.
    End(JobId),
    /// Report the contents of a frozen job's channels to the root; the contexts don't change.
    Cut(JobId),
    /// Report, and then end the daemon.
    Quit,
}

/// Results of an order.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Jobs that can't continue on a node: the job, the node and the reason.
    pub(crate) failed: Vec<(JobId, u16, String)>,
    /// Jobs that were cut while they had Virtual Interfaces open on a host.
    pub(crate) has_interfaces: Vec<(JobId, u16)>,
}

impl Action {
    /// Starts jobs in new epochs, and saves none.
    pub(crate) const fn run(run: Vec<(JobId, Epoch)>) -> Self {
        Self::Run { stop: Vec::new(), run }
    }

    /// Returns the jobs that the action concerns.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> {
        let (jobs, more, run): (&[JobId], &[JobId], &[(JobId, Epoch)]) = match self {
            Self::Launch(launch) => (std::slice::from_ref(&launch.job), &[], &[]),
            Self::Freeze(jobs) | Self::Leave(jobs) => (jobs, &[], &[]),
            Self::End(job) | Self::Cut(job) => (std::slice::from_ref(job), &[], &[]),
            Self::Run { stop, run } => (stop, &[], run),
            Self::Exchange { stop, start } => (stop, start, &[]),
            Self::Quit => (&[], &[], &[]),
        };
        jobs.iter().chain(more).copied().chain(run.iter().map(|(job, _)| *job))
    }
}

impl Outcome {
    /// Returns whether a job can't continue.
    pub(crate) fn has_failed(&self, job: JobId) -> bool {
        self.failed.iter().any(|(failed, ..)| *failed == job)
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.failed.extend(more.failed);
        self.has_interfaces.extend(more.has_interfaces);
    }
}

/// An order, numbered by the root.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The order's number, which grows with each order.
    pub(crate) number: u32,
    /// The action to carry out.
    pub(crate) action: Action,
}

/// Contexts of restored ranks, by rank.
pub(crate) type RestoredContexts = BTreeMap<u16, ChannelContext>;

/// A step of a node's own part of an order. It concerns the jobs' ranks on this node.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Opens the channels of a job's ranks, with the contexts of ranks that are restored.
    Open(Launch, RestoredContexts),
    /// Starts the ranks of a job, suspended, with the states of ranks that are restored.
    Start(Launch, BTreeMap<u16, Vec<u8>>),
    /// Suspends the processes of jobs.
    Suspend(Vec<JobId>),
    /// Carries out the channels' part of an action. [`Action::Freeze`] and [`Action::Leave`] stop the channels, and
    /// wait until all are quiescent. Once [`Action::Leave`] is reported, the contexts may be copied, because they will
    /// be saved.
    Channels(Action),
    /// Resumes the processes of jobs.
    Resume(Vec<JobId>),
    /// Kills the processes of jobs, and waits until all have ended.
    Kill(Vec<JobId>),
    /// Closes the channels of jobs. Cancels the step before, if it waits until channels are quiescent.
    Close(Vec<JobId>),
}

impl Step {
    /// Returns whether the step waits until channels are quiescent.
    pub(crate) const fn is_stop(&self) -> bool {
        matches!(self, Self::Channels(Action::Freeze(_) | Action::Leave(_)))
    }

    /// Describes the step, without programs, environment variables and states.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Open(launch, _) => format!("Open({})", launch.job),
            Self::Start(launch, _) => format!("Start({})", launch.job),
            other => format!("{other:?}"),
        }
    }
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOutcome {
    pub(crate) outcome: Outcome,
    /// The contexts of an [`Action::Cut`].
    pub(crate) contexts: Vec<ChannelContext>,
}

impl From<Outcome> for StepOutcome {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, contexts: Vec::new() }
    }
}

/// Returns the steps of an action on this node.
pub(super) fn steps_of(action: Action) -> Vec<Step> {
    let resumes = match &action {
        Action::Freeze(jobs) | Action::Leave(jobs) => {
            return vec![Step::Suspend(jobs.clone()), Step::Channels(action)];
        }
        Action::End(job) => return vec![Step::Kill(vec![*job]), Step::Close(vec![*job])],
        Action::Run { run, .. } => run.iter().map(|(job, _)| *job).collect(),
        _ => Vec::new(),
    };
    let resumes = (!resumes.is_empty()).then_some(Step::Resume(resumes));
    std::iter::once(Step::Channels(action)).chain(resumes).collect()
}
