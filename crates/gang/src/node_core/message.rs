//! Messages between daemons, and between a daemon and its front ends.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::order::{Launch, Order, Outcome};
pub use super::program::{Adopted, Program};
use super::replica::{Change, Position, Table};
pub use super::size::Size;
use super::state_chunk::StateChunk;
pub use super::user::User;
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId};
use midplane_simhw::id::NodeId;

/// A front end's connection.
pub(crate) type ClientId = u64;

/// Most bytes of a message between daemons, or between a daemon and a front end: a program's environment is in one.
pub(crate) const LONGEST: usize = 8 << 20;

/// Keys and values that ranks have put (PMI).
pub(crate) type Pairs = Vec<(String, String)>;

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// Its host's daemon was lost, and the process with it.
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

/// The shape of a cluster, equal on all of its daemons.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Number of hosts, numbered from 0.
    pub hosts: u16,
    /// Ranks that run at once on a host.
    pub slots: u16,
    /// Most children of a daemon in the tree.
    pub arity: u16,
}

impl Cluster {
    /// Returns whether another host can take over from the root: two hosts have no majority but both.
    pub(crate) const fn takes_over(&self) -> bool {
        self.hosts > 2
    }

    /// Returns the host of a slot.
    pub(crate) const fn host_of(&self, slot: u16) -> u16 {
        slot / if self.slots == 0 { 1 } else { self.slots }
    }

    /// Returns the host and channel of each rank of a job: its ranks are dealt to its slots in turn.
    pub(crate) fn places(&self, launch: &Launch) -> Vec<ChannelAddress> {
        let slots = self.slots.max(1);
        let place = |rank: u16| {
            let (slot, layer) =
                (launch.first + rank % launch.nodes.max(1), rank / launch.nodes.max(1));
            let channel = ChannelId(1 + slot % slots + layer * slots);
            ChannelAddress { node: NodeId(self.host_of(slot)), channel }
        };
        (0..launch.ranks).map(place).collect()
    }
}

/// The first message on a connection between daemons.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Hello {
    /// The sender wants to be a child of the receiver in the tree.
    Child {
        /// The sender's host.
        host: u16,
        /// The cluster, as the sender is configured.
        cluster: Cluster,
    },
    /// The connection carries the output of a job's ranks on one host, and the job's input.
    Streams {
        /// The sender's host.
        host: u16,
        /// The job.
        job: JobId,
    },
    /// The connection carries the frames of a front end of the sender's host.
    Front {
        /// The sender's host.
        host: u16,
        /// The user of the front end, as the sender's system knows it.
        user: User,
    },
    /// A message about elections follows.
    Ballot {
        /// The sender's host.
        host: u16,
    },
    /// The connection carries images of a job's processes on one host: to the root if they are being saved, else from it.
    Images {
        /// The sender's host.
        host: u16,
        /// The job.
        job: JobId,
        /// The epoch of the cut that they were made in.
        epoch: Epoch,
    },
}

/// Messages for all ranks of a job on their hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// Asks them for their states.
    Ask,
    /// Lets those that have handed their states over, or have been dumped, continue.
    Go,
    /// Keeps them still, and makes images of their processes, for the cut of this epoch.
    Dump(Epoch),
}

/// A job on a host whose root was lost.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    /// The last epoch in which it was started here.
    pub(crate) epoch: Epoch,
    /// True if its Virtual Interfaces are saved, and on no NIC.
    pub(crate) is_away: bool,
    /// True if the root was lost while the job's Virtual Interfaces moved: they can't be connected again.
    pub(crate) is_broken: bool,
    /// Ranks that can be saved.
    pub(crate) able: Vec<u16>,
    /// Ranks that have ended.
    pub(crate) ends: Vec<(u16, End)>,
    /// PMI barriers that its ranks have left, and what all ranks had put before the last one.
    pub(crate) barriers: u64,
    pub(crate) put: Pairs,
    /// Ranks in the next PMI barrier, with what they have put.
    pub(crate) inside: Vec<(u16, Pairs)>,
    /// The rank that has aborted the job, with its exit code and message.
    pub(crate) aborted: Option<(u16, i32, String)>,
}

