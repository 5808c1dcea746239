//! Mermera's memory as a NIC extension. Reliable updates travel as control messages. Slow writes
//! travel in frames that leave when Warp's gate is open, and the last value of each location is
//! repeated until acknowledged.

mod config;
mod flushes;
mod frames;
mod reliable;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::{Packet, Sending, Sent};
use midplane_simhw::frame::Frame;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;
use midplane_simhw::wire;

pub use config::MermeraConfig;
use flushes::Flush;
use frames::{Acks, add, has_short_values, updates};

use super::{Location, Memory, Update};
use crate::gate::Gate;

/// The extension's number.
pub const MERMERA: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 5);

/// Writes the bytes of `region` to the location in argument 0, at the level of this opcode. A slow
/// write completes at once, a coherent write when it is committed and visible here. It is refused at
/// a new location once [`MAX_LOCATIONS`](super::MAX_LOCATIONS) have a value.
pub(crate) const SLOW_WRITE: u8 = 1;
/// Makes a PRAM write, and completes at once. If too many updates wait for a node, first waits until
/// they are fewer. Otherwise as [`SLOW_WRITE`].
pub(crate) const PRAM_WRITE: u8 = 2;
/// Makes a coherent write. If too many updates wait for a node, first waits until they are fewer.
/// Otherwise as [`SLOW_WRITE`]. It is refused at a new location once
/// [`MAX_LOCATIONS`](super::MAX_LOCATIONS) have coherent writes.
pub(crate) const CO_WRITE: u8 = 3;
/// Copies the value at the location in argument 0 to `region`, and completes at once.
///
/// The completion carries the value's length, its writer (node), and its level and number
/// (arguments 0 and 1) as in [`Origin`](super::Origin). Argument 2 is 1, or 0 before the first
/// write; argument 3 is the value's whole length. The status is [`Status::Truncated`] if the value
/// is longer than `region`.
pub const READ: u8 = 4;
/// Completes when all other live nodes have acknowledged the last slow write to each location before
/// this command, or a later one.
pub(crate) const FLUSH: u8 = 5;

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 1_024;
/// The most bytes of updates in a frame: it fits into one Ethernet frame.
const FRAME_BYTES: usize = 1_360;
/// Bytes of a frame that slow writes leave for acknowledgements. The longest value fits into the
/// rest.
const ACK_BYTES: usize = 256;
/// The most bytes of acknowledgements that wait for one node.
const MAX_ACK_BYTES: usize = 4 * FRAME_BYTES;
/// Bytes of the length field before each update.
const LENGTH: usize = 2;
/// Bytes of all headers around the updates on the line.
const AROUND: usize = 48 + 28 + 38;
/// The assumed bytes of an update, until a longer one was sent.
const UPDATE_BYTES: usize = 64;
/// Feedback delays after which a waiting coherent write makes this node check that the sequencer
/// lives, since it may have died after it took the request. Likewise for slow writes and a node that
/// acknowledges none.
const CALL_DELAYS: u32 = 16;
/// Timeouts: for due slow writes, for control messages that found a full queue, and for calls to
/// nodes that may have died.
const DUE: TimeoutId = TimeoutId(0);
const ROOM: TimeoutId = TimeoutId(1);
const CALL: TimeoutId = TimeoutId(2);
/// Attempts per feedback delay at a gate that had no credit.
const TRIES: u32 = 8;
/// Shortest time between two attempts.
const SHORTEST: Duration = Duration::from_micros(10);
/// First byte of a control message: marks the last part of an update, or an earlier part.
const LAST: u8 = 1;
const MORE: u8 = 0;

/// The extension that holds a node's memory.
#[derive(Debug)]
pub struct Mermera {
    config: MermeraConfig,
    /// Set by `init`, when the node's number is known.
    memory: Option<Memory<Vec<u8>>>,
    /// Parts of reliable updates that found a peer's queue full.
    unsent: BTreeMap<NodeId, VecDeque<Vec<u8>>>,
    /// PRAM and coherent writes that are made once fewer parts wait in `unsent`.
    held: VecDeque<Command>,
    /// At the sequencer: requests of other nodes that get a place once fewer parts wait in `unsent`.
    requests: BTreeMap<NodeId, VecDeque<Update<Vec<u8>>>>,
    /// The received parts of an incomplete update, by sender.
    parts: BTreeMap<NodeId, Vec<u8>>,
    /// Acknowledgements of slow writes that wait for a frame, by node.
    acks: BTreeMap<NodeId, Acks>,
    /// Destinations with a frame in the scheduler. Their next frame is made when that one has left.
    blocked: BTreeSet<NodeId>,
    /// Coherent writes that are not committed yet.
    placing: Vec<(u64, Command)>,
    /// True while the timeout for calls is set.
    is_calling: bool,
    flushing: Vec<Flush>,
    /// For each port, how many writes that found no room were reported to it.
    reported: BTreeMap<PortId, u64>,
    /// The incarnation of each other node that has sent a frame.
    seen: BTreeMap<NodeId, Incarnation>,
    /// When to try gates again that had no credit.
    try_at: Option<Instant>,
    skipped: u64,
    /// Bytes of the longest slow write so far, as encoded in a frame.
    longest: usize,
}

