//! Steps of a cluster's nodes, and the ranks that run on them.

use std::time::Duration;

use super::{Cluster, Event};
use crate::names::JobId;
use crate::node_core::message::{self, RankEvent, Word};
use crate::node_core::order::Action;
use crate::node_core::state_chunk::{self, ChunkKind};
use crate::node_core::tests::node::{Member, state_of};
use crate::node_core::{Input, Step, StepOutcome};

impl Cluster {
    pub(super) fn begin_step(&mut self, host: u16, number: u64, step: Step) {
        let incarnation = self.hosts[usize::from(host)].incarnation;
        let took = match &step {
            Step::Resume(_) => Duration::ZERO,
            _ => Duration::from_micros(self.dice.below(300)),
        };
        self.hosts[usize::from(host)].step = Some((number, step));
        self.at(took, Event::Step(host, incarnation, number));
    }

    pub(super) fn step_due(&mut self, host: u16, incarnation: u32, number: u64) {
        let it = &self.hosts[usize::from(host)];
        let is_it = it.incarnation == incarnation
            && it.step.as_ref().is_some_and(|(other, _)| *other == number);
        if !is_it {
            return;
        }
        if let Some((_, Step::Channels(Action::Freeze(jobs) | Action::Leave(jobs)))) = &it.step {
            // A channel to a lost node never becomes quiescent.
            let is_unsteady = |job: &JobId| {
                it.node.has(*job) && (self.lacks_a_host(*job) || self.stuck.contains(&(*job, host)))
            };
            let (jobs, mut unsteady) = (jobs.clone(), jobs.clone());
            unsteady.retain(is_unsteady);
            if !unsteady.is_empty() {
                self.hosts[usize::from(host)].node.stop(&jobs, &unsteady);
                return self.at(Duration::from_millis(1), Event::Step(host, incarnation, number));
            }
        }
        let (_, step) = self.hosts[usize::from(host)].step.take().expect("it was just seen");
        let done = self.take_step(host, &step);
        self.call(host, |core, now| core.handle(now, Input::StepDone(number, Ok(done))));
    }

