//! Orders of the root, and their outcomes.

use serde::{Deserialize, Serialize};

use crate::interfaces::{HostInterfaces, RestoredInterface};
use crate::names::{Epoch, JobId};

use super::message::Program;
use super::user::User;

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
    /// The same as [`Action::Freeze`], before [`Action::Switch`]. Once a node has reported, it may save the contexts
    /// while other nodes still freeze.
    Leave(Vec<JobId>),
    /// Save the contexts of frozen jobs.
    Save(Vec<JobId>),
    /// Restore the contexts of jobs.
    Restore(Vec<JobId>),
    /// Start jobs in new epochs.
    Run(Vec<(JobId, Epoch)>),
    /// Save, restore and run in one order.
    ///
    /// All jobs of `stop` are frozen on all nodes, so each node may proceed on its own. A node that is not ready
    /// refuses messages that arrive too early.
    Switch {
        /// Jobs that are frozen on all nodes.
        stop: Vec<JobId>,
        /// Jobs to start, with their epochs.
        run: Vec<(JobId, Epoch)>,
    },
    /// Save and restore, including Virtual Interfaces, and report the new locations of restored interfaces.
    /// [`Action::Join`] follows once all nodes have reported.
    Exchange {
        /// Jobs that are frozen on all nodes.
        stop: Vec<JobId>,
        /// Jobs of `stop` whose interfaces are removed from the NIC; interfaces of other jobs stay there.
        away: Vec<JobId>,
        /// Jobs to restore.
        start: Vec<JobId>,
    },
    /// Connect restored interfaces with their peers, and start jobs.
    Join {
        /// The jobs, with their epochs.
        run: Vec<(JobId, Epoch)>,
        /// Old and new locations of these jobs' restored interfaces.
        moved: Vec<RestoredInterface>,
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
    /// The Virtual Interfaces of frozen jobs, on the NIC or saved.
    pub(crate) interfaces: Vec<HostInterfaces>,
    /// New locations of restored interfaces.
    pub(crate) moved: Vec<RestoredInterface>,
}

impl Action {
    /// Returns the jobs that the action concerns.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> {
        let (jobs, more, run): (&[JobId], &[JobId], &[(JobId, Epoch)]) = match self {
            Self::Launch(launch) => (std::slice::from_ref(&launch.job), &[], &[]),
            Self::Freeze(jobs) | Self::Leave(jobs) | Self::Save(jobs) | Self::Restore(jobs) => {
                (jobs, &[], &[])
            }
            Self::End(job) | Self::Cut(job) => (std::slice::from_ref(job), &[], &[]),
            Self::Run(run) | Self::Join { run, .. } => (&[], &[], run),
            Self::Switch { stop, run } => (stop, &[], run),
            Self::Exchange { stop, start, .. } => (stop, start, &[]),
            Self::Quit => (&[], &[], &[]),
        };
        jobs.iter().chain(more).copied().chain(run.iter().map(|(job, _)| *job))
    }
}

impl Outcome {
    pub(crate) fn add(&mut self, more: Self) {
        self.failed.extend(more.failed);
        self.interfaces.extend(more.interfaces);
        self.moved.extend(more.moved);
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
