//! Messages between daemons, and between a daemon and its clients.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::order::{Launch, Order, Outcome};
pub use super::program::{Adopted, Program};
use super::replica::{Change, Position, Table};
#[cfg(feature = "live")]
pub use super::size::Size;
use super::state_chunk::StateChunk;
pub use super::user::User;
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId};
use midplane_simhw::id::NodeId;

/// Number of a client's connection.
pub(crate) type ClientId = u64;

/// A rank of a job.
pub(crate) type Member = (JobId, u16);

/// Most bytes of a message between daemons or between a daemon and a client. It may contain a program's environment.
pub(crate) const LONGEST: usize = 8 << 20;

/// Keys and values that ranks have put by PMI.
pub(crate) type Pairs = Vec<(String, String)>;

/// The way in which a rank's process ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// The process exited with this code.
    Exited(i32),
    /// This signal killed the process.
    Killed(i32),
    /// The host's daemon was lost, and the process with it.
    Lost,
}

impl End {
    /// Returns the exit code that a shell would show.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
            Self::Lost => 1,
        }
    }
}

/// The shape of a cluster, the same on all of its daemons.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Number of hosts, numbered from 0.
    pub hosts: u16,
    /// Number of ranks that run at once on a host.
    pub slots: u16,
    /// Most children of a daemon in the tree.
    pub arity: u16,
}

impl Cluster {
    /// Returns whether another host can take over from the root. Two hosts can't: their majority is both.
    pub(crate) const fn takes_over(&self) -> bool {
        self.hosts > 2
    }

    /// Returns the host and channel of each rank of a job. Its ranks are assigned to its slots in turn.
    pub(crate) fn places(&self, launch: &Launch) -> Vec<ChannelAddress> {
        let slots = self.slots.max(1);
        let place = |rank: u16| {
            let (slot, layer) =
                (launch.first + rank % launch.nodes.max(1), rank / launch.nodes.max(1));
            let channel = ChannelId(1 + slot % slots + layer * slots);
            ChannelAddress { node: NodeId(slot / slots), channel }
        };
        (0..launch.ranks).map(place).collect()
    }
}

/// The first message on a connection between daemons.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's host.
    pub host: u16,
    /// The purpose of the connection.
    pub purpose: Purpose,
}

/// Purposes of connections between daemons.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Purpose {
    /// The sender asks to become a child of the receiver in the tree. The cluster is as the sender is configured.
    Child(Cluster),
    /// The connection carries the output of a job's ranks on the sender's host, and the job's input.
    Streams(JobId),
    /// The connection carries the frames of a client of the sender's host. The user is as the sender's system reports
    /// it.
    Client(User),
    /// A message about elections follows.
    Ballot,
    /// The connection carries images of a job's processes on the sender's host: to the root while they are being saved
    /// for the cut of this epoch, otherwise from it.
    Images(JobId, Epoch),
}

/// Messages from the root to all ranks of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// Asks the ranks for their states.
    Ask,
    /// Lets the ranks continue that have sent their states or were dumped.
    Go,
    /// Lets one rank continue, which has sent its state.
    GoAlone(u16),
    /// Keeps the ranks suspended, and makes images of their processes, for the cut of this epoch.
    Dump(Epoch),
}

/// A host's report of one of its jobs, for a root that takes over.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    /// The last epoch in which the job was started on this host.
    pub(crate) epoch: Epoch,
    /// Ranks that can be saved.
    pub(crate) able: Vec<u16>,
    /// Ranks that have ended.
    pub(crate) ends: Vec<(u16, End)>,
    /// Number of PMI barriers that the job's ranks have left, and the pairs of all ranks before the last one.
    pub(crate) barriers: u64,
    pub(crate) put: Pairs,
    /// Ranks in the next PMI barrier, with the pairs that they have put.
    pub(crate) inside: Vec<(u16, Pairs)>,
    /// The rank that has aborted the job, with its exit code and message.
    pub(crate) aborted: Option<(u16, i32, String)>,
}

/// A host's report of its jobs, for a root that takes over.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inventory {
    pub(crate) host: u16,
    pub(crate) jobs: Vec<Held>,
}