impl Mermera {
    /// Creates the extension; the memory begins with the NIC.
    #[must_use]
    pub const fn new(config: MermeraConfig) -> Self {
        Self {
            config,
            memory: None,
            unsent: BTreeMap::new(),
            held: VecDeque::new(),
            requests: BTreeMap::new(),
            parts: BTreeMap::new(),
            acks: BTreeMap::new(),
            blocked: BTreeSet::new(),
            placing: Vec::new(),
            is_calling: false,
            flushing: Vec::new(),
            reported: BTreeMap::new(),
            seen: BTreeMap::new(),
            try_at: None,
            skipped: 0,
            longest: UPDATE_BYTES,
        }
    }

    /// Returns how often a slow write was due while its gate had no credit.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns how many slow and PRAM writes of peers were dropped, because they were to new
    /// locations beyond [`MAX_LOCATIONS`](super::MAX_LOCATIONS).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.memory.as_ref().map_or(0, Memory::dropped)
    }

    /// Notes a sign of life of a node. Returns false if a former incarnation gave it, or if the node
    /// does not share the memory.
    fn see(&mut self, now: Instant, node: NodeId, incarnation: Incarnation) -> bool {
        let Some(memory) = self.memory.as_mut().filter(|_| self.config.nodes.contains(&node))
        else {
            return false;
        };
        let last = self.seen.entry(node).or_insert(incarnation);
        if last.is_newer_than(incarnation) {
            return false;
        }
        let has_restarted = std::mem::replace(last, incarnation) != incarnation;
        if has_restarted {
            self.acks.remove(&node);
            self.parts.remove(&node);
            self.requests.remove(&node);
        }
        memory.on_peer_seen(now, node, has_restarted);
        true
    }

    /// Sends all that may be sent, completes finished commands, and sets the timeouts.
    fn pump(&mut self, nic: &mut Context<'_>) {
        self.send_reliable(nic);
        self.resume_writes(nic);
        self.try_at = None;
        self.send_frames(nic);
        self.complete_writes(nic);
        self.complete_flushes(nic);
        let Some(memory) = &mut self.memory else { return };
        // A blocked node needs no timeout: the departure of its frame triggers the next one.
        let free = self.config.nodes.iter().filter(|node| !self.blocked.contains(*node));
        let due = free.filter_map(|node| memory.poll_timeout(*node)).min();
        // A write that is due but was skipped waits for the gate.
        let due = self.try_at.map_or(due, |at| Some(due.map_or(at, |due| due.max(at))));
        match due {
            Some(at) => nic.set_timeout_at(DUE, Service::Exact, at),
            None => nic.cancel_timeout(DUE),
        }
        if !self.is_calling && (memory.waits_for_place() || !self.flushing.is_empty()) {
            self.is_calling = true;
            nic.set_timeout(CALL, Service::Coarse, self.config.delay * CALL_DELAYS);
        }
    }

    /// Completes the coherent writes that are committed, or never will be.
    fn complete_writes(&mut self, nic: &mut Context<'_>) {
        let Some(memory) = &mut self.memory else { return };
        let is_excluded = memory.is_excluded();
        self.placing.retain(|(ticket, command)| {
            let is_done = memory.is_done(*ticket);
            if is_done {
                complete(nic, command);
            } else if is_excluded {
                nic.refuse(command, Status::PeerLost);
            }
            !is_done && !is_excluded
        });
        if is_excluded {
            memory.give_up_coherent();
        }
    }

    /// Sends frames of slow writes and acknowledgements: to all nodes at once if there is a
    /// broadcast gate.
    fn send_frames(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        let me = nic.node();
        let gates = std::mem::take(&mut self.config.gates);
        let all = gates.get_key_value(&NodeId::BROADCAST);
        let each = self.config.nodes.iter().filter(|node| **node != me);
        let each = each.map(|node| (*node, gates.get(node)));
        let targets = all.map(|(node, gate)| (*node, Some(gate))).into_iter().chain(each);
        let mut is_shut = false;
        for (to, gate) in targets.collect::<Vec<_>>() {
            while !self.blocked.contains(&to)
                && let Some((frame, has_acks)) = self.next_frame(now, to, gate)
            {
                // Acknowledgements concern writes of one incarnation. Writes are for any, whose
                // acknowledgement reveals it.
                let seen = self.seen.get(&to).filter(|_| has_acks);
                if send_frame(nic, to, seen.copied().unwrap_or_default(), &frame) {
                    self.blocked.insert(to);
                }
            }
            let Some(memory) = &self.memory else { continue };
            is_shut |= to != NodeId::BROADCAST
                && !self.blocked.contains(&to)
                && memory.poll_timeout(to).is_some_and(|due| due <= now);
        }
        self.config.gates = gates;
        if is_shut {
            self.skipped += 1;
            self.try_at = Some(now + (self.config.delay / TRIES).max(SHORTEST));
        }
    }

    /// Makes the next frame to a node: slow writes first, as many as the gate has credit for, then
    /// acknowledgements. Returns it, and whether it has any of these.
    ///
    /// If the frame has slow writes, it takes its credit from the gate; a frame of acknowledgements
    /// alone takes none. Slow writes leave room for acknowledgements, so that neither waits without
    /// bound at the lowest rate.
    fn next_frame(
        &mut self,
        now: Instant,
        to: NodeId,
        gate: Option<&Gate>,
    ) -> Option<(Vec<u8>, bool)> {
        let memory = self.memory.as_mut()?;
        let mut acks = self.acks.get_mut(&to);
        let reserved = acks.as_ref().map_or(0, |acks| acks.bytes.min(ACK_BYTES));
        let is_open = |bytes: usize| gate.is_none_or(|gate| gate.is_open((bytes + AROUND) as u32));
        let mut frame = Vec::new();
        // The next update may be as long as the longest so far.
        while frame.len() + self.longest + reserved <= FRAME_BYTES
            && is_open(frame.len() + self.longest + reserved)
        {
            let update = match to {
                NodeId::BROADCAST => memory.poll_slow_to_all(now),
                node => memory.poll_slow(now, node),
            };
            let Some(update) = update else { break };
            let Ok(bytes) = wire::encode(&update) else { continue };
            self.longest = self.longest.max(bytes.len() + LENGTH);
            add(&mut frame, &bytes);
        }
        let is_paid = !frame.is_empty();
        let most = if is_paid { frame.len() + reserved } else { FRAME_BYTES };
        let writes = frame.len();
        if let Some(acks) = &mut acks {
            acks.move_to(&mut frame, most);
        }
        if let Some(gate) = gate.filter(|_| is_paid) {
            // The gate was open above, and only this extension takes credit from it.
            let _ = gate.c_send((frame.len() + AROUND) as u32, || ());
        }
        let has_acks = frame.len() > writes;
        (!frame.is_empty()).then_some((frame, has_acks))
    }

    fn write(&mut self, nic: &mut Context<'_>, command: Command) {
        let Some(memory) = &mut self.memory else { return };
        let Ok(bytes) = nic.read(command.region) else {
            return nic.refuse(&command, Status::Region);
        };
        if bytes.len() > MAX_VALUE {
            return nic.refuse(&command, Status::Invalid);
        }
        let (location, value) = (command.args[0] as Location, bytes.to_vec());
        match command.opcode {
            SLOW_WRITE | PRAM_WRITE if !memory.takes(location) => {
                return nic.refuse(&command, Status::Refused);
            }
            SLOW_WRITE => memory.slow_write(nic.now(), location, value),
            PRAM_WRITE => memory.pram_write(location, value),
            _ if !memory.takes_coherent(location) => return nic.refuse(&command, Status::Refused),
            _ if memory.is_excluded() => return nic.refuse(&command, Status::PeerLost),
            _ => {
                let ticket = memory.co_write(location, value);
                self.placing.push((ticket, command));
                return;
            }
        }
        complete(nic, &command);
    }

    fn read(&self, nic: &mut Context<'_>, command: &Command) {
        let Some(memory) = &self.memory else { return };
        let mut completion = Completion::of(command, Status::Done);
        if let Some((value, origin)) = memory.read_origin(command.args[0] as Location) {
            let length = value.len().min(command.region.length as usize);
            if length < value.len() {
                completion.status = Status::Truncated;
            }
            let to = command.region.part(0, length as u32);
            let bytes = Payload::from(&value[..length]);
            if length > 0 && to.is_none_or(|to| nic.write(to, bytes).is_err()) {
                return nic.refuse(command, Status::Region);
            }
            completion.node = origin.writer;
            completion.length = length as u64;
            completion.args = [origin.level as u64, origin.order, 1, value.len() as u64];
        }
        nic.complete(command.region.port, &completion);
    }
}

