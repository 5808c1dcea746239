//! Drives the channels and ports of this host's ranks on its NIC, in a task of their own.

mod ports;

use std::collections::BTreeSet;

use midplane_simhw::host::Host;
use midplane_simhw::nicd::PortHolders;
use tokio::sync::mpsc;

use super::event::{Event, Pass};
use crate::channel::geometry::Geometry;
use crate::contexts::{Contexts, ContextsConfig, Costs, Mode};
use crate::controller::ControlError;
use crate::names::{Epoch, JobId};
use crate::node_core::message::Cluster;
use crate::node_core::order::{Action, Outcome};
use crate::node_core::{Input, Step, StepOutcome};
use crate::port_suspender::ArrivalWatcher;
use crate::steps::{self, Executor, StepQueue};
use ports::Ports;
pub(super) use ports::{CHECKPOINTER, Hold, ProcessGroups};

/// Configuration of ranks' channels.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// Sizes of the channels' FIFOs.
    pub geometry: Geometry,
}

/// The channels and ports of this host's ranks.
struct Channels<H> {
    host: u16,
    contexts: Contexts<H>,
    ports: Ports,
    /// Jobs that are woken when a frame arrives for them while they are suspended.
    woken: BTreeSet<JobId>,
    processes: ProcessGroups,
    events: mpsc::UnboundedSender<Event>,
}

/// Opens the channels of all slots, and spawns the task that carries out steps. `processes` must list a job's process
/// groups before a step stops the job's ports.
pub(super) fn start(
    nic: &impl Host,
    (host, cluster): (u16, Cluster),
    options: ChannelOptions,
    ((hold, arrival_watcher), holders): ((Hold, ArrivalWatcher), PortHolders),
    (processes, events): (ProcessGroups, mpsc::UnboundedSender<Event>),
) -> Result<StepQueue, ControlError> {
    let config = ContextsConfig {
        cluster,
        mode: Mode::Resident,
        geometry: options.geometry,
        channels: cluster.slots,
        costs: Costs::default(),
        local_rings: true,
        is_mapped: true,
    };
    let contexts = Contexts::open(nic.clone(), config)?;
    tokio::spawn(report_arrivals(arrival_watcher, events.clone()));
    let ports = Ports::new(hold, holders);
    let (woken, done) = (BTreeSet::new(), events.clone());
    let channels = Channels { host, contexts, ports, woken, processes, events };
    let steps = StepQueue::default();
    tokio::spawn(steps::run(steps.clone(), channels, move |number, result| {
        let _ = done.send(Event::Core(Input::StepDone(number, result)));
    }));
    Ok(steps)
}

/// Reports arrivals for suspended jobs until the NIC ends.
async fn report_arrivals(mut watcher: ArrivalWatcher, events: mpsc::UnboundedSender<Event>) {
    while let Ok(job) = watcher.next().await {
        // The watcher's tag is the job's number.
        let Ok(job) = u32::try_from(job) else { continue };
        if events.send(Event::Core(Input::Arrived(JobId(job)))).is_err() {
            return;
        }
    }
}

impl<H: Host> Executor for Channels<H> {
    async fn carry_out(&mut self, step: Step) -> Result<StepOutcome, String> {
        let done = self.carry_out_all(&step).await;
        done.map_err(|error| format!("the network: {error}"))
    }

    async fn carry_on(&mut self) {
        self.contexts.copy().await;
    }
}

impl<H: Host> Channels<H> {
    async fn carry_out_all(&mut self, step: &Step) -> Result<StepOutcome, ControlError> {
        if let Step::Close(jobs) = step {
            self.woken.retain(|job| !jobs.contains(job));
            self.ports.resume(jobs).await?;
        }
        let mut done = self.contexts.carry_out(step).await?;
        match step {
            Step::Open(launch, _) => {
                if launch.program.woken {
                    self.woken.insert(launch.job);
                }
                let opened = self.contexts.of_job(launch.job);
                let passes = opened.map(|(rank, controller, context)| {
                    let (files, events) = (controller.files(context), controller.events(context));
                    (rank, Pass { ticket: controller.descriptor(context).ticket(), files, events })
                });
                let _ = self.events.send(Event::Opened(launch.job, passes.collect()));
            }
            Step::Channels(action) => self.control_ports(action, &mut done.outcome).await?,
            _ => {}
        }
        Ok(done)
    }

    /// Carries out the ports' part of an action, after the channels' part.
    async fn control_ports(
        &mut self,
        action: &Action,
        outcome: &mut Outcome,
    ) -> Result<(), ControlError> {
        match action {
            Action::Freeze(jobs) | Action::Leave(jobs) => {
                let groups = self.processes.of(jobs);
                self.ports.stop(&groups).await?;
            }
            Action::Exchange { stop, .. } => self.watch(stop).await?,
            Action::Cut(job) if self.ports.has_interfaces(*job).await => {
                outcome.has_interfaces.push((*job, self.host));
            }
            Action::Run { stop, run } => {
                let mut started = jobs_of(run);
                started.retain(|job| !outcome.has_failed(*job));
                self.ports.resume(&started).await?;
                self.watch(stop).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Watches the ports of jobs that arrivals wake. These jobs are suspended on all hosts, so frames come from
    /// elsewhere.
    async fn watch(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        let woken: Vec<JobId> =
            jobs.iter().copied().filter(|job| self.woken.contains(job)).collect();
        self.ports.watch(&woken).await
    }
}

fn jobs_of(run: &[(JobId, Epoch)]) -> Vec<JobId> {
    run.iter().map(|(job, _)| *job).collect()
}
