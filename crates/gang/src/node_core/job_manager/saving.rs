//! Checkpoints of jobs: which ranks can be saved, the states that they have sent, and jobs that are restored.

use std::collections::{BTreeMap, BTreeSet};

use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::checking::Purpose;
use super::imaging;
use super::{Job, JobManager, Out, no_job};
use crate::checkpoint::Checkpoint;
use crate::context::NetworkContext;
use crate::names::{Epoch, JobId};
use crate::node_core::interface::Effect;
use crate::node_core::message::{ClientId, Down, Program, Reply, Saved, Word};
use crate::node_core::state_chunk::{self, ChunkKind, RankState, StateChunk};
use crate::node_core::user::{Caller, User};
use crate::schedule::Request;

/// The state of a job's checkpoint while it is made.
#[derive(Debug, Default)]
pub(super) struct Saves {
    /// Ranks that can be saved.
    pub(super) able: BTreeSet<u16>,
    /// Ranks that no longer send a state.
    left: BTreeSet<u16>,
    /// True if the ranks were asked for their states. Each blocks after it has sent its state.
    is_asked: bool,
    /// True once all states have arrived; the scheduler then cuts the job.
    is_due: bool,
    /// True if the states exceed the limit. They are dropped, and the ranks continue once all have sent theirs.
    is_void: bool,
    states: BTreeMap<u16, RankState>,
    pub(super) wanted: Option<Wanted>,
    /// Hosts that have not dumped their processes; `None` if no images are being made.
    pub(super) images: Option<BTreeSet<u16>>,
    /// A host on which the job has Virtual Interfaces in the cut.
    pub(super) interfaces: Option<u16>,
}

/// A client's request to save a job.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) caller: Caller,
    pub(super) folder: Vec<u8>,
    pub(super) end: bool,
    /// Set while the checkpoint is being written.
    pub(super) saved: Option<Saved>,
}

impl Saves {
    /// Records that the job has Virtual Interfaces on a host while it is suspended for a cut.
    pub(super) fn has_interfaces(&mut self, host: u16) {
        let is_cut = self.is_due || (self.wanted.is_some() && self.able.is_empty());
        self.interfaces = is_cut.then_some(host);
    }

    /// Cancels the checkpoint because the job has ended. Returns the reply to the requesting client.
    pub(super) fn job_ended(&mut self, job: JobId) -> Option<(ClientId, Reply)> {
        let wanted = self.wanted.take()?;
        let why = format!("job {job} ended before it was saved");
        Some((wanted.caller.client, Reply::Refused(why)))
    }

    /// Returns a rank that will send no state although its state is missing.
    fn missing(&self) -> Option<u16> {
        // All states have arrived, and the checkpoint is being cut or written.
        if self.is_due {
            return None;
        }
        let has = |rank| self.states.get(rank).is_some_and(RankState::has_state);
        self.left.iter().find(|rank| !has(rank)).copied()
    }

    /// Returns the bytes of states and contexts in memory.
    fn held(&self) -> u64 {
        self.states.values().map(RankState::len).sum()
    }

    /// Drops the states that have arrived and those that follow. Returns the reply to the requesting client.
    fn void(&mut self, why: String) -> Option<(ClientId, Reply)> {
        self.is_void = true;
        self.states.values_mut().for_each(RankState::clear);
        let wanted = self.wanted.take()?;
        Some((wanted.caller.client, Reply::Refused(why)))
    }

    /// Resets everything but which ranks can be saved. Returns the states, and the request if its client still waits.
    fn renew(&mut self) -> (BTreeMap<u16, RankState>, Option<Wanted>) {
        let (able, left) = (std::mem::take(&mut self.able), std::mem::take(&mut self.left));
        let fresh = Self { able, left, ..Self::default() };
        let Self { states, wanted, .. } = std::mem::replace(self, fresh);
        (states, wanted)
    }

    /// Returns why a job can't be saved now; `None` if it can.
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
    /// The user and the client who have requested the checkpoint.
    pub(crate) user: User,
    pub(crate) client: ClientId,
    /// True if the ranks continue while the checkpoint is written.
    pub(crate) go: bool,
}

