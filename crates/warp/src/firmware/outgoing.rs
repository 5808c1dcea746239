//! The sender's side of one path: stamps and paces the frames to one destination.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::coordination::LeadTrim;
use midplane_nicvm::messages;
use midplane_nicvm::transmit::{Packet, Sending, Sent};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::listeners::Listeners;
use super::sources::Sources;
use super::ticks::TICK_NS;
use super::{ANEW, BROADCAST, PAID, PROBE, RIDER, WarpConfig};
use crate::feedback::FEEDBACK_BYTES;
use crate::gate::{Gate, GateKeeper};
use crate::stamp::Encoder;

/// A message with bytes that have not left yet.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    command: Command,
    /// Its number among all messages that have begun; meaningless before it has begun.
    number: u32,
    offset: u32,
}

impl Outgoing {
    const fn owner(&self) -> PortId {
        self.command.region.port
    }
}

/// A frame that waits in the scheduler, with its message's state from before the frame.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    message: Outgoing,
    is_last: bool,
}

/// The path to one destination: a node, or a broadcast.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) node: NodeId,
    pub(super) law: Listeners,
    config: WarpConfig,
    encoder: Encoder,
    keeper: GateKeeper,
    gate: Gate,
    queue: VecDeque<Outgoing>,
    /// True if a message behind the front of the queue may have begun, because a process was
    /// suspended.
    is_mixed: bool,
    messages: u32,
    /// The frame that waits in the scheduler; the next one is stamped when it has left.
    waiting: Option<Waiting>,
    /// The open ports that have sent to this destination.
    users: BTreeSet<PortId>,
    /// True while the processes of all `users` are suspended, so that missing feedback means
    /// nothing.
    is_paused: bool,
    /// True if the next stamp must not be compared with earlier ones.
    is_anew: bool,
    /// Completions of suspended processes, reported when they resume.
    unreported: Vec<(Command, Status)>,
    /// When the last frame of a message left.
    sent_at: Option<Instant>,
    steered: f64,
    /// When the next probe is due, if frames of other extensions are paced: those carry no stamps.
    probe_at: Option<Instant>,
    /// The shared value that shortens the lead of tokens for this path.
    trim: Option<LeadTrim>,
}

/// The share of a measured queue by which each feedback shortens the lead that caused it ...
const TRIM_GAIN: f64 = 0.25;
/// ... and the share of the trim that each feedback removes if there is no queue.
const UNTRIM: f64 = 0.02;

/// Bytes of a datagram that fit into one Ethernet frame, and bytes of its headers in the first.
const PIECE: u32 = 1_480;
const HEADERS: u32 = 60;
/// Encoded feedback that is piggybacked on a message.
type Rider = [u8; FEEDBACK_BYTES];
/// The longest payload of a frame with piggybacked feedback: it stays one Ethernet frame.
const RIDDEN: usize = (PIECE - HEADERS) as usize;
/// Spans without a message after which feedback no longer waits for one.
const USED_SPANS: u32 = 16;
/// Probes take at most one part in this many of the rate, so that they do not cause congestion.
const PROBE_PARTS: f64 = 8.0;
/// The most Ethernet frames in one frame of ours, since other traffic waits that long.
const MAX_PIECES: f64 = 4.0;

/// Returns the longest payload of a frame: as many whole Ethernet frames as the backlog has room
/// for.
fn frame_payload(config: &WarpConfig) -> u32 {
    let pieces = (config.backlog / f64::from(PIECE)).floor().clamp(1.0, MAX_PIECES) as u32;
    pieces * PIECE - HEADERS
}

/// Returns about the bytes that such a frame takes on an Ethernet.
fn full_frame(config: &WarpConfig) -> u64 {
    u64::from(frame_payload(config)) * 21 / 20 + 64
}

impl Path {
    pub(super) fn new(node: NodeId, config: &WarpConfig) -> (Self, Gate) {
        let control = config.control(full_frame(config));
        let law = match node {
            NodeId::BROADCAST => Listeners::new(&config.destinations, control, Instant::ZERO),
            node => Listeners::new(&[node], control, Instant::ZERO),
        };
        let (keeper, gate) = GateKeeper::new(config.depth(full_frame(config)));
        // All senders start at once, each with credit for one frame.
        let spare = config.depth(full_frame(config)) - full_frame(config);
        let _ = gate.c_send(spare as u32, || ());
        let path = Self {
            node,
            law,
            config: config.clone(),
            encoder: Encoder::default(),
            keeper,
            gate: gate.clone(),
            queue: VecDeque::new(),
            is_mixed: false,
            messages: 0,
            waiting: None,
            users: BTreeSet::new(),
            is_paused: false,
            is_anew: false,
            unreported: Vec::new(),
            sent_at: None,
            steered: 0.0,
            probe_at: config.paces_others.then_some(Instant::ZERO),
            trim: config.trim_to(node),
        };
        (path, gate)
    }

