//! Turns a node's part of an order into steps that its shell carries out one after another.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::NodeConfig;
use super::message::{Held, Inventory, Member, Pairs, Program, RankEvent};
use super::order::{Action, Launch, Outcome, Step, StepOutcome, steps_of};
use super::reason::bounded;
use super::size::Size;
use super::state_chunk::{RankState, StateChunk};
use crate::context::ChannelContext;
use crate::names::{ChannelAddress, Epoch, JobId};

/// The step that the shell is carrying out.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    /// When the step began.
    began: Instant,
    /// The action of a [`Step::Channels`].
    action: Option<Action>,
    /// Jobs that are removed from this node when the step is complete.
    ends: Vec<JobId>,
    /// The step as text, for `explain`.
    shown: String,
}

/// The state that a job will have once all steps are complete.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    /// Suspended, and not on the NIC.
    #[default]
    Away,
    /// Suspended, and restored to the NIC.
    Restored,
    /// Suspended, with its channels still on the NIC.
    Frozen,
    /// In its slice; or suspended, with channels that the NIC did not start. Both must be stopped before they are saved.
    Active,
}

/// A job that has ranks on this node.
#[derive(Debug, Default)]
struct Local {
    phase: Phase,
    /// True if the root no longer wants reports about the job.
    is_dropped: bool,
    /// True if arrivals wake the job, and none was reported since its last slice.
    awaits_arrival: bool,
    /// True if arrivals wake the job.
    woken: bool,
    /// Bytes of memory that the job's ranks on this node claim.
    claim: u64,
    /// The job's first rank on this node.
    rank: u16,
    /// Report for a root that takes over.
    held: Held,
}

/// Turns actions into steps.
///
/// A root that takes over does not know which steps of the last order each host has completed. It suspends and saves
/// all jobs, and the agent skips what is already done here.
#[derive(Debug)]
pub(super) struct Agent {
    config: NodeConfig,
    /// Jobs that have ranks on this host, until their channels are closed.
    jobs: BTreeMap<JobId, Local>,
    /// True if the root is lost, so that jobs that it has begun to suspend must resume.
    is_orphan: bool,
    /// True until a new root has processed this host's inventory. Until then its orders do not concern this host.
    is_joining: bool,
    /// Saved states of ranks of jobs that will be launched here.
    pub(super) states: BTreeMap<(JobId, u16), RankState>,
    /// The number of the order in progress.
    order: Option<u32>,
    outcome: Outcome,
    /// The channels' contexts from the last cut, until they are reported.
    pub(super) cut: Vec<(JobId, ChannelContext)>,
    steps: VecDeque<Step>,
    under_way: Option<UnderWay>,
    next_step: u64,
}

impl Agent {
    pub(super) fn new(config: NodeConfig) -> Self {
        Self {
            config,
            jobs: BTreeMap::new(),
            is_orphan: false,
            is_joining: false,
            states: BTreeMap::new(),
            order: None,
            outcome: Outcome::default(),
            cut: Vec::new(),
            steps: VecDeque::new(),
            under_way: None,
            next_step: 1,
        }
    }

    /// Adds a chunk of the state of a rank that will be launched here.
    pub(super) fn add_chunk(&mut self, job: JobId, rank: u16, chunk: &StateChunk) {
        self.states.entry((job, rank)).or_default().add(chunk, true);
    }

    /// Begins this node's part of an order.
    pub(super) fn begin(&mut self, number: u32, action: Action) {
        self.order = Some(number);
        // Results of steps that were completed without a root are out of date.
        self.outcome.has_interfaces.clear();
        if self.is_joining {
            return;
        }
        let steps = match self.own_part(action) {
            None => Vec::new(),
            Some(Action::Launch(launch)) => self.launch(launch),
            Some(action) => steps_of(action),
        };
        self.add(steps);
    }

    /// Returns the part of an action that concerns this host, if any, and records the phase in which it leaves the
    /// jobs.
    fn own_part(&mut self, action: Action) -> Option<Action> {
        use Phase::{Active, Away, Frozen, Restored};
        let own = match action {
            Action::Freeze(jobs) => Action::Freeze(self.bring(jobs, &[Active], Frozen)),
            Action::Leave(jobs) => Action::Leave(self.bring(jobs, &[Active], Frozen)),
            Action::Run { stop, run } => {
                let stop = self.bring(stop, &[Frozen, Restored], Away);
                Action::Run { stop, run: self.start(run) }
            }
            Action::Exchange { stop, start } => {
                let stop = self.bring(stop, &[Frozen, Restored], Away);
                Action::Exchange { stop, start: self.bring(start, &[Away], Restored) }
            }
            Action::End(job) | Action::Cut(job) if !self.jobs.contains_key(&job) => return None,
            Action::Launch(_) | Action::End(_) | Action::Cut(_) | Action::Quit => action,
        };
        let is_here = own.jobs().next().is_some();
        is_here.then_some(own)
    }

