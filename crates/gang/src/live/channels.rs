//! The ranks' channels on this host's NIC, which is the daemon's: opened, stopped, saved, restored and
//! started in a task of their own, as orders say; and with them all else that ranks have on it.

mod ports;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::nicd::PortHolders;
use tokio::sync::mpsc;

use super::hub::Event;
use super::message::{Cluster, Program};
use crate::channel::Ticket;
use crate::channel::geometry::Geometry;
use crate::context::ChannelContext;
use crate::controller::{ContextId, ContextOptions, ControlError, Controller, Unfinished};
use crate::daemon::{Launch, Mode, Outcome};
use crate::interfaces::{HostInterfaces, RestoredInterface};
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};
use crate::network::together;
use ports::Ports;
pub(super) use ports::{CHECKPOINTER, Hold, PORT_SUSPENDER, Standing};

/// What is to be done with channels.
#[derive(Debug)]
pub(super) enum Task {
    /// Open those of a job's ranks here; with what they held, by rank, if they were saved.
    Open(Launch<Program>, BTreeMap<u16, ChannelContext>),
    /// Stop those of these jobs, whose processes stand still; ends when all are steady.
    Stop(Vec<Standing>),
    /// Save those of these jobs, which are stopped.
    Save(Vec<JobId>),
    /// Restore those of these jobs.
    Restore(Vec<JobId>),
    /// Save those, restore and start these.
    Switch { stop: Vec<JobId>, run: Vec<(JobId, Epoch)> },
    /// Save those, and restore those; Virtual Interfaces of `away` are forgotten.
    Exchange { stop: Vec<JobId>, away: Vec<JobId>, start: Vec<JobId> },
    /// Tell restored interfaces of their other ends, and start these.
    Join { run: Vec<(JobId, Epoch)>, moved: Vec<RestoredInterface> },
    /// Say what those of a job hold, which are stopped.
    Cut(JobId),
    /// Close those of a job, whose processes have ended.
    Close(JobId),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Told {
    /// Ranks and what their processes attach with.
    Opened(Launch<Program>, Vec<(u16, Pass)>),
    /// What the channels of ranks hold, and the interfaces that they have.
    Cut(JobId, Vec<ChannelContext>, Option<HostInterfaces>),
    /// It is done, and this came of it.
    Done(Outcome),
    /// It could not be done.
    Failed(String),
}

/// What a process attaches to its channel with.
#[derive(Debug)]
pub struct Pass {
    /// In words.
    pub ticket: Ticket,
    /// The FIFOs.
    pub file: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Held {
    context: ContextId,
    saved: Option<ChannelContext>,
    /// What its process was about.
    unfinished: Option<Unfinished>,
}

/// How channels are kept.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// How contexts are switched.
    pub mode: Mode,
    /// Their FIFOs.
    pub geometry: Geometry,
}

/// The channels of one host: one a slot.
#[derive(Debug)]
struct Channels {
    host: u16,
    cluster: Cluster,
    options: ChannelOptions,
    controllers: Vec<Controller>,
    held: BTreeMap<(JobId, usize), Held>,
    ports: Ports,
}

/// Where ranks' channels are: each slot of a host has one.
fn places(cluster: Cluster, launch: &Launch<Program>) -> Vec<ChannelAddress> {
    let place = |rank: u16| {
        let slot = launch.first + rank;
        let channel = ChannelId(1 + slot % cluster.slots.max(1));
        ChannelAddress { node: NodeId(cluster.host_of(slot)), channel }
    };
    (0..launch.ranks).map(place).collect()
}

/// Takes hold of the channels, and does what is asked for.
///
/// # Errors
/// [`ControlError`].
pub(super) fn start(
    nic: &impl Host,
    (host, cluster): (u16, Cluster),
    options: ChannelOptions,
    (hold, holders): (Hold, PortHolders),
    events: mpsc::UnboundedSender<Event>,
) -> Result<mpsc::UnboundedSender<Task>, ControlError> {
    let shared = options.mode == Mode::Copy;
    let open = |channel| Controller::open_mapped(nic, ChannelId(channel), options.geometry, shared);
    let controllers = (1..=cluster.slots).map(open).collect::<Result<_, _>>()?;
    let ports = Ports::new(host, options.mode, hold, holders);
    let held = BTreeMap::new();
    let mut channels = Channels { host, cluster, options, controllers, held, ports };
    let (to, mut tasks) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(task) = tasks.recv().await {
            let told = channels.carry_out(task).await;
            let told = told.unwrap_or_else(|error| Told::Failed(error.to_string()));
            if events.send(Event::Channels(told)).is_err() {
                return;
            }
        }
    });
    Ok(to)
}

