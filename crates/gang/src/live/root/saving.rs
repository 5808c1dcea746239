//! Checkpoints of jobs, as the root sees them: which ranks can be saved, whose states have come, and
//! what a job that was saved goes on from.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

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
    /// The ranks were asked, and stand still as they hand their states over.
    is_asked: bool,
    /// All have; the agenda has the job cut.
    is_due: bool,
    parcels: BTreeMap<u16, Parcel>,
    wanted: Option<Wanted>,
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
    /// Nothing comes of it any longer.
    pub(super) fn job_ended(&mut self, job: JobId) {
        if let Some(Wanted { client, .. }) = self.wanted.take() {
            tell(&client, &Reply::Refused(format!("job {job} ended before it was saved")));
        }
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
    /// Reads and checks a checkpoint; blocks.
    pub(crate) fn from_folder(client: Client, folder: Vec<u8>, weight: u8) -> Self {
        let folder = PathBuf::from(OsString::from_vec(folder));
        let read = Checkpoint::read_from(&folder).map_err(|error| error.to_string());
        let read = read.and_then(|checkpoint| {
            let wrong = |error| format!("{}: its program: {error}", folder.display());
            let program = Program::from_json(&checkpoint.program).map_err(wrong)?;
            Ok((program, checkpoint))
        });
        Self { client, weight, read }
    }
}

impl Root {
    /// A rank says that it can be saved.
    pub(crate) fn able(&mut self, job: JobId, rank: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.saves.able.insert(rank);
        }
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
        if it.saves.wanted.is_some() {
            return Err(format!("job {job} is being saved"));
        }
        if it.program.to_json().is_none() {
            return Err(format!("job {job}: its command or its environment is no text"));
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
    /// nobody wants it saved any longer.
    pub(crate) fn hear_part(&mut self, now: Instant, job: JobId, rank: u16, part: &Part) -> bool {
        let Some(it) = self.jobs.get_mut(&job) else { return false };
        let ranks = it.ends.len();
        if usize::from(rank) >= ranks {
            return false;
        }
        if !it.saves.parcels.entry(rank).or_default().add(part) {
            let why = format!("rank {rank} handed over another state than it was asked for");
            self.end(now, job, Some(why));
            return false;
        }
        let all =
            it.saves.parcels.len() == ranks && it.saves.parcels.values().all(Parcel::has_state);
        if it.saves.is_due || !all {
            return false;
        }
        if it.saves.wanted.is_none() {
            let able = std::mem::take(&mut it.saves.able);
            it.saves = Saves { able, ..Saves::default() };
            return true;
        }
        it.saves.is_due = true;
        self.agenda.cut(job);
        false
    }

    /// A job's channels stood still, and what they held has come. `None` if there is nothing to write: its
    /// ranks are to go on.
    pub(crate) fn cut(&mut self, job: JobId, epoch: Epoch) -> Option<Write> {
        let it = self.jobs.get_mut(&job)?;
        let able = std::mem::take(&mut it.saves.able);
        let Saves { mut parcels, wanted, .. } =
            std::mem::replace(&mut it.saves, Saves { able, ..Saves::default() });
        let mut wanted = wanted?;
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
mod tests {
    use super::*;

    #[test]
    fn a_program_survives_being_written_as_text() {
        let program = Program {
            command: vec![b"gang".to_vec(), b"a b".to_vec()],
            environment: vec![b"PATH=/bin".to_vec()],
            folder: b"/tmp".to_vec(),
            terminal: Some((24, 80)),
            keep_going: true,
            woken: true,
        };
        assert_eq!(Program::from_json(&program.to_json().unwrap()).unwrap(), program);
        let foreign = Program { command: vec![vec![0xFF]], ..program };
        assert_eq!(foreign.to_json(), None);
        assert!(Program::from_json("{\"command\":[]}").is_err());
    }
}