    /// Sets the phase of those of `jobs` that are here in one of the phases `from` to `to`, and returns them.
    fn bring(&mut self, jobs: Vec<JobId>, from: &[Phase], to: Phase) -> Vec<JobId> {
        let mut bring = |job: &JobId| {
            let local = self.jobs.get_mut(job).filter(|local| from.contains(&local.phase));
            local.map(|local| local.phase = to).is_some()
        };
        jobs.into_iter().filter(|job| bring(job)).collect()
    }

    /// Sets those of these jobs that are here and not active to active, and returns them.
    fn start(&mut self, run: Vec<(JobId, Epoch)>) -> Vec<(JobId, Epoch)> {
        let mut start = |(job, epoch): &(JobId, Epoch)| {
            let local = self.jobs.get_mut(job).filter(|local| local.phase != Phase::Active);
            local.map(|local| {
                (local.phase, local.held.epoch) = (Phase::Active, *epoch);
                local.awaits_arrival = local.woken;
            })
        };
        run.into_iter().filter(|job| start(job).is_some()).collect()
    }

    /// Adds steps; drops steps of channels if ranks have no channels.
    fn add(&mut self, steps: impl IntoIterator<Item = Step>) {
        let of_channels =
            |step: &Step| matches!(step, Step::Open(..) | Step::Channels(_) | Step::Close(_));
        let steps = steps.into_iter().filter(|step| self.config.has_channels || !of_channels(step));
        self.steps.extend(steps);
    }

    fn launch(&mut self, launch: Launch) -> Vec<Step> {
        let job = launch.job;
        // Jobs are launched in the order of their numbers. States of an earlier number belong to a job that has ended
        // before its launch.
        let later = self.states.split_off(&(JobId(job.0.saturating_add(1)), 0));
        let mut own = std::mem::replace(&mut self.states, later).split_off(&(job, 0));
        let places = self.config.cluster.places(&launch);
        let is_here = |place: &ChannelAddress| place.node.0 == self.config.host;
        let Some(rank) = places.iter().position(is_here) else { return Vec::new() };
        let (rank, ranks) = (rank as u16, places.iter().filter(|place| is_here(place)).count());
        let claim = match self.claim(&launch.program, ranks as u64) {
            Ok(claim) => claim,
            Err(why) => {
                self.outcome.failed.push((job, self.config.host, why));
                return Vec::new();
            }
        };
        let (woken, held) = (launch.program.woken, Held { job, ..Held::default() });
        self.jobs.insert(job, Local { woken, claim, rank, held, ..Local::default() });
        let context = |state: &RankState| wire::decode_long(state.context()?).ok();
        let contexts = own.iter().filter_map(|((_, rank), of)| Some((*rank, context(of)?)));
        let open = Step::Open(launch.clone(), contexts.collect());
        let states = own.iter_mut().filter_map(|((_, rank), of)| Some((*rank, of.take_state()?)));
        vec![open, Step::Start(launch, states.collect())]
    }

    /// Returns the bytes that a job's ranks on this host claim together.
    ///
    /// # Errors
    /// The other jobs' claims leave less than that; the text has the numbers.
    fn claim(&self, program: &Program, ranks: u64) -> Result<u64, String> {
        let Some(each) = program.memory else { return Ok(0) };
        let claim = each.saturating_mul(ranks);
        let others = self.jobs.values().map(|local| local.claim).filter(|claim| *claim > 0);
        let (jobs, given) = others.fold((0, 0_u64), |(jobs, sum), it| (jobs + 1, sum + it));
        if claim <= self.config.memory.saturating_sub(given) {
            return Ok(claim);
        }
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let given = match jobs {
            0 => String::new(),
            _ => format!(", of which {} are given to {jobs} job{}", Size(given), plural(jobs)),
        };
        Err(format!(
            "it has {} for jobs{given}: --memory {} for {ranks} rank{} does not fit",
            Size(self.config.memory),
            Size(each),
            plural(ranks)
        ))
    }

    /// Abandons the order in progress, and ends all jobs on this node.
    pub(super) fn clear(&mut self) {
        (self.order, self.outcome, self.under_way) = (None, Outcome::default(), None);
        self.steps.clear();
        self.cut.clear();
        self.states.clear();
        // The next root gives the numbers of these jobs to others.
        self.jobs.values_mut().for_each(|local| local.is_dropped = true);
        if !self.jobs.is_empty() {
            let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
            self.add([Step::Kill(jobs.clone()), Step::Close(jobs)]);
        }
    }

