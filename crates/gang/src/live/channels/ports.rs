//! What ranks have on this host's NIC beside channels: their ports, which are stopped and resumed with
//! them, and their Virtual Interfaces, which are saved and restored where contexts are copied.

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

/// The daemon's port that saves the interfaces of others.
pub(in crate::live) const CHECKPOINTER: PortId = PortId(1_025);

/// A job on this host, and its ranks' processes, which lead groups of their own.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    job: JobId,
    groups: Vec<Pid>,
}

/// The process groups of jobs. Clones share one table.
#[derive(Clone, Debug, Default)]
pub(in crate::live) struct ProcessGroups(Arc<Mutex<BTreeMap<JobId, Vec<Pid>>>>);

impl ProcessGroups {
    fn table(&self) -> MutexGuard<'_, BTreeMap<JobId, Vec<Pid>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the groups of a job; none removes it.
    pub(in crate::live) fn set(&self, job: JobId, groups: Vec<Pid>) {
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

/// Where the interfaces of a stopped port are.
#[derive(Debug)]
enum Whereabouts {
    /// On the NIC; saved, if they may be forgotten.
    There(Option<SavedPort>),
    /// Here alone.
    Away(SavedPort),
    /// On the NIC again, without their other ends.
    Back(SavedPort),
}

#[derive(Debug)]
struct Stopped {
    port: PortId,
    interfaces: Whereabouts,
}

/// The daemon's hold on ports that it can't stop yet.
#[derive(Debug)]
pub(in crate::live) struct Hold {
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
    stopped: BTreeMap<JobId, Vec<Stopped>>,
}

impl Hold {
    /// Before anybody else can ask for these ports.
    ///
    /// # Errors
    /// [`CheckpointerError`], [`ControlError`] in words.
    pub(in crate::live) fn open(nic: &impl Host) -> Result<(Self, ArrivalWatcher), String> {
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

    /// Stops the ports of these jobs, whose processes stand still. What they have, where it can be saved.
    ///
    /// A port is of the rank whose process group it was opened in. A process that has left that group is
    /// not told to stand still either, unless there are control groups; its port goes on.
    pub(super) async fn stop(&mut self, jobs: &[Standing]) -> Result<Outcome, ControlError> {
        let mut outcome = Outcome::default();
        for (port, process) in self.holders.list() {
            let group = Pid::from_raw(process as i32).and_then(|pid| getpgid(Some(pid)).ok());
            let is_its = |of: &&Standing| group.is_some_and(|group| of.groups.contains(&group));
            let Some(of) = jobs.iter().find(is_its) else { continue };
            let known = self.stopped.entry(of.job).or_default();
            if known.iter().any(|stopped| stopped.port == port) {
                continue;
            }
            // It stays what it is, though its process may be killed.
            if !self.holders.hold(port, process) {
                continue;
            }
            self.hold.port_suspender.suspend(port).await?;
            known.push(Stopped { port, interfaces: Whereabouts::There(None) });
        }
        if self.mode == Mode::Copy {
            for of in jobs {
                outcome.interfaces.extend(self.save(of.job).await);
            }
        }
        Ok(outcome)
    }

    /// What the stopped ports of a job have, if that is anything. Those that are on the NIC stay there.
    pub(super) async fn save(&mut self, job: JobId) -> Option<HostInterfaces> {
        let stopped = self.stopped.get_mut(&job)?;
        let (host, ends) = (self.host, Vec::new());
        let mut all = HostInterfaces { job, host, ends, refused: None };
        for Stopped { port, interfaces } in stopped {
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

    /// The NIC forgets the interfaces of these jobs, which were saved.
    pub(super) async fn forget(&mut self, jobs: &[JobId]) -> Outcome {
        let mut outcome = Outcome::default();
        for job in jobs {
            for Stopped { port, interfaces } in self.stopped.get_mut(job).into_iter().flatten() {
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

    /// The NIC has the interfaces of these jobs again, where it had forgotten them, and nobody is told.
    pub(super) async fn restore(&mut self, jobs: &[JobId]) -> Outcome {
        let mut outcome = Outcome::default();
        for job in jobs {
            for Stopped { port, interfaces } in self.stopped.get_mut(job).into_iter().flatten() {
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

    /// Restored interfaces of these jobs learn where their other ends are now. One whose other end is on no
    /// NIC any longer finds that out as it does of any other that is silent.
    pub(super) async fn join(&mut self, jobs: &[JobId], moved: &[RestoredInterface]) -> Outcome {
        let mut outcome = Outcome::default();
        let moved: BTreeMap<EndKey, &RestoredInterface> =
            moved.iter().map(|it| (key(it.from), it)).collect();
        for job in jobs {
            for Stopped { port, interfaces } in self.stopped.get_mut(job).into_iter().flatten() {
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
            for Stopped { port, .. } in self.stopped.get(job).into_iter().flatten() {
                self.hold.port_suspender.watch(*port, job.0.into()).await?;
            }
        }
        Ok(())
    }

    /// The NIC goes on for these jobs: their processes do next, or have ended, and their ports close.
    pub(super) async fn resume(&mut self, jobs: &[JobId]) -> Result<(), ControlError> {
        for job in jobs {
            for Stopped { port, .. } in self.stopped.remove(job).unwrap_or_default() {
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

/// Where the connected ones of these interfaces are now.
fn moves(saved: &SavedPort, ends: &[NicEnd]) -> Vec<RestoredInterface> {
    let all = saved.context.vis.iter().zip(saved.ends.iter().zip(ends));
    let moved = all.filter_map(|(vi, (from, to))| {
        Some(RestoredInterface { from: *from, to: *to, taken: vi.link.as_ref()?.expected })
    });
    moved.collect()
}

/// An end, to be looked up by.
type EndKey = (u16, u32, u16, u16);

const fn key(end: NicEnd) -> EndKey {
    (end.node.0, end.incarnation.0, end.vi, end.connection)
}

/// The other ends of these interfaces.
fn joins(saved: &SavedPort, moved: &BTreeMap<EndKey, &RestoredInterface>) -> Vec<Joined> {
    let linked = saved.context.vis.iter().filter_map(|vi| Some((vi.name, vi.link.as_ref()?)));
    let joined = linked.map(|(name, link)| {
        let there = moved.get(&key(link.peer));
        let (end, taken) = there.map_or((link.peer, link.base), |there| (there.to, there.taken));
        Joined { name, end, taken }
    });
    joined.collect()
}