    /// Starts the controllers when the NIC runs: the size of its frames and its time are known
    /// then.
    pub(super) fn begin(&mut self, nic: &Context<'_>) {
        let frame = wire_bytes(nic, frame_payload(&self.config) as usize);
        let control = self.config.control(u64::from(frame));
        self.law = Listeners::new(&self.law.nodes(), control, nic.now());
    }

    /// Adds a message. If the path was paused and the message's process runs, the path resumes.
    pub(super) fn enqueue(&mut self, nic: &Context<'_>, command: Command) {
        self.users.insert(command.region.port);
        if !nic.is_suspended(command.region.port) {
            self.resume(nic.now(), Duration::ZERO);
        }
        self.is_mixed &= !self.queue.is_empty() || self.waiting.is_some();
        self.queue.push_back(Outgoing { command, number: 0, offset: 0 });
    }

    /// Returns the index of the next message to send: the one that has begun, if there is one.
    /// Skips those of suspended processes.
    fn next_up(&self, nic: &Context<'_>) -> Option<usize> {
        let moves = |at: &usize| !nic.is_suspended(self.queue[*at].owner());
        if !self.is_mixed && !self.queue.is_empty() && moves(&0) {
            return Some(0);
        }
        let mut moving = (0..self.queue.len()).filter(moves);
        moving.clone().find(|at| self.queue[*at].offset > 0).or_else(|| moving.next())
    }

    /// Sends as much as the gate allows.
    pub(super) fn pump(&mut self, nic: &mut Context<'_>, token: u64, sources: &mut Sources) {
        let now = nic.now();
        self.keeper.add_credit(now, self.law.rate(now));
        let queue = self.law.state(now).map_or(Duration::ZERO, |state| state.queue_delay);
        self.keeper.set_queue_delay(queue);
        if self.probe_at.is_some_and(|at| now >= at) {
            self.probe(nic);
        }
        while self.waiting.is_none() {
            let Some(at) = self.next_up(nic) else { break };
            let length = self.frame_length(nic, &self.queue[at]);
            let cost = wire_bytes(nic, length as usize);
            let is_paid = self.queue[at].command.flags & PAID != 0;
            if !is_paid && !self.gate.c_send(cost, || ()).is_sent() {
                break;
            }
            let rider = self.rider(nic, length, sources);
            self.send(nic, at, length, token, rider);
        }
    }

    /// Returns feedback to piggyback on the next frame, if that has room for it.
    fn rider(&self, nic: &Context<'_>, length: u32, sources: &mut Sources) -> Option<Rider> {
        let has_room =
            length as usize + FEEDBACK_BYTES <= RIDDEN.min(payload_bytes(nic, self.node) as usize);
        has_room.then(|| sources.ride(self.node, nic.now())).flatten()
    }

