//! The scheduler's mind: which order the daemons get next, and when. No I/O, no clock.
//!
//! After any `&mut self` call: carry out what [`Agenda::poll_order`] says and hand what came of it to
//! [`Agenda::handle_outcome`], until it says nothing; then drain [`Agenda::poll_event`], and re-read
//! [`Agenda::poll_timeout`]. One order is under way at a time. `now` never goes back.

mod departures;
mod visits;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::daemon::{Action, Launch, Outcome};
use crate::interfaces::NotWhole;
use crate::names::{Epoch, JobId};
use crate::schedule::{AdmitError, Policy, Request};
use departures::Departures;
use visits::Visits;

/// How many times the daemons wait for each other in one switch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phases {
    /// Freeze, save, restore, run: a broadcast and a barrier each, as in the paper.
    Four,
    /// Freeze, then all the rest: two. A node saves what stands still there while others freeze.
    Two,
}

/// Whether a job whose turn follows its own is stopped and started all the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WithItself {
    /// It goes on.
    Never,
    /// It is: what the paper measured with.
    Always,
    /// It is at the ends of so many slices, and goes on at the ends of as many after them: what being stopped costs
    /// shows within one run.
    Alternately(NonZeroU32),
}

impl WithItself {
    /// The same at the end of a slice that so many others came before.
    const fn is_stopped(self, slices: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Alternately(each) => (slices / each.get()).is_multiple_of(2),
        }
    }
}

/// How jobs are switched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AgendaConfig {
    /// How long a slice is.
    pub slice: Duration,
    /// How the daemons wait for each other.
    pub phases: Phases,
    /// Whether a job whose turn follows its own is stopped and started all the same.
    pub with_itself: WithItself,
    /// How long a job runs that is woken before its turn ([`Agenda::wake`]); zero: none is.
    pub visit: Duration,
}

/// One switch of jobs: what it took, as the root saw it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switch {
    /// When it began.
    pub at: Instant,
    /// Until all processes were stopped and all channels steady, everywhere.
    pub freeze: Duration,
    /// Until all contexts were saved.
    pub save: Duration,
    /// Until all contexts were restored. Where Virtual Interfaces are saved or restored, one order does both,
    /// and this is the time of both.
    pub restore: Duration,
    /// Until all processes went on. With [`Phases::Two`], save and restore are part of it otherwise.
    pub run: Duration,
    /// Jobs that ran before it, and were stopped.
    pub stopped: Vec<JobId>,
    /// Jobs that it let go on.
    pub started: Vec<JobId>,
}

impl Switch {
    /// When it ended.
    #[must_use]
    pub fn end(&self) -> Instant {
        self.at + self.freeze + self.save + self.restore + self.run
    }
}

/// A job, as the scheduler knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobRecord<P = u32> {
    /// Where it is, and what it runs.
    pub launch: Launch<P>,
    /// Its epoch; 0 before its first slice.
    pub epoch: Epoch,
    /// When it was found to have ended.
    pub ended: Option<Instant>,
}

/// What has happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Jobs were switched.
    Switched(Switch),
    /// Nothing is left of a job, on no node.
    Gone(JobId),
    /// A job stood still, and what its channels held then is known.
    Cut(JobId, Epoch),
    /// A job was stopped, and its Virtual Interfaces stay on their NICs, where they would have been saved.
    Stayed(JobId, NotWhole),
}

/// What the daemons were ordered last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Launch,
    End(JobId),
    Freeze,
    Save,
    Restore,
    Run,
    /// To be cut.
    Hold(JobId),
    Cut(JobId),
    /// After it was cut.
    GoOn,
}

