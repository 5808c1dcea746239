//! The NIC's side of a context: one rank's FIFOs, and its protocol state with each peer.

mod receiving;
mod saving;
mod sending;

use std::collections::{BTreeMap, VecDeque};

use midplane_nicvm::context::Context;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;
use receiving::Receiving;
use sending::Sending;

use super::ack::{Inbound, Outbound, RoundTrip};
use super::command::{OpenRequest, WANTS_ROOM};
use super::config::GangCounters;
use super::frame::{Body, PmFrame};
use super::geometry::{Geometry, RECORD_BYTES, Record};
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};

/// Instructions per message or answer, in addition to the unit's own.
const MESSAGE_INSTRUCTIONS: u64 = 30;

/// State of a context.
///
/// Parked --start--> Running --stop--> Stopping --steady--> Parked --forget--> Empty --restore--> Parked
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// The NIC has no state of the context, which is saved elsewhere or was never restored.
    Empty,
    /// Steady; neither sends nor accepts messages.
    Parked,
    /// Sends and accepts messages.
    Running,
    /// Sends and accepts no new messages, and waits for outstanding answers.
    Stopping,
}

#[derive(Debug, Default)]
struct Peer {
    out: Outbound,
    into: Inbound,
    /// When the delayed answer is sent, unless further messages make it due before.
    answer_at: Option<Instant>,
}

impl Peer {
    /// Returns whether the peer's state differs from that of a peer without any messages.
    fn is_known(&self) -> bool {
        let numbers = (self.out.acked(), self.out.refusals(), self.into.expected());
        numbers != (0, 0, 0) || self.out.waiting().next().is_some()
    }
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) controller: PortId,
    pub(crate) user: Option<PortId>,
    pub(crate) key: u64,
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) phase: Phase,
    places: Vec<ChannelAddress>,
    pub(crate) geometry: Geometry,
    pub(crate) memory: RegionRef,
    sending: Sending,
    receiving: Receiving,
    peers: BTreeMap<Rank, Peer>,
    /// The peer to which the last message was sent.
    last_served: Rank,
    /// When all frames given to the link will have been sent.
    line_until: Instant,
    /// When the link has room for another message.
    pump_at: Option<Instant>,
    /// Round-trip times that were measured before the context was saved last.
    round_trips: BTreeMap<Rank, RoundTrip>,
    /// Peers that were refused because this context had not started yet, each with its epoch and round.
    early: BTreeMap<Rank, (Epoch, u16)>,
    /// True from the start until [`Endpoint::begin`], which runs in a later turn than the controller's command.
    is_new: bool,
    /// The process's outstanding [`WAIT`](super::command::WAIT).
    waiter: Option<Command>,
    /// The controller's outstanding [`STOP`](super::command::STOP).
    stopper: Option<Command>,
    /// True if the process has written invalid records or counts; nothing more is sent then.
    is_broken: bool,
}

impl Endpoint {
    /// Creates a context; `None` if the request is inconsistent.
    pub(crate) fn new(controller: PortId, request: OpenRequest) -> Option<Self> {
        let OpenRequest { job, rank, channel, places, geometry, memory, key } = request;
        let memory = RegionRef::from_words(memory);
        let fits = geometry.check().is_ok()
            && memory.port == controller
            && memory.length as usize >= geometry.bytes()
            && places.get(rank.index()).is_some_and(|place| place.channel == channel);
        fits.then(|| Self {
            controller,
            user: None,
            key,
            job,
            rank,
            channel,
            epoch: Epoch(0),
            phase: Phase::Parked,
            places,
            geometry,
            memory,
            sending: Sending::default(),
            receiving: Receiving::default(),
            peers: BTreeMap::new(),
            last_served: Rank(0),
            line_until: Instant::ZERO,
            pump_at: None,
            round_trips: BTreeMap::new(),
            early: BTreeMap::new(),
            is_new: false,
            waiter: None,
            stopper: None,
            is_broken: false,
        })
    }

    /// Returns the arguments of a completion: messages freed, received, sent, consumed.
    const fn news(&self) -> [u64; 4] {
        [self.sending.freed, self.receiving.tail, self.sending.tail, self.receiving.head]
    }

