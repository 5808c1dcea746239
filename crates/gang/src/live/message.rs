//! What daemons and front ends say to each other.

use serde::{Deserialize, Serialize};

use crate::daemon::{Order, Outcome};
use crate::names::JobId;

use super::parcel::Part;
use super::process::End;

/// What every rank of a job runs.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments, at least one: a name without a slash is looked for in `PATH`.
    pub command: Vec<Vec<u8>>,
    /// The whole environment, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// Where it runs.
    pub folder: Vec<u8>,
    /// Rank 0 has a terminal of so many rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// The job goes on when a rank fails.
    pub keep_going: bool,
    /// What arrives for the job wakes it ([`SchedulerCore::wake`](crate::scheduler_core::SchedulerCore::wake)).
    pub woken: bool,
}

/// A program in a checkpoint, to be read by people as well.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    command: Vec<String>,
    environment: Vec<String>,
    folder: String,
    terminal: Option<(u16, u16)>,
    keep_going: bool,
    #[serde(default)]
    woken: bool,
}

impl Program {
    /// Its command, to read.
    #[must_use]
    pub fn shown(&self) -> String {
        let words = self.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    /// As JSON; `None` if some of it is no text.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
        let texts = |all: &[Vec<u8>]| all.iter().map(text).collect::<Option<Vec<_>>>();
        let recorded = Recorded {
            command: texts(&self.command)?,
            environment: texts(&self.environment)?,
            folder: text(&self.folder)?,
            terminal: self.terminal,
            keep_going: self.keep_going,
            woken: self.woken,
        };
        serde_json::to_string(&recorded).ok()
    }

    /// Reads it again.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        let Recorded { command, environment, folder, terminal, keep_going, woken } =
            serde_json::from_str(json)?;
        let bytes = |texts: Vec<String>| texts.into_iter().map(String::into_bytes).collect();
        let (command, environment) = (bytes(command), bytes(environment));
        let folder = folder.into_bytes();
        Ok(Self { command, environment, folder, terminal, keep_going, woken })
    }
}

/// What is said about a cluster, alike on all of its daemons.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Hosts, from 0.
    pub hosts: u16,
    /// Ranks that run at once on a host.
    pub slots: u16,
    /// Children of a daemon.
    pub arity: u16,
}

impl Cluster {
    /// The host of a slot.
    #[must_use]
    pub(crate) const fn host_of(&self, slot: u16) -> u16 {
        slot / if self.slots == 0 { 1 } else { self.slots }
    }
}

/// The first thing that one daemon says to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Hello {
    /// It is this host, and wants to be told what to do.
    Child {
        /// Its host.
        host: u16,
        /// What it takes the cluster for.
        cluster: Cluster,
    },
    /// What ranks of a job on this host say goes this way.
    Streams {
        /// The host.
        host: u16,
        /// The job.
        job: JobId,
    },
}

/// What a daemon tells those below.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// An order, to be handed on.
    Order(Order<Program>),
    /// Signals ranks of a job.
    Signal {
        /// The job.
        job: JobId,
        /// Its number.
        signal: i32,
    },
    /// The terminal of a job has another size.
    Resize {
        /// The job.
        job: JobId,
        /// Rows and columns.
        size: (u16, u16),
    },
    /// What a rank of a job that is to be launched goes on from.
    Part {
        /// Where that rank will be.
        host: u16,
        /// The job.
        job: JobId,
        /// The rank.
        rank: u16,
        /// A part of it.
        part: Part,
    },
    /// Ranks of a job are asked for their states.
    Ask(JobId),
    /// They may go on.
    Go(JobId),
    /// The way to the root is gone: whatever runs is ended.
    Cut,
    /// Say that you are there.
    Probe,
}

/// What a daemon tells whoever it is below.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// An order was carried out.
    Report {
        /// Which one.
        number: u32,
        /// What came of it.
        outcome: Outcome,
    },
    /// A rank has ended.
    Ended {
        /// Its job.
        job: JobId,
        /// Which of the job's ranks.
        rank: u16,
        /// How.
        end: End,
    },
    /// A rank can be saved.
    Able {
        /// Its job.
        job: JobId,
        /// Which of the job's ranks.
        rank: u16,
    },
    /// What a rank's state is, or what its channel held.
    Part {
        /// Its job.
        job: JobId,
        /// Which of the job's ranks.
        rank: u16,
        /// A part of it.
        part: Part,
    },
    /// A rank could be saved, and can't any longer.
    Left {
        /// Its job.
        job: JobId,
        /// Which of the job's ranks.
        rank: u16,
    },
    /// These hosts can be reached now.
    Here(Vec<u16>),
    /// These can't any more.
    Gone(Vec<u16>),
    /// Answers [`Down::Probe`]: the daemon is alive.
    Present,
}