    /// Keeps this node's jobs running although the root is lost: completes the steps of its last order, and resumes
    /// the jobs that it has suspended. A stop that does not end is cancelled, and jobs whose channels are not quiescent
    /// stay suspended. No other order follows before there is a new root.
    pub(super) fn orphan(&mut self) {
        (self.order, self.outcome) = (None, Outcome::default());
        (self.is_orphan, self.is_joining) = (true, false);
        self.cut.clear();
        self.states.clear();
    }

    /// Records that there is a root again. Returns this host's inventory.
    pub(super) fn rejoin(&mut self, now: Instant) -> Inventory {
        (self.is_orphan, self.is_joining) = (false, true);
        if let Some(step) = &mut self.under_way {
            step.began = now;
        }
        let wanted = self.jobs.values().filter(|local| !local.is_dropped);
        let jobs = wanted.map(|local| local.held.clone()).collect();
        Inventory { host: self.config.host, jobs }
    }

    /// Resumes jobs that the lost root has suspended, in a new epoch.
    fn thaw(&mut self) {
        let frozen = self.jobs.values().filter(|local| local.phase == Phase::Frozen);
        let run: Vec<_> = frozen.map(|local| (local.held.job, local.held.epoch.next())).collect();
        if !run.is_empty() {
            let run = self.start(run);
            let jobs = run.iter().map(|(job, _)| *job).collect();
            self.add([Step::Channels(Action::run(run)), Step::Resume(jobs)]);
        }
    }

    /// Records a change of a rank here, for a root that takes over. Returns false if the root must not receive it.
    pub(super) fn note(&mut self, job: JobId, rank: u16, event: &RankEvent) -> bool {
        let Some(Local { held, is_dropped, .. }) = self.jobs.get_mut(&job) else { return true };
        match event {
            RankEvent::Ended(end) => held.ends.push((rank, *end)),
            RankEvent::Able if held.able.contains(&rank) => {}
            RankEvent::Able => held.able.push(rank),
            RankEvent::Left => held.able.retain(|able| *able != rank),
            RankEvent::BarrierIn(pairs) => held.inside.push((rank, pairs.clone())),
            RankEvent::Aborted { code, message } => {
                held.aborted.get_or_insert_with(|| (rank, *code, message.clone()));
            }
            RankEvent::Chunk(_) | RankEvent::Failed { .. } => {}
        }
        !*is_dropped
    }

    /// Records that data has arrived for a job. Returns whether to report that: only if the job is suspended, wants to
    /// be woken, and has no arrival that was reported already.
    pub(super) fn note_arrival(&mut self, job: JobId) -> bool {
        let waits = |local: &&mut Local| local.phase == Phase::Away && !local.is_dropped;
        let local = self.jobs.get_mut(&job).filter(waits);
        local.is_some_and(|local| std::mem::take(&mut local.awaits_arrival))
    }

    /// Records that the ranks of a job leave a PMI barrier. Returns false if they have already left it.
    pub(super) fn note_barrier_out(&mut self, job: JobId, number: u64, pairs: &Pairs) -> bool {
        let local = self.jobs.get_mut(&job).filter(|local| local.held.barriers < number);
        local
            .map(|Local { held, .. }| {
                (held.barriers, held.put) = (number, pairs.clone());
                held.inside.clear();
            })
            .is_some()
    }

    /// Ends jobs that the root does not know, or that ended without this host. From now on, the root's orders concern
    /// this host.
    pub(super) fn drop_jobs(&mut self, jobs: &[JobId]) {
        self.is_joining = false;
        for job in jobs {
            self.abandon(*job);
            self.jobs.entry(*job).and_modify(|local| local.is_dropped = true);
        }
        let left: Vec<JobId> =
            jobs.iter().copied().filter(|job| self.jobs.contains_key(job)).collect();
        if !left.is_empty() {
            self.add([Step::Kill(left.clone()), Step::Close(left)]);
        }
    }

    /// Drops the states of a job that will not be launched. Ends a job at once if an order in progress suspends it,
    /// because a channel to a lost node never becomes quiescent.
    pub(super) fn abandon(&mut self, job: JobId) {
        self.states.retain(|(of, _), _| *of != job);
        if !self.jobs.contains_key(&job) {
            return;
        }
        let stops = |action: &Action| match action {
            Action::Freeze(jobs) | Action::Leave(jobs) => jobs.contains(&job),
            _ => false,
        };
        // An order that waits for that may suspend the job next.
        let is_clearing = self.is_clearing();
        let again = self.under_way.take_if(|step| step.action.as_ref().is_some_and(stops));
        let will_stop = |step: &Step| matches!(step, Step::Channels(action) if stops(action));
        if again.is_some() || is_clearing || self.steps.iter().any(will_stop) {
            let later = std::mem::take(&mut self.steps);
            self.add([Step::Kill(vec![job]), Step::Close(vec![job])]);
            let again = again.and_then(|step| step.action).map(Step::Channels);
            self.steps.extend(again.into_iter().chain(later));
        }
    }

