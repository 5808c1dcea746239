//! Checkpoints of jobs, as the root sees them: which ranks can be saved, whose states have come, and
//! what a job that was saved goes on from.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use midplane_simhw::time::Instant;
use midplane_simhw::wire;
use tokio::sync::mpsc;

use super::{ClientId, Root, post};
use crate::checkpoint::Checkpoint;
use crate::context::NetworkContext;
use crate::live::link::Frame;
use crate::live::message::{Program, Reply, Saved};
use crate::live::parcel::{self, Parcel, Part, What};
use crate::names::{Epoch, JobId};

/// A front end that is told what came of it.
type Client = (ClientId, mpsc::Sender<Frame>);

fn tell(client: &Client, reply: &Reply) {
    post(&client.1, Frame::message(reply));
}

/// What a job's checkpoint is made of, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Saves {
    able: BTreeSet<u16>,
    /// They hand nothing over any longer.
    left: BTreeSet<u16>,
    /// The ranks were asked, and stand still as they hand their states over.
    is_asked: bool,
    /// All have; the scheduler core has the job cut.
    is_due: bool,
    /// They are too large: what comes of them is dropped, and the ranks go on once all of it has come.
    is_void: bool,
    parcels: BTreeMap<u16, Parcel>,
    wanted: Option<Wanted>,
    /// A host on which the ranks that stand still have Virtual Interfaces.
    interfaces: Option<u16>,
}

/// A checkpoint that somebody has asked for.
#[derive(Debug)]
struct Wanted {
    client: Client,
    folder: PathBuf,
    end: bool,
    /// It is being written.
    saved: Option<Saved>,
}

impl Saves {
    /// Its ranks on a host have Virtual Interfaces, as they stand still.
    pub(super) fn has_interfaces(&mut self, host: u16) {
        self.interfaces = self.is_due.then_some(host);
    }

    /// Nothing comes of it any longer.
    pub(super) fn job_ended(&mut self, job: JobId) {
        if let Some(Wanted { client, .. }) = self.wanted.take() {
            tell(&client, &Reply::Refused(format!("job {job} ended before it was saved")));
        }
    }

    /// A rank without whose state nothing is saved, and that hands none over.
    fn missing(&self) -> Option<u16> {
        // All states have come, and are being cut or written.
        if self.is_due {
            return None;
        }
        let has = |rank| self.parcels.get(rank).is_some_and(Parcel::has_state);
        self.left.iter().find(|rank| !has(rank)).copied()
    }

    /// Bytes that are held of it.
    fn held(&self) -> u64 {
        self.parcels.values().map(Parcel::len).sum()
    }

    /// What has come, and what comes, is dropped.
    fn void(&mut self, why: String) {
        self.is_void = true;
        self.parcels.values_mut().for_each(Parcel::clear);
        if let Some(Wanted { client, .. }) = self.wanted.take() {
            tell(&client, &Reply::Refused(why));
        }
    }

    /// Begins anew; whoever has asked is still waiting, if there is such a one.
    fn renew(&mut self) -> (BTreeMap<u16, Parcel>, Option<Wanted>) {
        let (able, left) = (std::mem::take(&mut self.able), std::mem::take(&mut self.left));
        let Self { parcels, wanted, .. } =
            std::mem::replace(self, Self { able, left, ..Self::default() });
        (parcels, wanted)
    }
}

/// The host and the rank that a part is for.
pub(crate) type Addressed = (u16, u16, Part);

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) job: JobId,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) folder: PathBuf,
    /// Its ranks go on meanwhile.
    pub(crate) go: bool,
}

/// A checkpoint that was read for a front end, or why not.
#[derive(Debug)]
pub(crate) struct Read {
    client: Client,
    weight: u8,
    read: Result<(Program, Checkpoint), String>,
}

impl Read {
    /// Reads and checks a checkpoint of so many bytes at most; blocks.
    pub(crate) fn from_folder(client: Client, folder: Vec<u8>, (weight, most): (u8, u64)) -> Self {
        let folder = PathBuf::from(OsString::from_vec(folder));
        let read = is_at_most(most, &folder)
            .and_then(|()| Checkpoint::read_from(&folder).map_err(|error| error.to_string()));
        let read = read.and_then(|checkpoint| {
            let wrong = |error| format!("{}: its program: {error}", folder.display());
            let program = Program::from_json(&checkpoint.program).map_err(wrong)?;
            Ok((program, checkpoint))
        });
        Self { client, weight, read }
    }
}

/// Refuses what would not fit into memory before any of it is read.
fn is_at_most(most: u64, folder: &Path) -> Result<(), String> {
    // What is wrong with a folder that can't be read is said by whoever reads it.
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if bytes <= most {
        return Ok(());
    }
    Err(format!(
        "{}: has {bytes} bytes, more than the {most} that host 0 may hold of a checkpoint; start `midplane gang daemon` \
         with a larger --checkpoint-mib",
        folder.display()
    ))
}

