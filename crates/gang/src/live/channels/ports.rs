//! Suspends and resumes the ranks' ports on this host's NIC; in copy mode, also saves and restores the ports' Virtual
//! Interfaces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_simhw::nicd::PortHolders;
use midplane_via::checkpointer::{Checkpointer, CheckpointerError, Joined, NicEnd, SavedPort};
use rustix::process::{Pid, getpgid};

use crate::contexts::Mode;
use crate::controller::ControlError;
use crate::interfaces::{HostInterfaces, RestoredInterface};
use crate::names::JobId;
use crate::node_core::order::Outcome;
use crate::port_suspender::{ARRIVAL_WATCHER, ArrivalWatcher, PORT_SUSPENDER, PortSuspender};

/// The daemon's port that saves the Virtual Interfaces of other ports.
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

/// Location of a stopped port's Virtual Interfaces.
#[derive(Debug)]
enum Whereabouts {
    /// On the NIC. Contains their saved state if the NIC may forget them.
    There(Option<SavedPort>),
    /// Only in this saved state; the NIC has forgotten them.
    Away(SavedPort),
    /// Restored on the NIC, but not connected with their peers yet.
    Back(SavedPort),
}

/// The daemon's own ports, by which it suspends, saves and watches ports of ranks.
#[derive(Debug)]
pub(crate) struct Hold {
    port_suspender: PortSuspender,
    checkpointer: Checkpointer,
}

/// The ports of ranks of this host.
#[derive(Debug)]
pub(super) struct Ports {
    host: u16,
    mode: Mode,
    hold: Hold,
    holders: PortHolders,
    /// The stopped ports of jobs.
    stopped: BTreeMap<JobId, BTreeMap<PortId, Whereabouts>>,
}

impl Hold {
    /// Opens the daemon's own ports. Must run before any other process can request these port numbers.
    ///
    /// # Errors
    /// The text of a [`CheckpointerError`] or [`ControlError`].
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
    pub(super) const fn new(host: u16, mode: Mode, hold: Hold, holders: PortHolders) -> Self {
        Self { host, mode, hold, holders, stopped: BTreeMap::new() }
    }

    /// Suspends the ports of these jobs, whose processes are suspended. In copy mode, also returns the saved
    /// interfaces.
    ///
    /// A port belongs to the rank in whose process group it was opened. The port of a process that has left that group
    /// is not suspended; nor is the process itself, unless there are control groups.
    pub(super) async fn stop(&mut self, jobs: &[Standing]) -> Result<Outcome, ControlError> {
        let mut outcome = Outcome::default();
        for (port, process) in self.holders.list() {
            let group = Pid::from_raw(process as i32).and_then(|pid| getpgid(Some(pid)).ok());
            let is_its = |of: &&Standing| group.is_some_and(|group| of.groups.contains(&group));
            let Some(of) = jobs.iter().find(is_its) else { continue };
            let known = self.stopped.entry(of.job).or_default();
            // The hold keeps the port open even if its process is killed.
            if known.contains_key(&port) || !self.holders.hold(port, process) {
                continue;
            }
            // Noted first: if this is dropped, the NIC may suspend the port all the same.
            known.insert(port, Whereabouts::There(None));
            self.hold.port_suspender.suspend(port).await?;
        }
        if self.mode == Mode::Copy {
            for of in jobs {
                outcome.interfaces.extend(self.save(of.job).await);
            }
        }
        Ok(outcome)
    }

    /// Saves the interfaces of a job's stopped ports; returns `None` if there are none. Interfaces on the NIC stay
    /// there.
    pub(super) async fn save(&mut self, job: JobId) -> Option<HostInterfaces> {
        let ports = self.stopped.get_mut(&job)?;
        let (host, ends) = (self.host, Vec::new());
        let mut all = HostInterfaces { job, host, ends, refused: None };
        for (port, interfaces) in ports {
            match interfaces {
                Whereabouts::Away(saved) | Whereabouts::Back(saved) => all.add(saved),
                Whereabouts::There(place) => match self.hold.checkpointer.save(*port).await {
                    Ok(saved) if saved.context.vis.is_empty() => *place = None,
                    Ok(saved) => {
                        all.add(&saved);
                        *place = Some(saved);
                    }
                    Err(error) => all.refused = Some(error.to_string()),
                },
            }
        }
        (all.refused.is_some() || !all.ends.is_empty()).then_some(all)
    }

