//! Ports of a node's processes in virtual time: suspended, watched and resumed with their jobs.

use std::collections::BTreeMap;

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;

use super::config::{Inbox, NodeEvent};
use crate::controller::ControlError;
use crate::names::JobId;
use crate::node_core::Input;
use crate::port_suspender::{ARRIVAL_WATCHER, ArrivalWatcher, PORT_SUSPENDER, PortSuspender};

/// The ports of a node's processes.
pub(super) struct Ports<H> {
    host: H,
    inbox: Inbox,
    /// `None` until a process has a port.
    suspender: Option<PortSuspender>,
    suspended: BTreeMap<JobId, Vec<PortId>>,
}

impl<H: Host> Ports<H> {
    pub(super) const fn new(host: H, inbox: Inbox) -> Self {
        Self { host, inbox, suspender: None, suspended: BTreeMap::new() }
    }

    /// Opens the daemon's own ports, unless they are open, and has arrivals reported.
    fn suspender(&mut self) -> Result<&mut PortSuspender, ControlError> {
        if self.suspender.is_none() {
            let mut watcher = ArrivalWatcher::open(&self.host, ARRIVAL_WATCHER)?;
            let inbox = self.inbox.clone();
            self.host.spawn(async move {
                while let Ok(job) = watcher.next().await {
                    // The tag is the number of a job.
                    inbox.push(NodeEvent::Core(Input::Arrived(JobId(job as u32))));
                }
            });
            self.suspender = Some(PortSuspender::open(&self.host, PORT_SUSPENDER)?);
        }
        Ok(self.suspender.as_mut().expect("it is open now"))
    }

    /// Suspends ports of a job, whose processes are suspended.
    pub(super) async fn suspend(
        &mut self,
        job: JobId,
        ports: Vec<PortId>,
    ) -> Result<(), ControlError> {
        for port in ports {
            self.suspender()?.suspend(port).await?;
            self.suspended.entry(job).or_default().push(port);
        }
        Ok(())
    }

    /// Watches the suspended ports of jobs.
    pub(super) async fn watch(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.suspended.get(job).cloned().unwrap_or_default() {
                self.suspender()?.watch(port, job.0.into()).await?;
            }
        }
        Ok(())
    }

    /// Resumes the suspended ports of jobs.
    pub(super) async fn resume(
        &mut self,
        jobs: impl Iterator<Item = JobId>,
    ) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.suspended.remove(&job).unwrap_or_default() {
                self.suspender()?.resume(port).await?;
            }
        }
        Ok(())
    }
}