    fn word(&self, nic: &Context<'_>, offset: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let part = self.memory.part(u32::try_from(offset).ok()?, 8)?;
        (nic.read(part).ok()?.copy_to(&mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    fn record(&self, nic: &Context<'_>, offset: usize) -> Option<Record> {
        let mut bytes = [0; RECORD_BYTES];
        let part = self.memory.part(u32::try_from(offset).ok()?, RECORD_BYTES as u32)?;
        let copied = nic.read(part).ok()?.copy_to(&mut bytes);
        (copied == RECORD_BYTES).then(|| Record::parse(bytes))
    }

    /// Reads the process's counts of sent and consumed messages, and the new records.
    pub(crate) fn read_counts(&mut self, shared: &mut Shared<'_, '_>) {
        // The FIFOs may belong to another context now, because the process may have notified the NIC just before it
        // was stopped.
        if self.phase == Phase::Empty {
            return;
        }
        self.read_consumed(shared.nic);
        self.read_sent(shared.nic);
        self.offer_room(shared);
    }

    /// Handles a frame from the node of its sending rank.
    pub(crate) fn on_frame(
        &mut self,
        shared: &mut Shared<'_, '_>,
        frame: &PmFrame,
        payload: Payload<'_>,
    ) {
        if frame.epoch != self.epoch || self.phase == Phase::Empty {
            shared.counters.stale += 1;
            return self.refuse_other(shared, frame);
        }
        match frame.body {
            Body::Message { round, sequence, taken } => {
                if let Some(taken) = taken {
                    self.on_answer(shared, frame.from, taken.answer());
                }
                self.on_message(shared, frame.from, (round, sequence), payload);
            }
            Body::Fence { round, sequence } => {
                let peer = self.peers.entry(frame.from).or_default();
                if peer.into.on_fence(round, sequence) {
                    self.answer(shared, frame.from);
                }
            }
            Body::Answer(answer) => self.on_answer(shared, frame.from, answer),
        }
    }

    /// Completes the process's wait, if messages have been received or freed.
    fn complete_wait(&mut self, shared: &mut Shared<'_, '_>) {
        let news = self.news();
        let is_news = |waiter: &mut Command| {
            news[1] != waiter.args[2] || waiter.flags & WANTS_ROOM != 0 && news[0] != waiter.args[1]
        };
        if let Some(waiter) = self.waiter.take_if(is_news) {
            shared.complete(&waiter, Status::Done, news);
        }
    }

    fn settle(&mut self, shared: &mut Shared<'_, '_>) {
        if self.phase == Phase::Stopping && self.peers.values().all(|peer| peer.out.is_steady()) {
            self.phase = Phase::Parked;
            if let Some(command) = self.stopper.take() {
                shared.complete(&command, Status::Done, self.news());
            }
        }
    }

    /// Handles the process's wait command. An earlier one completes at once.
    pub(crate) fn wait(&mut self, shared: &mut Shared<'_, '_>, command: Command) {
        self.read_counts(shared);
        if let Some(old) = self.waiter.replace(command) {
            shared.complete(&old, Status::Done, self.news());
        }
        self.complete_wait(shared);
    }

    /// Handles the process's notify command.
    pub(crate) fn on_notify(&mut self, shared: &mut Shared<'_, '_>, command: &Command) {
        self.read_counts(shared);
        let status = if self.is_broken { Status::Invalid } else { Status::Done };
        shared.complete(command, status, self.news());
    }

    /// Handles the controller's stop command: stops sending and accepting messages.
    pub(crate) fn stop(&mut self, shared: &mut Shared<'_, '_>, command: Command) {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            shared.complete(&command, Status::Done, self.news());
            return;
        }
        // Messages that the process has sent, but not yet notified the NIC of, belong to the context.
        self.read_counts(shared);
        self.phase = Phase::Stopping;
        if let Some(old) = self.stopper.replace(command) {
            shared.complete(&old, Status::Cancelled, self.news());
        }
        let owed: Vec<Rank> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.into.unanswered() > 0)
            .map(|(rank, _)| *rank)
            .collect();
        for rank in owed {
            self.answer(shared, rank);
        }
    }

    /// Starts the context in an epoch. Returns `false` if it is not parked, or the epoch is not newer.
    ///
    /// Messages in its send FIFO are sent in the next turn, so the controller's command completes before.
    pub(crate) fn start(&mut self, epoch: Epoch) -> bool {
        if self.phase != Phase::Parked || !epoch.is_newer_than(self.epoch) {
            return false;
        }
        self.epoch = epoch;
        self.phase = Phase::Running;
        self.is_new = true;
        for (rank, peer) in &mut self.peers {
            let known = peer.out.round_trip().or_else(|| self.round_trips.get(rank).copied());
            peer.out.restart();
            peer.out.recall(known);
            peer.into = Inbound::resumed(peer.into.expected());
            peer.answer_at = None;
        }
        true
    }

    /// Runs first after a start: reads the process's counts, and answers the peers that were refused because they had
    /// started earlier.
    pub(crate) fn begin(&mut self, shared: &mut Shared<'_, '_>) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        self.read_counts(shared);
        for (rank, (epoch, round)) in std::mem::take(&mut self.early) {
            if epoch == self.epoch {
                self.peers.entry(rank).or_default().into.on_greeting(round);
                self.answer(shared, rank);
            }
        }
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn on_timeout(&mut self, shared: &mut Shared<'_, '_>) {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            return;
        }
        let now = shared.nic.now();
        let stopped = self.phase == Phase::Stopping;
        self.begin(shared);
        let mut due = Vec::new();
        for (rank, peer) in &mut self.peers {
            let steady = peer.out.is_steady();
            peer.out.on_timeout(now);
            shared.counters.missed += u64::from(steady != peer.out.is_steady() && !stopped);
            if peer.answer_at.is_some_and(|at| at <= now) {
                due.push(*rank);
            }
        }
        for rank in due {
            self.answer(shared, rank);
        }
    }