/// What a front end asks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Run a job; the connection is the job's: it ends when that does.
    Run {
        /// Ranks.
        ranks: u16,
        /// Slices in a row.
        weight: u8,
        /// What they run.
        program: Program,
    },
    /// All that comes on this connection is the job's standard input, up to its end.
    Feed(JobId),
    /// Signal this connection's job.
    Signal(i32),
    /// This connection's terminal has another size.
    Resize((u16, u16)),
    /// What there is.
    List,
    /// Signal a job; end it, if there is no signal.
    Kill {
        /// The job.
        job: JobId,
        /// The signal.
        signal: Option<i32>,
    },
    /// Save a job.
    Checkpoint {
        /// The job.
        job: JobId,
        /// Where to, on the host of the daemon that is asked: an absolute path.
        folder: Vec<u8>,
        /// It ends then.
        end: bool,
    },
    /// Run a job that was saved, as [`Request::Run`] does.
    Restore {
        /// Where it is, on the host of the daemon that is asked: an absolute path.
        folder: Vec<u8>,
        /// Slices in a row.
        weight: u8,
    },
    /// The last switches.
    Slices,
}

/// What a front end is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The job is taken.
    Accepted(JobId),
    /// It can't be done, and why.
    Refused(String),
    /// It is done.
    Done,
    /// The job is over.
    Over(Over),
    /// What there is.
    Listing(Listing),
    /// The job is saved.
    Saved(Saved),
    /// The last switches.
    Slices(Vec<Slice>),
}

/// What was saved of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The job.
    pub job: JobId,
    /// Its ranks.
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
    /// The hosts of its ranks, and how they ended; none never began.
    pub ranks: Vec<(u16, Option<End>)>,
    /// Why it was ended, if it did not end by itself.
    pub why: Option<String>,
    /// Seconds from when it was taken.
    pub seconds: f64,
    /// Seconds of that in its own slices.
    pub run_seconds: f64,
    /// Times that it was stopped.
    pub preemptions: u32,
}

/// All that a cluster does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Hosts: whether each can be reached.
    pub hosts: Vec<bool>,
    /// Ranks that run at once on a host.
    pub slots: u16,
    /// Milliseconds of a slice.
    pub slice_ms: f64,
    /// Switches so far.
    pub switches: u64,
    /// Microseconds from the first signal until all stood still, median and 99th percentile of the last
    /// switches.
    pub freeze_us: [f64; 2],
    /// The same for the whole switch.
    pub switch_us: [f64; 2],
    /// Jobs.
    pub jobs: Vec<Line>,
}

/// A job in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The job.
    pub job: JobId,
    /// Its slots, from and to before.
    pub slots: (u16, u16),
    /// Its priority.
    pub weight: u8,
    /// Whether it is its slice.
    pub runs: bool,
    /// Ranks that have ended.
    pub ended: u16,
    /// Times that it was stopped.
    pub preemptions: u32,
    /// Those of them in which the NICs kept its Virtual Interfaces, which would have been saved; and why, the last
    /// time.
    pub stayed: u32,
    /// See [`stayed`](Self::stayed).
    pub why_stayed: Option<String>,
    /// Seconds since it was taken.
    pub seconds: f64,
    /// Seconds of that in its own slices.
    pub run_seconds: f64,
    /// Its command, to read.
    pub command: String,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Microseconds of the first daemon's clock ([`now`](super::clock::now)).
    pub at_us: f64,
    /// Until all stood still, and their channels were steady.
    pub freeze_us: f64,
    /// Until all channels were saved, and restored; part of the rest with two barriers a switch.
    pub save_us: f64,
    /// Until all channels were restored.
    pub restore_us: f64,
    /// The whole switch, until all ran.
    pub switch_us: f64,
    /// Jobs that were stopped.
    pub stopped: Vec<JobId>,
    /// Jobs whose slice it was afterwards.
    pub running: Vec<JobId>,
}
