//! Checkpoints of jobs: which ranks can be saved, the states that they have handed over, and jobs that are restored.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::checking::Purpose;
use super::imaging;
use super::{Job, JobManager, Out};
use crate::checkpoint::Checkpoint;
use crate::context::NetworkContext;
use crate::names::{Epoch, JobId};
use crate::node_core::interface::Effect;
use crate::node_core::message::{ClientId, Down, Program, Reply, Saved, Word};
use crate::node_core::state_chunk::{self, ChunkKind, RankState, StateChunk};
use crate::node_core::user::{Caller, User};
use crate::schedule::Request;

/// A job's checkpoint in the making.
#[derive(Debug, Default)]
pub(super) struct Saves {
    able: BTreeSet<u16>,
    /// Ranks that hand no state over any longer.
    left: BTreeSet<u16>,
    /// True if the ranks were asked. Each waits after it has handed its state over.
    is_asked: bool,
    /// True once all states are here; the scheduler has the job cut.
    is_due: bool,
    /// True if the states are too long: they are dropped, and the ranks continue once all have handed theirs over.
    is_void: bool,
    states: BTreeMap<u16, RankState>,
    pub(super) wanted: Option<Wanted>,
    /// While images of the processes are made: the hosts that have not dumped theirs.
    pub(super) images: Option<BTreeSet<u16>>,
    /// A host on which the job has Virtual Interfaces while it is cut.
    pub(super) interfaces: Option<u16>,
}

/// A front end's request to save a job.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) caller: Caller,
    pub(super) folder: Vec<u8>,
    pub(super) end: bool,
    /// Set while the checkpoint is being written.
    pub(super) saved: Option<Saved>,
}

impl Saves {
    /// Notes that a rank can be saved.
    pub(super) fn note_able(&mut self, rank: u16) {
        self.able.insert(rank);
    }

    /// Notes that the job has Virtual Interfaces on a host while it is stopped.
    pub(super) fn has_interfaces(&mut self, host: u16) {
        let is_cut = self.is_due || (self.wanted.is_some() && self.able.is_empty());
        self.interfaces = is_cut.then_some(host);
    }

    /// Gives the checkpoint up because the job has ended. Returns the reply for the front end that wants it.
    pub(super) fn job_ended(&mut self, job: JobId) -> Option<(ClientId, Reply)> {
        let wanted = self.wanted.take()?;
        let why = format!("job {job} ended before it was saved");
        Some((wanted.caller.client, Reply::Refused(why)))
    }

    /// Returns a rank that hands over no state, though one is missing.
    fn missing(&self) -> Option<u16> {
        // All states are here, and the checkpoint is being cut or written.
        if self.is_due {
            return None;
        }
        let has = |rank| self.states.get(rank).is_some_and(RankState::has_state);
        self.left.iter().find(|rank| !has(rank)).copied()
    }

    /// Returns the bytes held.
    fn held(&self) -> u64 {
        self.states.values().map(RankState::len).sum()
    }

    /// Drops the states, and those that follow. Returns the reply for the front end.
    fn void(&mut self, why: String) -> Option<(ClientId, Reply)> {
        self.is_void = true;
        self.states.values_mut().for_each(RankState::clear);
        let wanted = self.wanted.take()?;
        Some((wanted.caller.client, Reply::Refused(why)))
    }

    /// Starts over. Returns the states, and the request if its front end still waits.
    fn renew(&mut self) -> (BTreeMap<u16, RankState>, Option<Wanted>) {
        let (able, left) = (std::mem::take(&mut self.able), std::mem::take(&mut self.left));
        let fresh = Self { able, left, ..Self::default() };
        let Self { states, wanted, .. } = std::mem::replace(self, fresh);
        (states, wanted)
    }

