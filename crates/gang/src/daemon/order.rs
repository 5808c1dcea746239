//! Messages between daemons.

use midplane_simhw::id::NodeId;
use serde::{Deserialize, Serialize};

use crate::interfaces::{HostInterfaces, RestoredInterface};
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId};

/// A job to start. Its ranks are dealt to its nodes in turn, one rank per channel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Launch<P = u32> {
    /// The job.
    pub job: JobId,
    /// Its first node.
    pub first: u16,
    /// Number of its nodes.
    pub nodes: u16,
    /// Number of its ranks: rank r is on node `first + r % nodes`.
    pub ranks: u16,
    /// The program, which only [`Start`](super::Start) (or the daemon of real processes) interprets.
    pub program: P,
}

impl<P> Launch<P> {
    /// Returns the node and channel of each rank.
    #[must_use]
    pub fn places(&self) -> Vec<ChannelAddress> {
        let nodes = self.nodes.max(1);
        let place = |rank: u16| ChannelAddress {
            node: NodeId(self.first + rank % nodes),
            channel: ChannelId(1 + rank / nodes),
        };
        (0..self.ranks).map(place).collect()
    }
}

/// Orders to daemons.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Action<P = u32> {
    /// Open a job's contexts and start its processes, suspended.
    Launch(Launch<P>),
    /// Stop the processes of jobs, and wait until their channels are steady.
    Freeze(Vec<JobId>),
    /// The same as [`Action::Freeze`], before [`Action::Switch`]. Once a node has reported, it may save the contexts
    /// while other nodes still freeze.
    Leave(Vec<JobId>),
    /// Save the contexts of frozen jobs.
    Save(Vec<JobId>),
    /// Restore the contexts of jobs.
    Restore(Vec<JobId>),
    /// Start jobs in an epoch.
    Run(Vec<(JobId, Epoch)>),
    /// Save, restore and run in one order.
    ///
    /// All jobs of `stop` are frozen on all nodes, so each node may proceed alone: a node that is not ready refuses
    /// messages that arrive too early.
    Switch {
        /// Jobs that are frozen on all nodes.
        stop: Vec<JobId>,
        /// Jobs to start, with their epochs.
        run: Vec<(JobId, Epoch)>,
    },
    /// Save and restore, Virtual Interfaces included, and report where restored interfaces are now. [`Action::Join`]
    /// follows once all nodes have reported. For daemons of real processes only.
    Exchange {
        /// Jobs that are frozen on all nodes.
        stop: Vec<JobId>,
        /// Jobs of `stop` whose interfaces the NIC forgets; those of other jobs stay on the NIC.
        away: Vec<JobId>,
        /// Jobs to restore.
        start: Vec<JobId>,
    },
    /// Connect restored interfaces with their other ends, and start jobs.
    Join {
        /// The jobs, with their epochs.
        run: Vec<(JobId, Epoch)>,
        /// Old and new names of these jobs' restored interfaces.
        moved: Vec<RestoredInterface>,
    },
    /// End a job, and kill its processes.
    End(JobId),
    /// Report to the root what the channels of a frozen job hold; the contexts stay as they are. For daemons of real
    /// processes only: others report at once.
    Cut(JobId),
    /// Report, and do nothing else.
    Report,
    /// Report, then end.
    Quit,
}

/// Results of an order.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Jobs, and how many of their processes have ended.
    pub ended: Vec<(JobId, u16)>,
    /// Jobs that can't be started on a node: the job, the node and the reason.
    pub failed: Vec<(JobId, u16, String)>,
    /// The Virtual Interfaces of frozen jobs, on the NIC or saved.
    pub interfaces: Vec<HostInterfaces>,
    /// Interfaces that were restored.
    pub moved: Vec<RestoredInterface>,
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

    /// Returns how many processes of a job have ended.
    #[must_use]
    pub fn ended(&self, job: JobId) -> u16 {
        self.ended.iter().find(|(other, _)| *other == job).map_or(0, |(_, count)| *count)
    }
}

/// An order, numbered by the root.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Order<P = u32> {
    /// Grows with each order.
    pub number: u32,
    /// The action to carry out.
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
