//! The NIC's side of a context: one rank's FIFOs, and what it and its peers owe each other.

mod keeping;

use std::collections::{BTreeMap, VecDeque};

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{Lane, Packet};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::ack::{Answer, Inbound, Outbound, Reception, Transmission};
use super::command::{OpenRequest, WANTS_ROOM};
use super::config::{GangConfig, GangCounters};
use super::frame::{Body, Fields, PmFrame};
use super::geometry::{ByteRing, CONSUMED, Geometry, RECORD_BYTES, Record, SENT};
use crate::names::{ChannelId, Epoch, JobId, Place, Rank};

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

#[derive(Debug)]
struct Sending {
    /// Messages ever put in by the process, as far as was looked.
    tail: u64,
    /// The first whose room is not free.
    freed: u64,
    /// From `freed` on, and whether each is taken.
    records: VecDeque<(Record, bool)>,
}

#[derive(Debug, Default)]
struct Receiving {
    tail: u64,
    /// Messages ever consumed by the process, as far as was looked.
    head: u64,
    ring: ByteRing,
    positions: VecDeque<u64>,
}

/// A frame to a rank of the same node, which never sees the wire.
pub(crate) struct Local {
    pub(crate) frame: PmFrame,
    pub(crate) bytes: Vec<u8>,
}

/// What handlers of an endpoint are lent beside it.
pub(crate) struct Desk<'a, 'b> {
    pub(crate) nic: &'a mut Context<'b>,
    pub(crate) config: &'a GangConfig,
    pub(crate) counters: &'a mut GangCounters,
    pub(crate) local: &'a mut VecDeque<Local>,
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
    /// The process waits for news.
    waiter: Option<Command>,
    /// The controller waits for steadiness.
    stopper: Option<Command>,
    /// The process's records make no sense: nothing more of it is sent.
    is_broken: bool,
}

impl Endpoint {
    /// A context as it is opened; `None` if the request contradicts itself.
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
            sending: Sending { tail: 0, freed: 0, records: VecDeque::new() },
            receiving: Receiving::default(),
            peers: BTreeMap::new(),
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

    fn look_sent(&mut self, nic: &Context<'_>) {
        let Some(sent) = self.word(nic, SENT).filter(|_| !self.is_broken) else { return };
        let room = u64::from(self.geometry.send.messages);
        if sent.wrapping_sub(self.sending.freed) > room || sent < self.sending.tail {
            self.is_broken = true;
            return;
        }
        while self.sending.tail < sent {
            let number = self.sending.tail;
            let record = self.record(nic, self.geometry.send_record(number));
            let Some(record) = record.filter(|record| self.is_sendable(record)) else {
                self.is_broken = true;
                return;
            };
            self.sending.records.push_back((record, false));
            self.sending.tail += 1;
            self.peers.entry(record.peer).or_default().out.push(number);
        }
    }

    fn is_sendable(&self, record: &Record) -> bool {
        let size = u64::from(self.geometry.send.bytes);
        record.length <= self.geometry.message
            && record.position % size + u64::from(record.length) <= size
            && record.peer.index() < self.places.len()
    }

    fn look_consumed(&mut self, nic: &Context<'_>) {
        let Some(consumed) = self.word(nic, CONSUMED) else { return };
        let receiving = &mut self.receiving;
        if consumed < receiving.head || consumed > receiving.tail {
            self.is_broken = true;
            return;
        }
        receiving.positions.drain(..(consumed - receiving.head) as usize);
        receiving.head = consumed;
        receiving.ring.release(receiving.positions.front().copied());
    }

    /// Where a message of `length` bytes would be received.
    fn room(&self, length: u32) -> Option<u64> {
        let size = self.geometry.receive;
        let held = self.receiving.tail - self.receiving.head;
        let place = self.receiving.ring.place(size.bytes, length);
        place.filter(|_| held < u64::from(size.messages))
    }

    /// Tells those who were refused that there is room.
    fn offer_room(&mut self, desk: &mut Desk<'_, '_>) {
        if self.phase != Phase::Running || self.room(self.geometry.message.min(64)).is_none() {
            return;
        }
        let mut wanting = Vec::new();
        for (rank, peer) in &mut self.peers {
            if peer.into.take_room_wanted() {
                wanting.push(*rank);
            }
        }
        for rank in wanting {
            self.answer(desk, rank);
        }
    }