    /// Returns why a job can't be saved now.
    fn refusal(&self, job: JobId, it: &Job) -> Option<String> {
        if self.wanted.is_some() || self.is_void {
            return Some(format!("job {job} is being saved"));
        }
        if it.entry.launch.program.to_json().is_none() {
            return Some(format!("job {job}: its command or its environment is no text"));
        }
        if let Some(rank) = self.left.first() {
            return Some(format!(
                "job {job}: rank {rank} can't be saved: it has ended, or takes no part in checkpoints any longer"
            ));
        }
        let rank = (0..it.entry.ends.len() as u16).find(|rank| !self.able.contains(rank))?;
        Some(format!(
            "job {job}: rank {rank} can't be saved: its program takes no part in checkpoints, or has not begun"
        ))
    }
}

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) job: JobId,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) folder: Vec<u8>,
    /// The user who has asked for it.
    pub(crate) user: User,
    /// True if the ranks continue while it is written.
    pub(crate) go: bool,
}

/// A checkpoint that was read for a front end, or the reason why it can't be.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) caller: Caller,
    pub(crate) weight: u8,
    pub(crate) read: Result<(Program, Contents), String>,
}

/// The contents of a checkpoint.
#[derive(Debug)]
pub(crate) enum Contents {
    /// States that they have handed over.
    States(Checkpoint),
    /// Images of the processes of so many ranks, in a folder.
    Images(u16, Vec<u8>),
}

impl JobManager {
    /// Returns the longest checkpoint that may be read, in bytes.
    pub(in crate::node_core) const fn most_saved(&self) -> u64 {
        self.most_saved
    }

