//! A node's own part of an order, as steps that its shell carries out one after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::message::Cluster;
use super::order::{Action, Launch, Outcome};
use super::state_chunk::{RankState, StateChunk};
use crate::context::ChannelContext;
use crate::names::JobId;

/// A step of a node's own part of an order. It concerns the ranks of the jobs that are on this node.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Opens the channels of a job's ranks. Ranks of a job that was saved have contexts.
    Open(Launch, BTreeMap<u16, ChannelContext>),
    /// Starts the ranks of a job, suspended, each with the state that it was saved with.
    Start(Launch, BTreeMap<u16, Vec<u8>>),
    /// Suspends the processes of jobs.
    Suspend(Vec<JobId>),
    /// Carries the channels' part of an action out. [`Action::Freeze`] and [`Action::Leave`] stop the channels, and wait
    /// until all are steady. After [`Action::Leave`] is reported, the contexts may be copied: they will be saved.
    Channels(Action),
    /// Resumes the processes of jobs.
    Resume(Vec<JobId>),
    /// Kills the processes of jobs, and waits until all have ended.
    Kill(Vec<JobId>),
    /// Closes the channels of jobs. Cancels the step before, if that waits until channels are steady.
    Close(Vec<JobId>),
}

impl Step {
    /// Returns whether the step waits until channels are steady.
    pub(crate) const fn is_stop(&self) -> bool {
        matches!(self, Self::Channels(Action::Freeze(_) | Action::Leave(_)))
    }

    /// Describes the step, without programs, variables and states.
    fn shown(&self) -> String {
        match self {
            Self::Open(launch, _) => format!("Open({})", launch.job),
            Self::Start(launch, _) => format!("Start({})", launch.job),
            other => format!("{other:?}"),
        }
    }
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOutcome {
    pub(crate) outcome: Outcome,
    /// For [`Action::Cut`]: the contexts.
    pub(crate) contexts: Vec<ChannelContext>,
}

impl From<Outcome> for StepOutcome {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, contexts: Vec::new() }
    }
}

/// The step that the shell carries out.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    /// When it was begun.
    began: Instant,
    /// For [`Step::Channels`]: the action.
    action: Option<Action>,
    /// The jobs of which nothing is left here afterwards.
    ends: Vec<JobId>,
    /// The step, to show.
    shown: String,
}

/// Turns actions into steps.
#[derive(Debug)]
pub(super) struct Agent {
    host: u16,
    cluster: Cluster,
    has_channels: bool,
    /// Jobs that have ranks here, until they are closed.
    jobs: BTreeSet<JobId>,
    /// States that ranks of jobs to be launched start from.
    states: BTreeMap<(JobId, u16), RankState>,
    /// The number of the order under way.
    order: Option<u32>,
    outcome: Outcome,
    /// The contexts of a cut.
    cut: Vec<(JobId, ChannelContext)>,
    steps: VecDeque<Step>,
    under_way: Option<UnderWay>,
    next_step: u64,
}

