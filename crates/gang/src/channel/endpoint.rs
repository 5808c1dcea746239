//! The NIC's side of a context: one rank's FIFOs, and what it and its peers owe each other.

mod desk;
mod keeping;
mod receiving;
mod sending;

use std::collections::BTreeMap;

use midplane_nicvm::context::Context;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::ack::{Inbound, Outbound, RoundTrip, Taken};
use super::command::{OpenRequest, WANTS_ROOM};
use super::frame::{Body, PmFrame};
use super::geometry::{Geometry, RECORD_BYTES, Record};
use crate::names::{ChannelId, Epoch, JobId, Place, Rank};

pub(crate) use desk::{Desk, Local};
use receiving::Receiving;
use sending::Sending;

/// Instructions that a message, or an answer, takes beside the unit's own.
const MESSAGE_INSTRUCTIONS: u64 = 30;

/// What a context does.
///
/// Parked --start--> Running --stop--> Stopping --steady--> Parked --forget--> Empty --restore--> Parked
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// The NIC knows nothing of it: it is saved elsewhere, or not begun.
    Empty,
    /// Steady: transmits and takes nothing.
    Parked,
    /// Transmits and takes.
    Running,
    /// Transmits nothing new and takes nothing, and waits for answers.
    Stopping,
}

#[derive(Debug, Default)]
struct Peer {
    out: Outbound,
    into: Inbound,
    /// An answer that waits for more to stand for goes then.
    answer_at: Option<Instant>,
}

impl Peer {
    /// Whether anything of it is to be kept.
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
    places: Vec<Place>,
    geometry: Geometry,
    memory: RegionRef,
    sending: Sending,
    receiving: Receiving,
    peers: BTreeMap<Rank, Peer>,
    /// Whom something was sent to last.
    last_served: Rank,
    /// What was given to the line has left it then.
    line_until: Instant,
    /// With back-pressure alone: the last message, until it has left its memory, and whether it waits.
    on_wire: Option<(Rank, Taken)>,
    is_queued: bool,
    /// Where the extension keeps it.
    handle: u64,
    /// The line has room for more then.
    pump_at: Option<Instant>,
    /// How long answers took before the context was last saved.
    round_trips: BTreeMap<Rank, RoundTrip>,
    /// Who was turned away for this context had not begun yet, in which epoch and round.
    early: BTreeMap<Rank, (Epoch, u16)>,
    /// It was started, and has not begun: that is for the turn after its controller's.
    is_new: bool,
    /// The process waits for news.
    waiter: Option<Command>,
    /// The controller waits for steadiness.
    stopper: Option<Command>,
    /// The process's records make no sense: nothing more of it is sent.
    is_broken: bool,
}