    /// Transmits what may be.
    pub(crate) fn pump(&mut self, desk: &mut Desk<'_, '_>) {
        let stopped = match self.phase {
            Phase::Running => false,
            Phase::Stopping => true,
            Phase::Parked | Phase::Empty => return,
        };
        let now = desk.nic.now();
        let mut ranks: VecDeque<Rank> = self.peers.keys().copied().collect();
        while let Some(rank) = ranks.pop_front() {
            let Some(peer) = self.peers.get_mut(&rank) else { continue };
            let (patience, window) = (&desk.config.patience, desk.config.window);
            let Some(next) = peer.out.poll_transmit(now, patience, window, stopped) else {
                continue;
            };
            self.transmit(desk, rank, next);
            ranks.push_back(rank);
        }
        self.settle(desk);
    }

    fn transmit(&self, desk: &mut Desk<'_, '_>, to: Rank, next: Transmission) {
        match next {
            Transmission::Message { round, sequence, slot } => {
                desk.counters.transmitted += 1;
                let at = (slot - self.sending.freed) as usize;
                let record = self.sending.records.get(at).map(|(record, _)| *record);
                let record = record.expect("what waits is in the buffer");
                let offset = self.geometry.send_byte(record.position) as u32;
                let part = self.memory.part(offset, record.length);
                self.send(desk, to, Body::Message { round, sequence }, part);
            }
            Transmission::Fence { round, sequence } => {
                desk.counters.fences += 1;
                self.send(desk, to, Body::Fence { round, sequence }, None);
            }
        }
    }

    fn send(&self, desk: &mut Desk<'_, '_>, to: Rank, body: Body, bytes: Option<RegionRef>) {
        desk.nic.charge(MESSAGE_INSTRUCTIONS);
        let Some(place) = self.places.get(to.index()) else { return };
        let Self { job, epoch, .. } = *self;
        let frame = PmFrame { channel: place.channel, job, epoch, from: self.rank, to, body };
        if place.node == desk.nic.node() {
            let read = bytes.and_then(|bytes| desk.nic.read(bytes).ok());
            let bytes = read.map(|payload| payload.to_vec()).unwrap_or_default();
            desk.local.push_back(Local { frame, bytes });
            return;
        }
        let Fields { flags, sequence, acknowledgement, words } = frame.fields();
        let source = bytes.map_or(Source::Bytes(Payload::EMPTY), Source::Region);
        let packet = Packet {
            lane: Lane(self.channel.0),
            port: PortId(place.channel.0),
            flags,
            sequence,
            acknowledgement,
            words,
            source,
            ..Packet::to(place.node)
        };
        // Memory that is gone loses its message: the controller has closed it under its process.
        let _ = desk.nic.send_packet(&packet);
    }

