//! Checkpoints of jobs whose ranks don't send their states: each host makes images of its ranks' processes.
//!
//! First the job is cut. From then on its hosts keep it suspended, even in its slices, and dump it outside of orders,
//! so that no order waits for a disk. The ranks continue once all hosts have dumped theirs. If the job is to end, they
//! continue only if the checkpoint fails.

use std::collections::BTreeSet;

use super::saving::Wanted;
use super::{Job, JobManager, Out, no_job};
use crate::names::{Epoch, JobId};
use crate::node_core::message::{ClientId, Down, Saved, Word};
use crate::node_core::user::User;

/// The images that the root expects from the hosts of a job, for the checkpoint in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Collect {
    pub(crate) job: JobId,
    /// The client who has requested the checkpoint.
    pub(crate) client: ClientId,
    /// Distinguishes these images from those of an earlier request.
    pub(crate) epoch: Epoch,
    pub(crate) hosts: BTreeSet<u16>,
    pub(crate) ranks: u16,
    pub(crate) folder: Vec<u8>,
    /// The program, as JSON.
    pub(crate) program: String,
}

impl JobManager {
    /// Handles a client's request to save a job whose ranks don't send their states. The job is cut next.
    ///
    /// # Errors
    /// The reason why the job can't be saved.
    pub(super) fn save_images(&mut self, job: JobId, wanted: Wanted) -> Result<(), String> {
        let Some(it) = self.jobs.get_mut(&job) else {
            return Err(no_job(job));
        };
        if let Some(why) = refusal(it, &wanted.caller.user) {
            return Err(unable(job, &why));
        }
        it.saves.wanted = Some(wanted);
        it.checks.ordered.push_back(super::Purpose::Images);
        self.scheduler_core.cut(job);
        Ok(())
    }

    /// Begins to collect the images of a job that was cut. Returns `None` if no client waits for them any longer.
    pub(super) fn begin_images(&mut self, job: JobId, epoch: Epoch) -> Option<Collect> {
        // This may be the cut of an earlier client, which has left.
        let it = self.jobs.get_mut(&job).filter(|it| it.saves.images.is_none())?;
        let interfaces = it.saves.interfaces.take();
        let wanted = it.saves.wanted.as_mut()?;
        if let Some(host) = interfaces {
            let client = wanted.caller.client;
            it.saves.wanted = None;
            self.refuse(
                client,
                format!("job {job}: its ranks on host {host} have Virtual Interfaces open, which are in no image"),
            );
            return None;
        }
        let (hosts, ranks): (BTreeSet<u16>, _) =
            (it.hosts.iter().copied().collect(), it.entry.ends.len() as u16);
        wanted.saved = Some(Saved { job, ranks, state_bytes: 0, messages: 0 });
        it.saves.images = Some(hosts.clone());
        let client = wanted.caller.client;
        let (folder, program) = (wanted.folder.clone(), it.entry.launch.program.to_json()?);
        Some(Collect { job, client, epoch, hosts, ranks, folder, program })
    }

    /// Records that a host has dumped its ranks of a job. Once all hosts have, the ranks continue, unless the job is
    /// to end.
    pub(crate) fn handle_dumped(&mut self, job: JobId, host: u16) {
        let Some(saves) = self.jobs.get_mut(&job).map(|it| &mut it.saves) else { return };
        let Some(missing) = &mut saves.images else { return };
        let ends = saves.wanted.as_ref().is_some_and(|wanted| wanted.end);
        if missing.remove(&host) && missing.is_empty() && !ends {
            self.let_go(job);
        }
    }

    /// Returns whether images of a job are being collected.
    pub(crate) fn collects(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|it| !it.is_removed && it.saves.images.is_some())
    }

    /// Stops collecting images for a client. The client's job continues.
    pub(super) fn give_up_images(&mut self, client: ClientId) {
        for (job, it) in &mut self.jobs {
            let is_its = |wanted: &Wanted| wanted.caller.client == client;
            if it.saves.images.is_some() && it.saves.wanted.as_ref().is_some_and(is_its) {
                (it.saves.images, it.saves.wanted) = (None, None);
                self.out.push_back(Out::Everywhere(Down::Say(*job, Word::Go)));
            }
        }
    }
}

/// Describes why a job can't be saved as images either.
pub(super) fn unable(job: JobId, why: &str) -> String {
    format!(
        "job {job}: rank 0 can't be saved: its program takes no part in checkpoints, or has not begun; {why}"
    )
}

/// Returns why the processes of a job can't be saved by CRIU; `None` if they can.
fn refusal(it: &Job, user: &User) -> Option<String> {
    let program = &it.entry.launch.program;
    let why = if user.uid != 0 {
        "root can save it as it is, with CRIU"
    } else if !it.is_launched || (it.ran.is_zero() && it.runs_since.is_none()) {
        "save it once it runs"
    } else if it.entry.ends.iter().any(Option::is_some) {
        "a rank has ended, and only whole jobs are saved"
    } else if program.terminal.is_some() {
        "CRIU saves no terminal: run it without --terminal"
    } else if program.adopts.is_some() {
        "another program has started its processes: have that one save them"
    } else if it.barrier.was_entered() {
        "its ranks have met in PMI, as MPI programs do: messages under way between them are in no image"
    } else {
        return None;
    };
    Some(why.into())
}

#[cfg(test)]
mod tests;