    fn take_step(&mut self, host: u16, step: &Step) -> StepOutcome {
        match step {
            Step::Suspend(jobs) => {
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    self.hosts[usize::from(host)].node.suspend(self.now, member);
                }
            }
            Step::Resume(jobs) => {
                self.resumed_at = self.now;
                self.arrived.retain(|(at, job)| *at != host || !jobs.contains(job));
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    let node = &mut self.hosts[usize::from(host)].node;
                    node.resume(self.now, member);
                    let saves = self.own_saves.as_mut().is_some_and(|rng| rng.chance(0.3));
                    node.processes.entry(member).and_modify(|it| it.is_asked |= saves && !it.waits);
                    self.enter_barrier(host, member);
                    self.schedule_rank(host, member);
                }
            }
            Step::Kill(jobs) => {
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    self.end_rank(host, member, message::End::Killed(9));
                    self.hosts[usize::from(host)].node.processes.remove(&member);
                }
            }
            Step::Channels(Action::Run { stop, .. } | Action::Exchange { stop, .. }) => {
                self.all_are_frozen(host, stop);
                self.arrive(host, stop);
            }
            _ => {}
        }
        let own = match step {
            Step::Open(launch, _) | Step::Start(launch, _) => {
                let places = self.shape.places(launch);
                let here = (0_u16..).zip(places).filter(|(_, place)| place.node.0 == host);
                here.map(|(rank, place)| (rank, place.channel.0)).collect()
            }
            _ => Vec::new(),
        };
        let node = &mut self.hosts[usize::from(host)].node;
        let done = node.carry_out(step, &own);
        let claimed = node.claimed();
        assert!(
            self.memory.is_none_or(|most| claimed <= most),
            "host {host} gives {claimed} bytes"
        );
        done
    }

    /// Checks that a job is active nowhere in the same epoch when its context is saved: messages in transit would be
    /// lost.
    fn all_are_frozen(&self, host: u16, jobs: &[JobId]) {
        for job in jobs.iter().filter(|job| self.is_unharmed(**job)) {
            let Some((own, _)) = self.hosts[usize::from(host)].node.epochs(*job).next() else {
                continue;
            };
            let mut all = self.hosts.iter().flat_map(|host| host.node.epochs(*job));
            let active = all.any(|(epoch, is_active)| is_active && !epoch.is_newer_than(own));
            assert!(!active, "job {job} is saved on host {host} while it is active elsewhere");
        }
    }

    /// Returns whether a host stops all of these jobs at once.
    pub(crate) fn stops(&self, host: u16, jobs: &[JobId]) -> bool {
        match &self.hosts[usize::from(host)].step {
            Some((_, Step::Channels(Action::Leave(stopped)))) => {
                jobs.iter().all(|job| stopped.contains(job))
            }
            _ => false,
        }
    }

    /// Returns whether no fault can have ended a job.
    pub(super) fn is_unharmed(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|client| !self.harmed.contains(client))
    }

    /// Returns whether a host of a job lacks the job's context.
    fn lacks_a_host(&self, job: JobId) -> bool {
        let Some(client) = self.jobs.get(&job) else { return true };
        let has = |host: &u16| self.hosts[usize::from(*host)].node.has(job);
        !self.clients[client].hosts.iter().all(has)
    }

    pub(super) fn say(&mut self, host: u16, job: JobId, word: Word) {
        for member in self.hosts[usize::from(host)].node.ranks_of(&[job]) {
            let node = &mut self.hosts[usize::from(host)].node;
            let process = node.processes.get_mut(&member).expect("it was just listed");
            match word {
                // A rank that waits drops this word.
                Word::Ask => process.is_asked |= !process.waits,
                Word::GoAlone(rank) if rank != member.1 => continue,
                Word::Go | Word::GoAlone(_) => process.waits = false,
                Word::Dump(_) => unreachable!("the user is not root"),
            }
            process.update(self.now);
            self.schedule_rank(host, member);
        }
    }

    /// Makes a rank enter the next PMI barrier, if its job has further ones.
    pub(super) fn enter_barrier(&mut self, host: u16, member: Member) {
        let process = self.hosts[usize::from(host)].node.processes.get_mut(&member);
        let process = process.filter(|it| {
            it.end.is_none()
                && !it.is_inside
                && it.runs_since.is_some()
                && it.barriers < member.0.0 % 3
        });
        let Some(process) = process else { return };
        process.is_inside = true;
        process.barriers += 1;
        process.update(self.now);
        let value = "v".repeat(self.value_bytes);
        let event = RankEvent::BarrierIn(vec![(member.1.to_string(), value)]);
        self.call(host, |core, now| core.handle(now, Input::Rank(member.0, member.1, event)));
    }

    /// Makes the ranks of a job leave the PMI barrier, which all of its ranks have entered.
    pub(super) fn leave_barrier(&mut self, host: u16, job: JobId) {
        for member in self.hosts[usize::from(host)].node.ranks_of(&[job]) {
            let node = &mut self.hosts[usize::from(host)].node;
            let process = node.processes.get_mut(&member).expect("it was just listed");
            assert!(process.is_inside || process.end.is_some(), "{member:?} leaves no barrier");
            process.is_inside = false;
            process.update(self.now);
            self.enter_barrier(host, member);
            self.schedule_rank(host, member);
        }
    }

    /// Schedules a rank's end, or the time at which it sends its state.
    fn schedule_rank(&mut self, host: u16, member: Member) {
        let it = &self.hosts[usize::from(host)];
        let (incarnation, process) = (it.incarnation, &it.node.processes[&member]);
        let Some(since) = process.runs_since else { return };
        let ends = since + process.works_for.saturating_sub(process.ran);
        let (turn, hands_over) = (process.turn, process.is_asked);
        let saves = self.now + Duration::from_micros(self.dice.below(2_000));
        let at = if hands_over { ends.min(saves) } else { ends };
        self.at_time(at.max(self.now), Event::Rank(host, incarnation, member, turn));
    }

    pub(super) fn rank_due(&mut self, host: u16, incarnation: u32, member: Member, turn: u32) {
        let now = self.now;
        let it = &mut self.hosts[usize::from(host)];
        let process = it.node.processes.get_mut(&member).filter(|it| it.turn == turn);
        let Some(process) = process.filter(|_| it.incarnation == incarnation) else { return };
        let Some(since) = process.runs_since else { return };
        let ran = process.ran + now.since(since);
        if ran >= process.works_for {
            return self.end_rank(host, member, message::End::Exited(0));
        }
        if std::mem::take(&mut process.is_asked) {
            process.waits = true;
            process.update(now);
            for chunk in state_chunk::split(ChunkKind::State, state_of(ran).into()) {
                let event = RankEvent::Chunk(chunk);
                self.call(host, |core, now| {
                    core.handle(now, Input::Rank(member.0, member.1, event))
                });
            }
        }
    }

    /// Ends a rank's process, and reports that to the core.
    pub(crate) fn end_rank(&mut self, host: u16, member: Member, end: message::End) {
        let now = self.now;
        let process = self.hosts[usize::from(host)].node.processes.get_mut(&member);
        let Some(process) = process.filter(|process| process.end.is_none()) else { return };
        process.end = Some(end);
        process.update(now);
        let event = RankEvent::Ended(end);
        self.call(host, |core, now| core.handle(now, Input::Rank(member.0, member.1, event)));
    }
}
