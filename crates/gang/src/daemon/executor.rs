//! Carries out a node's steps in virtual time: on its processes, their ports, and their contexts.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;

use super::config::{DaemonConfig, Inbox, Launch, NodeEvent, Start};
use crate::contexts::Contexts;
use crate::controller::ControlError;
use crate::names::JobId;
use crate::node_core::message::{End, RankEvent};
use crate::node_core::order::Action;
use crate::node_core::{Input, Step, StepOutcome};
use crate::port_suspender::{ARRIVAL_WATCHER, ArrivalWatcher, PORT_SUSPENDER, PortSuspender};
use crate::process::SuspendHandle;
use crate::steps;

/// The processes and contexts of one node.
pub(super) struct Executor<H> {
    host: H,
    config: DaemonConfig,
    contexts: Contexts<H>,
    processes: BTreeMap<(JobId, u16), SuspendHandle>,
    ports: Ports<H>,
    start: Start<H>,
    inbox: Inbox,
}

impl<H: Host> Executor<H> {
    pub(super) fn new(
        (host, config): (H, DaemonConfig),
        contexts: Contexts<H>,
        start: Start<H>,
        inbox: Inbox,
    ) -> Self {
        let processes = BTreeMap::new();
        let ports = Ports::new(host.clone(), inbox.clone());
        Self { host, config, contexts, processes, ports, start, inbox }
    }

    async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            self.host.sleep_until(self.host.now() + time).await;
        }
    }

    fn of<'a>(&'a self, jobs: &'a [JobId]) -> impl Iterator<Item = &'a SuspendHandle> {
        let all = self.processes.iter().filter(|((job, _), _)| jobs.contains(job));
        all.map(|(_, process)| process)
    }

    fn start(&mut self, launch: &Launch) {
        let job = launch.job;
        let opened: Vec<_> = self
            .contexts
            .of_job(job)
            .map(|(rank, controller, context)| (rank, controller.descriptor(context)))
            .collect();
        for (rank, descriptor) in opened {
            let process = SuspendHandle::new();
            process.suspend(self.host.now());
            let program = (self.start)(self.host.clone(), *launch, descriptor, process.clone());
            let (held, inbox) = (process.hold(program), self.inbox.clone());
            self.host.spawn(async move {
                held.await;
                let event = RankEvent::Ended(End::Exited(0));
                inbox.push(NodeEvent::Core(Input::Rank(job, rank, event)));
            });
            self.processes.insert((job, rank), process);
        }
    }
}

impl<H: Host> Executor<H> {
    /// Carries out the ports' part of a step, after the channels' part.
    async fn control_ports(&mut self, step: &Step) -> Result<(), ControlError> {
        let Step::Channels(action) = step else { return Ok(()) };
        match action {
            Action::Freeze(jobs) | Action::Leave(jobs) => {
                let of_jobs = self.processes.iter().filter(|((job, _), _)| jobs.contains(job));
                let ports: Vec<_> = of_jobs.map(|((job, _), it)| (*job, it.ports())).collect();
                for (job, ports) in ports {
                    self.ports.suspend(job, ports).await?;
                }
            }
            Action::Exchange { stop, .. } => self.ports.watch(stop).await?,
            Action::Run { stop, run } => {
                self.ports.resume(run.iter().map(|(job, _)| *job)).await?;
                self.ports.watch(stop).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn carry_out_all(&mut self, step: &Step) -> Result<StepOutcome, ControlError> {
        match step {
            Step::Start(launch, _) => self.start(&Launch::of(launch)),
            Step::Suspend(jobs) => {
                self.of(jobs).for_each(|process| process.suspend(self.host.now()));
                let count = self.of(jobs).count() as u32;
                self.pause(self.config.costs.stop * count).await;
            }
            Step::Resume(jobs) => {
                for process in self.of(jobs) {
                    self.pause(self.config.costs.resume).await;
                    process.resume(self.host.now());
                }
            }
            Step::Kill(jobs) => {
                self.ports.resume(jobs.iter().copied()).await?;
                self.of(jobs).for_each(SuspendHandle::kill);
                self.processes.retain(|(job, _), _| !jobs.contains(job));
            }
            _ => {}
        }
        let done = self.contexts.carry_out(step).await?;
        self.control_ports(step).await?;
        Ok(done)
    }
}

impl<H: Host> steps::Executor for Executor<H> {
    async fn carry_out(&mut self, step: Step) -> Result<StepOutcome, String> {
        self.carry_out_all(&step).await.map_err(|error| error.to_string())
    }

    async fn carry_on(&mut self) {
        self.contexts.copy().await;
    }
}

impl<H> Drop for Executor<H> {
    fn drop(&mut self) {
        self.processes.values().for_each(SuspendHandle::kill);
    }
}

/// The ports of a node's processes.
struct Ports<H> {
    host: H,
    inbox: Inbox,
    /// Opened when the first process has a port.
    suspender: Option<PortSuspender>,
    suspended: BTreeMap<JobId, Vec<PortId>>,
}

impl<H: Host> Ports<H> {
    const fn new(host: H, inbox: Inbox) -> Self {
        Self { host, inbox, suspender: None, suspended: BTreeMap::new() }
    }

    /// Opens the daemon's own ports on first use, and starts to report arrivals.
    fn suspender(&mut self) -> Result<&mut PortSuspender, ControlError> {
        if self.suspender.is_none() {
            let mut watcher = ArrivalWatcher::open(&self.host, ARRIVAL_WATCHER)?;
            let inbox = self.inbox.clone();
            self.host.spawn(async move {
                while let Ok(job) = watcher.next().await {
                    // The watcher's tag is the job's number.
                    inbox.push(NodeEvent::Core(Input::Arrived(JobId(job as u32))));
                }
            });
            self.suspender = Some(PortSuspender::open(&self.host, PORT_SUSPENDER)?);
        }
        Ok(self.suspender.as_mut().expect("it is open now"))
    }

    /// Suspends ports of a job whose processes are suspended.
    async fn suspend(&mut self, job: JobId, ports: Vec<PortId>) -> Result<(), ControlError> {
        for port in ports {
            // Noted first: if this is dropped, the NIC may suspend the port all the same.
            self.suspended.entry(job).or_default().push(port);
            self.suspender()?.suspend(port).await?;
        }
        Ok(())
    }

    /// Watches the suspended ports of jobs.
    async fn watch(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.suspended.get(job).cloned().unwrap_or_default() {
                self.suspender()?.watch(port, job.0.into()).await?;
            }
        }
        Ok(())
    }

    /// Resumes the suspended ports of jobs.
    async fn resume(&mut self, jobs: impl Iterator<Item = JobId>) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.suspended.remove(&job).unwrap_or_default() {
                self.suspender()?.resume(port).await?;
            }
        }
        Ok(())
    }
}