/// The jobs on a host, for a root that takes over.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inventory {
    pub(crate) host: u16,
    pub(crate) jobs: Vec<Held>,
}

/// Messages from a daemon to its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Down {
    /// An order, to be carried out and forwarded.
    Order(Order),
    /// Signals the ranks of a job.
    Signal { job: JobId, signal: i32 },
    /// The job's terminal has a new size, in rows and columns.
    Resize { job: JobId, size: (u16, u16) },
    /// A chunk of the state that a rank starts from, for the host where it will be launched.
    Chunk { host: u16, job: JobId, rank: u16, chunk: StateChunk },
    /// A word for all ranks of a job.
    Say(JobId, Word),
    /// All ranks of a job have entered its PMI barrier of this number, with what they have put: they leave it.
    BarrierOut(JobId, u64, Pairs),
    /// A host of a job is lost: its channels on the others may never be steady, and are closed at once.
    Abandon(JobId),
    /// The receiver is no longer a child. Where only host 0 can be the root, it ends everything that it runs.
    Cut,
    /// The receiver is admitted below the root of a term, whose table this is.
    Welcome { root: u16, position: Position, table: Table },
    /// The root's table has changed.
    Change(Position, Change),
    /// A host's inventory is taken into account. These jobs of it are not the root's: the host ends them.
    Drop { host: u16, jobs: Vec<JobId> },
    /// The sender is alive.
    Present,
}

/// Messages from a daemon to its parent.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Up {
    /// The sender and all daemons below have carried out an order.
    Report { number: u32, outcome: Outcome },
    /// A rank has changed.
    Rank { job: JobId, rank: u16, event: RankEvent },
    /// These hosts are connected now, by the sender.
    Here(Vec<u16>),
    /// These hosts are lost.
    Gone(Vec<u16>),
    /// A host was admitted, and runs this: a part of its encoded [`Inventory`], and the bytes before it.
    Joined { host: u16, at: u64, bytes: Bytes, is_last: bool },
    /// A host holds the table of this position.
    Holds { host: u16, position: Position },
    /// Data has arrived on a host's NIC for a job that is suspended there and wants to be woken. Once for each suspension.
    Arrived { host: u16, job: JobId },
    /// The sender is alive.
    Present,
}

/// Changes of a rank.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum RankEvent {
    /// Its process has ended.
    Ended(End),
    /// It can be saved.
    Able,
    /// It can be saved no longer.
    Left,
    /// A chunk of its state, or of its channel's context.
    Chunk(StateChunk),
    /// It has entered the PMI barrier, with what it has put since the last one.
    BarrierIn(Pairs),
    /// It ends its job, and exits with this code.
    Aborted { code: i32, message: String },
    /// The kernel has ended processes of its job on its host for want of memory.
    OutOfMemory { why: String },
}

/// Requests of front ends.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Runs a job. The job ends when this connection does.
    Run {
        /// Number of ranks.
        ranks: u16,
        /// Slices that it gets in a row.
        weight: u8,
        /// What they run.
        program: Program,
    },
    /// Makes this connection the front end of a job whose root was lost with the connection before.
    Attach(JobId),
    /// Makes the rest of this connection the job's standard input.
    Feed(JobId),
    /// Signals this connection's job.
    Signal(i32),
    /// Sets the terminal size of this connection's job, in rows and columns.
    Resize((u16, u16)),
    /// Asks for a [`Listing`].
    List,
    /// Signals a job, or ends it.
    Kill {
        /// The job.
        job: JobId,
        /// The signal; `None` ends the job.
        signal: Option<i32>,
    },
    /// Saves a job.
    Checkpoint {
        /// The job.
        job: JobId,
        /// An absolute path on the daemon's host, where no checkpoint may be yet.
        folder: Vec<u8>,
        /// True to end the job once it is saved.
        end: bool,
    },
    /// Runs a job that was saved, as [`Request::Run`] does.
    Restore {
        /// The absolute path of its checkpoint, on the daemon's host.
        folder: Vec<u8>,
        /// Slices that it gets in a row.
        weight: u8,
    },
    /// Asks for the last switches.
    Slices,
    /// Ends a front end's connection that another daemon carries. If the connection ends without this, that daemon is lost,
    /// and the front end's job continues.
    Leave,
}

