//! A host's processes and contexts. They panic at steps that are never valid.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::channel::geometry::Geometry;
use crate::context::ChannelContext;
use crate::names::{Epoch, JobId, Rank};
use crate::node_core::message::{End, Program};
use crate::node_core::order::Action;
use crate::node_core::{Step, StepOutcome};

/// A rank on this host.
pub(super) type Member = (JobId, u16);

#[derive(Debug)]
pub(super) struct Process {
    is_suspended: bool,
    /// When the process was resumed; `None` while it does not run.
    pub(super) runs_since: Option<Instant>,
    /// Time for which the process has run.
    pub(super) ran: Duration,
    pub(super) works_for: Duration,
    pub(super) is_asked: bool,
    /// True if the process has sent its state and waits.
    pub(super) waits: bool,
    /// True if the process waits in a PMI barrier.
    pub(super) is_inside: bool,
    /// Number of PMI barriers that the process has entered.
    pub(super) barriers: u32,
    pub(super) end: Option<End>,
    /// Bytes of memory that the process claims.
    claim: u64,
    /// Number of changes, by which outdated events are detected.
    pub(super) turn: u32,
}

impl Process {
    /// Adds the time for which the process has run, after a change of its state.
    pub(super) fn update(&mut self, now: Instant) {
        self.turn += 1;
        if let Some(since) = self.runs_since.take() {
            self.ran += now.since(since);
        }
        let runs = !self.is_suspended && !self.waits && !self.is_inside && self.end.is_none();
        self.runs_since = runs.then_some(now);
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// Saved, and not on the NIC.
    Away,
    /// On the NIC, but not started.
    Parked,
    /// On the NIC, and not quiescent although it is stopped.
    Stopping,
    Active,
}

#[derive(Debug)]
pub(super) struct Context {
    channel: u16,
    /// The last epoch in which the context was started.
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
}

/// The processes and contexts of one host.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) processes: BTreeMap<Member, Process>,
    pub(super) contexts: BTreeMap<Member, Context>,
}

/// Returns the state of a rank in a checkpoint: the time for which it has run.
pub(super) fn state_of(ran: Duration) -> Vec<u8> {
    (ran.as_nanos() as u64).to_le_bytes().to_vec()
}

/// Returns the program of a rank that runs for a time. Arrivals wake about two of three jobs.
pub(super) fn program(work: Duration) -> Program {
    let command = vec![work.as_micros().to_string().into_bytes()];
    Program { command, woken: !work.as_micros().is_multiple_of(3), ..Program::default() }
}

fn work_of(program: &Program) -> Duration {
    Duration::from_micros(program.shown().parse().unwrap())
}

impl Node {
    /// Returns the bytes of memory that the processes claim together.
    pub(super) fn claimed(&self) -> u64 {
        self.processes.values().map(|process| process.claim).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.contexts.is_empty()
    }

    /// Describes which processes are suspended, and the phases of contexts.
    pub(super) fn shown(&self) -> String {
        let processes = self.processes.iter().map(|(member, it)| (member, it.is_suspended));
        let contexts = self.contexts.iter().map(|(member, it)| (member, it.phase, it.epoch));
        format!("{:?} {:?}", processes.collect::<Vec<_>>(), contexts.collect::<Vec<_>>())
    }