impl Root {
    /// Most bytes of a checkpoint.
    pub(crate) const fn most_saved(&self) -> u64 {
        self.most_saved
    }

    /// A rank says that it can be saved.
    pub(crate) fn able(&mut self, job: JobId, rank: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.saves.able.insert(rank);
        }
    }

    /// A rank hands nothing over any longer: it has ended, or says so. `true` if those that stand still for a checkpoint
    /// may go on: it can't be had.
    pub(crate) fn left(&mut self, job: JobId, rank: u16) -> bool {
        let Some(it) = self.jobs.get_mut(&job) else { return false };
        it.saves.left.insert(rank);
        let Some(rank) = it.saves.missing() else { return false };
        let (waiting, wanted) = it.saves.renew();
        if let Some(Wanted { client, .. }) = wanted {
            let why = format!("job {job}: rank {rank} ended, or left, before it was saved");
            tell(&client, &Reply::Refused(why));
        }
        !waiting.is_empty()
    }

    /// A front end wants a job saved. `true` if its ranks are to be asked for their states.
    ///
    /// # Errors
    /// Why that can't be.
    pub(crate) fn save(
        &mut self,
        job: JobId,
        client: Client,
        (folder, end): (Vec<u8>, bool),
    ) -> Result<bool, String> {
        let folder = PathBuf::from(OsString::from_vec(folder));
        if self.geometry.is_none() {
            return Err("the daemons have no --fabric: nothing is known of what ranks send".into());
        }
        if Checkpoint::is_at(&folder) {
            return Err(format!("{}: a checkpoint is there", folder.display()));
        }
        let Some(it) = self.jobs.get_mut(&job) else {
            return Err(format!("there is no job {job}"));
        };
        if it.saves.wanted.is_some() || it.saves.is_void {
            return Err(format!("job {job} is being saved"));
        }
        if it.program.to_json().is_none() {
            return Err(format!("job {job}: its command or its environment is no text"));
        }
        if let Some(rank) = it.saves.left.first() {
            return Err(format!(
                "job {job}: rank {rank} can't be saved: it has ended, or takes no part in checkpoints any longer"
            ));
        }
        let ranks = it.ends.len() as u16;
        if let Some(rank) = (0..ranks).find(|rank| !it.saves.able.contains(rank)) {
            return Err(format!(
                "job {job}: rank {rank} can't be saved: its program takes no part in checkpoints, or has \
                 not begun"
            ));
        }
        it.saves.wanted = Some(Wanted { client, folder, end, saved: None });
        Ok(!std::mem::replace(&mut it.saves.is_asked, true))
    }

    /// A front end is gone: what it wanted saved, and is not cut yet, goes on.
    pub(crate) fn give_up_saving(&mut self, client: ClientId) {
        for it in self.jobs.values_mut().filter(|it| !it.saves.is_due) {
            it.saves.wanted.take_if(|wanted| wanted.client.0 == client);
        }
    }

    /// A part of a rank's state has come, or of what its channel held. `true` if the job's ranks may go on:
    /// nobody wants it saved any longer, or nobody can have it.
    pub(crate) fn hear_part(&mut self, now: Instant, job: JobId, rank: u16, part: &Part) -> bool {
        let held =
            self.jobs.values().map(|it| it.saves.held()).sum::<u64>() + part.bytes.len() as u64;
        let Some(it) = self.jobs.get_mut(&job) else { return false };
        let ranks = it.ends.len();
        if usize::from(rank) >= ranks {
            return false;
        }
        if held > self.most_saved {
            it.saves.void(format!(
                "job {job}: the state of its ranks and channels, with all else that is being saved, is more than the {} \
                 bytes that host 0 may hold of checkpoints; start `midplane gang daemon` with a larger --checkpoint-mib",
                self.most_saved
            ));
        }
        let empty = || Part { bytes: bytes::Bytes::new(), ..part.clone() };
        let part = if it.saves.is_void { &empty() } else { part };
        if !it.saves.parcels.entry(rank).or_default().add(part) {
            let why = format!("rank {rank} handed over another state than it was asked for");
            self.end(now, job, Some(why));
            return false;
        }
        let is_handed_over = it.saves.parcels[&rank].has_state();
        if is_handed_over && it.saves.missing().is_some() {
            it.saves.parcels.remove(&rank);
            return true;
        }
        let all =
            it.saves.parcels.len() == ranks && it.saves.parcels.values().all(Parcel::has_state);
        if it.saves.is_due || !all {
            return false;
        }
        if it.saves.wanted.is_none() {
            it.saves.renew();
            return true;
        }
        it.saves.is_due = true;
        it.saves.interfaces = None;
        self.scheduler_core.cut(job);
        false
    }

    /// A job's channels stood still, and what they held has come. `None` if there is nothing to write: its
    /// ranks are to go on.
    pub(crate) fn cut(&mut self, job: JobId, epoch: Epoch) -> Option<Write> {
        let it = self.jobs.get_mut(&job)?;
        let interfaces = it.saves.interfaces.take();
        let (mut parcels, wanted) = it.saves.renew();
        let mut wanted = wanted?;
        if let Some(host) = interfaces {
            let why = format!(
                "job {job}: its ranks on host {host} have Virtual Interfaces open, which are in no checkpoint: \
                 close them before a state is handed over"
            );
            tell(&wanted.client, &Reply::Refused(why));
            return None;
        }
        let context = |(rank, parcel): (&u16, &Parcel)| {
            let missing = format!("what the channel of rank {rank} held has not come");
            wire::decode_long(parcel.context().ok_or_else(|| missing.clone())?).map_err(|_| missing)
        };
        let ranks = parcels.iter().map(context).collect::<Result<Vec<_>, String>>();
        let network = ranks.map(|ranks| NetworkContext { job, epoch, ranks }).and_then(|network| {
            network
                .validate()
                .map_err(|violation| format!("the cut is not consistent: {violation}"))?;
            Ok(network)
        });
        let network = match network {
            Ok(network) => network,
            Err(why) => {
                tell(&wanted.client, &Reply::Refused(format!("job {job}: {why}")));
                return None;
            }
        };
        let processes: Vec<Vec<u8>> = parcels.values_mut().filter_map(Parcel::take_state).collect();
        let program = it.program.to_json()?;
        wanted.saved = Some(Saved {
            job,
            ranks: processes.len() as u16,
            state_bytes: processes.iter().map(|state| state.len() as u64).sum(),
            messages: network.in_transit().count() as u64,
        });
        let (folder, go) = (wanted.folder.clone(), !wanted.end);
        it.saves.wanted = Some(wanted);
        it.saves.is_due = true;
        Some(Write { job, checkpoint: Checkpoint { network, processes, program }, folder, go })
    }

    /// A job's checkpoint is written, or not. `true` if the job's ranks wait still, and may go on.
    pub(crate) fn written(
        &mut self,
        now: Instant,
        job: JobId,
        written: Result<(), String>,
    ) -> bool {
        let Some(it) = self.jobs.get_mut(&job) else { return false };
        let Some(Wanted { client, folder, end, saved }) = it.saves.wanted.take() else {
            return false;
        };
        it.saves.is_due = false;
        match (written, saved) {
            (Ok(()), Some(saved)) => {
                tell(&client, &Reply::Saved(saved));
                if end {
                    self.end(now, job, Some(format!("it was saved in {}", folder.display())));
                }
                false
            }
            (Err(why), _) => {
                tell(&client, &Reply::Refused(why));
                end
            }
            (Ok(()), None) => false,
        }
    }

    /// Takes a job that was saved; what its ranks go on from, by host and rank.
    pub(crate) fn restore(&mut self, now: Instant, read: Read) -> Option<(JobId, Vec<Addressed>)> {
        let Read { client, weight, read } = read;
        let (program, checkpoint) = match read.and_then(|read| self.fits(read)) {
            Ok(read) => read,
            Err(why) => {
                tell(&client, &Reply::Refused(why));
                return None;
            }
        };
        let ranks = checkpoint.network.ranks.len() as u16;
        let job = self.submit(now, client, (ranks, weight), program)?;
        let hosts = self.jobs.get(&job)?.hosts.clone();
        let mut parts = Vec::new();
        let saved = checkpoint.network.ranks.into_iter().zip(checkpoint.processes);
        for ((rank, host), (context, state)) in (0..).zip(hosts).zip(saved) {
            // It was read from fewer bytes than that.
            let context = wire::encode_long(&context).unwrap_or_default();
            let both = [(What::State, state), (What::Context, context)];
            for (what, bytes) in both {
                parts.extend(parcel::cut(what, bytes.into()).map(|part| (host, rank, part)));
            }
        }
        Some((job, parts))
    }

    /// Whether what was saved can go on here.
    fn fits(&self, read: (Program, Checkpoint)) -> Result<(Program, Checkpoint), String> {
        let Some(geometry) = self.geometry else {
            return Err("the daemons have no --fabric: the job's ranks talk over one".into());
        };
        let other = read.1.network.ranks.iter().find(|context| context.geometry != geometry);
        match other {
            None => Ok(read),
            Some(context) => Err(format!(
                "its channels have messages of up to {} bytes and FIFOs of {} and {}, these daemons' {}, {} and \
                 {}: start them with the --fabric of those that saved it",
                context.geometry.message,
                context.geometry.send.bytes,
                context.geometry.receive.bytes,
                geometry.message,
                geometry.send.bytes,
                geometry.receive.bytes,
            )),
        }
    }
}

#[cfg(test)]
mod tests;
