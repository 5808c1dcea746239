//! The channels of one node's ranks. Opens, stops, saves, restores, starts and closes them by the steps of the node's
//! daemon, both in real and in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use midplane_simhw::host::Host;
use midplane_simhw::profile::HostProfile;

use crate::channel::geometry::Geometry;
use crate::channel::local_rings::{Layout, LocalRings, message_bytes};
use crate::context::{ChannelContext, LocalMessage};
use crate::controller::{ContextId, ContextOptions, ControlError, Controller};
use crate::names::{ChannelId, Epoch, JobId, Rank};
use crate::node_core::message::Cluster;
use crate::node_core::order::{Action, Launch, RestoredContexts};
use crate::node_core::{Step, StepOutcome};

/// Ways to switch contexts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All contexts of a channel share its FIFOs, whose contents are copied out and in, as in the paper.
    Copy,
    /// Each context keeps its own FIFOs; a switch only changes the NIC's active context.
    Resident,
}

/// Durations of a daemon's operations on its host, in virtual time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Time to stop a process: to signal it, and to detect that it has stopped.
    pub stop: Duration,
    /// Time to resume a process.
    pub resume: Duration,
    /// Time to save a context without its messages.
    pub save: Duration,
    /// Time to restore a context without its messages.
    pub restore: Duration,
    /// Time to copy one byte to or from a FIFO, in picoseconds.
    pub byte_ps: u32,
}

impl Costs {
    /// Costs of the paper's cluster (Tables 2 and 3, section 5).
    ///
    /// Source: 0.62 and 0.18 ms to save and restore empty buffers (Table 3, first row). Switching a process takes
    /// about 40 us (section 5), here split evenly between stop and resume. The cost per byte is the host's copy, as
    /// section 6 says; that of [`Machine::PM_MYRINET`](midplane_simhw::profile::Machine::PM_MYRINET) is fitted to
    /// Table 3's second row.
    #[must_use]
    pub const fn paper(host: &HostProfile) -> Self {
        Self {
            stop: Duration::from_micros(20),
            resume: Duration::from_micros(20),
            save: Duration::from_micros(620),
            restore: Duration::from_micros(180),
            byte_ps: host.copy.byte_ps,
        }
    }

    /// Returns the time to save a context with `bytes` bytes of messages.
    #[must_use]
    pub const fn of_save(&self, bytes: usize) -> Duration {
        self.with_bytes(self.save, bytes)
    }

    /// Returns the time to restore a context with `bytes` bytes of messages.
    #[must_use]
    pub const fn of_restore(&self, bytes: usize) -> Duration {
        self.with_bytes(self.restore, bytes)
    }

    const fn with_bytes(&self, empty: Duration, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.byte_ps as u64 / 1000;
        Duration::from_nanos(empty.as_nanos() as u64 + nanos)
    }
}

/// One rank's context.
#[derive(Debug)]
struct Held {
    rank: u16,
    context: ContextId,
    /// The context's contents while the NIC does not have them; a copy of them if `is_copied`.
    saved: Option<ChannelContext>,
    /// True if the NIC still has the contents of `saved`.
    is_copied: bool,
}

/// Configuration of a node's contexts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextsConfig {
    pub(crate) cluster: Cluster,
    pub(crate) mode: Mode,
    pub(crate) geometry: Geometry,
    /// Number of channels for ranks, from channel 1 on.
    pub(crate) channels: u16,
    /// Durations of operations, in virtual time.
    pub(crate) costs: Costs,
    /// True if ranks of one host have rings between them, which bypass the NIC.
    pub(crate) local_rings: bool,
    /// True if the ranks are other processes, which map the FIFOs.
    pub(crate) is_mapped: bool,
}

/// The contexts of one node's ranks.
#[derive(Debug)]
pub(crate) struct Contexts<H> {
    host: H,
    config: ContextsConfig,
    /// The controllers of the channels, from channel 1 on.
    controllers: Vec<Controller>,
    /// Contexts by job and index of the controller.
    held: BTreeMap<(JobId, usize), Held>,
    rings: BTreeMap<JobId, LocalRings>,
    /// Jobs that [`Contexts::copy`] copies after the present step.
    to_copy: Vec<JobId>,
}

impl<H: Host> Contexts<H> {
    /// Opens the channels' controllers.
    pub(crate) fn open(host: H, config: ContextsConfig) -> Result<Self, ControlError> {
        let ContextsConfig { mode, geometry, is_mapped, .. } = config;
        let shared = mode == Mode::Copy;
        let open = |at| Controller::open_with(&host, (ChannelId(at), geometry), shared, is_mapped);
        let controllers = (1..=config.channels).map(open).collect::<Result<_, _>>()?;
        let (held, rings, to_copy) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Ok(Self { host, config, controllers, held, rings, to_copy })
    }

