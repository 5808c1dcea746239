//! Starts, suspends, resumes, signals and kills the jobs' processes on this host.

mod imaging;
mod launching;
mod priorities;
mod waits;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use midplane_simhw::nicd::Admitted;
use rustix::process::Signal;
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{Timespec, nanosleep};
use tokio::sync::mpsc;

use super::channels::ProcessGroups;
use super::clock;
use super::criu::SharedFiles;
use super::event::{Event, Pass};
use super::exec_shim::{Leftover, Reaper};
use super::job_cgroup::{JobCgroup, JobCgroups};
use super::pmi::PmiJob;
use super::process::{Process, descendants_are_stopped};
use super::reclaimer::Reclaimer;
use super::rights::Users;
use super::snapshot::Budget;
use super::undelivered::Undelivered;
use crate::names::JobId;
use crate::node_core::message::{Cluster, End, Member, Pairs, RankEvent, Word};
use crate::node_core::order::Outcome;
use crate::node_core::size::Size;
pub(super) use imaging::RestoreEnd;
use imaging::{Hold, Restoring};
use waits::{Limits, Waits};

/// Most checks of whether processes have stopped, before the daemon waits for a signal instead.
const CHECKS: usize = 30;
/// Number of the check after which the processes get a higher priority.
const HURRY: usize = 3;
/// Nanoseconds before the first check, enough for a few processes. The pause doubles with each check, up to
/// [`LAST_CHECK`], because a check takes processor time from the processes that are to stop. With constant pauses of
/// [`FIRST_CHECK`], 64 waiting processes took 1.5 times as long to stop, and 64 computing ones more than twice as
/// long.
const FIRST_CHECK: i64 = 20_000;
const LAST_CHECK: i64 = 100_000;

/// Intervals between checks for whether all processes of a job have stopped, or those that were started or killed have
/// stopped or exited.
const CHECK_AGAIN: Duration = Duration::from_millis(1);
const CHECK_LATE: Duration = Duration::from_millis(50);

const KILLED: End = End::Killed(Signal::KILL.as_raw());

/// Returns the reason why the kernel has killed processes of a job with this memory limit.
fn want_of_memory(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!(
            "its processes there needed more than the {} of their --memory, and the kernel ended them",
            Size(limit)
        ),
        None => "no memory was left there, and the kernel ended processes of the job; with --memory, jobs that do not fit are \
                 refused"
            .to_owned(),
    }
}

#[derive(Debug)]
struct Held {
    process: Process,
    /// The daemon's side of the process's terminal.
    terminal: Option<OwnedFd>,
    /// Sends words to the rank's [`Snapshots`](super::snapshot::Snapshots).
    words: mpsc::UnboundedSender<Word>,
    /// The files that the process shares with the daemon.
    files: SharedFiles,
    /// Set while the process is CRIU, which restores the rank, and until the restored process is known.
    restoring: Option<Restoring>,
    /// True once the end of the process was returned.
    is_reported: bool,
}

/// The daemon's NIC, as ranks need to know it.
#[derive(Debug)]
pub(super) struct RanksNic {
    pub(super) name: String,
    /// Users whose ranks may open ports.
    pub(super) admitted: Admitted,
}

/// The jobs' processes on this host.
#[derive(Debug)]
pub(super) struct Processes {
    host: u16,
    cluster: Cluster,
    users: Users,
    members: BTreeMap<Member, Held>,
    reaper: Reaper,
    waits: Option<Waits>,
    /// The daemon's NIC, if ranks have channels.
    nic: Option<RanksNic>,
    /// Counts the states that restored ranks have not read yet.
    undelivered: Undelivered,
    budget: Budget,
    /// Resources of the ranks' channels, until the ranks are started.
    passes: BTreeMap<Member, Pass>,
    process_groups: ProcessGroups,
    events: mpsc::UnboundedSender<Event>,
    /// Creates control groups, if this process may.
    groups: Option<JobCgroups>,
    /// Takes memory from suspended jobs, if control groups have the memory controller.
    reclaimer: Option<Reclaimer>,
    cgroups: BTreeMap<JobId, JobCgroup>,
    /// Control groups created by another system, whose processes run in the slices of jobs.
    adopted: BTreeMap<JobId, JobCgroup>,
    /// User IDs of other users' jobs on this host.
    guests: BTreeMap<JobId, u32>,
    /// The PMI servers of jobs.
    pmi: BTreeMap<JobId, PmiJob>,
    /// Jobs that are kept suspended while they are dumped.
    holds: BTreeMap<JobId, Hold>,
    /// The base folder for images of processes, once it was created.
    images: Option<PathBuf>,
    /// Processes that were killed and did not end in time, or that CRIU has left behind, to be reaped.
    strays: Vec<Process>,
    /// Jobs whose processes have a raised priority.
    hurried: Vec<JobId>,
    limits: Limits,
    /// Control groups of killed jobs, to be removed once they are empty.
    emptied: Vec<JobCgroup>,
    /// True if a child has changed its state since the last [`Processes::ended`].
    have_changed: bool,
}