/// Messages from a daemon to its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Down {
    /// An order to carry out and to forward.
    Order(Order),
    /// Sends a signal to the ranks of a job.
    Signal { job: JobId, signal: i32 },
    /// Sets the size of a job's terminal, in rows and columns.
    Resize { job: JobId, size: (u16, u16) },
    /// A chunk of the state that a rank starts from, for the host where the rank will be launched.
    Chunk { host: u16, job: JobId, rank: u16, chunk: StateChunk },
    /// A word for all ranks of a job.
    Say(JobId, Word),
    /// Lets a job's ranks leave the PMI barrier of this number, which all ranks have entered, with all ranks' pairs.
    BarrierOut(JobId, u64, Pairs),
    /// Drops the states of a job that ends before its launch. Closes a job's channels at once, because a host of the
    /// job is lost and they may never become quiescent.
    Abandon(JobId),
    /// Ends the connection: the receiver is no longer a child. If only host 0 can be the root, it ends all its jobs.
    Cut,
    /// Admits the receiver below the root of a term, with the root's table.
    Welcome { root: u16, position: Position, table: Table },
    /// A change of the root's table.
    Change(Position, Change),
    /// Reports that a host's inventory was processed. The host ends these jobs of it, which are not the root's.
    Drop { host: u16, jobs: Vec<JobId> },
    /// A sign of life of the sender, with the time since the last sign of life of the root.
    Present(Duration),
}

/// Messages from a daemon to its parent.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Up {
    /// The sender and all daemons below it have carried out an order.
    Report { number: u32, outcome: Outcome },
    /// The state of a rank has changed.
    Rank { job: JobId, rank: u16, event: RankEvent },
    /// These hosts are now connected through the sender.
    Here(Vec<u16>),
    /// These hosts are lost.
    Gone(Vec<u16>),
    /// A host was admitted: a part of its encoded [`Inventory`], which follows `at` bytes.
    Joined { host: u16, at: u64, bytes: Bytes, is_last: bool },
    /// A host has stored the table of this position.
    Holds { host: u16, position: Position },
    /// Data has arrived on a host's NIC for a job that is suspended and wants to be woken. Sent once per suspension.
    Arrived { host: u16, job: JobId },
    /// A sign of life of the sender.
    Present,
    /// A host has received a chunk of the state that a rank starts from, or a chunk from the sender waits at its
    /// parent. Orders arrive, and reports leave, after such chunks.
    HasChunk,
}

/// Changes of a rank's state.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum RankEvent {
    /// The rank's process has ended.
    Ended(End),
    /// The rank can be saved.
    Able,
    /// The rank can no longer be saved.
    Left,
    /// A chunk of the rank's state, or of its channel's context.
    Chunk(StateChunk),
    /// The rank has entered the PMI barrier, with the pairs that it has put since the last one.
    BarrierIn(Pairs),
    /// The rank ends its job, and exits with this code.
    Aborted { code: i32, message: String },
    /// The rank's job can't continue on the rank's host, which may have killed its processes there.
    Failed { why: String },
}

/// Requests of clients.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Runs a job. The job ends when this connection does.
    Run {
        /// Number of ranks.
        ranks: u16,
        /// Consecutive time slices of the job per round.
        weight: u8,
        /// The program of every rank.
        program: Program,
    },
    /// Makes this connection's sender the client of a job that lost its client together with its root.
    Attach(JobId),
    /// Makes the rest of this connection the job's standard input.
    Feed(JobId),
    /// Sends a signal to this connection's job.
    Signal(i32),
    /// Sets the terminal size of this connection's job, in rows and columns.
    Resize((u16, u16)),
    /// Requests a [`Listing`].
    List,
    /// Sends a signal to a job, or ends it.
    Kill {
        /// The job's number.
        job: JobId,
        /// The signal; `None` ends the job.
        signal: Option<i32>,
    },
    /// Saves a job to a checkpoint.
    Checkpoint {
        /// The job's number.
        job: JobId,
        /// An absolute path on the daemon's host, which must not contain a checkpoint.
        folder: Vec<u8>,
        /// True to end the job once it is saved.
        end: bool,
    },
    /// Runs a job from a checkpoint, as [`Request::Run`] does.
    Restore {
        /// The absolute path of its checkpoint, on the daemon's host.
        folder: Vec<u8>,
        /// Consecutive time slices of the job per round.
        weight: u8,
    },
    /// Requests the last switches.
    Slices,
    /// Ends a client's connection that another daemon relays. If the connection ends without this, that daemon is
    /// lost, and the client's job continues.
    Leave,
}