impl Channels {
    async fn carry_out(&mut self, task: Task) -> Result<Told, ControlError> {
        match task {
            Task::Open(launch, saved) => {
                let opened = self.open(&launch, saved).await?;
                return Ok(Told::Opened(launch, opened));
            }
            Task::Stop(standing) => {
                let jobs: Vec<JobId> = standing.iter().map(|of| of.job).collect();
                self.stop(&jobs).await?;
                return Ok(Told::Done(self.ports.stop(&standing).await?));
            }
            Task::Save(jobs) => self.save(&jobs).await?,
            Task::Restore(jobs) => self.restore(&jobs).await?,
            Task::Switch { stop, run } => {
                self.save(&stop).await?;
                let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
                self.restore(&jobs).await?;
                self.run(&run).await?;
            }
            Task::Exchange { stop, away, start } => {
                self.save(&stop).await?;
                let mut outcome = self.ports.forget(&away).await;
                self.restore(&start).await?;
                outcome.add(self.ports.restore(&start).await);
                return Ok(Told::Done(outcome));
            }
            Task::Join { run, moved } => {
                let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
                let outcome = self.ports.join(&jobs, &moved).await;
                self.run(&run).await?;
                return Ok(Told::Done(outcome));
            }
            Task::Cut(job) => {
                let contexts = self.cut(job).await?;
                return Ok(Told::Cut(job, contexts, self.ports.save(job).await));
            }
            Task::Close(job) => {
                self.ports.resume(&[job]).await?;
                for (slot, held) in self.take(job) {
                    self.controllers[slot].close_context(held.context).await?;
                }
            }
        }
        Ok(Told::Done(Outcome::default()))
    }

    fn take(&mut self, job: JobId) -> Vec<(usize, Held)> {
        let keys: Vec<_> = self.held.range((job, 0)..=(job, usize::MAX)).map(|it| *it.0).collect();
        keys.into_iter().filter_map(|key| Some((key.1, self.held.remove(&key)?))).collect()
    }

    /// What the channels of a job's ranks hold; they keep it.
    async fn cut(&mut self, job: JobId) -> Result<Vec<ChannelContext>, ControlError> {
        let mut contexts = Vec::new();
        for ((_, slot), held) in self.held.range((job, 0)..=(job, usize::MAX)) {
            contexts.push(match &held.saved {
                Some(saved) => saved.clone(),
                None => self.controllers[*slot].save(held.context, false).await?,
            });
        }
        Ok(contexts)
    }

    async fn open(
        &mut self,
        launch: &Launch<Program>,
        mut contexts: BTreeMap<u16, ChannelContext>,
    ) -> Result<Vec<(u16, Pass)>, ControlError> {
        let places = places(self.cluster, launch);
        let mut opened = Vec::new();
        for (rank, place) in (0_u16..).zip(&places) {
            if place.node.0 != self.host {
                continue;
            }
            let slot = usize::from(place.channel.0 - 1);
            let places = places.clone();
            let options = ContextOptions { job: launch.job, rank: Rank(rank), places };
            let controller = &mut self.controllers[slot];
            let context = controller.open_context(options).await?;
            let fresh = || ChannelContext::fresh(Rank(rank), self.options.geometry);
            let saved = match (self.options.mode, contexts.remove(&rank)) {
                (Mode::Copy, before) => Some(before.unwrap_or_else(fresh)),
                (Mode::Resident, before) => {
                    if let Some(before) = &before {
                        controller.restore(context, before).await?;
                    }
                    None
                }
            };
            if let Some(file) = controller.file(context) {
                let ticket = controller.descriptor(context).ticket();
                opened.push((rank, Pass { ticket, file }));
            }
            self.held.insert((launch.job, slot), Held { context, saved, unfinished: None });
        }
        Ok(opened)
    }

    /// What these jobs have: by slot, the context.
    fn of(&self, jobs: &[JobId]) -> BTreeMap<usize, ContextId> {
        let all = self.held.iter().filter(|((job, _), _)| jobs.contains(job));
        all.map(|((_, slot), held)| (*slot, held.context)).collect()
    }

    async fn stop(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        let of = self.of(jobs);
        let controllers = self.controllers.iter_mut().enumerate();
        let stops = controllers.filter_map(|(slot, controller)| {
            let context = *of.get(&slot)?;
            Some(controller.stop(context))
        });
        together(stops).await.into_iter().collect()
    }

    async fn save(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        if self.options.mode == Mode::Resident {
            return Ok(());
        }
        for ((job, slot), held) in &mut self.held {
            if jobs.contains(job) {
                held.unfinished = self.controllers[*slot].unfinished(held.context);
                held.saved = Some(self.controllers[*slot].save(held.context, true).await?);
            }
        }
        Ok(())
    }

    async fn restore(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for ((job, slot), held) in &mut self.held {
            if let Some(saved) = held.saved.take_if(|_| jobs.contains(job)) {
                self.controllers[*slot].restore(held.context, &saved).await?;
                if let Some(unfinished) = held.unfinished.take() {
                    self.controllers[*slot].restore_unfinished(held.context, &unfinished);
                }
            }
        }
        Ok(())
    }

    async fn run(&mut self, jobs: &[(JobId, Epoch)]) -> Result<(), ControlError> {
        for (job, epoch) in jobs {
            for ((_, slot), held) in self.held.range_mut((*job, 0)..=(*job, usize::MAX)) {
                self.controllers[*slot].start(held.context, *epoch).await?;
            }
        }
        let jobs: Vec<JobId> = jobs.iter().map(|(job, _)| *job).collect();
        self.ports.resume(&jobs).await
    }
}
