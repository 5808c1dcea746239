//! The jobs' processes on this host, and what orders do to them.

mod launching;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use midplane_simhw::wire;
use rustix::process::Signal;
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{Timespec, nanosleep};

use tokio::sync::mpsc;

use super::cell::{Cell, Cells};
use super::channels::{Standing, Task, Told};
use super::hub::Event;
use super::link::Stream;
use super::message::{Cluster, Program};
use super::parcel::{Parcel, Part};
use super::process::{End, Process};
use super::snapshot::Word;
use super::still::descendants_stand;
use super::stub::Reaper;
use crate::context::ChannelContext;
use crate::daemon::{Action, Outcome};
use crate::names::JobId;

/// How often it is looked whether all stands still before a wake-up is waited for.
const LOOKS: usize = 30;
/// After so many looks it hurries them.
const HURRY: usize = 3;
/// Nanoseconds until the first look, which a few processes do not need; each later one comes after twice as many, up to
/// the last. A look takes a processor from those that are to stop: where all came after the first's time, 64 took half as
/// long again if they waited, and more than twice as long if they computed.
const FIRST_LOOK: i64 = 20_000;
const LAST_LOOK: i64 = 100_000;

/// A job's rank on this host.
type Member = (JobId, u16);

#[derive(Debug)]
struct Held {
    process: Process,
    /// The daemon's side of its terminal.
    terminal: Option<OwnedFd>,
    /// Says something to it.
    words: mpsc::UnboundedSender<Word>,
    /// Its end was told.
    told: bool,
}

/// This host's NIC, to its ranks.
#[derive(Debug)]
pub(super) struct Network {
    /// Under which its ports are found.
    pub(super) name: String,
    /// Who does what is to be done with its channels.
    pub(super) tasks: mpsc::UnboundedSender<Task>,
}

/// What a rank that was started reads and writes.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its rank.
    pub rank: u16,
    /// Where its input is written, of rank 0.
    pub input: Option<OwnedFd>,
    /// Where its output is read.
    pub outputs: Vec<(Stream, OwnedFd)>,
}

/// An order waits for processes.
#[derive(Debug)]
struct Waits {
    number: u32,
    /// For these to stand still, or to have ended.
    members: Vec<Member>,
    /// For these to stand still with all that they have started.
    groups: Vec<Member>,
    /// For all of these jobs to stand still, where each has a group of its own.
    cells: Vec<JobId>,
    /// It is for this job's end.
    ends: Option<JobId>,
    /// For their channels then.
    then: Option<Task>,
    /// Those of this job are to be opened.
    opens: Option<JobId>,
    /// The channels are at it.
    told: bool,
    /// These go on at last.
    run: Vec<JobId>,
    outcome: Outcome,
}

/// The jobs' processes on this host.
#[derive(Debug)]
pub(super) struct Local {
    host: u16,
    cluster: Cluster,
    members: BTreeMap<Member, Held>,
    reaper: Reaper,
    waits: Option<Waits>,
    network: Option<Network>,
    opened: Vec<(JobId, Opened)>,
    events: mpsc::UnboundedSender<Event>,
    /// What ranks of jobs that are to be launched go on from.
    parcels: BTreeMap<Member, Parcel>,
    /// What channels hold, to be told.
    cut: Vec<(JobId, ChannelContext)>,
    /// Where there are groups for jobs.
    groups: Option<Cells>,
    cells: BTreeMap<JobId, Cell>,
    /// To be removed.
    emptied: Vec<Cell>,
    /// Children were not looked at since they did.
    have_changed: bool,
}