/// Replies to clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The job is admitted.
    Accepted(JobId),
    /// The request is refused, for this reason.
    Refused(String),
    /// The request is carried out.
    Done,
    /// The job has ended.
    Over(Over),
    /// The state of the cluster.
    Listing(Listing),
    /// The job is saved.
    Saved(Saved),
    /// The last switches.
    Slices(Vec<Slice>),
    /// No root carries the request out now, for this reason.
    NoRoot(String),
}

/// Contents of a checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The job's number.
    pub job: JobId,
    /// Number of the job's ranks.
    pub ranks: u16,
    /// Bytes of the ranks' states.
    pub state_bytes: u64,
    /// Number of messages that were sent and not received.
    pub messages: u64,
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// The job's number.
    pub job: JobId,
    /// The user who submitted the job.
    pub user: User,
    /// The host of each rank and how the rank ended; `None` for a rank that never started.
    pub ranks: Vec<(u16, Option<End>)>,
    /// Why the job was ended; `None` if all of its ranks ended by themselves.
    pub why: Option<String>,
    /// Seconds from the job's admission to its end.
    pub seconds: f64,
    /// Seconds of these in the job's own slices.
    pub run_seconds: f64,
    /// Number of times that the job was preempted.
    pub preemptions: u32,
}

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// For each host, true if it is connected.
    pub hosts: Vec<bool>,
    /// The host that is the root.
    pub root: u16,
    /// Number of ranks that run at once on a host.
    pub slots: u16,
    /// Length of a slice, in milliseconds.
    pub slice_ms: f64,
    /// Number of switches so far.
    pub switches: u64,
    /// Microseconds from the first signal until all processes were suspended and all channels quiescent: median and
    /// 99th percentile of the last switches.
    pub freeze_us: [f64; 2],
    /// Microseconds of the whole switch: median and 99th percentile of the last switches.
    pub switch_us: [f64; 2],
    /// The jobs.
    pub jobs: Vec<Line>,
}

/// A job in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The job's number.
    pub job: JobId,
    /// The name of the user who submitted the job.
    pub user: String,
    /// The job's slots: the first, and the one after the last.
    pub slots: (u16, u16),
    /// The job's priority: its consecutive time slices per round.
    pub weight: u8,
    /// True while the job is in its slice.
    pub runs: bool,
    /// Number of ranks that have ended.
    pub ended: u16,
    /// Number of times that the job was preempted.
    pub preemptions: u32,
    /// Seconds since the job's admission.
    pub seconds: f64,
    /// Seconds of these in the job's own slices.
    pub run_seconds: f64,
    /// Bytes of memory that each rank claims; `None` for no claim.
    pub memory: Option<u64>,
    /// The beginning of the job's command, as text.
    pub command: String,
    /// Why the job will never end by itself, if a cut has shown that, such as which rank waits for which.
    pub stuck: Option<String>,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// When the switch began, in microseconds of the root daemon's clock.
    pub at_us: f64,
    /// Microseconds until all processes were suspended and all channels quiescent.
    pub freeze_us: f64,
    /// Microseconds until all channels were saved. With two barriers per switch, zero: part of `switch_us`.
    pub save_us: f64,
    /// Microseconds until all channels were restored. With two barriers per switch, zero: part of `switch_us`.
    pub restore_us: f64,
    /// Microseconds of the whole switch.
    pub switch_us: f64,
    /// Jobs that were suspended.
    pub stopped: Vec<JobId>,
    /// Jobs that run in the following slice.
    pub running: Vec<JobId>,
}
