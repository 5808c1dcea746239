//! What daemons tell each other.

use midplane_simhw::id::NodeId;
use serde::{Deserialize, Serialize};

use crate::interfaces::{HostInterfaces, Moved};
use crate::names::{ChannelId, Epoch, JobId, Place};

/// A job to start: one rank a channel, nodes in turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Launch<P = u32> {
    /// The job.
    pub job: JobId,
    /// Its first node.
    pub first: u16,
    /// Its nodes.
    pub nodes: u16,
    /// Its ranks: rank r is on node `first + r % nodes`.
    pub ranks: u16,
    /// What it runs: whoever starts processes knows what it means.
    pub program: P,
}

impl<P> Launch<P> {
    /// Where its ranks are.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        let nodes = self.nodes.max(1);
        let place = |rank: u16| Place {
            node: NodeId(self.first + rank % nodes),
            channel: ChannelId(1 + rank / nodes),
        };
        (0..self.ranks).map(place).collect()
    }
}

/// What daemons are ordered to do.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Action<P = u32> {
    /// Open a job's contexts and start its processes, stopped.
    Launch(Launch<P>),
    /// Stop the processes of jobs, and wait until their channels are steady.
    Freeze(Vec<JobId>),
    /// The same, and their contexts are saved next, in [`Action::Switch`]: a node may begin once it has reported, while
    /// others have not.
    Leave(Vec<JobId>),
    /// Save the contexts of frozen jobs.
    Save(Vec<JobId>),
    /// Restore the contexts of jobs.
    Restore(Vec<JobId>),
    /// Start jobs in an epoch.
    Run(Vec<(JobId, Epoch)>),
    /// Save, restore and run in one go: once all are frozen, each node may do so by itself, since
    /// one that is not ready refuses what comes too early.
    Switch {
        /// Frozen everywhere.
        stop: Vec<JobId>,
        /// To go on.
        run: Vec<(JobId, Epoch)>,
    },
    /// The same up to [`Action::Join`], which follows once all have done it: save and restore, Virtual
    /// Interfaces as well, and say where those are now. Daemons of real processes only.
    Exchange {
        /// Frozen everywhere.
        stop: Vec<JobId>,
        /// Of these, the interfaces are forgotten; of the others, they stay.
        away: Vec<JobId>,
        /// To go on.
        start: Vec<JobId>,
    },
    /// Tell restored interfaces of their other ends, and start jobs.
    Join {
        /// The jobs, and their epochs.
        run: Vec<(JobId, Epoch)>,
        /// Where interfaces of these jobs are now.
        moved: Vec<Moved>,
    },
    /// End a job: what runs of it is killed.
    End(JobId),
    /// Tell the root what the channels of a frozen job hold, and keep it. Daemons of real processes only:
    /// others report at once.
    Cut(JobId),
    /// Only report.
    Look,
    /// Report and end.
    Quit,
}

/// What came of an order.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Jobs, and how many of their processes have ended.
    pub ended: Vec<(JobId, u16)>,
    /// Jobs that can't begin somewhere: on which node, and why.
    pub failed: Vec<(JobId, u16, String)>,
    /// Of jobs that stand still: the Virtual Interfaces that NICs have, or that are saved.
    pub interfaces: Vec<HostInterfaces>,
    /// Those that were restored.
    pub moved: Vec<Moved>,
}

impl Outcome {
    pub(crate) fn add(&mut self, more: Self) {
        for (job, count) in more.ended {
            match self.ended.iter_mut().find(|(other, _)| *other == job) {
                Some((_, sum)) => *sum += count,
                None => self.ended.push((job, count)),
            }
        }
        self.failed.extend(more.failed);
        self.interfaces.extend(more.interfaces);
        self.moved.extend(more.moved);
    }

    /// How many processes of a job have ended.
    #[must_use]
    pub fn ended(&self, job: JobId) -> u16 {
        self.ended.iter().find(|(other, _)| *other == job).map_or(0, |(_, count)| *count)
    }
}

/// An order, numbered by the root.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Order<P = u32> {
    /// Later ones have higher numbers.
    pub number: u32,
    /// What is to be done.
    pub action: Action<P>,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    Order(Order),
    Done {
        number: u32,
        outcome: Outcome,
    },
    /// The daemon of that node is gone.
    Gone(NodeId),
}
