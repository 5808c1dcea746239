//! A node's own part of an order, as steps that its shell carries out one after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::wire;

use super::message::{Cluster, Program};
use super::state_chunk::{RankState, StateChunk};
use crate::context::ChannelContext;
use crate::daemon::{Action, Launch, Outcome};
use crate::interfaces::RestoredInterface;
use crate::names::{Epoch, JobId};

/// A step of a node's own part of an order. It concerns the ranks of the jobs that are on this node.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Opens the channels of a job's ranks. Ranks of a job that was saved have contexts.
    Open(Launch<Program>, BTreeMap<u16, ChannelContext>),
    /// Starts the ranks of a job, suspended, each with the state that it was saved with.
    Start(Launch<Program>, BTreeMap<u16, Vec<u8>>),
    /// Suspends the processes of jobs.
    Suspend(Vec<JobId>),
    /// Stops the channels of jobs, and waits until all are steady.
    Stop {
        jobs: Vec<JobId>,
        /// True if the contexts may be copied after the step is reported: [`Step::Switch`] or another step will save
        /// them.
        copy: bool,
    },
    /// Saves the contexts of stopped jobs.
    Save(Vec<JobId>),
    /// Restores the contexts of jobs.
    Restore(Vec<JobId>),
    /// Saves the contexts of `stop`, then restores and starts those of `run`.
    Switch { stop: Vec<JobId>, run: Vec<(JobId, Epoch)> },
    /// Saves the contexts of `stop` and restores those of `start`. The NIC forgets the Virtual Interfaces of `away`, and
    /// gets back those of `start`.
    Exchange { stop: Vec<JobId>, away: Vec<JobId>, start: Vec<JobId> },
    /// Connects restored interfaces with their other ends, and starts the contexts of `run`.
    Join { run: Vec<(JobId, Epoch)>, moved: Vec<RestoredInterface> },
    /// Resumes the processes of jobs.
    Resume(Vec<JobId>),
    /// Copies the contexts of a stopped job for a checkpoint.
    Cut(JobId),
    /// Kills the processes of jobs, and waits until all have ended.
    Kill(Vec<JobId>),
    /// Closes the channels of jobs. Cancels the step before, if that is under way.
    Close(Vec<JobId>),
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOutcome {
    pub(crate) outcome: Outcome,
    /// For [`Step::Cut`]: the contexts.
    pub(crate) contexts: Vec<ChannelContext>,
}

impl From<Outcome> for StepOutcome {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, contexts: Vec::new() }
    }
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