impl Local {
    /// None yet. `reaper` ends them if this process can't.
    #[must_use]
    pub(super) fn new(
        (host, cluster): (u16, Cluster),
        (reaper, groups): (Reaper, Option<Cells>),
        network: Option<Network>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            host,
            cluster,
            members: BTreeMap::new(),
            reaper,
            waits: None,
            network,
            opened: Vec::new(),
            events,
            parcels: BTreeMap::new(),
            cut: Vec::new(),
            groups,
            cells: BTreeMap::new(),
            emptied: Vec::new(),
            have_changed: true,
        }
    }

    /// Begins what an order says; [`Local::poll_done`] says when it is done.
    pub(super) fn execute(&mut self, number: u32, action: Action<Program>) {
        let mut waits = Waits {
            number,
            members: Vec::new(),
            groups: Vec::new(),
            cells: Vec::new(),
            ends: None,
            then: None,
            opens: None,
            told: false,
            run: Vec::new(),
            outcome: Outcome::default(),
        };
        match action {
            Action::Launch(launch) if self.network.is_some() => {
                waits.opens = Some(launch.job);
                let contexts = self.saved_contexts(launch.job);
                waits.then = Some(Task::Open(launch, contexts));
            }
            Action::Launch(launch) => self.launch(&launch, Vec::new(), &mut waits),
            Action::Freeze(jobs) | Action::Leave(jobs) => {
                self.freeze(&jobs, &mut waits);
                let standing = |job: &JobId| {
                    let of_job = self.members.range((*job, 0)..=(*job, u16::MAX));
                    Standing { job: *job, groups: of_job.map(|(_, it)| it.process.pid()).collect() }
                };
                waits.then = Some(Task::Stop(jobs.iter().map(standing).collect()));
            }
            Action::Exchange { stop, away, start } => {
                waits.then = Some(Task::Exchange { stop, away, start });
            }
            Action::Join { run, moved } => {
                waits.run = run.iter().map(|(job, _)| *job).collect();
                waits.then = Some(Task::Join { run, moved });
            }
            Action::Switch { stop, run } => {
                waits.run = run.iter().map(|(job, _)| *job).collect();
                waits.then = Some(Task::Switch { stop, run });
            }
            Action::Run(run) => {
                waits.run = run.iter().map(|(job, _)| *job).collect();
                waits.then = Some(Task::Switch { stop: Vec::new(), run });
            }
            Action::End(job) => {
                waits.ends = Some(job);
                waits.members = self.of_job(job);
                self.kill(job);
                waits.then = Some(Task::Close(job));
            }
            Action::Save(jobs) => waits.then = Some(Task::Save(jobs)),
            Action::Restore(jobs) => waits.then = Some(Task::Restore(jobs)),
            Action::Cut(job) => waits.then = Some(Task::Cut(job)),
            Action::Report | Action::Quit => {}
        }
        self.waits = Some(waits);
    }

    fn freeze(&mut self, jobs: &[JobId], waits: &mut Waits) {
        for job in jobs {
            // A group that can't be frozen is stopped as others are.
            if self.cells.get(job).is_some_and(|cell| cell.freeze().is_ok()) {
                waits.cells.push(*job);
            } else {
                waits.members.extend(self.of_job(*job));
            }
        }
        for member in &waits.members {
            self.members.get_mut(member).expect("it was just listed").process.stop();
        }
        waits.groups.clone_from(&waits.members);
        // It takes less time than to be woken, and nobody is woken when all of a group stands still.
        let mut nap = FIRST_LOOK;
        for look in 0..LOOKS {
            if self.settle(waits) {
                break;
            }
            if look == HURRY {
                self.hurry(jobs);
            }
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: nap });
            nap = LAST_LOOK.min(2 * nap);
        }
    }

    /// Puts those that are to stop before others: they do once they have a processor, and nothing else.
    fn hurry(&mut self, jobs: &[JobId]) {
        for job in jobs {
            for (_, held) in self.members.range_mut((*job, 0)..=(*job, u16::MAX)) {
                held.process.hurry();
            }
        }
    }

    /// Whether all that an order waits for has come to pass. What was seen once is not asked again.
    fn settle(&mut self, waits: &mut Waits) -> bool {
        while let Some(member) = waits.members.last() {
            let through = self.members.get_mut(member).is_none_or(|held| match waits.ends {
                Some(_) => held.process.end().is_some(),
                None => held.process.is_still(),
            });
            if !through {
                return false;
            }
            waits.members.pop();
        }
        while let Some(job) = waits.cells.last() {
            if self.cells.get(job).is_some_and(|cell| !cell.is_frozen()) {
                return false;
            }
            waits.cells.pop();
        }
        while let Some(member) = waits.groups.last() {
            let held = self.members.get(member).filter(|held| held.process.is_stopped());
            if held.is_some_and(|held| !descendants_stand(held.process.pid())) {
                return false;
            }
            waits.groups.pop();
        }
        true
    }

    /// Whether it waits for something that nobody wakes it for.
    #[must_use]
    pub(super) fn looks_again(&self) -> bool {
        let waits = self.waits.as_ref();
        waits.is_some_and(|waits| !waits.cells.is_empty() || !waits.groups.is_empty())
    }

    /// The order that was begun, once it is done.
    #[must_use]
    pub(super) fn poll_done(&mut self) -> Option<(u32, Outcome)> {
        let mut waits = self.waits.take()?;
        if self.settle(&mut waits) {
            if let (Some(task), Some(network)) = (waits.then.take(), &self.network) {
                waits.told = network.tasks.send(task).is_ok();
            }
            if !waits.told {
                self.finish(&waits);
                return Some((waits.number, waits.outcome));
            }
        }
        self.waits = Some(waits);
        None
    }

    /// The last of an order, once nothing is waited for.
    fn finish(&mut self, waits: &Waits) {
        for job in &waits.run {
            for (_, held) in self.members.range_mut((*job, 0)..=(*job, u16::MAX)) {
                held.process.relax();
            }
            if let Some(cell) = self.cells.get(job) {
                // One that does not thaw is noticed by whoever waits for its job.
                let _ = cell.thaw();
            }
            for (_, held) in self.members.range_mut((*job, 0)..=(*job, u16::MAX)) {
                held.process.resume();
            }
        }
        if let Some(job) = waits.ends {
            self.emptied.extend(self.cells.remove(&job));
        }
        // What was killed may take a moment to leave them.
        self.emptied.retain(|cell| !cell.remove());
    }

    /// The channels have done what they were asked to.
    pub(super) fn handle_channels(&mut self, told: Told) {
        let Some(mut waits) = self.waits.take() else { return };
        waits.told = false;
        match told {
            Told::Opened(launch, passes) => self.launch(&launch, passes, &mut waits),
            Told::Cut(job, contexts, interfaces) => {
                self.cut.extend(contexts.into_iter().map(|context| (job, context)));
                waits.outcome.interfaces.extend(interfaces);
            }
            Told::Done(outcome) => waits.outcome.add(outcome),
            Told::Failed(why) => {
                let why = format!("the network: {why}");
                let jobs = self.members.keys().map(|(job, _)| *job);
                let jobs: BTreeSet<JobId> = jobs.chain(waits.opens).collect();
                // Whose channels it was is not known; none of those here can go on.
                waits.outcome.failed.extend(jobs.iter().map(|job| (*job, self.host, why.clone())));
            }
        }
        self.waits = Some(waits);
    }

    /// A part of what a rank goes on from, which will be launched here.
    pub(super) fn take_part(&mut self, job: JobId, rank: u16, part: &Part) {
        self.parcels.entry((job, rank)).or_default().add(part);
    }

    fn saved_contexts(&self, job: JobId) -> BTreeMap<u16, ChannelContext> {
        let parcels = self.parcels.range((job, 0)..=(job, u16::MAX));
        let context = |parcel: &Parcel| wire::decode_long(parcel.context()?).ok();
        parcels.filter_map(|((_, rank), parcel)| Some((*rank, context(parcel)?))).collect()
    }

    /// Says something to all ranks of a job here.
    pub(super) fn say(&self, job: JobId, word: Word) {
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            let _ = held.words.send(word);
        }
    }

    /// What channels were found to hold, once.
    #[must_use]
    pub(super) fn take_cut(&mut self) -> Vec<(JobId, ChannelContext)> {
        std::mem::take(&mut self.cut)
    }

    /// What ranks that were started read and write, once.
    #[must_use]
    pub(super) fn take_opened(&mut self) -> Vec<(JobId, Opened)> {
        std::mem::take(&mut self.opened)
    }

    /// A child of this process has changed.
    pub(super) const fn children_changed(&mut self) {
        self.have_changed = true;
    }

    /// Ranks that have ended, each once.
    pub(super) fn ended(&mut self) -> Vec<(JobId, u16, End)> {
        let mut ended = Vec::new();
        if !std::mem::take(&mut self.have_changed) {
            return ended;
        }
        for ((job, rank), held) in &mut self.members {
            if held.told {
                continue;
            }
            if let Some(end) = held.process.end() {
                held.told = true;
                self.reaper.release(held.process.pid());
                ended.push((*job, *rank, end));
            }
        }
        // Nothing waits for those any longer.
        let waits = self.waits.as_ref();
        self.members.retain(|_, held| !held.told || waits.is_some());
        ended
    }

    /// Signals all ranks of a job here.
    pub(super) fn signal(&self, job: JobId, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let has_cell = self.cells.contains_key(&job);
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            // Where signals stop a job, this one waits for its slice as all others do.
            let waits = signal == Signal::CONT && !has_cell && held.process.is_stopped();
            if !waits {
                held.process.signal(signal);
            }
        }
    }

    /// A job's terminal, if it is here, has another size.
    pub(super) fn resize(&self, job: JobId, (rows, columns): (u16, u16)) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            if let Some(terminal) = &held.terminal {
                let _ = tcsetwinsize(terminal, size);
            }
        }
    }

    /// Returns in words what the order under way waits for, and which processes are here. Nothing of their programs and
    /// variables.
    #[must_use]
    pub(super) fn explain(&self) -> String {
        let order = self.waits.as_ref().map(|waits| {
            let Waits { number, members, groups, cells, ends, opens, told, run, .. } = waits;
            format!(
                "order {number} waits for processes {members:?}, their groups {groups:?}, jobs {cells:?} to stand; ends \
                 {ends:?}, opens {opens:?}, then runs {run:?}; its channels are at it: {told}, have yet to begin: {}",
                waits.then.is_some()
            )
        });
        let processes = self.members.iter().map(|((job, rank), held)| (job.0, rank, &held.process));
        format!("{order:?}; processes: {:?}", processes.collect::<Vec<_>>())
    }

    /// Ends all that runs here.
    pub(super) fn kill_all(&mut self) {
        self.waits = None;
        self.cells.values().for_each(Cell::kill);
        for held in self.members.values() {
            held.process.signal(Signal::KILL);
        }
    }

    /// Whether nothing runs here.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.members.values().all(|held| held.told)
    }

    fn kill(&self, job: JobId) {
        if let Some(cell) = self.cells.get(&job) {
            cell.kill();
        }
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            held.process.signal(Signal::KILL);
        }
    }

    fn of_job(&self, job: JobId) -> Vec<Member> {
        self.members.range((job, 0)..=(job, u16::MAX)).map(|(member, _)| *member).collect()
    }
}
