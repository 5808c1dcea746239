//! Suspends and resumes the ranks' ports on this host's NIC.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_simhw::nicd::PortHolders;
use midplane_via::checkpointer::Checkpointer;
use rustix::process::{Pid, getpgid};

use crate::controller::ControlError;
use crate::names::JobId;
use crate::port_suspender::{ARRIVAL_WATCHER, ArrivalWatcher, PORT_SUSPENDER, PortSuspender};

/// The daemon's port that reads which Virtual Interfaces other ports have.
pub(crate) const CHECKPOINTER: PortId = PortId(1_025);

/// A job on this host and the process groups of its ranks; each rank leads a group of its own.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    job: JobId,
    groups: Vec<Pid>,
}

/// The process groups of jobs. Clones share one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessGroups(Arc<Mutex<BTreeMap<JobId, Vec<Pid>>>>);

impl ProcessGroups {
    fn table(&self) -> MutexGuard<'_, BTreeMap<JobId, Vec<Pid>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the process groups of a job. An empty list removes the job.
    pub(crate) fn set(&self, job: JobId, groups: Vec<Pid>) {
        let mut table = self.table();
        match groups.is_empty() {
            true => drop(table.remove(&job)),
            false => drop(table.insert(job, groups)),
        }
    }

    pub(super) fn of(&self, jobs: &[JobId]) -> Vec<Standing> {
        let table = self.table();
        let groups = |job: &JobId| table.get(job).cloned().unwrap_or_default();
        jobs.iter().map(|job| Standing { job: *job, groups: groups(job) }).collect()
    }
}

/// The daemon's own ports, by which it suspends, reads and watches ports of ranks.
#[derive(Debug)]
pub(crate) struct Hold {
    port_suspender: PortSuspender,
    checkpointer: Checkpointer,
}

/// The ports of ranks of this host.
#[derive(Debug)]
pub(super) struct Ports {
    hold: Hold,
    holders: PortHolders,
    /// The stopped ports of jobs.
    stopped: BTreeMap<JobId, BTreeSet<PortId>>,
}

impl Hold {
    /// Opens the daemon's own ports. Must run before any other process can request these port numbers.
    ///
    /// # Errors
    /// The text of the error.
    pub(crate) fn open(nic: &impl Host) -> Result<(Self, ArrivalWatcher), String> {
        let port_suspender =
            PortSuspender::open(nic, PORT_SUSPENDER).map_err(|error| error.to_string())?;
        let checkpointer =
            Checkpointer::open(nic, CHECKPOINTER).map_err(|error| error.to_string())?;
        let arrival_watcher =
            ArrivalWatcher::open(nic, ARRIVAL_WATCHER).map_err(|error| error.to_string())?;
        Ok((Self { port_suspender, checkpointer }, arrival_watcher))
    }
}

impl Ports {
    pub(super) const fn new(hold: Hold, holders: PortHolders) -> Self {
        Self { hold, holders, stopped: BTreeMap::new() }
    }

    /// Suspends the ports of these jobs, whose processes are suspended.
    ///
    /// A port belongs to the rank in whose process group it was opened. The port of a process that has left that group
    /// is not suspended; nor is the process itself, unless there are control groups.
    pub(super) async fn stop(&mut self, jobs: &[Standing]) -> Result<(), ControlError> {
        for (port, process) in self.holders.list() {
            let group = Pid::from_raw(process as i32).and_then(|pid| getpgid(Some(pid)).ok());
            let is_its = |of: &&Standing| group.is_some_and(|group| of.groups.contains(&group));
            let Some(of) = jobs.iter().find(is_its) else { continue };
            let known = self.stopped.entry(of.job).or_default();
            // The hold keeps the port open even if its process is killed.
            if known.contains(&port) || !self.holders.hold(port, process) {
                continue;
            }
            // Noted first: if this is dropped, the NIC may suspend the port all the same.
            known.insert(port);
            self.hold.port_suspender.suspend(port).await?;
        }
        Ok(())
    }

    /// Returns whether a stopped port of a job has Virtual Interfaces.
    pub(super) async fn has_interfaces(&mut self, job: JobId) -> bool {
        for port in self.stopped.get(&job).into_iter().flatten() {
            // A port whose interfaces can't be saved now has some.
            let saved = self.hold.checkpointer.save(*port).await;
            if saved.map_or(true, |saved| !saved.context.vis.is_empty()) {
                return true;
            }
        }
        false
    }

    /// Has the NIC report the next arrival at each of the stopped ports of these jobs.
    pub(super) async fn watch(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.stopped.get(job).into_iter().flatten() {
                self.hold.port_suspender.watch(*port, job.0.into()).await?;
            }
        }
        Ok(())
    }

    /// Resumes the ports of these jobs. Their processes resume next, or have exited, and the ports then close.
    pub(super) async fn resume(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.stopped.remove(job).unwrap_or_default() {
                self.hold.port_suspender.resume(port).await?;
                self.holders.release(port);
            }
        }
        Ok(())
    }
}