    fn of<'a>(
        &'a mut self,
        jobs: &'a [JobId],
    ) -> impl Iterator<Item = (&'a Member, &'a mut Context)> {
        self.contexts.iter_mut().filter(|((job, _), _)| jobs.contains(job))
    }

    /// Returns whether a job has a context here.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.epochs(job).next().is_some()
    }

    /// Returns the epochs of a job's contexts, and whether each is active.
    pub(super) fn epochs(&self, job: JobId) -> impl Iterator<Item = (Epoch, bool)> {
        let of_job = self.contexts.range((job, 0)..=(job, u16::MAX));
        of_job.map(|(_, context)| (context.epoch, context.phase == Phase::Active))
    }

    pub(super) fn ranks_of(&self, jobs: &[JobId]) -> Vec<Member> {
        self.processes.keys().filter(|(job, _)| jobs.contains(job)).copied().collect()
    }

    fn save(&mut self, jobs: &[JobId]) {
        for (member, context) in self.of(jobs) {
            assert_eq!(context.phase, Phase::Parked, "{member:?} is saved, but not stopped");
            context.phase = Phase::Away;
        }
    }

    fn restore(&mut self, jobs: &[JobId]) {
        for (_, context) in self.of(jobs) {
            if context.phase == Phase::Away {
                context.phase = Phase::Parked;
            }
        }
        // Each channel has one FIFO: the messages of two contexts on it would mix.
        let mut taken = BTreeMap::new();
        for (member, context) in self.contexts.iter().filter(|it| it.1.phase != Phase::Away) {
            let other = taken.insert(context.channel, member);
            assert!(other.is_none(), "{member:?} and {other:?} share channel {}", context.channel);
        }
    }

    /// Stops jobs on the NIC. The contexts of `unsteady` do not become quiescent.
    pub(super) fn stop(&mut self, jobs: &[JobId], unsteady: &[JobId]) {
        for (member, context) in self.of(jobs) {
            assert_ne!(context.phase, Phase::Away, "{member:?} is stopped, but not there");
            let is_unsteady = unsteady.contains(&member.0);
            context.phase = if is_unsteady { Phase::Stopping } else { Phase::Parked };
        }
    }

    /// Starts jobs on the NIC. Returns those that it refuses, because they are not quiescent.
    fn start(&mut self, run: &[(JobId, Epoch)]) -> Vec<JobId> {
        let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
        self.restore(&jobs);
        let unsteady = self.of(&jobs).filter(|(_, context)| context.phase == Phase::Stopping);
        let refused: Vec<JobId> = unsteady.map(|(member, _)| member.0).collect();
        for (job, epoch) in run.iter().filter(|(job, _)| !refused.contains(job)) {
            for (member, context) in self.of(&[*job]) {
                assert_eq!(context.phase, Phase::Parked, "{member:?} starts, but was not restored");
                (context.phase, context.epoch) = (Phase::Active, *epoch);
            }
        }
        refused
    }

    fn open(&mut self, job: JobId, own: &[(u16, u16)]) {
        for &(rank, channel) in own {
            let context = Context { channel, epoch: Epoch(0), phase: Phase::Away };
            assert!(self.contexts.insert((job, rank), context).is_none(), "{job}: opened twice");
        }
    }

    fn start_process(&mut self, member: Member, program: &Program, state: Option<&Vec<u8>>) {
        let nanos = |state: &Vec<u8>| u64::from_le_bytes(state[..].try_into().unwrap());
        let process = Process {
            is_suspended: true,
            runs_since: None,
            ran: Duration::from_nanos(state.map_or(0, nanos)),
            works_for: work_of(program),
            is_asked: false,
            waits: false,
            is_inside: false,
            barriers: 0,
            end: None,
            claim: program.memory.unwrap_or(0),
            turn: 0,
        };
        assert!(self.processes.insert(member, process).is_none(), "{member:?}: started twice");
    }

    /// Carries out a step, except [`Step::Suspend`], [`Step::Resume`] and [`Step::Kill`], for which the cluster
    /// schedules processes.
    pub(super) fn carry_out(&mut self, step: &Step, own: &[(u16, u16)]) -> StepOutcome {
        let mut done = StepOutcome::default();
        match step {
            Step::Open(launch, _) => self.open(launch.job, own),
            Step::Start(launch, states) => {
                for (rank, _) in own {
                    self.start_process((launch.job, *rank), &launch.program, states.get(rank));
                }
            }
            Step::Channels(action) => self.carry_out_action(action, &mut done),
            Step::Close(jobs) => {
                self.contexts.retain(|(job, _), _| !jobs.contains(job));
                let left = self.processes.iter().find(|((job, _), _)| jobs.contains(job));
                assert!(left.is_none(), "{left:?} has lost its channel, and was not killed");
            }
            Step::Suspend(_) | Step::Resume(_) | Step::Kill(_) => {}
        }
        done
    }

    fn carry_out_action(&mut self, action: &Action, done: &mut StepOutcome) {
        match action {
            Action::Freeze(jobs) | Action::Leave(jobs) => self.stop(jobs, &[]),
            Action::Exchange { stop, start } => {
                self.save(stop);
                self.restore(start);
            }
            Action::Run { stop, run } => {
                self.save(stop);
                let refused = self.start(run).into_iter();
                done.outcome.failed.extend(refused.map(|job| (job, 0, "it is stopping".into())));
            }
            Action::Cut(job) => {
                for (member, context) in self.of(&[*job]) {
                    assert_ne!(
                        context.phase,
                        Phase::Active,
                        "{member:?} is cut while it is active"
                    );
                    done.contexts.push(ChannelContext::fresh(Rank(member.1), Geometry::PM));
                }
            }
            Action::Launch(_) | Action::End(_) | Action::Quit => {}
        }
    }

    /// Suspends a process.
    pub(super) fn suspend(&mut self, now: Instant, member: Member) {
        let process = self.processes.get_mut(&member).expect("it is there");
        process.is_suspended = true;
        process.update(now);
    }

    /// Resumes a process. No other job's process may run on its slot, and its channel must have been started.
    pub(super) fn resume(&mut self, now: Instant, member: Member) {
        let context = self.contexts.get(&member).map(|context| (context.phase, context.channel));
        assert_eq!(
            context.map(|it| it.0),
            Some(Phase::Active),
            "{member:?} runs without its channel"
        );
        let process = self.processes.get_mut(&member).expect("it is there");
        process.is_suspended = false;
        process.update(now);
        for (other, process) in &self.processes {
            let same =
                self.contexts.get(other).map(|context| context.channel) == context.map(|it| it.1);
            let is_beside = same && *other != member && process.runs_since.is_some();
            assert!(!is_beside, "{other:?} and {member:?} run on one slot");
        }
    }
}