/// The step that the shell carries out.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    /// The job that is cut.
    cut: Option<JobId>,
    /// The jobs of which nothing is left here afterwards.
    ends: Vec<JobId>,
    /// For [`Step::Stop`]: its jobs, and whether they are copied.
    stops: Vec<JobId>,
    copy: bool,
    /// The step, to show.
    shown: String,
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
    pub(super) fn begin(&mut self, number: u32, action: Action<Program>) {
        self.order = Some(number);
        let steps = self.steps_of(action);
        let has_channels = self.has_channels;
        let is_needed = |step: &Step| {
            has_channels
                || matches!(
                    step,
                    Step::Start(..) | Step::Suspend(_) | Step::Resume(_) | Step::Kill(_)
                )
        };
        self.steps.extend(steps.into_iter().filter(is_needed));
    }

    fn steps_of(&mut self, action: Action<Program>) -> Vec<Step> {
        let here = |jobs: Vec<JobId>| {
            jobs.into_iter().filter(|job| self.jobs.contains(job)).collect::<Vec<_>>()
        };
        let run_here = |run: Vec<(JobId, Epoch)>| {
            run.into_iter().filter(|(job, _)| self.jobs.contains(job)).collect::<Vec<_>>()
        };
        let names = |run: &[(JobId, Epoch)]| run.iter().map(|(job, _)| *job).collect::<Vec<_>>();
        let steps = match action {
            Action::Launch(launch) => return self.launch(launch),
            Action::Freeze(jobs) => vec![
                Step::Suspend(here(jobs.clone())),
                Step::Stop { jobs: here(jobs), copy: false },
            ],
            Action::Leave(jobs) => {
                vec![Step::Suspend(here(jobs.clone())), Step::Stop { jobs: here(jobs), copy: true }]
            }
            Action::Save(jobs) => vec![Step::Save(here(jobs))],
            Action::Restore(jobs) => vec![Step::Restore(here(jobs))],
            Action::Run(run) => {
                let run = run_here(run);
                let jobs = names(&run);
                vec![Step::Switch { stop: Vec::new(), run }, Step::Resume(jobs)]
            }
            Action::Switch { stop, run } => {
                let run = run_here(run);
                let jobs = names(&run);
                vec![Step::Switch { stop: here(stop), run }, Step::Resume(jobs)]
            }
            Action::Exchange { stop, away, start } => {
                vec![Step::Exchange { stop: here(stop), away: here(away), start: here(start) }]
            }
            Action::Join { run, moved } => {
                let run = run_here(run);
                let jobs = names(&run);
                vec![Step::Join { run, moved }, Step::Resume(jobs)]
            }
            Action::End(job) => vec![Step::Kill(here(vec![job])), Step::Close(here(vec![job]))],
            Action::Cut(job) if self.jobs.contains(&job) => vec![Step::Cut(job)],
            Action::Cut(_) | Action::Report | Action::Quit => Vec::new(),
        };
        steps.into_iter().filter(|step| !is_empty(step)).collect()
    }

    fn launch(&mut self, launch: Launch<Program>) -> Vec<Step> {
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
            self.steps.push_back(Step::Kill(jobs.clone()));
            if self.has_channels {
                self.steps.push_back(Step::Close(jobs));
            }
        }
    }

    /// Ends a job at once if an order under way stops it: a channel to a node that is lost is never steady.
    pub(super) fn abandon(&mut self, job: JobId) {
        let stops = |step: &Step| matches!(step, Step::Stop { jobs, .. } if jobs.contains(&job));
        let under_way = self.under_way.take_if(|step| step.stops.contains(&job));
        if under_way.is_none() && !self.steps.iter().any(stops) {
            return;
        }
        let end = [Step::Kill(vec![job]), Step::Close(vec![job])];
        let again = under_way.map(|step| {
            let jobs = step.stops.into_iter().filter(|other| *other != job).collect();
            Step::Stop { jobs, copy: step.copy }
        });
        let rest = self.steps.drain(..).map(|step| without(step, job)).collect::<Vec<_>>();
        let steps = end.into_iter().chain(again).chain(rest);
        self.steps = steps.filter(|step| !is_empty(step)).collect();
    }

    /// Returns the next step and its number; `None` while a step is under way.
    pub(super) fn poll_step(&mut self) -> Option<(u64, Step)> {
        if self.under_way.is_some() {
            return None;
        }
        let step = self.steps.pop_front()?;
        let number = self.next_step;
        self.next_step += 1;
        let cut = if let Step::Cut(job) = step { Some(job) } else { None };
        let ends = match &step {
            Step::Kill(jobs) if !self.has_channels => jobs.clone(),
            Step::Close(jobs) => jobs.clone(),
            _ => Vec::new(),
        };
        let (stops, copy) = match &step {
            Step::Stop { jobs, copy } => (jobs.clone(), *copy),
            _ => (Vec::new(), false),
        };
        self.under_way = Some(UnderWay { number, cut, ends, stops, copy, shown: shown(&step) });
        Some((number, step))
    }

    /// Takes the result of the step under way. Ignores that of a step that was given up.
    pub(super) fn handle_step_done(&mut self, number: u64, done: Result<StepOutcome, String>) {
        let Some(step) = self.under_way.take_if(|step| step.number == number) else { return };
        match done {
            Ok(StepOutcome { outcome, contexts }) => {
                self.outcome.add(outcome);
                if let Some(job) = step.cut {
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

    /// Returns whether nothing of any job is left here.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.under_way.is_none() && self.steps.is_empty()
    }

    /// Describes the step under way.
    pub(super) fn explain(&self) -> String {
        let Self { order, jobs, under_way, steps, .. } = self;
        let next: Vec<String> = steps.iter().map(shown).collect();
        let under_way = under_way.as_ref().map(|step| &step.shown);
        format!("order {order:?}: step {under_way:?}, then {next:?}; jobs here: {jobs:?}")
    }
}

/// Describes a step, without programs, variables and states.
fn shown(step: &Step) -> String {
    match step {
        Step::Open(launch, _) => format!("Open({})", launch.job),
        Step::Start(launch, _) => format!("Start({})", launch.job),
        other => format!("{other:?}"),
    }
}

/// Returns a step of an order that stops jobs, without one of them.
fn without(step: Step, job: JobId) -> Step {
    let rest = |jobs: Vec<JobId>| jobs.into_iter().filter(|other| *other != job).collect();
    match step {
        Step::Suspend(jobs) => Step::Suspend(rest(jobs)),
        Step::Stop { jobs, copy } => Step::Stop { jobs: rest(jobs), copy },
        other => other,
    }
}

/// Returns whether a step concerns no job.
fn is_empty(step: &Step) -> bool {
    match step {
        Step::Open(..) | Step::Start(..) | Step::Cut(_) => false,
        Step::Suspend(jobs)
        | Step::Stop { jobs, .. }
        | Step::Save(jobs)
        | Step::Restore(jobs)
        | Step::Resume(jobs)
        | Step::Kill(jobs)
        | Step::Close(jobs) => jobs.is_empty(),
        Step::Switch { stop, run } => stop.is_empty() && run.is_empty(),
        Step::Exchange { stop, away, start } => {
            stop.is_empty() && away.is_empty() && start.is_empty()
        }
        Step::Join { run, .. } => run.is_empty(),
    }
}