    /// Returns true if messages have left within the last 16 spans: feedback may then be
    /// piggybacked on the next.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        self.sent_at.is_some_and(|at| now.since(at) < self.config.span * USED_SPANS)
    }

    /// Adjusts the lead of tokens by the measured queue: if a token's next holder finds a queue
    /// before the link, the token was released too early.
    pub(super) fn adapt_lead(&self, nic: &Context<'_>) {
        let (Some(trim), Some(known)) = (&self.trim, self.law.state(nic.now())) else { return };
        // One frame of this sender itself is not a queue.
        let own = nic.frame_nanos(frame_payload(&self.config) as usize) as f64;
        let excess = known.queue_delay.as_nanos() as f64 - own;
        let last = trim.get().as_nanos() as f64;
        let next = if excess > 0.0 { last + TRIM_GAIN * excess } else { last * (1.0 - UNTRIM) };
        trim.set(Duration::from_nanos(next.min(1e9) as u64));
    }

    /// Returns when to call `pump` again, unless another event comes first.
    pub(super) fn poll_pace(&self, nic: &Context<'_>) -> Option<Instant> {
        let now = nic.now();
        let next = self.next_up(nic).filter(|_| self.waiting.is_none());
        // With nothing to send, the gate still needs credit for applications that ask it.
        let length = next.map_or_else(
            || frame_payload(&self.config),
            |at| self.frame_length(nic, &self.queue[at]),
        );
        let cost = wire_bytes(nic, length as usize);
        let add_credit = self.keeper.poll_timeout(now, self.law.rate(now), cost);
        [add_credit, self.probe_at].into_iter().flatten().min()
    }

    /// Returns true if the admission needs the new rate: it differs by more than 1 % from the last
    /// one.
    pub(super) fn has_new_rate(&mut self, rate: f64) -> bool {
        let is_new = self.config.paces_others && (rate / self.steered - 1.0).abs() > 0.01;
        if is_new {
            self.steered = rate;
        }
        is_new
    }

    /// Handles the end of the frame that waited in the scheduler: it was sent, failed or was
    /// withdrawn.
    pub(super) fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        let Some(Waiting { message, is_last }) = self.waiting.take() else { return };
        if sent.status == Status::Cancelled {
            // Its process is suspended; the frame gets a new stamp when the process resumes.
            self.put_back(message, is_last);
        } else if is_last {
            self.report(nic, message.command, sent.status);
        }
    }

    /// Restores a message to its state from before a withdrawn frame.
    fn put_back(&mut self, message: Outgoing, is_last: bool) {
        self.is_mixed = true;
        let is_it = |it: &&mut Outgoing| it.offset > 0 && it.number == message.number;
        match self.queue.iter_mut().find(is_it) {
            Some(begun) => begun.offset = message.offset,
            None if is_last => self.queue.push_front(message),
            // The port of the message is closed.
            None => {}
        }
    }

    /// Completes a message, or keeps the completion until its suspended process resumes.
    fn report(&mut self, nic: &mut Context<'_>, command: Command, status: Status) {
        if nic.is_suspended(command.region.port) {
            self.unreported.push((command, status));
        } else {
            complete(nic, &command, status);
        }
    }

    /// Handles the suspension of a process. If it was the last sender on this path, missing
    /// feedback is no sign of loss.
    pub(super) fn on_port_suspended(&mut self, nic: &Context<'_>) {
        self.is_mixed = true;
        self.pause_if_suspended(nic);
    }

    /// Pauses the path if the processes of all its users are suspended.
    fn pause_if_suspended(&mut self, nic: &Context<'_>) {
        let is_stopped = |port: &PortId| nic.is_suspended(*port);
        let is_probed = self.probe_at.is_some();
        if !self.users.is_empty()
            && !is_probed
            && self.users.iter().all(is_stopped)
            && !self.is_paused
        {
            self.is_paused = true;
            self.law.pause();
        }
    }

    /// Resumes the path if it is paused, without comparing new stamps with old ones.
    fn resume(&mut self, now: Instant, suspended: Duration) {
        if std::mem::take(&mut self.is_paused) {
            self.law.resume(now, suspended);
            self.is_anew = true;
        }
    }

    /// Handles the resumption of a process: reports its completions, and resumes the path at its
    /// former rate, without comparing new stamps with old ones.
    pub(super) fn on_port_resumed(
        &mut self,
        nic: &mut Context<'_>,
        port: PortId,
        suspended: Duration,
    ) {
        let (reported, unreported) = self
            .unreported
            .iter()
            .partition::<Vec<_>, _>(|(command, _)| command.region.port == port);
        self.unreported = unreported;
        reported.into_iter().for_each(|(command, status)| complete(nic, &command, status));
        if self.users.contains(&port) {
            self.resume(nic.now(), suspended);
        }
    }

    /// Discards the messages of a closed port, whose memory is no longer registered.
    pub(super) fn on_port_closed(&mut self, nic: &Context<'_>, port: PortId) {
        self.users.remove(&port);
        if self.users.is_empty() {
            self.resume(nic.now(), Duration::ZERO);
        }
        self.pause_if_suspended(nic);
        self.queue.retain(|message| message.owner() != port);
        self.unreported.retain(|(command, _)| command.region.port != port);
        if let Some(waiting) = self.waiting.as_mut().filter(|it| it.message.owner() == port) {
            waiting.is_last = false;
        }
    }

    /// Returns the commands that are not completed.
    pub(super) fn take_commands(&mut self) -> impl Iterator<Item = Command> + '_ {
        let waiting = self.waiting.take().filter(|waiting| waiting.is_last);
        let waiting = waiting.map(|waiting| waiting.message.command);
        let unreported = self.unreported.drain(..).map(|(command, _)| command);
        let queued = self.queue.drain(..).map(|message| message.command);
        waiting.into_iter().chain(unreported).chain(queued)
    }

    /// Completes all waiting messages as unsent.
    pub(super) fn end(&mut self, nic: &mut Context<'_>) {
        for (command, status) in self.unreported.drain(..) {
            complete(nic, &command, status);
        }
        for command in self.take_commands() {
            complete(nic, &command, Status::ExtensionDown);
        }
    }

    /// Returns the flags of all frames of this path. Broadcast stamps have sequence numbers of
    /// their own.
    fn flags(&self) -> u8 {
        if self.node == NodeId::BROADCAST { BROADCAST } else { 0 }
    }

    /// Sends an empty frame that only carries a stamp.
    fn probe(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        let bytes = f64::from(wire_bytes(nic, 0)) * PROBE_PARTS;
        let rare = Duration::from_secs_f64(bytes / self.law.rate(now).max(1.0));
        self.probe_at = Some(now + self.config.span.max(rare));
        let stamp = self.encoder.stamp(now);
        let packet = Packet {
            flags: PROBE | self.flags(),
            sequence: stamp.sequence as u32,
            acknowledgement: (stamp.sent.as_nanos() / TICK_NS) as u32,
            ..Packet::to(self.node)
        };
        // An empty frame is never too long.
        if nic.send_packet(&packet).is_ok() {
            self.law.on_sent(now, wire_bytes(nic, 0) as usize);
        }
    }

    fn frame_length(&self, nic: &Context<'_>, waiting: &Outgoing) -> u32 {
        let most = payload_bytes(nic, self.node).min(frame_payload(&self.config));
        (waiting.command.region.length - waiting.offset).min(most)
    }

    /// Begins a message. Messages to the same port that began before, and whose processes are
    /// suspended, start over after it: per sending node and port, the receiver takes one message at
    /// a time and none that is older.
    fn begin_message(&mut self, at: usize) {
        self.is_mixed |= at > 0;
        if self.is_mixed {
            let port = self.queue[at].command.port;
            for passed in self.queue.iter_mut().filter(|passed| passed.command.port == port) {
                passed.offset = 0;
            }
        }
        self.queue[at].number = self.messages;
        self.messages = self.messages.wrapping_add(1);
    }

    fn send(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        length: u32,
        token: u64,
        rider: Option<Rider>,
    ) {
        if self.queue[at].offset == 0 {
            self.begin_message(at);
        }
        let front = self.queue[at];
        let command = front.command;
        let stamp = self.encoder.stamp(nic.now());
        let is_last = front.offset + length >= command.region.length;
        let part = command.region.part(front.offset, length);
        let words = [
            u64::from(front.number) | u64::from(front.offset) << 32,
            u64::from(command.region.length) | command.args[0] << 32,
        ];
        let mut ridden = [0; RIDDEN];
        let source = match (part, &rider) {
            (Some(part), Some(rider)) => load(nic, part, rider, &mut ridden),
            (part, _) => part.map(Source::Region),
        };
        let rider_flag = if rider.is_some() { RIDER } else { 0 };
        let anew_flag = if std::mem::take(&mut self.is_anew) { ANEW } else { 0 };
        let packet = source.map(|source| Packet {
            port: command.port,
            flags: self.flags() | rider_flag | anew_flag,
            sequence: stamp.sequence as u32,
            acknowledgement: (stamp.sent.as_nanos() / TICK_NS) as u32,
            words,
            source,
            token: Some(token),
            ..Packet::to(self.node)
        });
        let outcome = packet.map(|packet| nic.send_packet(&packet));
        let Some(Ok(sending)) = outcome else {
            self.queue.remove(at);
            return complete(nic, &command, Status::Region);
        };
        let bytes = length as usize + rider.map_or(0, |rider| rider.len());
        self.law.on_sent(nic.now(), wire_bytes(nic, bytes) as usize);
        self.sent_at = Some(nic.now());
        let is_queued = sending == Sending::Queued;
        self.waiting = is_queued.then_some(Waiting { message: front, is_last });
        if !is_last {
            self.queue[at].offset += length;
            return;
        }
        self.queue.remove(at);
        if !is_queued {
            complete(nic, &command, Status::Done);
        }
    }
}