    /// Removes the saved interfaces of these jobs from the NIC.
    pub(super) async fn forget(&mut self, jobs: &[JobId]) -> Outcome {
        let mut outcome = Outcome::default();
        for job in jobs {
            for (port, interfaces) in self.stopped.get_mut(job).into_iter().flatten() {
                let Whereabouts::There(saved) = interfaces else { continue };
                let Some(saved) = saved.take() else { continue };
                match self.hold.checkpointer.forget(*port, &saved).await {
                    Ok(()) => *interfaces = Whereabouts::Away(saved),
                    Err(error) => {
                        outcome.failed.push(failed((*job, self.host), "forgotten", &error))
                    }
                }
            }
        }
        outcome
    }

    /// Restores the interfaces that the NIC had forgotten for these jobs. Does not notify the jobs or their peers.
    pub(super) async fn restore(&mut self, jobs: &[JobId]) -> Outcome {
        let mut outcome = Outcome::default();
        for job in jobs {
            for (port, interfaces) in self.stopped.get_mut(job).into_iter().flatten() {
                let Whereabouts::Away(saved) = interfaces else { continue };
                match self.hold.checkpointer.restore(*port, &saved.context, None).await {
                    Ok(ends) => {
                        outcome.moved.extend(moves(saved, &ends));
                        *interfaces = Whereabouts::Back(saved.clone());
                    }
                    Err(error) => {
                        outcome.failed.push(failed((*job, self.host), "restored", &error))
                    }
                }
            }
        }
        outcome
    }

    /// Connects the restored interfaces of these jobs with the present locations of their peers. If a peer is on no
    /// NIC, its interface detects that by the usual timeout.
    pub(super) async fn join(&mut self, jobs: &[JobId], moved: &[RestoredInterface]) -> Outcome {
        let mut outcome = Outcome::default();
        let moved: BTreeMap<EndKey, &RestoredInterface> =
            moved.iter().map(|it| (key(it.from), it)).collect();
        for job in jobs {
            for (port, interfaces) in self.stopped.get_mut(job).into_iter().flatten() {
                let Whereabouts::Back(saved) = interfaces else { continue };
                let joined = joins(saved, &moved);
                match self.hold.checkpointer.join(*port, &joined).await {
                    Ok(()) => *interfaces = Whereabouts::There(None),
                    Err(error) => outcome.failed.push(failed((*job, self.host), "joined", &error)),
                }
            }
        }
        outcome
    }

    /// Has the NIC report the next arrival at each of the stopped ports of these jobs.
    pub(super) async fn watch(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.stopped.get(job).into_iter().flat_map(BTreeMap::keys) {
                self.hold.port_suspender.watch(*port, job.0.into()).await?;
            }
        }
        Ok(())
    }

    /// Resumes the ports of these jobs. Their processes resume next, or have exited, and the ports then close.
    pub(super) async fn resume(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for port in self.stopped.remove(job).unwrap_or_default().into_keys() {
                self.hold.port_suspender.resume(port).await?;
                self.holders.release(port);
            }
        }
        Ok(())
    }
}

fn failed(
    (job, host): (JobId, u16),
    what: &str,
    error: &CheckpointerError,
) -> (JobId, u16, String) {
    (job, host, format!("its interfaces were not {what}: {error}"))
}

/// Returns the new location of each connected interface.
fn moves(saved: &SavedPort, ends: &[NicEnd]) -> Vec<RestoredInterface> {
    let all = saved.context.vis.iter().zip(saved.ends.iter().zip(ends));
    let moved = all.filter_map(|(vi, (from, to))| {
        Some(RestoredInterface { from: *from, to: *to, taken: vi.link.as_ref()?.expected })
    });
    moved.collect()
}

/// Key of a [`NicEnd`] in a map.
type EndKey = (u16, u32, u16, u16);

const fn key(end: NicEnd) -> EndKey {
    (end.node.0, end.incarnation.0, end.vi, end.connection)
}

/// Returns the present peer of each connected interface.
fn joins(saved: &SavedPort, moved: &BTreeMap<EndKey, &RestoredInterface>) -> Vec<Joined> {
    let linked = saved.context.vis.iter().filter_map(|vi| Some((vi.name, vi.link.as_ref()?)));
    let joined = linked.map(|(name, link)| {
        let there = moved.get(&key(link.peer));
        let (end, taken) = there.map_or((link.peer, link.base), |there| (there.to, there.taken));
        Joined { name, end, taken }
    });
    joined.collect()
}