    /// Returns when the step in progress began, if it waits for channels to become quiescent.
    pub(super) fn stop_began(&self) -> Option<Instant> {
        let is_stop =
            |step: &&UnderWay| matches!(step.action, Some(Action::Freeze(_) | Action::Leave(_)));
        self.under_way.as_ref().filter(is_stop).map(|step| step.began)
    }

    /// Ends jobs whose channels don't become quiescent in time, and reports them as failed. Returns them, each with a
    /// rank and the reason, for the root, which may hear of the ends of their ranks before the report. Without a root,
    /// ends none.
    pub(super) fn give_up_stop(&mut self) -> Vec<(Member, String)> {
        if self.is_orphan {
            // The next step cancels the stop, and starts the channels that are quiescent.
            self.under_way = None;
            return Vec::new();
        }
        let action = self.under_way.as_ref().and_then(|step| step.action.as_ref());
        let jobs: Vec<JobId> = action.into_iter().flat_map(Action::jobs).collect();
        let mut failed = Vec::new();
        for job in jobs {
            let Some(rank) = self.jobs.get(&job).map(|local| local.rank) else { continue };
            self.abandon(job);
            let why = "its channels do not become quiescent".to_owned();
            failed.push(((job, rank), why.clone()));
            self.outcome.failed.push((job, self.config.host, why));
        }
        failed
    }

    /// Returns the next step and its number; `None` while a step is in progress.
    pub(super) fn poll_step(&mut self, now: Instant) -> Option<(u64, Step)> {
        if self.under_way.is_some() {
            return None;
        }
        if self.is_orphan && self.steps.is_empty() {
            self.thaw();
        }
        let step = self.steps.pop_front()?;
        let number = self.next_step;
        self.next_step += 1;
        let action = if let Step::Channels(action) = &step { Some(action.clone()) } else { None };
        let ends = match &step {
            Step::Kill(jobs) if !self.config.has_channels => jobs.clone(),
            Step::Close(jobs) => jobs.clone(),
            _ => Vec::new(),
        };
        self.under_way = Some(UnderWay { number, began: now, action, ends, shown: step.shown() });
        Some((number, step))
    }

    /// Handles the result of the step in progress. Ignores results of abandoned steps.
    pub(super) fn handle_step_done(&mut self, number: u64, done: Result<StepOutcome, String>) {
        let Some(step) = self.under_way.take_if(|step| step.number == number) else { return };
        match done {
            Ok(StepOutcome { mut outcome, contexts }) => {
                if let Some(Action::Run { .. }) = step.action {
                    self.hold_back(&mut outcome);
                }
                self.outcome.add(outcome);
                if let Some(Action::Cut(job)) = step.action {
                    self.cut.extend(contexts.into_iter().map(|context| (job, context)));
                }
            }
            // The error does not tell which channel failed, so no job of this node can continue.
            Err(why) => {
                let failed = self.jobs.keys().map(|job| (*job, self.config.host, why.clone()));
                self.outcome.failed.extend(failed);
            }
        }
        self.jobs.retain(|job, _| !step.ends.contains(job));
    }

    /// Leaves those jobs suspended whose channels were not started. Without an order of a root, they have not failed:
    /// the next root suspends and resumes them again.
    fn hold_back(&mut self, outcome: &mut Outcome) {
        for step in &mut self.steps {
            if let Step::Resume(jobs) = step {
                jobs.retain(|job| !outcome.has_failed(*job));
            }
        }
        if self.order.is_none() {
            outcome.failed.clear();
        }
    }

    /// Returns the number and outcome of this node's part of an order, once it is complete.
    pub(super) fn poll_done(&mut self) -> Option<(u32, Outcome)> {
        if self.under_way.is_some() || !self.steps.is_empty() {
            return None;
        }
        let number = self.order.take()?;
        let mut outcome = std::mem::take(&mut self.outcome);
        for (_, _, why) in &mut outcome.failed {
            *why = bounded(std::mem::take(why));
        }
        Some((number, outcome))
    }

    /// Returns whether jobs of a lost parent are being ended. Orders wait for that, because a new root reuses job
    /// numbers.
    pub(super) fn is_clearing(&self) -> bool {
        self.order.is_none() && (self.under_way.is_some() || !self.steps.is_empty())
    }

    /// Returns whether no job and no step is left here.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.under_way.is_none() && self.steps.is_empty()
    }

    /// Describes the step in progress.
    pub(super) fn explain(&self) -> String {
        let Self { order, under_way, steps, .. } = self;
        let jobs = self.jobs.keys();
        let next: Vec<String> = steps.iter().map(Step::shown).collect();
        let under_way = under_way.as_ref().map(|step| &step.shown);
        format!("order {order:?}: step {under_way:?}, then {next:?}; jobs here: {jobs:?}")
    }
}
