//! Steps of a node's own part of an order.

use std::collections::BTreeMap;

use super::order::{Action, Launch, Outcome};
use crate::context::ChannelContext;
use crate::names::JobId;

/// A step of a node's own part of an order. It concerns the jobs' ranks on this node.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Opens the channels of a job's ranks, with the contexts of ranks that are restored.
    Open(Launch, BTreeMap<u16, ChannelContext>),
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
        Action::Run(run) | Action::Switch { run, .. } | Action::Join { run, .. } => {
            run.iter().map(|(job, _)| *job).collect()
        }
        _ => Vec::new(),
    };
    let resumes = (!resumes.is_empty()).then_some(Step::Resume(resumes));
    std::iter::once(Step::Channels(action)).chain(resumes).collect()
}