    /// Returns the next deadline.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            return None;
        }
        if self.is_new {
            return Some(Instant::ZERO);
        }
        let stopped = self.phase == Phase::Stopping;
        let peers = self.peers.values();
        let pump_at = self.pump_at.unwrap_or(Instant::ZERO);
        let instants =
            peers.flat_map(|peer| [peer.out.next_timeout(stopped, pump_at), peer.answer_at]);
        instants.chain([self.pump_at]).flatten().min()
    }

    /// Returns whether frames of `rank` may come from `node`.
    pub(crate) fn admits(&self, rank: Rank, node: NodeId) -> bool {
        self.places.get(rank.index()).is_some_and(|place| place.node == node)
    }

    /// Cancels the outstanding commands of the process and of the controller.
    pub(crate) fn end(&mut self, shared: &mut Shared<'_, '_>) {
        for command in self.take_held() {
            shared.complete(&command, Status::Cancelled, [0; 4]);
        }
    }

    /// Takes the outstanding commands of the process and of the controller.
    pub(crate) fn take_held(&mut self) -> impl Iterator<Item = Command> + use<> {
        [self.waiter.take(), self.stopper.take()].into_iter().flatten()
    }

    /// Removes a closed port from the context.
    pub(crate) fn on_port_closed(&mut self, port: PortId) {
        self.waiter.take_if(|command| command.region.port == port);
        self.user.take_if(|user| *user == port);
    }
}

/// The parts of the extension's state that an endpoint's handlers use.
pub(crate) struct Shared<'a, 'b> {
    pub(crate) nic: &'a mut Context<'b>,
    pub(crate) counters: &'a mut GangCounters,
    /// Frames to ranks on the same node, which bypass the link, and their payloads.
    pub(crate) local: &'a mut VecDeque<(PmFrame, Vec<u8>)>,
}

impl Shared<'_, '_> {
    pub(crate) fn complete(&mut self, command: &Command, status: Status, args: [u64; 4]) {
        let completion = Completion { args, ..Completion::of(command, status) };
        self.nic.complete(command.region.port, &completion);
    }
}