    /// Carries out the channels' part of a step.
    ///
    /// # Cancel safety
    /// If the future is dropped, the jobs of the step must be closed.
    pub(crate) async fn carry_out(&mut self, step: &Step) -> Result<StepOutcome, ControlError> {
        let mut done = StepOutcome::default();
        match step {
            Step::Open(launch, contexts) => {
                // What was opened before the error is closed when the job ends.
                if let Err(error) = self.open_job(launch, contexts).await {
                    let node = self.host.node().0;
                    done.outcome.failed.push((launch.job, node, error.to_string()));
                }
            }
            Step::Close(jobs) => self.close(jobs).await?,
            Step::Channels(Action::Freeze(jobs)) => self.stop(jobs).await?,
            Step::Channels(Action::Leave(jobs)) => {
                self.stop(jobs).await?;
                self.to_copy.clone_from(jobs);
            }
            Step::Channels(Action::Exchange { stop, start }) => {
                self.save(stop).await?;
                self.restore(start).await?;
            }
            Step::Channels(Action::Run { stop, run }) => {
                self.save(stop).await?;
                done.outcome.failed = self.start(run).await?;
            }
            Step::Channels(Action::Cut(job)) => match self.cut(*job).await {
                // Only this job has damaged its memory.
                Err(ControlError::Saved(why)) => {
                    done.outcome.failed.push((*job, self.host.node().0, why.to_owned()));
                }
                contexts => done.contexts = contexts?,
            },
            _ => {}
        }
        Ok(done)
    }

    /// Returns a job's ranks on this node, with their channels' controllers and their contexts.
    pub(crate) fn of_job(&self, job: JobId) -> impl Iterator<Item = (u16, &Controller, ContextId)> {
        let all = self.held.range((job, 0)..=(job, usize::MAX));
        all.map(|((_, at), held)| (held.rank, &self.controllers[*at], held.context))
    }