    /// Notes that a rank can be saved.
    pub(super) fn able(&mut self, job: JobId, rank: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.saves.note_able(rank);
        }
    }

    /// Notes that a rank hands no state over any longer. If one is missing, the ranks that wait to be saved continue.
    pub(super) fn left(&mut self, job: JobId, rank: u16) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        it.saves.left.insert(rank);
        let Some(rank) = it.saves.missing() else { return };
        let (states, wanted) = it.saves.renew();
        if let Some(Wanted { caller, .. }) = wanted {
            self.refuse(
                caller.client,
                format!("job {job}: rank {rank} ended, or left, before it was saved"),
            );
        }
        if !states.is_empty() {
            self.let_go(job);
        }
    }

    /// Takes a front end's request to save a job. Its ranks are asked for their states, unless they were.
    ///
    /// # Errors
    /// The reason why the job can't be saved.
    pub(in crate::node_core) fn save(
        &mut self,
        job: JobId,
        caller: Caller,
        (folder, end): (Vec<u8>, bool),
    ) -> Result<(), String> {
        let Some(it) = self.jobs.get_mut(&job) else {
            return Err(format!("there is no job {job}"));
        };
        let is_busy = it.saves.wanted.is_some() || it.saves.is_void;
        let wanted = Wanted { caller, folder, end, saved: None };
        if it.saves.able.is_empty() && !is_busy && it.entry.launch.program.to_json().is_some() {
            return self.save_images(job, wanted);
        }
        if self.geometry.is_none() {
            return Err("the daemons have no --fabric: nothing is known of what ranks send".into());
        }
        if let Some(why) = it.saves.refusal(job, it) {
            return Err(why);
        }
        it.saves.wanted = Some(wanted);
        if !std::mem::replace(&mut it.saves.is_asked, true) {
            self.everywhere(Down::Say(job, Word::Ask));
        }
        Ok(())
    }

    /// Cancels a front end's requests to save jobs that are not cut yet.
    pub(super) fn give_up_saving(&mut self, client: ClientId) {
        self.give_up_images(client);
        for it in self.jobs.values_mut().filter(|it| !it.saves.is_due) {
            it.saves.wanted.take_if(|wanted| wanted.caller.client == client);
        }
    }

    /// Takes a chunk of a rank's state or of its channel's context. The ranks that wait to be saved continue if no front end
    /// waits for the checkpoint, or it can't be made.
    pub(super) fn add_chunk(&mut self, now: Instant, job: JobId, rank: u16, chunk: &StateChunk) {
        let held =
            self.jobs.values().map(|it| it.saves.held()).sum::<u64>() + chunk.bytes.len() as u64;
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let ranks = it.entry.ends.len();
        if usize::from(rank) >= ranks || it.checks.add_chunk(rank, chunk) {
            return;
        }
        // The root that asked for it is lost.
        if !it.saves.is_asked {
            if chunk.kind == ChunkKind::State && chunk.is_last {
                self.let_go(job);
            }
            return;
        }
        if held > self.most_saved {
            let refused = it.saves.void(format!(
                "job {job}: the state of its ranks and channels, with all else that is being saved, is more than the {} \
                 bytes that the root may hold of checkpoints; start `midplane gang daemon` with a larger --checkpoint-mib",
                self.most_saved
            ));
            self.replies.extend(refused.map(|(client, reply)| (self.recorded, client, reply)));
        }
        let empty = || StateChunk { bytes: Bytes::new(), ..chunk.clone() };
        let chunk = if it.saves.is_void { &empty() } else { chunk };
        if !it.saves.states.entry(rank).or_default().add(chunk) {
            let why = format!("rank {rank} handed over another state than it was asked for");
            return self.end(now, job, Some(why));
        }
        let is_handed_over = it.saves.states[&rank].has_state();
        if is_handed_over && it.saves.missing().is_some() {
            it.saves.states.remove(&rank);
            return self.let_go(job);
        }
        let all =
            it.saves.states.len() == ranks && it.saves.states.values().all(RankState::has_state);
        if it.saves.is_due || !all {
            return;
        }
        if it.saves.wanted.is_none() {
            it.saves.renew();
            return self.let_go(job);
        }
        it.saves.is_due = true;
        it.saves.interfaces = None;
        it.checks.order(Purpose::Save);
        self.scheduler_core.cut(job);
    }

    /// Makes the checkpoint of a job that was cut. Returns `None` if there is nothing to write, and its ranks continue.
    pub(super) fn cut(&mut self, job: JobId, epoch: Epoch) -> Option<Write> {
        let it = self.jobs.get_mut(&job)?;
        let interfaces = it.saves.interfaces.take();
        let (mut states, wanted) = it.saves.renew();
        let mut wanted = wanted?;
        let network = match (interfaces, network_of(&states, job, epoch)) {
            (Some(host), _) => Err(format!(
                "its ranks on host {host} have Virtual Interfaces open, which are in no checkpoint: close them before a \
                 state is handed over"
            )),
            (None, network) => network,
        };
        let network = match network {
            Ok(network) => network,
            Err(why) => {
                self.refuse(wanted.caller.client, format!("job {job}: {why}"));
                return None;
            }
        };
        let processes: Vec<Vec<u8>> =
            states.values_mut().filter_map(RankState::take_state).collect();
        let program = it.entry.launch.program.to_json()?;
        wanted.saved = Some(Saved {
            job,
            ranks: processes.len() as u16,
            state_bytes: processes.iter().map(|state| state.len() as u64).sum(),
            messages: network.in_transit().count() as u64,
        });
        let (folder, go) = (wanted.folder.clone(), !wanted.end);
        let user = wanted.caller.user.clone();
        it.saves.wanted = Some(wanted);
        it.saves.is_due = true;
        let checkpoint = Checkpoint { network, processes, program };
        Some(Write { job, checkpoint, folder, user, go })
    }

    /// Takes the result of writing a job's checkpoint: the bytes of images in it. If there is none, ranks that still wait
    /// continue.
    pub(in crate::node_core) fn handle_written(
        &mut self,
        now: Instant,
        job: JobId,
        written: Result<u64, String>,
    ) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let Some(Wanted { caller, folder, end, saved }) = it.saves.wanted.take() else { return };
        let client = caller.client;
        it.saves.is_due = false;
        let (stands, written) = match it.saves.images.take() {
            Some(missing) => {
                (end || !missing.is_empty(), written.map_err(|why| imaging::unable(job, &why)))
            }
            None => (end, written),
        };
        match (written, saved) {
            (Ok(images), Some(saved)) => {
                let state_bytes = saved.state_bytes + images;
                self.reply(client, Reply::Saved(Saved { state_bytes, ..saved }));
                if end {
                    let folder = String::from_utf8_lossy(&folder);
                    self.end(now, job, Some(format!("it was saved in {folder}")));
                }
            }
            (Err(why), _) => {
                self.refuse(client, why);
                if stands {
                    self.let_go(job);
                }
            }
            (Ok(_), None) => {}
        }
    }

    /// Admits a job that was saved, and hands out what its ranks start from.
    pub(in crate::node_core) fn restore(&mut self, now: Instant, read: Read) {
        let Read { caller, weight, read } = read;
        let client = caller.client;
        if let Err(why) = read.and_then(|read| self.restore_from(now, (caller, weight), read)) {
            self.refuse(client, why);
        }
    }

    fn restore_from(
        &mut self,
        now: Instant,
        (caller, weight): (Caller, u8),
        (program, contents): (Program, Contents),
    ) -> Result<(), String> {
        let images = matches!(contents, Contents::Images(..));
        let ranks = match &contents {
            Contents::Images(ranks, _) => *ranks,
            Contents::States(checkpoint) => self.fits(checkpoint)?,
        };
        let (request, program) = (Request { nodes: ranks, weight }, Program { images, ..program });
        let Some(job) = self.admit(now, caller, (request, ranks), (program, true)) else {
            return Ok(());
        };
        match contents {
            Contents::Images(_, folder) => {
                self.out.push_back(Out::Effect(Effect::Serve(job, folder)));
            }
            Contents::States(checkpoint) => self.hand_out(job, checkpoint),
        }
        Ok(())
    }

    /// Sends the states and contexts of a checkpoint to the hosts of a job.
    fn hand_out(&mut self, job: JobId, checkpoint: Checkpoint) {
        let saved = checkpoint.network.starts().into_iter().zip(checkpoint.processes);
        for ((rank, host), (context, state)) in (0..).zip(&self.jobs[&job].hosts).zip(saved) {
            // It was decoded from fewer bytes than the limit.
            let context = wire::encode_long(&context).unwrap_or_default();
            for (kind, bytes) in [(ChunkKind::State, state), (ChunkKind::Context, context)] {
                let chunks = state_chunk::split(kind, bytes.into());
                self.out.extend(chunks.map(|chunk| Out::Chunk(*host, (job, rank), chunk)));
            }
        }
    }

    /// Checks that a checkpoint's channels fit these daemons. Returns the number of its ranks.
    fn fits(&self, checkpoint: &Checkpoint) -> Result<u16, String> {
        let Some(geometry) = self.geometry else {
            return Err("the daemons have no --fabric: the job's ranks talk over one".into());
        };
        let ranks = &checkpoint.network.ranks;
        match ranks.iter().find(|context| context.geometry != geometry) {
            None => Ok(ranks.len() as u16),
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

/// Decodes and checks the contexts of a job's channels.
pub(super) fn network_of(
    states: &BTreeMap<u16, RankState>,
    job: JobId,
    epoch: Epoch,
) -> Result<NetworkContext, String> {
    let context = |(rank, state): (&u16, &RankState)| {
        let missing = format!("what the channel of rank {rank} held has not come");
        wire::decode_long(state.context().ok_or_else(|| missing.clone())?).map_err(|_| missing)
    };
    let ranks = states.iter().map(context).collect::<Result<Vec<_>, String>>()?;
    let network = NetworkContext { job, epoch, ranks };
    network.validate().map_err(|violation| format!("the cut is not consistent: {violation}"))?;
    Ok(network)
}

#[cfg(test)]
mod tests;