/// Sends a frame. Returns true if it waits in the scheduler.
fn send_frame(nic: &mut Context<'_>, to: NodeId, incarnation: Incarnation, frame: &[u8]) -> bool {
    let (source, token) = (Source::Bytes(Payload::from(frame)), Some(to.0.into()));
    // A frame that cannot be sent counts as lost.
    let packet = Packet { incarnation, source, token, ..Packet::to(to) };
    nic.send_packet(&packet) == Ok(Sending::Queued)
}

fn complete(nic: &mut Context<'_>, command: &Command) {
    nic.complete(command.region.port, &Completion::of(command, Status::Done));
}

impl Extension for Mermera {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        let me = nic.node();
        if !self.config.nodes.contains(&me) {
            let reason = "this node is not among those that share the memory";
            return Err(InitError::Refused { extension: MERMERA, reason });
        }
        let memory = Memory::new(me, &self.config.nodes, self.config.delay);
        self.memory.insert(memory).begin_clock(nic.incarnation());
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let refused = self.memory.as_ref().map_or(0, Memory::refused);
        self.reported.entry(command.region.port).or_insert(refused);
        match command.opcode {
            PRAM_WRITE | CO_WRITE if self.is_backed_up() => self.held.push_back(command),
            SLOW_WRITE | PRAM_WRITE | CO_WRITE => self.write(nic, command),
            READ => return self.read(nic, &command),
            FLUSH => {
                let awaited = self.memory.as_ref().map_or_else(Vec::new, Memory::unacknowledged);
                self.flushing.push(Flush { command, awaited, calls: 0 });
            }
            _ => return nic.refuse(&command, Status::Invalid),
        }
        self.pump(nic);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        if !self.config.nodes.contains(&from) {
            return;
        }
        let Some((mark, part)) = message.split_first() else { return };
        let whole = self.parts.entry(from).or_default();
        if whole.len() + part.len() > wire::LIMIT {
            // No update is that long, so the peer's message is invalid.
            whole.clear();
            return;
        }
        whole.extend_from_slice(part);
        if *mark == MORE {
            return;
        }
        let whole = std::mem::take(whole);
        let Ok(update) = wire::decode(&whole) else { return };
        if !Update::is_reliable(&update) || !has_short_values(&update) {
            return;
        }
        if let Some(update) = self.hold_request(from, update)
            && let Some(memory) = &mut self.memory
        {
            memory.handle_update(nic.now(), from, update);
        }
        self.pump(nic);
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        if !self.see(nic.now(), from, frame.header.incarnation) {
            return;
        }
        let Some(memory) = &mut self.memory else { return };
        let bytes = frame.payload.to_vec();
        for update in updates(&bytes) {
            if !update.is_reliable() {
                memory.handle_update(nic.now(), from, update);
            }
        }
        self.pump(nic);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        if timeout == CALL {
            self.is_calling = false;
            if let Some(memory) = self.memory.as_mut().filter(|memory| memory.waits_for_place()) {
                memory.call_sequencer();
            }
            self.call_silent();
        }
        self.pump(nic);
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        self.held.retain(|command| command.region.port != port);
        self.placing.retain(|(_, command)| command.region.port != port);
        self.flushing.retain(|flush| flush.command.region.port != port);
        self.reported.remove(&port);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        let (node, incarnation) = match event {
            PeerEvent::Up(node, incarnation) | PeerEvent::Restarted(node, incarnation) => {
                (node, Some(incarnation))
            }
            PeerEvent::Down(node) => (node, None),
        };
        if !matches!(event, PeerEvent::Up(..)) {
            self.unsent.remove(&node);
            self.acks.remove(&node);
            self.parts.remove(&node);
            self.requests.remove(&node);
            if let Some(memory) = &mut self.memory {
                memory.on_peer_lost(nic.now(), node);
            }
        }
        if let Some(incarnation) = incarnation {
            self.see(nic.now(), node, incarnation);
        }
        self.pump(nic);
    }

    fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        self.blocked.retain(|node| u64::from(node.0) != sent.token);
        self.pump(nic);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let placing = self.placing.drain(..).map(|(_, command)| command);
        let flushing = self.flushing.drain(..).map(|flush| flush.command);
        self.held.drain(..).chain(placing).chain(flushing).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.outstanding_commands() {
            nic.refuse(&command, Status::ExtensionDown);
        }
    }
}

#[cfg(test)]
mod tests;