impl Agent {
    pub(super) fn new(host: u16, cluster: Cluster, has_channels: bool) -> Self {
        Self {
            host,
            cluster,
            has_channels,
            jobs: BTreeSet::new(),
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
        self.states.entry((job, rank)).or_default().add(chunk);
    }

    /// Begins this node's part of an order.
    pub(super) fn begin(&mut self, number: u32, action: Action) {
        self.order = Some(number);
        let is_here = action.jobs().any(|job| self.jobs.contains(&job));
        let steps = match action {
            Action::Launch(launch) => self.launch(launch),
            _ if !is_here => Vec::new(),
            Action::Freeze(ref jobs) | Action::Leave(ref jobs) => {
                vec![Step::Suspend(jobs.clone()), Step::Channels(action)]
            }
            Action::Run(ref run)
            | Action::Switch { ref run, .. }
            | Action::Join { ref run, .. } => {
                let resumes = Step::Resume(run.iter().map(|(job, _)| *job).collect());
                vec![Step::Channels(action), resumes]
            }
            Action::End(job) => vec![Step::Kill(vec![job]), Step::Close(vec![job])],
            _ => vec![Step::Channels(action)],
        };
        self.add(steps);
    }

    /// Adds steps, without those of channels if ranks have none.
    fn add(&mut self, steps: impl IntoIterator<Item = Step>) {
        let of_channels =
            |step: &Step| matches!(step, Step::Open(..) | Step::Channels(_) | Step::Close(_));
        let steps = steps.into_iter().filter(|step| self.has_channels || !of_channels(step));
        self.steps.extend(steps);
    }

    fn launch(&mut self, launch: Launch) -> Vec<Step> {
        let job = launch.job;
        // Jobs are launched in the order of their numbers: an earlier one with states has ended before its launch.
        let later = self.states.split_off(&(JobId(job.0.saturating_add(1)), 0));
        let mut own = std::mem::replace(&mut self.states, later).split_off(&(job, 0));
        if !self.cluster.places(&launch).iter().any(|place| place.node.0 == self.host) {
            return Vec::new();
        }
        self.jobs.insert(job);
        let context = |state: &RankState| wire::decode_long(state.context()?).ok();
        let contexts = own.iter().filter_map(|((_, rank), of)| Some((*rank, context(of)?)));
        let open = Step::Open(launch.clone(), contexts.collect());
        let states = own.iter_mut().filter_map(|((_, rank), of)| Some((*rank, of.take_state()?)));
        vec![open, Step::Start(launch, states.collect())]
    }

    /// Gives the order under way up, and ends everything that this node runs.
    pub(super) fn clear(&mut self) {
        (self.order, self.outcome, self.under_way) = (None, Outcome::default(), None);
        self.steps.clear();
        self.cut.clear();
        self.states.clear();
        if !self.jobs.is_empty() {
            let jobs: Vec<JobId> = self.jobs.iter().copied().collect();
            self.add([Step::Kill(jobs.clone()), Step::Close(jobs)]);
        }
    }

    /// Ends a job at once if an order under way stops it: a channel to a node that is lost is never steady.
    pub(super) fn abandon(&mut self, job: JobId) {
        if !self.jobs.contains(&job) {
            return;
        }
        let stops = |action: &Action| match action {
            Action::Freeze(jobs) | Action::Leave(jobs) => jobs.contains(&job),
            _ => false,
        };
        let again = self.under_way.take_if(|step| step.action.as_ref().is_some_and(stops));
        let will_stop = |step: &Step| matches!(step, Step::Channels(action) if stops(action));
        if again.is_some() || self.steps.iter().any(will_stop) {
            let later = std::mem::take(&mut self.steps);
            self.add([Step::Kill(vec![job]), Step::Close(vec![job])]);
            let again = again.and_then(|step| step.action).map(Step::Channels);
            self.steps.extend(again.into_iter().chain(later));
        }
    }

    /// Returns when the step under way began, if that waits until channels are steady.
    pub(super) fn stop_began(&self) -> Option<Instant> {
        let is_stop =
            |step: &&UnderWay| matches!(step.action, Some(Action::Freeze(_) | Action::Leave(_)));
        self.under_way.as_ref().filter(is_stop).map(|step| step.began)
    }

    /// Gives up jobs whose channels are not steady after a long time, and reports that they have failed.
    pub(super) fn give_up_stop(&mut self) {
        let action = self.under_way.as_ref().and_then(|step| step.action.as_ref());
        let jobs: Vec<JobId> = action.into_iter().flat_map(Action::jobs).collect();
        for job in jobs.into_iter().filter(|job| self.jobs.contains(job)).collect::<Vec<_>>() {
            self.abandon(job);
            let why = "its channels do not become steady".to_owned();
            self.outcome.failed.push((job, self.host, why));
        }
    }

    /// Returns the next step and its number; `None` while a step is under way.
    pub(super) fn poll_step(&mut self, now: Instant) -> Option<(u64, Step)> {
        if self.under_way.is_some() {
            return None;
        }
        let step = self.steps.pop_front()?;
        let number = self.next_step;
        self.next_step += 1;
        let action = if let Step::Channels(action) = &step { Some(action.clone()) } else { None };
        let ends = match &step {
            Step::Kill(jobs) if !self.has_channels => jobs.clone(),
            Step::Close(jobs) => jobs.clone(),
            _ => Vec::new(),
        };
        self.under_way = Some(UnderWay { number, began: now, action, ends, shown: step.shown() });
        Some((number, step))
    }

    /// Takes the result of the step under way. Ignores that of a step that was given up.
    pub(super) fn handle_step_done(&mut self, number: u64, done: Result<StepOutcome, String>) {
        let Some(step) = self.under_way.take_if(|step| step.number == number) else { return };
        match done {
            Ok(StepOutcome { outcome, contexts }) => {
                self.outcome.add(outcome);
                if let Some(Action::Cut(job)) = step.action {
                    self.cut.extend(contexts.into_iter().map(|context| (job, context)));
                }
            }
            // The channel that failed is not known: no job of this node can continue.
            Err(why) => {
                let failed = self.jobs.iter().map(|job| (*job, self.host, why.clone()));
                self.outcome.failed.extend(failed);
            }
        }
        self.jobs.retain(|job| !step.ends.contains(job));
    }

    /// Takes the contexts of a cut.
    pub(super) fn take_cut(&mut self) -> Vec<(JobId, ChannelContext)> {
        std::mem::take(&mut self.cut)
    }

    /// Returns the number and outcome of this node's part of an order, once it is complete.
    pub(super) fn poll_done(&mut self) -> Option<(u32, Outcome)> {
        if self.under_way.is_some() || !self.steps.is_empty() {
            return None;
        }
        let number = self.order.take()?;
        Some((number, std::mem::take(&mut self.outcome)))
    }

    /// Returns whether jobs of a lost parent are being ended. An order waits for that: a new root uses job numbers again.
    pub(super) fn is_clearing(&self) -> bool {
        self.order.is_none() && (self.under_way.is_some() || !self.steps.is_empty())
    }

    /// Returns whether nothing of any job is left here.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.under_way.is_none() && self.steps.is_empty()
    }

    /// Describes the step under way.
    pub(super) fn explain(&self) -> String {
        let Self { order, jobs, under_way, steps, .. } = self;
        let next: Vec<String> = steps.iter().map(Step::shown).collect();
        let under_way = under_way.as_ref().map(|step| &step.shown);
        format!("order {order:?}: step {under_way:?}, then {next:?}; jobs here: {jobs:?}")
    }
}
