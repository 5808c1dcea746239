//! The gang scheduler's core: decides the daemons' next order and its time. Performs no I/O, and reads no clock.

mod config;
mod early_wakeups;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::names::{Epoch, JobId};
use crate::node_core::message::Program;
use crate::node_core::order::{Action, Launch};
use crate::node_core::replica::Stage;
use crate::node_core::user::User;
use crate::schedule::{AdmitError, Policy, Request};
pub use config::{Phases, PreemptWhenAlone, SchedulerConfig, Switch};
use early_wakeups::EarlyWakeups;

/// The scheduler's record of a job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct JobRecord {
    /// The job's nodes, ranks and program.
    pub(crate) launch: Launch,
    /// The job's epoch; 0 before its first slice.
    pub(crate) epoch: Epoch,
    /// When the job was ended; `None` while it is scheduled.
    pub(crate) ended: Option<Instant>,
}

/// Events of the scheduler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// The scheduler has switched jobs.
    Switched(Switch),
    /// A job has been removed from all nodes.
    Removed(JobId),
    /// A job was frozen, and the daemons have reported the contents of its channels. The epoch is the one that ended.
    Cut(JobId, Epoch),
}

/// The last order to the daemons.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Launch,
    End(JobId),
    Freeze,
    Save,
    Restore,
    Run,
    /// Freezes a job that will be cut.
    FreezeForCut(JobId),
    Cut(JobId),
    /// Runs the job again after its cut.
    ResumeAfterCut,
}

/// The gang scheduler's core.
///
/// After any `&mut self` call, carry out the order of [`SchedulerCore::poll_order`] and hand its result to
/// [`SchedulerCore::handle_outcome`], until `poll_order` returns `None`. Then drain [`SchedulerCore::poll_event`], and
/// read [`SchedulerCore::poll_timeout`] again. One order is outstanding at a time. `now` never decreases.
pub(crate) struct SchedulerCore {
    policy: Box<dyn Policy>,
    pub(crate) config: SchedulerConfig,
    jobs: BTreeMap<JobId, JobRecord>,
    next_job: u32,
    /// Admitted jobs that have not been launched.
    fresh: VecDeque<JobId>,
    /// Ended jobs that must be removed from their nodes.
    ended: VecDeque<JobId>,
    /// Jobs to be cut.
    cuts: VecDeque<JobId>,
    /// The job that is frozen for a cut within its own slice.
    frozen: Option<JobId>,
    running: Vec<JobId>,
    /// True if the running jobs may be suspended on some hosts, because an earlier root gave the last order.
    is_taken_over: bool,
    /// Number of slices that have ended.
    slices: u32,
    /// When the current slice ends.
    until: Option<Instant>,
    /// Length of the slice that begins after the switch in progress.
    lasts: Duration,
    early_wakeups: EarlyWakeups,
    /// The switch in progress.
    switch: Option<Switch>,
    /// The last order, and when it was given.
    phase: Step,
    phase_began: Instant,
    under_way: bool,
    events: VecDeque<Event>,
}

impl std::fmt::Debug for SchedulerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { running, phase, under_way, until, .. } = self;
        let mut shown = f.debug_struct("SchedulerCore");
        shown.field("running", running).field("last", phase).field("under_way", under_way);
        shown.field("until", until).finish_non_exhaustive()
    }
}

impl SchedulerCore {
    /// Creates a scheduler core without jobs.
    pub(crate) fn new(policy: Box<dyn Policy>, config: SchedulerConfig) -> Self {
        Self {
            policy,
            config,
            jobs: BTreeMap::new(),
            next_job: 1,
            fresh: VecDeque::new(),
            ended: VecDeque::new(),
            cuts: VecDeque::new(),
            frozen: None,
            running: Vec::new(),
            is_taken_over: false,
            slices: 0,
            until: None,
            lasts: config.slice,
            early_wakeups: EarlyWakeups::new(config.early_wakeup, config.slice),
            switch: None,
            phase: Step::Launch,
            phase_began: Instant::ZERO,
            under_way: false,
            events: VecDeque::new(),
        }
    }