impl Processes {
    /// Creates a host without processes. `reaper` kills the processes that remain if the daemon dies. Restored ranks have
    /// at most `most` bytes of states to read.
    pub(super) fn new(
        (host, cluster, users, patience): (u16, Cluster, Users, Duration),
        (reaper, groups, reclaimer): (Reaper, Option<JobCgroups>, Option<Reclaimer>),
        (nic, process_groups, most): (Option<RanksNic>, ProcessGroups, u64),
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            host,
            cluster,
            users,
            members: BTreeMap::new(),
            reaper,
            waits: None,
            nic,
            undelivered: Undelivered::new(most),
            budget: Budget::default(),
            passes: BTreeMap::new(),
            process_groups,
            events,
            groups,
            reclaimer,
            cgroups: BTreeMap::new(),
            adopted: BTreeMap::new(),
            guests: BTreeMap::new(),
            pmi: BTreeMap::new(),
            holds: BTreeMap::new(),
            images: None,
            strays: Vec::new(),
            hurried: Vec::new(),
            limits: Limits::new(cluster.hosts, patience),
            emptied: Vec::new(),
            have_changed: true,
        }
    }

    /// Stores the resources of the channels of a job's ranks, which are started next.
    pub(super) fn add_passes(&mut self, job: JobId, passes: Vec<(u16, Pass)>) {
        self.passes = passes.into_iter().map(|(rank, pass)| ((job, rank), pass)).collect();
    }

    /// Begins to suspend the processes of jobs.
    pub(super) fn suspend(&mut self, step: u64, jobs: &[JobId]) {
        let mut waits = Waits::new(step, Vec::new(), self.limits.stop);
        for job in jobs {
            // An adopted group can't be frozen if it was removed. Its holder then exits, and the job ends, in the
            // job's next slice.
            if self.adopted.get(job).is_some_and(|cgroup| cgroup.freeze().is_ok()) {
                waits.adopted.push(*job);
            }
            if let Some(hold) = self.holds.get_mut(job) {
                hold.runs = false;
            }
            match (self.cgroups.get(job), self.holds.get(job)) {
                // The hold keeps the group frozen.
                (Some(_), Some(_)) => {}
                (Some(cgroup), None) if cgroup.freeze().is_ok() => waits.cgroups.push(*job),
                // If a job's control group can't be frozen, the job is stopped by signals.
                _ => waits.members.extend(self.of_job(*job)),
            }
            let of_job = self.members.range((*job, 0)..=(*job, u16::MAX));
            self.process_groups.set(*job, of_job.map(|(_, held)| held.process.pid()).collect());
        }
        for member in &waits.members {
            self.members.get_mut(member).expect("it was just listed").process.stop();
        }
        waits.groups.clone_from(&waits.members);
        // These short sleeps take less time than a wake-up by a signal, and no signal reports that a whole group has
        // stopped.
        let mut nap = FIRST_CHECK;
        for check in 0..CHECKS {
            if self.settle(&mut waits) {
                break;
            }
            if check == HURRY {
                self.hurry(jobs);
            }
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: nap });
            nap = LAST_CHECK.min(2 * nap);
        }
        self.waits = Some(waits);
        for cgroup in self.cgroups_of(jobs) {
            self.reclaimer
                .iter()
                .for_each(|it| it.suspended(cgroup.folder(), cgroup.memory_limit().is_some()));
        }
    }

    /// Returns the control groups of jobs, both their own and those that they have adopted.
    fn cgroups_of(&self, jobs: &[JobId]) -> impl Iterator<Item = &JobCgroup> {
        jobs.iter().flat_map(|job| self.cgroups.get(job).into_iter().chain(self.adopted.get(job)))
    }

    /// Stops the reclaimer from taking memory of jobs that will resume or end.
    fn keep_memory(&self, jobs: &[JobId]) {
        for cgroup in self.cgroups_of(jobs) {
            self.reclaimer.iter().for_each(|it| it.left(cgroup.folder()));
        }
    }

    /// Resumes the processes of jobs.
    pub(super) fn resume(&mut self, jobs: &[JobId]) {
        self.keep_memory(jobs);
        self.relax();
        for job in jobs {
            if let Some(hold) = self.holds.get_mut(job) {
                hold.runs = true;
                continue;
            }
            for cgroup in self.cgroups.get(job).into_iter().chain(self.adopted.get(job)) {
                // If a group stays frozen, the job makes no progress, which its owner notices.
                let _ = cgroup.thaw();
            }
            for (_, held) in self.members.range_mut((*job, 0)..=(*job, u16::MAX)) {
                held.process.resume();
            }
        }
    }

    /// Begins to kill the processes of jobs.
    pub(super) fn kill(&mut self, step: u64, jobs: &[JobId]) {
        self.keep_memory(jobs);
        for job in jobs {
            self.pmi.remove(job);
            // The dump is not sent. The processes must not run again before they end, because they may be restored
            // elsewhere.
            if let Some(hold) = self.holds.remove(job) {
                hold.give_up();
            }
            if let Some(cgroup) = self.cgroups.remove(job) {
                cgroup.kill();
                self.emptied.push(cgroup);
            }
            for (_, held) in self.members.range((*job, 0)..=(*job, u16::MAX)) {
                held.process.signal(Signal::KILL);
            }
            self.process_groups.set(*job, Vec::new());
            self.release_adopted(*job);
            self.dismiss(*job);
        }
        let members = jobs.iter().flat_map(|job| self.of_job(*job)).collect();
        let waits = Waits::new(step, members, self.limits.kill);
        self.waits = Some(Waits { is_kill: true, what: "end", ..waits });
    }

    /// Forbids ranks of a job's user to open further ports, unless the user has another job on this host.
    fn dismiss(&mut self, job: JobId) {
        if let (Some(user), Some(nic)) = (self.guests.remove(&job), &self.nic)
            && !self.guests.values().any(|other| *other == user)
        {
            nic.admitted.remove(user);
        }
    }

    /// Resumes the adopted processes of a job, which is not suspended again.
    fn release_adopted(&mut self, job: JobId) {
        if let Some(cgroup) = self.adopted.remove(&job) {
            let _ = cgroup.thaw();
            self.reaper.release(&Leftover::Adopted(cgroup.folder().to_owned()));
        }
    }

    /// Returns whether a step is complete. Removes what is done from the step, so that it is not checked again.
    fn settle(&mut self, waits: &mut Waits) -> bool {
        while let Some(member) = waits.members.last() {
            let is_through = self.members.get_mut(member).is_none_or(|held| match waits.is_kill {
                // A process that another one traces is reaped, and its end reported, once the tracer allows that.
                true => {
                    let process = &mut held.process;
                    held.restoring.is_none() && (process.end().is_some() || process.has_exited())
                }
                false => held.process.is_still(),
            });
            if !is_through {
                return false;
            }
            waits.members.pop();
        }
        for (jobs, cgroups) in
            [(&mut waits.cgroups, &self.cgroups), (&mut waits.adopted, &self.adopted)]
        {
            while let Some(job) = jobs.last() {
                if cgroups.get(job).is_some_and(|cgroup| !cgroup.is_frozen())
                    && clock::now() < waits.frozen_at
                {
                    return false;
                }
                jobs.pop();
            }
        }
        while let Some(member) = waits.groups.last() {
            let held = self.members.get(member).filter(|held| held.process.is_stopped());
            if held.is_some_and(|held| !descendants_are_stopped(held.process.pid())) {
                return false;
            }
            waits.groups.pop();
        }
        true
    }

    /// Reports the jobs whose processes don't stop or end, and waits for them no longer.
    fn give_up(&mut self, waits: &mut Waits) {
        let mut late = BTreeMap::new();
        for member in waits.members.drain(..).chain(waits.groups.drain(..)) {
            let Some(held) = self.members.get_mut(&member) else { continue };
            let process = &mut held.process;
            let is_through = match waits.is_kill {
                true => {
                    held.restoring.is_none() && (process.end().is_some() || process.has_exited())
                }
                false => process.is_still() && descendants_are_stopped(process.pid()),
            };
            if is_through {
                continue;
            }
            late.entry(member.0).or_insert(member.1);
            // A later job may have this number: the process is only reaped.
            if waits.is_kill {
                self.strays.extend(self.members.remove(&member).map(|held| held.process));
            }
        }
        let what = waits.what;
        let why = |(job, rank)| (job, self.host, format!("rank {rank} does not {what}"));
        waits.outcome.failed.extend(late.into_iter().map(why));
    }

    /// Returns when to check again, if the step under way waits for a change that no signal may report.
    pub(super) fn check_again(&self) -> Option<Duration> {
        let waits = self.waits.as_ref()?;
        let has_groups =
            !(waits.cgroups.is_empty() && waits.adopted.is_empty() && waits.groups.is_empty());
        match has_groups {
            true => Some(CHECK_AGAIN),
            // The step may become late, and the system reports the exit of a traced process to the tracer alone.
            false => (!waits.members.is_empty()).then_some(CHECK_LATE),
        }
    }

    /// Returns the number and outcome of the step under way once it is complete.
    pub(super) fn poll_done(&mut self) -> Option<(u64, Outcome)> {
        let mut waits = self.waits.take()?;
        if !self.settle(&mut waits) {
            if !waits.is_late(clock::now()) {
                self.waits = Some(waits);
                return None;
            }
            self.give_up(&mut waits);
        }
        // Killed processes may take a moment to leave their control group, so removal is tried again later.
        self.emptied.retain(|cgroup| !cgroup.remove());
        Some((waits.step, waits.outcome))
    }

    /// Sends a word to all ranks of a job on this host. If the job was dumped, `Go` lets it continue instead.
    pub(super) fn say(&mut self, job: JobId, word: Word) {
        if word == Word::Go && self.let_go(job) {
            return;
        }
        let ranks = if let Word::GoAlone(rank) = word { rank..=rank } else { 0..=u16::MAX };
        for (_, held) in self.members.range((job, *ranks.start())..=(job, *ranks.end())) {
            let _ = held.words.send(word);
        }
    }

    /// Lets the ranks of a job on this host leave the PMI barrier.
    pub(super) fn barrier_out(&self, job: JobId, pairs: Pairs) {
        if let Some(pmi) = self.pmi.get(&job) {
            pmi.barrier_out(pairs);
        }
    }

    /// Records that a child process has changed its state.
    pub(super) const fn children_changed(&mut self) {
        self.have_changed = true;
    }

    /// Returns the ranks that have ended, each once. Before a rank's end comes the reason if the kernel killed it for
    /// lack of memory. Ranks that CRIU restores have not ended.
    pub(super) fn ended(&mut self) -> Vec<(JobId, u16, RankEvent)> {
        if !std::mem::take(&mut self.have_changed) {
            return Vec::new();
        }
        self.read_restored();
        let mut ended = Vec::new();
        let reaper = &mut self.reaper;
        self.strays.retain_mut(|process| {
            let lives = process.end().is_none();
            if !lives {
                reaper.release(&Leftover::group(process.pid()));
            }
            lives
        });
        for ((job, rank), held) in &mut self.members {
            if held.is_reported || held.restoring.is_some() {
                continue;
            }
            if let Some(end) = held.process.end() {
                held.is_reported = true;
                self.reaper.release(&Leftover::group(held.process.pid()));
                let cgroup = self.cgroups.get(job).filter(|_| end == KILLED);
                if let Some(cgroup) = cgroup.filter(|cgroup| cgroup.has_run_out()) {
                    let why = want_of_memory(cgroup.memory_limit());
                    ended.push((*job, *rank, RankEvent::Failed { why }));
                }
                ended.push((*job, *rank, RankEvent::Ended(end)));
            }
        }
        // No step waits for these processes any longer.
        let waits = self.waits.as_ref();
        self.members.retain(|_, held| !held.is_reported || waits.is_some());
        ended
    }

    /// Sends a signal to all ranks of a job on this host. After SIGSTOP, the job's slices pass unused until SIGCONT.
    pub(super) fn signal(&mut self, job: JobId, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        for (_, held) in self.members.range_mut((job, 0)..=(job, u16::MAX)) {
            match signal {
                Signal::STOP => held.process.halt(),
                Signal::CONT => held.process.let_go(),
                signal => held.process.signal(signal),
            }
        }
    }

    /// Sets the size of a job's terminal, if the terminal is on this host.
    pub(super) fn resize(&self, job: JobId, (rows, columns): (u16, u16)) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            if let Some(terminal) = &held.terminal {
                let _ = tcsetwinsize(terminal, size);
            }
        }
    }

    /// Describes what the step under way waits for, and the processes; contains no programs or environment variables.
    pub(super) fn explain(&self) -> String {
        let waits = &self.waits;
        let processes = self.members.iter().map(|((job, rank), held)| (job.0, rank, &held.process));
        format!("{waits:?}; processes: {:?}", processes.collect::<Vec<_>>())
    }

    /// Kills all processes, and abandons the step under way.
    pub(super) fn kill_all(&mut self) {
        self.waits = None;
        let adopted: Vec<JobId> = self.adopted.keys().copied().collect();
        adopted.into_iter().for_each(|job| self.release_adopted(job));
        self.cgroups.values().for_each(JobCgroup::kill);
        for held in self.members.values() {
            held.process.signal(Signal::KILL);
        }
    }

    /// Returns whether all processes have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.members.values().all(|held| held.is_reported || held.process.has_exited())
    }

    fn of_job(&self, job: JobId) -> Vec<Member> {
        self.members.range((job, 0)..=(job, u16::MAX)).map(|(member, _)| *member).collect()
    }
}