/// A checkpoint that was read for a client, or the reason why it was not.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) caller: Caller,
    pub(crate) weight: u8,
    pub(crate) read: Result<(Program, Contents), String>,
}

/// The contents of a checkpoint.
#[derive(Debug)]
pub(crate) enum Contents {
    /// States that ranks have sent, and the contexts of their channels.
    States(Checkpoint),
    /// Images of the processes of this many ranks, in a folder.
    Images(u16, Vec<u8>),
}

impl JobManager {
    /// Records that a rank can be saved.
    pub(super) fn able(&mut self, job: JobId, rank: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.saves.able.insert(rank);
        }
    }

    /// Records that a rank no longer sends a state. If its state is missing, the checkpoint fails, and blocked ranks
    /// continue.
    pub(super) fn left(&mut self, job: JobId, rank: u16) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        it.saves.left.insert(rank);
        let Some(rank) = it.saves.missing() else { return };
        let is_dumped = it.saves.images.is_some();
        let (states, wanted) = it.saves.renew();
        if let Some(Wanted { caller, .. }) = wanted {
            self.refuse(
                caller.client,
                format!("job {job}: rank {rank} ended, or left, before it was saved"),
            );
        }
        self.let_senders_go(job, &states);
        if is_dumped {
            self.let_go(job);
        }
    }

    /// Lets those ranks continue whose states have arrived. Any other rank may be about to send its state, and must
    /// then block, because the next checkpoint may have that state.
    fn let_senders_go(&mut self, job: JobId, states: &BTreeMap<u16, RankState>) {
        for (rank, _) in states.iter().filter(|(_, state)| state.has_state()) {
            self.let_go_alone(job, *rank);
        }
    }

    fn let_go_alone(&mut self, job: JobId, rank: u16) {
        self.everywhere(Down::Say(job, Word::GoAlone(rank)));
    }

    /// Handles a client's request to save a job. Asks its ranks for their states, unless they were asked before.
    ///
    /// # Errors
    /// The reason why the job can't be saved.
    pub(crate) fn save(
        &mut self,
        job: JobId,
        caller: Caller,
        (folder, end): (Vec<u8>, bool),
    ) -> Result<(), String> {
        let Some(it) = self.jobs.get_mut(&job) else {
            return Err(no_job(job));
        };
        let is_busy = it.saves.wanted.is_some() || it.saves.is_void;
        let wanted = Wanted { caller, folder, end, saved: None };
        if it.saves.able.is_empty() && !is_busy && it.entry.launch.program.to_json().is_some() {
            return self.save_images(job, wanted);
        }
        if self.geometry.is_none() {
            return Err("the daemons have no --fabric: the ranks' messages are unknown; start all daemons with one".into());
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

    /// Cancels a client's requests to save jobs that are not yet to be cut.
    pub(super) fn give_up_saving(&mut self, client: ClientId) {
        self.give_up_images(client);
        for it in self.jobs.values_mut().filter(|it| !it.saves.is_due) {
            it.saves.wanted.take_if(|wanted| wanted.caller.client == client);
        }
    }

    /// Adds a chunk of a rank's state or of its channel's context. If no client waits for the checkpoint, or it can't
    /// be made, blocked ranks continue.
    pub(super) fn add_chunk(&mut self, now: Instant, job: JobId, rank: u16, chunk: &StateChunk) {
        let held =
            self.jobs.values().map(|it| it.saves.held()).sum::<u64>() + chunk.bytes.len() as u64;
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let ranks = it.entry.ends.len();
        if usize::from(rank) >= ranks || it.checks.add_chunk(rank, chunk) {
            return;
        }
        // The contents of channels in the cut of another client, which has left.
        let is_saved = it.checks.ordered.front() == Some(&Purpose::Save);
        if chunk.kind == ChunkKind::Context && !is_saved {
            return;
        }
        // The root that asked for this state is lost, or the rank saves of its own accord.
        if !it.saves.is_asked {
            if chunk.kind == ChunkKind::State && chunk.is_last {
                self.let_go_alone(job, rank);
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
        let (keep, state) = (!it.saves.is_void, it.saves.states.entry(rank).or_default());
        if state.lacks_before(chunk) {
            return self.refuse_remainder(job, rank, chunk.is_last);
        }
        if !state.add(chunk, keep) {
            let why = format!("rank {rank} handed over another state than it was asked for");
            return self.end(now, job, Some(why));
        }
        let is_handed_over = it.saves.states[&rank].has_state();
        if is_handed_over && it.saves.missing().is_some() {
            it.saves.states.remove(&rank);
            return self.let_go_alone(job, rank);
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
        it.checks.ordered.push_back(Purpose::Save);
        self.scheduler_core.cut(job);
    }

    /// Handles a chunk whose earlier ones have arrived before the state was requested, or at an earlier root. The state
    /// is not whole, so the checkpoint fails; once the rank has sent all of it, blocked ranks continue.
    fn refuse_remainder(&mut self, job: JobId, rank: u16, is_last: bool) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let refused = it.saves.void(format!(
            "job {job}: rank {rank} had begun to hand over its state before it was asked; try again"
        ));
        self.replies.extend(refused.map(|(client, reply)| (self.recorded, client, reply)));
        if is_last {
            let (states, _) = it.saves.renew();
            self.let_senders_go(job, &states);
            self.let_go_alone(job, rank);
        }
    }

    /// Creates the checkpoint of a job that was cut. Returns `None` if there is nothing to write; the ranks then
    /// continue.
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
        let Caller { user, client } = wanted.caller.clone();
        it.saves.wanted = Some(wanted);
        it.saves.is_due = true;
        let checkpoint = Checkpoint { network, processes, program };
        Some(Write { job, checkpoint, folder, user, client, go })
    }

    /// Handles the result of writing a job's checkpoint for a client: the bytes of images in it. If it failed, ranks that are still
    /// blocked continue.
    pub(crate) fn handle_written(
        &mut self,
        now: Instant,
        (job, client): (JobId, ClientId),
        written: Result<u64, String>,
    ) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        // The result may be late, and another client may wait for another checkpoint.
        let is_its = |wanted: &mut Wanted| wanted.caller.client == client;
        let Some(Wanted { folder, end, saved, .. }) = it.saves.wanted.take_if(is_its) else {
            return;
        };
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

    /// Admits a job from a checkpoint, and sends its ranks' states to their hosts.
    pub(crate) fn restore(&mut self, now: Instant, read: Read) {
        let Read { caller, weight, read } = read;
        let client = caller.client;
        // The client has left, or an earlier root has read this for it.
        if !self.restoring.remove(&client) {
            return;
        }
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
        // A client that restores a job has no terminal for it.
        let program = Program { images, terminal: None, ..program };
        let request = Request { nodes: ranks, weight };
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
            // The context was decoded from fewer bytes than the limit, so this never fails.
            let context = wire::encode_long(&context).unwrap_or_default();
            for (kind, bytes) in [(ChunkKind::State, state), (ChunkKind::Context, context)] {
                let chunks = state_chunk::split(kind, bytes.into());
                self.out.extend(chunks.map(|chunk| Out::Chunk(*host, (job, rank), chunk)));
            }
        }
    }

    /// Checks that a checkpoint's channels have the sizes of these daemons' channels. Returns the number of ranks.
    fn fits(&self, checkpoint: &Checkpoint) -> Result<u16, String> {
        let Some(geometry) = self.geometry else {
            return Err("the daemons have no --fabric: the job's ranks communicate over one; start all daemons with one".into());
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
        let missing = format!("the contents of the channel of rank {rank} are missing");
        wire::decode_long(state.context().ok_or_else(|| missing.clone())?).map_err(|_| missing)
    };
    let ranks = states.iter().map(context).collect::<Result<Vec<_>, String>>()?;
    let network = NetworkContext { job, epoch, ranks };
    network.validate().map_err(|violation| format!("the cut is not consistent: {violation}"))?;
    Ok(network)
}

#[cfg(test)]
mod tests;