/// Which order comes next, and when.
pub struct Agenda<P> {
    policy: Box<dyn Policy>,
    config: AgendaConfig,
    jobs: BTreeMap<JobId, JobRecord<P>>,
    next_job: u32,
    /// Taken, and started nowhere yet.
    fresh: VecDeque<JobId>,
    /// To be cleared away.
    ended: VecDeque<JobId>,
    /// To be cut.
    cuts: VecDeque<JobId>,
    /// Stands still for its cut, in its own slice.
    held: Option<JobId>,
    running: Vec<JobId>,
    /// Slices that have ended.
    slices: u32,
    /// When the slice ends.
    until: Option<Instant>,
    /// How long the one lasts that a switch begins.
    lasts: Duration,
    visits: Visits,
    departures: Departures,
    /// The switch that is being made.
    switch: Option<Switch>,
    /// What was ordered last, and when.
    phase: Step,
    phase_began: Instant,
    under_way: bool,
    events: VecDeque<Event>,
}

impl<P> std::fmt::Debug for Agenda<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { running, phase, under_way, until, .. } = self;
        let mut shown = f.debug_struct("Agenda");
        shown.field("running", running).field("last", phase).field("under_way", under_way);
        shown.field("until", until).finish_non_exhaustive()
    }
}

impl<P: Clone> Agenda<P> {
    /// An agenda without jobs.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, config: AgendaConfig) -> Self {
        Self {
            policy,
            config,
            jobs: BTreeMap::new(),
            next_job: 1,
            fresh: VecDeque::new(),
            ended: VecDeque::new(),
            cuts: VecDeque::new(),
            held: None,
            running: Vec::new(),
            slices: 0,
            until: None,
            lasts: config.slice,
            visits: Visits::new(config.visit),
            departures: Departures::default(),
            switch: None,
            phase: Step::Launch,
            phase_began: Instant::ZERO,
            under_way: false,
            events: VecDeque::new(),
        }
    }

    /// Takes a job: it begins at the end of the slice, at once if nothing runs.
    ///
    /// # Errors
    /// [`AdmitError`] if it asks for what there is not.
    pub fn submit(
        &mut self,
        request: Request,
        ranks: u16,
        program: P,
    ) -> Result<JobId, AdmitError> {
        let job = JobId(self.next_job);
        let nodes = self.policy.admit(job, request)?;
        self.next_job += 1;
        let (first, count) = (nodes.start, nodes.len() as u16);
        let launch = Launch { job, first, nodes: count, ranks, program };
        self.jobs.insert(job, JobRecord { launch, epoch: Epoch(0), ended: None });
        self.fresh.push_back(job);
        Ok(job)
    }

    /// A job is over: its processes have ended, or are to be. What is left of it is cleared away.
    pub fn end(&mut self, now: Instant, job: JobId) {
        let Some(record) = self.jobs.get_mut(&job).filter(|record| record.ended.is_none()) else {
            return;
        };
        record.ended = Some(now);
        self.policy.remove(job);
        self.departures.forget(job);
        self.running.retain(|other| *other != job);
        if self.visits.forget(job) {
            self.until = Some(now);
        }
        if self.fresh.contains(&job) {
            self.fresh.retain(|other| *other != job);
            self.events.push_back(Event::Gone(job));
        } else {
            self.ended.push_back(job);
        }
    }

    /// Has a job stand still, so that what its channels hold is known: [`Event::Cut`] follows, unless it
    /// ends before. It goes on in its slice.
    pub fn cut(&mut self, job: JobId) {
        self.cuts.push_back(job);
    }

    /// Something has arrived for a job from outside: if it stands still, it runs before its turn
    /// ([`AgendaConfig::visit`]), in the middle of others' slice, whose rest follows. No slice is interrupted before it
    /// has lasted as long as a visit, so that visits take half of the time at most.
    ///
    /// Dynamic coscheduling (Sobalvarro and Weihl, JSSPP 1995) has messages wake processes one by one, and looks at
    /// their priorities; here a gang is woken whole, and the bound is that of the visits.
    pub fn wake(&mut self, job: JobId) {
        let is_there = self.jobs.get(&job).is_some_and(|record| record.ended.is_none());
        if is_there && !self.running.contains(&job) {
            self.visits.wake(job);
        }
    }

    /// Forgets a job that is gone.
    pub fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// The order under way has been carried out everywhere.
    pub fn handle_outcome(&mut self, now: Instant, outcome: &Outcome) {
        let took = Duration::from_nanos(now.nanos_since(self.phase_began));
        if !std::mem::take(&mut self.under_way) {
            return;
        }
        match (self.phase, &mut self.switch) {
            (Step::End(job), _) => self.events.push_back(Event::Gone(job)),
            (Step::Cut(job), _) => {
                let epoch = self.jobs.get(&job).map(|record| record.epoch);
                self.events.extend(epoch.map(|epoch| Event::Cut(job, epoch)));
            }
            (Step::Freeze, Some(switch)) => {
                switch.freeze = took;
                let stay = self.departures.stopped(&switch.stopped, &outcome.interfaces);
                self.events.extend(stay.into_iter().map(|(job, why)| Event::Stayed(job, why)));
            }
            (Step::Save, Some(switch)) => switch.save = took,
            (Step::Restore, Some(switch)) => {
                switch.restore = took;
                self.departures.arrived(&outcome.moved);
            }
            (Step::Run, Some(switch)) => {
                switch.run = took;
                self.events.extend(self.switch.take().map(Event::Switched));
                self.until = Some(now + self.lasts);
                self.visits.begun(now);
            }
            _ => {}
        }
        for &(job, count) in &outcome.ended {
            if self.jobs.get(&job).is_some_and(|record| count >= record.launch.ranks) {
                self.end(now, job);
            }
        }
    }

    /// What the daemons are to do now; `None` while an order is under way, and while a slice lasts.
    #[must_use]
    pub fn poll_order(&mut self, now: Instant) -> Option<Action<P>> {
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

    /// When [`Agenda::poll_order`] has something to say again, unless something happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let until = self.until.filter(|_| !self.under_way)?;
        Some(self.visits.next_at().map_or(until, |at| until.min(at)))
    }

    /// What has happened since.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Every job that is not forgotten.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, JobRecord<P>> {
        &self.jobs
    }

    /// The jobs whose slice it is.
    #[must_use]
    pub fn running(&self) -> &[JobId] {
        &self.running
    }

    /// Whether there is nothing to do before a job is submitted.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let nothing = self.fresh.is_empty() && self.ended.is_empty() && self.events.is_empty();
        nothing && !self.under_way && self.jobs.values().all(|job| job.ended.is_some())
    }

    fn launch_of(&self, job: JobId) -> Option<Launch<P>> {
        self.jobs.get(&job).map(|record| record.launch.clone())
    }

    fn between(&mut self, now: Instant) -> Option<(Step, Action<P>)> {
        if let Some(job) = self.ended.pop_front() {
            return Some((Step::End(job), Action::End(job)));
        }
        while let Some(job) = self.cuts.pop_front() {
            // One that is not launched holds nothing.
            let is_there = self.jobs.get(&job).is_some_and(|record| record.ended.is_none());
            if !is_there || self.fresh.contains(&job) {
                continue;
            }
            if !self.running.contains(&job) {
                return Some((Step::Cut(job), Action::Cut(job)));
            }
            self.held = Some(job);
            return Some((Step::Hold(job), Action::Freeze(vec![job])));
        }
        let left =
            self.until.map_or(Duration::ZERO, |until| Duration::from_nanos(until.nanos_since(now)));
        if let Some(visit) = self.visit(now, left) {
            return Some(visit);
        }
        if !self.running.is_empty() && !left.is_zero() {
            return None;
        }
        self.until = None;
        while let Some(job) = self.fresh.pop_front() {
            if let Some(launch) = self.launch_of(job) {
                return Some((Step::Launch, Action::Launch(launch)));
            }
        }
        self.turn(now)
    }

    /// What comes after a job was stopped for its cut: the cut, then the rest of its slice.
    fn next_of_cut(&mut self) -> Option<(Step, Action<P>)> {
        let job = self.held?;
        let Some(record) = self.jobs.get_mut(&job).filter(|record| record.ended.is_none()) else {
            self.held = None;
            return None;
        };
        if self.phase == Step::Hold(job) {
            return Some((Step::Cut(job), Action::Cut(job)));
        }
        self.held = None;
        record.epoch = record.epoch.next();
        Some((Step::GoOn, Action::Run(vec![(job, record.epoch)])))
    }

    /// A visit begins, or comes to its end.
    fn visit(&mut self, now: Instant, left: Duration) -> Option<(Step, Action<P>)> {
        let (jobs, fresh) = (&self.jobs, &self.fresh);
        let nodes = |job: JobId| {
            let record = jobs.get(&job).filter(|record| record.ended.is_none())?;
            let Launch { first, nodes, .. } = record.launch;
            (!fresh.contains(&job)).then_some(first..first + nodes)
        };
        let change = match self.visits.is_under_way() {
            true if left.is_zero() || self.visits.is_abandoned() => self.visits.end()?,
            true => return None,
            false => self.visits.begin(now, left, &self.running, nodes)?,
        };
        self.running.retain(|job| !change.stop.contains(job));
        self.running.extend(&change.start);
        self.lasts = change.lasts;
        Some(self.begin_switch(now, change.stop, change.start))
    }

    /// The end of a slice: who runs in the next one.
    fn turn(&mut self, now: Instant) -> Option<(Step, Action<P>)> {
        let next = self.policy.turn();
        if next.is_empty() && self.running.is_empty() {
            return None;
        }
        let before = std::mem::replace(&mut self.running, next.clone());
        let with_itself = self.config.with_itself.is_stopped(self.slices);
        self.slices = self.slices.wrapping_add(1);
        let again = |job: &JobId| !with_itself && before.contains(job);
        let started: Vec<JobId> = next.iter().filter(|job| !again(job)).copied().collect();
        let stays = |job: &JobId| !with_itself && next.contains(job);
        let stopped: Vec<JobId> = before.iter().filter(|job| !stays(job)).copied().collect();
        self.visits.came(&next);
        self.lasts = self.config.slice;
        if stopped.is_empty() && started.is_empty() {
            self.until = Some(now + self.lasts);
            self.visits.begun(now);
            return None;
        }
        Some(self.begin_switch(now, stopped, started))
    }

    fn begin_switch(
        &mut self,
        now: Instant,
        stopped: Vec<JobId>,
        started: Vec<JobId>,
    ) -> (Step, Action<P>) {
        let [freeze, save, restore, run] = [Duration::ZERO; 4];
        let freezing = stopped.clone();
        self.switch = Some(Switch { at: now, freeze, save, restore, run, stopped, started });
        let action = match self.config.phases {
            Phases::Four => Action::Freeze(freezing),
            Phases::Two => Action::Leave(freezing),
        };
        (Step::Freeze, action)
    }

    /// The phase after the one that was carried out last.
    fn next_phase(&mut self) -> (Step, Action<P>) {
        let switch = self.switch.as_ref().expect("a switch is being made");
        let (stop, started) = (switch.stopped.clone(), switch.started.clone());
        if self.phase == Step::Freeze
            && let Some(away) = self.departures.begin(&started)
        {
            return (Step::Restore, Action::Exchange { stop, away, start: started });
        }
        match (self.config.phases, self.phase) {
            (Phases::Four, Step::Freeze) => return (Step::Save, Action::Save(stop)),
            (Phases::Four, Step::Save) => return (Step::Restore, Action::Restore(started)),
            _ => {}
        }
        let mut run = Vec::new();
        for job in started {
            if let Some(record) = self.jobs.get_mut(&job).filter(|record| record.ended.is_none()) {
                record.epoch = record.epoch.next();
                run.push((job, record.epoch));
            }
        }
        let action = match (self.departures.finish(), self.config.phases) {
            (Some(moved), _) => Action::Join { run, moved },
            (None, Phases::Four) => Action::Run(run),
            (None, Phases::Two) => Action::Switch { stop, run },
        };
        (Step::Run, action)
    }
}

#[cfg(test)]
mod tests;