/// Replies to front ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The job is admitted.
    Accepted(JobId),
    /// The request is refused, with the reason.
    Refused(String),
    /// The request is carried out.
    Done,
    /// The job is over.
    Over(Over),
    /// The state of the cluster.
    Listing(Listing),
    /// The job is saved.
    Saved(Saved),
    /// The last switches.
    Slices(Vec<Slice>),
}

/// What a checkpoint holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The job.
    pub job: JobId,
    /// Number of its ranks.
    pub ranks: u16,
    /// Bytes of their states.
    pub state_bytes: u64,
    /// Messages that were sent and not received.
    pub messages: u64,
}

/// How a job went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// The job.
    pub job: JobId,
    /// The user who had submitted it.
    pub user: User,
    /// The host of each rank and how it ended; `None` for a rank that never started.
    pub ranks: Vec<(u16, Option<End>)>,
    /// Why it was ended, unless all of its ranks ended by themselves.
    pub why: Option<String>,
    /// Seconds from its admission to its end.
    pub seconds: f64,
    /// Seconds of that in its own slices.
    pub run_seconds: f64,
    /// Times that it was preempted.
    pub preemptions: u32,
}

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// For each host, whether it is connected.
    pub hosts: Vec<bool>,
    /// The host that is the root.
    pub root: u16,
    /// Ranks that run at once on a host.
    pub slots: u16,
    /// Milliseconds of a slice.
    pub slice_ms: f64,
    /// Switches so far.
    pub switches: u64,
    /// Microseconds from the first signal until all processes were stopped and all channels steady: median and 99th
    /// percentile of the last switches.
    pub freeze_us: [f64; 2],
    /// The same for the whole switch.
    pub switch_us: [f64; 2],
    /// The jobs.
    pub jobs: Vec<Line>,
}

/// A job in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The job.
    pub job: JobId,
    /// The name of the user who has submitted it.
    pub user: String,
    /// Its slots: the first, and the one after the last.
    pub slots: (u16, u16),
    /// Its priority: slices that it gets in a row.
    pub weight: u8,
    /// True in its slice.
    pub runs: bool,
    /// Ranks that have ended.
    pub ended: u16,
    /// Times that it was preempted.
    pub preemptions: u32,
    /// Preemptions in which its Virtual Interfaces could not be saved and stayed on their NICs.
    pub stayed: u32,
    /// Why they stayed, the last time.
    pub why_stayed: Option<String>,
    /// Seconds since its admission.
    pub seconds: f64,
    /// Seconds of that in its own slices.
    pub run_seconds: f64,
    /// Bytes of memory that each of its ranks claims, if they do.
    pub memory: Option<u64>,
    /// Its command, to show.
    pub command: String,
    /// Why it will never end by itself, if a cut has shown that: it names which rank waits for which.
    pub stuck: Option<String>,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// When it began, in microseconds of the root daemon's clock.
    pub at_us: f64,
    /// Time until all processes were stopped and all channels steady.
    pub freeze_us: f64,
    /// Time until all channels were saved. With two barriers a switch, it is part of the rest.
    pub save_us: f64,
    /// Time until all channels were restored.
    pub restore_us: f64,
    /// Duration of the whole switch.
    pub switch_us: f64,
    /// Jobs that were stopped.
    pub stopped: Vec<JobId>,
    /// Jobs of the slice that follows.
    pub running: Vec<JobId>,
}