    /// Sleeps for a duration of virtual time.
    async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            self.host.sleep_until(self.host.now() + time).await;
        }
    }

    /// Returns the keys of these jobs' contexts.
    fn keys(&self, jobs: &[JobId]) -> Vec<(JobId, usize)> {
        self.held.keys().filter(|(job, _)| jobs.contains(job)).copied().collect()
    }

    async fn open_job(
        &mut self,
        launch: &Launch,
        contexts: &RestoredContexts,
    ) -> Result<(), ControlError> {
        let (places, node) = (self.config.cluster.places(launch), self.host.node());
        self.open_rings(launch, contexts)?;
        for (rank, place) in (0_u16..).zip(&places).filter(|(_, place)| place.node == node) {
            let at = usize::from(place.channel.0 - 1);
            let Some(controller) = self.controllers.get_mut(at) else {
                return Err(ControlError::TooManyRanks(places.len()));
            };
            let options =
                ContextOptions { job: launch.job, rank: Rank(rank), places: places.clone() };
            let rings = self.rings.get(&launch.job);
            let context = controller.open_member(options, rings).await?;
            let is_copied = self.config.mode == Mode::Copy;
            let saved = is_copied.then(|| ChannelContext::fresh(Rank(rank), self.config.geometry));
            let held = Held { rank, context, saved, is_copied: false };
            self.held.insert((launch.job, at), held);
        }
        Ok(())
    }

    /// Opens the rings of a job's ranks on this node. Messages that a saved rank had not received come first.
    fn open_rings(
        &mut self,
        launch: &Launch,
        contexts: &RestoredContexts,
    ) -> Result<(), ControlError> {
        let (places, node) = (self.config.cluster.places(launch), self.host.node());
        let here = (0..).zip(&places).filter(|(_, place)| place.node == node);
        let past = |rank| {
            let local = contexts.get(&rank).map_or(&[][..], |context| &context.local[..]);
            local.iter().map(|message| message_bytes(message.bytes.len())).sum()
        };
        let ranks = here.map(|(rank, _)| (Rank(rank), past(rank)));
        let longest = self.config.geometry.message;
        let layout = Layout::plan(longest, ranks, self.config.local_rings);
        let Some((layout, controller)) = layout.zip(self.controllers.first_mut()) else {
            // Saved messages must not be dropped, so this is an error if there are any.
            return match contexts.values().all(|context| context.local.is_empty()) {
                true => Ok(()),
                false => Err(ControlError::Saved("its messages have no room")),
            };
        };
        let rings = controller.rings(layout)?;
        for (rank, context) in contexts {
            let messages = context.local.iter().map(|message| (message.from, &message.bytes[..]));
            let filled = rings.fill_past(Rank(*rank), messages);
            filled.map_err(|_| ControlError::Saved("its messages have no room"))?;
        }
        self.rings.insert(launch.job, rings);
        Ok(())
    }

    async fn stop(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        let of: BTreeMap<usize, ContextId> =
            self.keys(jobs).into_iter().map(|key| (key.1, self.held[&key].context)).collect();
        let controllers = self.controllers.iter_mut().enumerate();
        let stops = controllers.filter_map(|(at, controller)| {
            let context = *of.get(&at)?;
            Some(controller.stop(context))
        });
        join_all(stops).await.into_iter().collect()
    }

    /// Copies the contexts that the last step has stopped for a switch, before all nodes are known to have stopped
    /// theirs.
    ///
    /// A steady context does not change until it is started: the NIC refuses messages that arrive for it, and keeps
    /// its state until the save.
    pub(crate) async fn copy(&mut self) {
        let jobs = std::mem::take(&mut self.to_copy);
        if self.config.mode == Mode::Resident {
            return;
        }
        for key in self.keys(&jobs) {
            // If copying fails, the save that follows fails too and reports the error.
            if self.copy_out(key, false).await.is_err() {
                return;
            }
        }
    }

    /// Copies the contents of a context out of the NIC. If `forget`, the NIC forgets them.
    async fn copy_out(&mut self, key: (JobId, usize), forget: bool) -> Result<(), ControlError> {
        let context = self.held[&key].context;
        let saved = self.controllers[key.1].save(context, forget).await?;
        self.pause(self.config.costs.of_save(saved.bytes())).await;
        if let Some(held) = self.held.get_mut(&key) {
            (held.saved, held.is_copied) = (Some(saved), !forget);
        }
        Ok(())
    }

    async fn save(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        if self.config.mode == Mode::Resident {
            return Ok(());
        }
        for key in self.keys(jobs) {
            let held = self.held.get_mut(&key).expect("the key was just listed");
            if !held.is_copied {
                self.copy_out(key, true).await?;
                continue;
            }
            self.controllers[key.1].forget(held.context).await?;
            held.is_copied = false;
        }
        Ok(())
    }

    async fn restore(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for key in self.keys(jobs) {
            let held = self.held.get_mut(&key).expect("the key was just listed");
            // If the contents were only copied, the NIC still has them.
            let is_there = std::mem::take(&mut held.is_copied);
            if let Some(saved) = held.saved.take().filter(|_| !is_there) {
                let context = held.context;
                self.pause(self.config.costs.of_restore(saved.bytes())).await;
                self.controllers[key.1].restore(context, &saved).await?;
            }
        }
        Ok(())
    }

    /// Restores those contexts of jobs that are saved, and starts all of them. Returns the jobs with a context that the
    /// NIC refuses to start, because it is not quiescent: its stop was cancelled.
    async fn start(
        &mut self,
        run: &[(JobId, Epoch)],
    ) -> Result<Vec<(JobId, u16, String)>, ControlError> {
        let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
        self.restore(&jobs).await?;
        let (mut refused, node) = (Vec::new(), self.host.node().0);
        for (job, epoch) in run {
            match self.start_job(*job, *epoch).await {
                Err(error @ ControlError::Refused { .. }) => {
                    refused.push((*job, node, error.to_string()));
                }
                started => started?,
            }
        }
        Ok(refused)
    }

    async fn start_job(&mut self, job: JobId, epoch: Epoch) -> Result<(), ControlError> {
        for key in self.keys(&[job]) {
            self.controllers[key.1].start(self.held[&key].context, epoch).await?;
        }
        Ok(())
    }

    /// Returns the contents of a stopped job's contexts, which don't change.
    async fn cut(&mut self, job: JobId) -> Result<Vec<ChannelContext>, ControlError> {
        let mut contexts = Vec::new();
        for key in self.keys(&[job]) {
            let held = &self.held[&key];
            let mut context = match &held.saved {
                Some(saved) => saved.clone(),
                None => self.controllers[key.1].save(held.context, false).await?,
            };
            if let Some(rings) = self.rings.get(&job) {
                let unreceived = rings.unreceived(Rank(held.rank));
                let damaged = |_| ControlError::Saved("a process has damaged its rings");
                let unreceived = unreceived.map_err(damaged)?;
                let local = unreceived.messages.into_iter();
                context.local = local.map(|(from, bytes)| LocalMessage { from, bytes }).collect();
                context.full = unreceived.full;
            }
            contexts.push(context);
        }
        Ok(contexts)
    }

    async fn close(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for key in self.keys(jobs) {
            let held = self.held.remove(&key).expect("the key was just listed");
            self.controllers[key.1].close_context(held.context).await?;
        }
        self.rings.retain(|job, _| !jobs.contains(job));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