    /// Admits a job. It starts at the end of the current slice, or at once if no job is running.
    ///
    /// # Errors
    /// [`AdmitError`] if the job needs no node, or more nodes than exist.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        ranks: u16,
        (program, user): (Program, User),
    ) -> Result<Launch, AdmitError> {
        let job = JobId(self.next_job);
        let nodes = self.policy.admit(job, request)?;
        self.next_job += 1;
        let (first, count) = (nodes.start, nodes.len() as u16);
        let launch = Launch { job, first, nodes: count, ranks, program, user };
        self.jobs.insert(job, JobRecord { launch: launch.clone(), epoch: Epoch(0), ended: None });
        self.fresh.push_back(job);
        Ok(launch)
    }

    /// Takes over a job of an earlier root, which last started it in `epoch`. A launched job may run on some of its
    /// hosts; all such jobs are suspended before the next slice.
    pub(crate) fn readmit(
        &mut self,
        now: Instant,
        (launch, weight, stage): (Launch, u8, Stage),
        epoch: Epoch,
    ) {
        let job = launch.job;
        let ended = (stage == Stage::Ending).then_some(now);
        if ended.is_none() {
            self.policy.readmit(job, launch.first..launch.first + launch.nodes, weight);
        }
        match stage {
            Stage::Admitted => self.fresh.push_back(job),
            Stage::Launched => {
                self.running.push(job);
                (self.is_taken_over, self.until) = (true, Some(now));
            }
            Stage::Ending => self.ended.push_back(job),
        }
        self.jobs.insert(job, JobRecord { launch, epoch, ended });
    }

    /// Gives the next job the number after `last`.
    pub(crate) const fn number_after(&mut self, last: JobId) {
        self.next_job = last.0 + 1;
    }

    /// Returns the policy without any jobs, and the configuration.
    pub(crate) fn retire(mut self) -> (Box<dyn Policy>, SchedulerConfig) {
        for (job, record) in &self.jobs {
            if record.ended.is_none() {
                self.policy.remove(*job);
            }
        }
        (self.policy, self.config)
    }

    /// Ends a job whose processes have ended or must be killed. Removes its processes and channels from all nodes.
    pub(crate) fn end(&mut self, now: Instant, job: JobId) {
        let Some(record) = self.jobs.get_mut(&job).filter(|record| record.ended.is_none()) else {
            return;
        };
        record.ended = Some(now);
        self.policy.remove(job);
        self.running.retain(|other| *other != job);
        if self.early_wakeups.forget(job) {
            self.until = Some(now);
        }
        if self.fresh.contains(&job) {
            self.fresh.retain(|other| *other != job);
            self.events.push_back(Event::Removed(job));
        } else {
            self.ended.push_back(job);
        }
    }

    /// Requests a cut: freezes a job so that the contents of its channels become known.
    ///
    /// [`Event::Cut`] follows, unless the job ends before. A job that is running resumes within the same slice.
    pub(crate) fn cut(&mut self, job: JobId) {
        self.cuts.push_back(job);
    }

    /// Wakes a job early, because data has arrived for it from outside. If it is suspended, it runs for
    /// [`SchedulerConfig::early_wakeup`] in the middle of other jobs' slice, which continues afterwards. A slice is
    /// not interrupted before it has run for [`SchedulerConfig::early_wakeup`] itself.
    ///
    /// A job that runs early repays the time: its own next slices are shorter. It runs at most one slice ahead, and
    /// then waits for its regular slice. Jobs that share its slices run with it, and a slice is shortened by the time
    /// that all of its jobs have run ahead. In any interval, each job gets the time that it would get without early
    /// wake-ups in an interval one slice shorter. The time that it has run ahead before, at most one slice, is taken
    /// off.
    ///
    /// In dynamic coscheduling (Sobalvarro and Weihl, JSSPP 1995), a message wakes one process, depending on its
    /// priority. Here it wakes the whole gang, and the bound above replaces priorities. The DVCM paper (section 3)
    /// names such scheduling as a use of NIC extensions, and gives no numbers for it.
    pub(crate) fn wake(&mut self, job: JobId) {
        let is_there = self.jobs.get(&job).is_some_and(|record| record.ended.is_none());
        if is_there && !self.running.contains(&job) {
            self.early_wakeups.wake(job);
        }
    }

    /// Removes the record of a job that has ended.
    pub(crate) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Handles the result of the outstanding order, which all daemons have carried out.
    pub(crate) fn handle_outcome(&mut self, now: Instant) {
        let took = now.since(self.phase_began);
        if !std::mem::take(&mut self.under_way) {
            return;
        }
        match (self.phase, &mut self.switch) {
            (Step::End(job), _) => self.events.push_back(Event::Removed(job)),
            (Step::Cut(job), _) => {
                let epoch = self.jobs.get(&job).map(|record| record.epoch);
                self.events.extend(epoch.map(|epoch| Event::Cut(job, epoch)));
            }
            (Step::Freeze, Some(switch)) => switch.freeze = took,
            (Step::Save, Some(switch)) => switch.save = took,
            (Step::Restore, Some(switch)) => switch.restore = took,
            (Step::Run, Some(switch)) => {
                switch.run = took;
                self.events.extend(self.switch.take().map(Event::Switched));
                self.until = Some(now + self.lasts);
                self.early_wakeups.on_slice_start(now);
            }
            _ => {}
        }
    }

    /// Returns the next order for the daemons; `None` while an order is outstanding or the slice lasts.
    #[must_use]
    pub(crate) fn poll_order(&mut self, now: Instant) -> Option<Action> {
        if self.under_way {
            return None;
        }
        let (step, action) = match self.switch.is_some() {
            true => self.next_phase(),
            false => match self.next_of_cut() {
                Some(next) => next,
                None => self.between(now)?,
            },
        };
        (self.phase, self.phase_began, self.under_way) = (step, now, true);
        Some(action)
    }

    /// Returns when to call [`SchedulerCore::poll_order`] again, unless another call comes first.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let until = self.until.filter(|_| !self.under_way)?;
        Some(self.early_wakeups.next_at().map_or(until, |at| until.min(at)))
    }

    /// Returns the next event.
    #[must_use]
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the jobs of the current slice.
    pub(crate) fn running(&self) -> &[JobId] {
        &self.running
    }

    /// Returns whether nothing remains to do until a job is submitted.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        let nothing = self.fresh.is_empty() && self.ended.is_empty() && self.events.is_empty();
        nothing && !self.under_way && self.jobs.values().all(|job| job.ended.is_some())
    }

    fn between(&mut self, now: Instant) -> Option<(Step, Action)> {
        if let Some(job) = self.ended.pop_front() {
            return Some((Step::End(job), Action::End(job)));
        }
        // After a takeover, jobs that count as running may be suspended until the first switch.
        while !self.is_taken_over
            && let Some(job) = self.cuts.pop_front()
        {
            // The channels of a job that was not launched are empty, so that no cut is needed.
            let is_there = self.jobs.get(&job).is_some_and(|record| record.ended.is_none());
            if !is_there || self.fresh.contains(&job) {
                continue;
            }
            if !self.running.contains(&job) {
                return Some((Step::Cut(job), Action::Cut(job)));
            }
            self.frozen = Some(job);
            return Some((Step::FreezeForCut(job), Action::Freeze(vec![job])));
        }
        let left = self.until.map_or(Duration::ZERO, |until| until.since(now));
        if let Some(next) = self.early_wakeup(now, left) {
            return Some(next);
        }
        if !self.running.is_empty() && !left.is_zero() {
            return None;
        }
        self.until = None;
        while let Some(job) = self.fresh.pop_front() {
            if let Some(record) = self.jobs.get(&job) {
                return Some((Step::Launch, Action::Launch(record.launch.clone())));
            }
        }
        self.turn(now)
    }

    /// Returns the next order of a cut in the job's own slice: first the cut, then the resumption of the job.
    fn next_of_cut(&mut self) -> Option<(Step, Action)> {
        let job = self.frozen?;
        let Some(record) = self.jobs.get_mut(&job).filter(|record| record.ended.is_none()) else {
            self.frozen = None;
            return None;
        };
        if self.phase == Step::FreezeForCut(job) {
            return Some((Step::Cut(job), Action::Cut(job)));
        }
        self.frozen = None;
        record.epoch = record.epoch.next();
        Some((Step::ResumeAfterCut, Action::run(vec![(job, record.epoch)])))
    }

    /// Begins or ends an early wake-up, if that is due.
    fn early_wakeup(&mut self, now: Instant, left: Duration) -> Option<(Step, Action)> {
        let (jobs, fresh) = (&self.jobs, &self.fresh);
        let nodes = |job: JobId| {
            let record = jobs.get(&job).filter(|record| record.ended.is_none())?;
            let Launch { first, nodes, .. } = record.launch;
            (!fresh.contains(&job)).then_some(first..first + nodes)
        };
        let change = match self.early_wakeups.is_under_way() {
            true if left.is_zero() || self.early_wakeups.all_have_ended() => {
                self.early_wakeups.end(now, &self.running)?
            }
            true => return None,
            false => self.early_wakeups.begin(now, left, &self.running, nodes)?,
        };
        self.running.retain(|job| !change.stop.contains(job));
        self.running.extend(&change.start);
        self.lasts = change.lasts;
        Some(self.begin_switch(now, change.stop, change.start))
    }

    /// Ends a slice, and starts the jobs of the next one.
    fn turn(&mut self, now: Instant) -> Option<(Step, Action)> {
        let next = loop {
            let next = self.policy.turn();
            // Skips a slice whose jobs have already run for all of its time in early wake-ups.
            if let Some(lasts) = self.early_wakeups.begin_turn(&next) {
                self.lasts = lasts;
                break next;
            }
        };
        if next.is_empty() && self.running.is_empty() {
            return None;
        }
        let before = std::mem::replace(&mut self.running, next.clone());
        let preempt_when_alone = std::mem::take(&mut self.is_taken_over)
            || self.config.preempt_when_alone.is_stopped(self.slices);
        self.slices = self.slices.wrapping_add(1);
        let again = |job: &JobId| !preempt_when_alone && before.contains(job);
        let started: Vec<JobId> = next.iter().filter(|job| !again(job)).copied().collect();
        let stays = |job: &JobId| !preempt_when_alone && next.contains(job);
        let stopped: Vec<JobId> = before.iter().filter(|job| !stays(job)).copied().collect();
        if stopped.is_empty() && started.is_empty() {
            self.until = Some(now + self.lasts);
            self.early_wakeups.on_slice_start(now);
            return None;
        }
        Some(self.begin_switch(now, stopped, started))
    }

    fn begin_switch(
        &mut self,
        now: Instant,
        stopped: Vec<JobId>,
        started: Vec<JobId>,
    ) -> (Step, Action) {
        let [freeze, save, restore, run] = [Duration::ZERO; 4];
        let freezing = stopped.clone();
        self.switch = Some(Switch { at: now, freeze, save, restore, run, stopped, started });
        let action = match self.config.phases {
            Phases::Four => Action::Freeze(freezing),
            Phases::Two => Action::Leave(freezing),
        };
        (Step::Freeze, action)
    }

    /// Returns the order of the next phase of the switch in progress.
    fn next_phase(&mut self) -> (Step, Action) {
        let switch = self.switch.as_ref().expect("a switch is under way");
        let (mut stop, mut started) = (switch.stopped.clone(), switch.started.clone());
        let is_ended = |job: &JobId| self.jobs.get(job).is_none_or(|record| record.ended.is_some());
        // A job that has ended during the switch stays suspended.
        started.retain(|job| !is_ended(job));
        if self.config.phases == Phases::Four {
            match self.phase {
                Step::Freeze => {
                    return (Step::Save, Action::Exchange { stop, start: Vec::new() });
                }
                Step::Save => {
                    let restore = Action::Exchange { stop: Vec::new(), start: started };
                    return (Step::Restore, restore);
                }
                // The jobs are saved.
                _ => stop.clear(),
            }
        }
        let mut run = Vec::new();
        for job in started {
            if let Some(record) = self.jobs.get_mut(&job) {
                record.epoch = record.epoch.next();
                run.push((job, record.epoch));
            }
        }
        (Step::Run, Action::Run { stop, run })
    }
}

#[cfg(test)]
pub(crate) mod tests;
