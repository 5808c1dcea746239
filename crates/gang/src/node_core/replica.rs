//! The root's table, which all daemons store: the jobs, and the results of those that ended last.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::message::{Adopted, End, Over};
use super::order::Launch;
use crate::names::JobId;

/// Most ended jobs that are remembered, for clients that have lost their root.
const REMEMBERED: usize = 64;
/// Most ranks of ended jobs that are remembered. The last ended job is always remembered.
const REMEMBERED_RANKS: usize = 1 << 16;
/// Most bytes of the programs and ranks of all jobs, because the table and each launch are sent in one message.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// Most bytes of a rank in a table.
const RANK_BYTES: usize = 16;

/// The progress of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// The job was admitted. None of its processes has run.
    Admitted,
    /// The job's processes are on all of its hosts.
    Launched,
    /// The job is being removed from its hosts.
    Ending,
}

/// A job in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) launch: Launch,
    /// Consecutive time slices of the job per round.
    pub(crate) weight: u8,
    pub(crate) stage: Stage,
    /// True if the job's ranks start from states that only the root that admitted the job has.
    pub(crate) is_restored: bool,
    /// The ends of the job's ranks, as far as known.
    pub(crate) ends: Vec<Option<End>>,
    /// Why the job is ended; `None` if its ranks ended by themselves.
    pub(crate) why: Option<String>,
    /// Seconds since the job's admission, and seconds of these in its own slices.
    pub(crate) seconds: [f64; 2],
    pub(crate) preemptions: u32,
}

/// The root's table, as every daemon stores it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) jobs: BTreeMap<JobId, Entry>,
    /// The last jobs that have ended.
    pub(crate) over: VecDeque<Over>,
    /// The highest number of a job so far.
    pub(crate) last_job: JobId,
}

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// A job is new, or has changed.
    Job(Box<Entry>),
    /// A job has ended and is removed.
    Over(Over),
}

/// The position of a table in the order of all tables: the root of a term numbers its changes. Equal positions mean
/// equal tables.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) term: u32,
    pub(crate) change: u64,
}

/// The state that a daemon must keep across restarts. Otherwise it could vote twice in a term, or for a daemon with an
/// older table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Durable {
    /// The latest known term.
    pub(crate) term: u32,
    /// The host for which this daemon has voted in this term.
    pub(crate) vote: Option<u16>,
    pub(crate) position: Position,
    pub(crate) table: Table,
}

impl Table {
    /// Applies a change of the root.
    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Job(entry) => {
                let job = entry.launch.job;
                self.last_job = self.last_job.max(job);
                self.jobs.insert(job, *entry);
            }
            Change::Over(over) => {
                self.jobs.remove(&over.job);
                remember(&mut self.over, over);
            }
        }
    }
}

/// Adds a job that has ended, and removes the oldest ones if there are too many.
pub(crate) fn remember(all: &mut VecDeque<Over>, over: Over) {
    all.push_back(over);
    let ranks = |all: &VecDeque<Over>| all.iter().map(|it| it.ranks.len()).sum::<usize>();
    while all.len() > REMEMBERED || all.len() > 1 && ranks(all) > REMEMBERED_RANKS {
        all.pop_front();
    }
}

/// Returns the most bytes of a job in a table.
pub(crate) fn bytes_of(launch: &Launch) -> usize {
    let texts = launch.program.command.iter().chain(&launch.program.environment);
    let texts: usize = texts.map(|text| text.len() + 8).sum();
    let adopted = match &launch.program.adopts {
        Some(Adopted::Folder(name) | Adopted::Pod(name)) => name.len(),
        Some(Adopted::SlurmStep { step, .. }) => step.as_ref().map_or(0, String::len),
        None => 0,
    };
    texts
        + launch.program.folder.len()
        + launch.user.name.len()
        + adopted
        + RANK_BYTES * usize::from(launch.ranks)
}