/// Copies a message's bytes and the feedback behind them. Returns `None` if the region may not be
/// read.
fn load<'a>(
    nic: &Context<'_>,
    part: RegionRef,
    rider: &Rider,
    into: &'a mut [u8; RIDDEN],
) -> Option<Source<'a>> {
    let length = nic.read(part).ok()?.copy_to(into);
    into[length..length + rider.len()].copy_from_slice(rider);
    Some(Source::Bytes(Payload::from(&into[..length + rider.len()])))
}

/// Returns the most payload bytes of a frame to `to` that its path carries as one packet.
fn payload_bytes(nic: &Context<'_>, to: NodeId) -> u32 {
    nic.mtu_bytes_to(to) as u32 - midplane_simhw::frame::HEADER_BYTES as u32
}

/// Returns the bytes that a frame with `payload` takes on the line.
fn wire_bytes(nic: &Context<'_>, payload: usize) -> u32 {
    let bytes = nic.line_rate().bytes_in(nic.frame_nanos(payload));
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn complete(nic: &mut Context<'_>, command: &Command, status: Status) {
    let length = if status == Status::Done { u64::from(command.region.length) } else { 0 };
    let opcode = messages::SEND;
    let completion = Completion { opcode, length, ..Completion::of(command, status) };
    nic.complete(command.region.port, &completion);
}