impl Endpoint {
    /// A context as it is opened; `None` if the request contradicts itself.
    pub(crate) fn new(controller: PortId, handle: u64, request: OpenRequest) -> Option<Self> {
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
            on_wire: None,
            is_queued: false,
            handle,
            pump_at: None,
            round_trips: BTreeMap::new(),
            early: BTreeMap::new(),
            is_new: false,
            waiter: None,
            stopper: None,
            is_broken: false,
        })
    }

    pub(crate) const fn memory(&self) -> RegionRef {
        self.memory
    }

    pub(crate) const fn message_bytes(&self) -> u32 {
        self.geometry.message
    }

    /// What a completion tells the process: freed, received.
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

    /// Takes note of what the process has put in and taken out.
    pub(crate) fn look(&mut self, desk: &mut Desk<'_, '_>) {
        // Its FIFOs may be another's: a process that was stopped may have rung before.
        if self.phase == Phase::Empty {
            return;
        }
        self.look_consumed(desk.nic);
        self.look_sent(desk.nic);
        self.offer_room(desk);
    }

    /// A frame has come from the node that its rank is on.
    pub(crate) fn on_frame(
        &mut self,
        desk: &mut Desk<'_, '_>,
        frame: &PmFrame,
        payload: Payload<'_>,
    ) {
        if frame.epoch != self.epoch || self.phase == Phase::Empty {
            desk.counters.stale += 1;
            let early = frame.epoch.is_newer_than(self.epoch) || self.phase == Phase::Empty;
            if early {
                self.turn_away(desk, frame);
            }
            return;
        }
        match frame.body {
            Body::Message { round, sequence, taken } => {
                if let Some(taken) = taken {
                    self.on_answer(desk, frame.from, taken.answer());
                }
                self.on_message(desk, frame.from, (round, sequence), payload);
            }
            Body::Fence { round, sequence } => {
                let peer = self.peers.entry(frame.from).or_default();
                if peer.into.on_fence(round, sequence) {
                    self.answer(desk, frame.from);
                }
            }
            Body::Answer(answer) => self.on_answer(desk, frame.from, answer),
        }
    }

    /// Completes what the process and the controller wait for, if it has come.
    fn tell(&mut self, desk: &mut Desk<'_, '_>) {
        let news = self.news();
        let is_news = |waiter: &mut Command| {
            news[1] != waiter.args[2] || waiter.flags & WANTS_ROOM != 0 && news[0] != waiter.args[1]
        };
        if let Some(waiter) = self.waiter.take_if(is_news) {
            desk.complete(&waiter, Status::Done, news);
        }
    }

    fn settle(&mut self, desk: &mut Desk<'_, '_>) {
        if self.phase == Phase::Stopping && self.peers.values().all(|peer| peer.out.is_steady()) {
            self.phase = Phase::Parked;
            if let Some(command) = self.stopper.take() {
                desk.complete(&command, Status::Done, self.news());
            }
        }
    }

    /// The process waits for news.
    pub(crate) fn wait(&mut self, desk: &mut Desk<'_, '_>, command: Command) {
        self.look(desk);
        if let Some(old) = self.waiter.replace(command) {
            desk.complete(&old, Status::Done, self.news());
        }
        self.tell(desk);
    }

    /// The process has done something.
    pub(crate) fn on_look(&mut self, desk: &mut Desk<'_, '_>, command: &Command) {
        self.look(desk);
        let status = if self.is_broken { Status::Invalid } else { Status::Done };
        desk.complete(command, status, self.news());
    }

    /// Transmits and takes nothing from now on.
    pub(crate) fn stop(&mut self, desk: &mut Desk<'_, '_>, command: Command) {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            desk.complete(&command, Status::Done, self.news());
            return;
        }
        // What the process has put in and not yet told of is part of the context.
        self.look(desk);
        self.phase = Phase::Stopping;
        self.stopper = Some(command);
        let owed: Vec<Rank> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.into.unanswered() > 0)
            .map(|(rank, _)| *rank)
            .collect();
        for rank in owed {
            self.answer(desk, rank);
        }
    }

    /// Goes on in an epoch: `false` if it is not parked, or the epoch is not a later one. What waits in its FIFO leaves
    /// in a later turn, at once: whoever starts it, and others after it, does not wait for that.
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

    /// Before anything else happens to it after its start: takes note of what the process has put in, and calls those
    /// who came too early.
    pub(crate) fn begin(&mut self, desk: &mut Desk<'_, '_>) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        self.look(desk);
        for (rank, (epoch, round)) in std::mem::take(&mut self.early) {
            if epoch == self.epoch {
                self.peers.entry(rank).or_default().into.on_greeting(round);
                self.answer(desk, rank);
            }
        }
    }

    /// Instants have come.
    pub(crate) fn on_timeout(&mut self, desk: &mut Desk<'_, '_>) {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            return;
        }
        let now = desk.nic.now();
        let stopped = self.phase == Phase::Stopping;
        self.begin(desk);
        let mut due = Vec::new();
        for (rank, peer) in &mut self.peers {
            let steady = peer.out.is_steady();
            peer.out.on_timeout(now);
            desk.counters.missed += u64::from(steady != peer.out.is_steady() && !stopped);
            if peer.answer_at.is_some_and(|at| at <= now) {
                due.push(*rank);
            }
        }
        for rank in due {
            self.answer(desk, rank);
        }
    }

    /// When the next instant comes.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            return None;
        }
        if self.is_new {
            return Some(Instant::ZERO);
        }
        let stopped = self.phase == Phase::Stopping;
        let peers = self.peers.values();
        let instants = peers.flat_map(|peer| [peer.out.next_timeout(stopped), peer.answer_at]);
        instants.chain([self.pump_at]).flatten().min()
    }

    /// Whether frames of a rank may come from a node.
    pub(crate) fn admits(&self, rank: Rank, node: NodeId) -> bool {
        self.places.get(rank.index()).is_some_and(|place| place.node == node)
    }

    /// Commands that will never be completed otherwise.
    pub(crate) fn end(&mut self, desk: &mut Desk<'_, '_>) {
        for command in [self.waiter.take(), self.stopper.take()].into_iter().flatten() {
            desk.complete(&command, Status::Cancelled, [0; 4]);
        }
    }

    /// A port is gone.
    pub(crate) fn on_port_closed(&mut self, port: PortId) {
        self.waiter.take_if(|command| command.region.port == port);
        self.user.take_if(|user| *user == port);
    }
}