    fn answer(&mut self, desk: &mut Desk<'_, '_>, to: Rank) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.answer_at = None;
        if let Some(answer) = peer.into.answer() {
            desk.counters.answers += 1;
            self.send(desk, to, Body::Answer(answer), None);
        }
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
            Body::Message { round, sequence } => {
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

    /// Tells the sender that this rank has not begun, or not begun again.
    fn turn_away(&self, desk: &mut Desk<'_, '_>, frame: &PmFrame) {
        let (round, seen) = match frame.body {
            Body::Message { round, sequence } => (round, sequence.wrapping_add(1)),
            Body::Fence { round, sequence } => (round, sequence),
            Body::Answer(_) => return,
        };
        desk.counters.refused += 1;
        let answer = Answer { round, expected: None, seen, refused: true };
        let away = Self::absent(frame, answer);
        desk.local_or_send(&self.places, self.channel, &away);
    }

    /// The answer to a frame whose context is not there.
    fn absent(frame: &PmFrame, answer: Answer) -> PmFrame {
        PmFrame { from: frame.to, to: frame.from, body: Body::Answer(answer), ..*frame }
    }

    fn on_message(
        &mut self,
        desk: &mut Desk<'_, '_>,
        from: Rank,
        (round, sequence): (u16, u32),
        payload: Payload<'_>,
    ) {
        desk.nic.charge(MESSAGE_INSTRUCTIONS);
        let length = payload.len() as u32;
        let mut place = self.room(length);
        if place.is_none() {
            self.look_consumed(desk.nic);
            place = self.room(length);
        }
        let place = place.filter(|_| self.phase == Phase::Running);
        let now = desk.nic.now();
        let peer = self.peers.entry(from).or_default();
        match peer.into.on_message(round, sequence, place.is_some()) {
            Reception::Drop => {
                desk.counters.stale += 1;
                return;
            }
            Reception::Answer => {
                desk.counters.refused += 1;
                self.answer(desk, from);
                return;
            }
            Reception::Take => {}
        }
        if peer.into.unanswered() >= desk.config.merge {
            self.answer(desk, from);
        } else {
            let at = now + desk.config.merge_for;
            peer.answer_at.get_or_insert(at);
        }
        let position = place.expect("only what has room is taken");
        desk.counters.taken += 1;
        self.store(desk, Record { peer: from, length, position }, payload);
        self.tell(desk);
    }

    fn store(&mut self, desk: &mut Desk<'_, '_>, record: Record, payload: Payload<'_>) {
        let receiving = &mut self.receiving;
        receiving.ring.take(record.position, record.length);
        receiving.positions.push_back(record.position);
        let number = receiving.tail;
        receiving.tail += 1;
        let emitted = record.emit();
        let writes = [
            (self.geometry.receive_byte(record.position), payload),
            (self.geometry.receive_record(number), Payload::from(&emitted[..])),
        ];
        for (offset, bytes) in writes {
            if let Some(part) = self.memory.part(offset as u32, bytes.len() as u32) {
                // Memory that is gone: nobody will look at it.
                let _ = desk.nic.write(part, bytes);
            }
        }
    }

    fn on_answer(&mut self, desk: &mut Desk<'_, '_>, from: Rank, answer: Answer) {
        let now = desk.nic.now();
        let Some(peer) = self.peers.get_mut(&from) else {
            desk.counters.foreign += 1;
            return;
        };
        let mut freed = Vec::new();
        if !peer.out.on_answer(now, &desk.config.patience, answer, &mut freed) {
            desk.counters.foreign += 1;
            return;
        }
        if !answer.refused {
            peer.out.on_room();
        }
        let sending = &mut self.sending;
        for number in freed {
            if let Some((_, taken)) = sending.records.get_mut((number - sending.freed) as usize) {
                *taken = true;
            }
        }
        let before = sending.freed;
        while sending.records.front().is_some_and(|(_, taken)| *taken) {
            sending.records.pop_front();
            sending.freed += 1;
        }
        if sending.freed != before {
            self.tell(desk);
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

    /// Goes on in an epoch: `false` if it is not parked, or the epoch is not a later one.
    pub(crate) fn start(&mut self, epoch: Epoch) -> bool {
        if self.phase != Phase::Parked || !epoch.is_newer_than(self.epoch) {
            return false;
        }
        self.epoch = epoch;
        self.phase = Phase::Running;
        for peer in self.peers.values_mut() {
            peer.out = Outbound::resumed(peer.out.acked(), peer.out.waiting().collect());
            peer.into = Inbound::resumed(peer.into.expected());
            peer.answer_at = None;
        }
        true
    }

    /// Instants have come.
    pub(crate) fn on_timeout(&mut self, desk: &mut Desk<'_, '_>) {
        if matches!(self.phase, Phase::Parked | Phase::Empty) {
            return;
        }
        let now = desk.nic.now();
        let stopped = self.phase == Phase::Stopping;
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
        let stopped = self.phase == Phase::Stopping;
        let instants = self.peers.values();
        instants.flat_map(|peer| [peer.out.next_timeout(stopped), peer.answer_at]).flatten().min()
    }

    /// Whether frames of a rank may come from a node.
    pub(crate) fn admits(&self, rank: Rank, node: midplane_simhw::id::NodeId) -> bool {
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

impl Desk<'_, '_> {
    pub(crate) fn complete(&mut self, command: &Command, status: Status, args: [u64; 4]) {
        let completion = Completion {
            status,
            opcode: command.opcode,
            flags: command.flags,
            node: command.node,
            port: command.port,
            cookie: command.cookie,
            length: 0,
            args,
        };
        self.nic.complete(command.region.port, &completion);
    }

    /// Sends a frame without bytes to where its rank is.
    fn local_or_send(&mut self, places: &[Place], lane: ChannelId, frame: &PmFrame) {
        let Some(place) = places.get(frame.to.index()) else { return };
        let frame = PmFrame { channel: place.channel, ..*frame };
        if place.node == self.nic.node() {
            self.local.push_back(Local { frame, bytes: Vec::new() });
            return;
        }
        let Fields { flags, sequence, acknowledgement, words } = frame.fields();
        let packet = Packet {
            lane: Lane(lane.0),
            port: PortId(place.channel.0),
            flags,
            sequence,
            acknowledgement,
            words,
            ..Packet::to(place.node)
        };
        // A frame without bytes is always taken.
        let _ = self.nic.send_packet(&packet);
    }
}
