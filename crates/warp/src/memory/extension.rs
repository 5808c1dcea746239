//! Mermera's memory as an extension: what must arrive goes by control message, slow writes in frames
//! that leave when Warp's gate is open, and the last value of each location until it is there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::control::MAX_MESSAGE;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::{Packet, Sending, Sent};
use midplane_simhw::frame::Frame;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::{Level, Location, Memory, Update};
use crate::gate::Gate;

/// The extension's number.
pub const MERMERA: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 5);

/// Writes the bytes of `region` to the location in argument 0, at the level of this opcode. A slow or
/// a PRAM write completes at once, a coherent one when it has its place and is seen here.
pub const SLOW_WRITE: u8 = 1;
/// As [`SLOW_WRITE`].
pub const PRAM_WRITE: u8 = 2;
/// As [`SLOW_WRITE`].
pub const CO_WRITE: u8 = 3;
/// Copies the value at the location in argument 0 to `region`, and completes at once: its length,
/// whose it is (node), and level and order (arguments 0 and 1) as in
/// [`Origin`](super::Origin); [`Status::Truncated`] where it is longer. Argument 2 is 0 where nothing
/// was written yet.
pub const READ: u8 = 4;
/// Completes when all other nodes that live are known to have the last slow write to each location.
pub const FLUSH: u8 = 5;

/// Most bytes of a value.
pub const MOST_VALUE: usize = 1_024;
/// Most bytes of a frame's updates: it fits into a frame of an Ethernet.
const FRAME_BYTES: usize = 1_360;
/// Bytes of a frame that slow writes leave to acknowledgements. Beside them there is room for the longest value.
const ACK_BYTES: usize = 256;
/// Most bytes of acknowledgements that wait for a node.
const MOST_ACK_BYTES: usize = 4 * FRAME_BYTES;
/// Bytes of an update's length, before it.
const LENGTH: usize = 2;
/// Bytes around them on the line.
const AROUND: usize = 48 + 28 + 38;
/// Bytes of an update, before there was a longer one.
const UPDATE_BYTES: usize = 64;
/// Feedback delays for which a coherent write waits before its sequencer is called: it may have died
/// after it took the request.
const CALL_DELAYS: u32 = 16;
/// Timeouts: slow writes that are due, control messages that found no room, calls.
const DUE: TimeoutId = TimeoutId(0);
const ROOM: TimeoutId = TimeoutId(1);
const CALL: TimeoutId = TimeoutId(2);
/// How often a gate that was shut is tried again, in its feedback delays.
const TRIES: u32 = 8;
/// First byte of a control message: the last part of an update, or one before it.
const LAST: u8 = 1;
const MORE: u8 = 0;

/// What a node's memory is told.
#[derive(Clone, Debug)]
pub struct MermeraConfig {
    nodes: Vec<NodeId>,
    delay: Duration,
    gates: BTreeMap<NodeId, Gate>,
}

impl MermeraConfig {
    /// The memory that `nodes` share, the own one among them; feedback takes about `delay`.
    #[must_use]
    pub fn new(nodes: &[NodeId], delay: Duration) -> Self {
        Self { nodes: nodes.to_vec(), delay, gates: BTreeMap::new() }
    }

    /// Slow writes are sent if these gates are open ([`Warp::new`](crate::firmware::Warp::new) gives
    /// them): once to all with a gate to [`NodeId::EVERYBODY`], else to each node by itself. A node
    /// without a gate is sent all of them at once. Warp is to pace others' frames
    /// ([`WarpConfig::paces_others`](crate::firmware::WarpConfig::paces_others)), or it has nothing to
    /// steer by.
    pub fn gates(&mut self, gates: BTreeMap<NodeId, Gate>) -> &mut Self {
        self.gates = gates;
        self
    }
}

/// A node's memory, as an extension.
#[derive(Debug)]
pub struct Mermera {
    config: MermeraConfig,
    /// From when the NIC is there, and its node known.
    memory: Option<Memory<Vec<u8>>>,
    /// Parts of reliable updates that a peer's queue had no room for.
    unsent: BTreeMap<NodeId, VecDeque<Vec<u8>>>,
    /// Parts that have come of an update.
    parts: BTreeMap<NodeId, Vec<u8>>,
    /// Acknowledgements of slow writes that wait for a frame.
    acks: BTreeMap<NodeId, Acks>,
    /// Whom a frame waits for in the scheduler: what is sent next is chosen when that one has left.
    blocked: BTreeSet<NodeId>,
    /// Coherent writes that wait for their place.
    placing: Vec<(u64, Command)>,
    /// Whether the sequencer will be called.
    is_calling: bool,
    flushing: Vec<Command>,
    /// When gates that were shut are tried again.
    try_at: Option<Instant>,
    skipped: u64,
    /// Bytes of the longest slow write so far, as it travels.
    longest: usize,
}

impl Mermera {
    /// The memory of a node.
    #[must_use]
    pub const fn new(config: MermeraConfig) -> Self {
        Self {
            config,
            memory: None,
            unsent: BTreeMap::new(),
            parts: BTreeMap::new(),
            acks: BTreeMap::new(),
            blocked: BTreeSet::new(),
            placing: Vec::new(),
            is_calling: false,
            flushing: Vec::new(),
            try_at: None,
            skipped: 0,
            longest: UPDATE_BYTES,
        }
    }

    /// Times that a slow write was due and its gate was shut.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Sends what is to be sent, and says when to look again.
    fn pump(&mut self, nic: &mut Context<'_>) {
        self.send_reliable(nic);
        self.try_at = None;
        self.send_frames(nic);
        let Some(memory) = &self.memory else { return };
        self.placing.retain(|(ticket, command)| {
            let is_done = memory.is_done(*ticket);
            if is_done {
                complete(nic, command);
            }
            !is_done
        });
        if memory.unacknowledged() == 0 {
            self.flushing.drain(..).for_each(|command| complete(nic, &command));
        }
        // When a frame has left, the next is chosen then: what is due for its node need not be asked for again and again.
        let free = self.config.nodes.iter().filter(|node| !self.blocked.contains(*node));
        let due = free.filter_map(|node| memory.poll_timeout(*node)).min();
        // What is due and was skipped waits for the gate.
        let due = self.try_at.map_or(due, |at| Some(due.map_or(at, |due| due.max(at))));
        match due {
            Some(at) => nic.set_timeout_at(DUE, Service::Exact, at),
            None => nic.cancel_timeout(DUE),
        }
        if memory.waits_for_place() && !self.is_calling {
            self.is_calling = true;
            nic.set_timeout(CALL, Service::Coarse, self.config.delay * CALL_DELAYS);
        }
    }

    /// Control messages for what must arrive.
    fn send_reliable(&mut self, nic: &mut Context<'_>) {
        let Some(memory) = &mut self.memory else { return };
        while let Some((to, update)) = memory.poll_send() {
            let Ok(bytes) = wire::encode(&update) else { continue };
            if !update.is_reliable() {
                self.acks.entry(to).or_default().push(bytes);
                continue;
            }
            let mut parts = bytes.chunks(MAX_MESSAGE - 1).peekable();
            while let Some(part) = parts.next() {
                let mark = if parts.peek().is_some() { MORE } else { LAST };
                let message = [&[mark], part].concat();
                self.unsent.entry(to).or_default().push_back(message);
            }
        }
        let mut is_full = false;
        for (to, messages) in &mut self.unsent {
            while let Some(message) = messages.front() {
                if nic.send_control(*to, message).is_err() {
                    is_full = true;
                    break;
                }
                messages.pop_front();
            }
        }
        if is_full {
            let again = self.config.delay / TRIES;
            nic.set_timeout(ROOM, Service::Exact, again.max(Duration::from_micros(10)));
        }
    }

    /// Frames of slow writes and acknowledgements: to all at once where that is possible.
    fn send_frames(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        let me = nic.node();
        let gates = std::mem::take(&mut self.config.gates);
        let all = gates.get_key_value(&NodeId::EVERYBODY);
        let each = self.config.nodes.iter().filter(|node| **node != me);
        let each = each.map(|node| (*node, gates.get(node)));
        let targets = all.map(|(node, gate)| (*node, Some(gate))).into_iter().chain(each);
        let mut is_shut = false;
        for (to, gate) in targets.collect::<Vec<_>>() {
            while !self.blocked.contains(&to)
                && let Some(frame) = self.next_frame(now, to, gate)
            {
                if send_frame(nic, to, &frame) {
                    self.blocked.insert(to);
                }
            }
            let Some(memory) = &self.memory else { continue };
            is_shut |= to != NodeId::EVERYBODY
                && !self.blocked.contains(&to)
                && memory.poll_timeout(to).is_some_and(|due| due <= now);
        }
        self.config.gates = gates;
        if is_shut {
            self.skipped += 1;
            self.try_at = Some(now + self.config.delay / TRIES);
        }
    }

    /// The next frame to a node: slow writes as far as its gate lets them, and it pays for the frame; then acknowledgements,
    /// which leave alone where no slow write may. Each leaves the other room: at the least rate neither waits without end.
    fn next_frame(&mut self, now: Instant, to: NodeId, gate: Option<&Gate>) -> Option<Vec<u8>> {
        let memory = self.memory.as_mut()?;
        let mut acks = self.acks.get_mut(&to);
        let reserved = acks.as_ref().map_or(0, |acks| acks.bytes.min(ACK_BYTES));
        let is_open = |bytes: usize| gate.is_none_or(|gate| gate.is_open((bytes + AROUND) as u32));
        let mut frame = Vec::new();
        // An update more, as long as the longest so far.
        while frame.len() + self.longest + reserved <= FRAME_BYTES
            && is_open(frame.len() + self.longest + reserved)
        {
            let update = match to {
                NodeId::EVERYBODY => memory.poll_slow_to_all(now),
                node => memory.poll_slow(now, node),
            };
            let Some(update) = update else { break };
            let Ok(bytes) = wire::encode(&update) else { continue };
            self.longest = self.longest.max(bytes.len() + LENGTH);
            add(&mut frame, &bytes);
        }
        let is_paid = !frame.is_empty();
        let most = if is_paid { frame.len() + reserved } else { FRAME_BYTES };
        if let Some(acks) = &mut acks {
            acks.move_to(&mut frame, most);
        }
        if let Some(gate) = gate.filter(|_| is_paid) {
            // It was open above, and this extension alone uses it.
            let _ = gate.c_send((frame.len() + AROUND) as u32, || ());
        }
        (!frame.is_empty()).then_some(frame)
    }

    fn write(&mut self, nic: &mut Context<'_>, command: Command) {
        let Some(memory) = &mut self.memory else { return };
        let Ok(bytes) = nic.read(command.region) else {
            return nic.refuse(&command, Status::Region);
        };
        if bytes.len() > MOST_VALUE {
            return nic.refuse(&command, Status::Invalid);
        }
        let (location, value) = (command.args[0] as Location, bytes.to_vec());
        match command.opcode {
            SLOW_WRITE => memory.slow_write(nic.now(), location, value),
            PRAM_WRITE => memory.pram_write(location, value),
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

/// Acknowledgements that wait, each as it travels, with its length.
#[derive(Debug, Default)]
struct Acks {
    updates: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Acks {
    /// Adds one. What one that finds no room says is said again by later ones.
    fn push(&mut self, update: Vec<u8>) {
        if self.bytes + LENGTH + update.len() <= MOST_ACK_BYTES {
            self.bytes += LENGTH + update.len();
            self.updates.push_back(update);
        }
    }

    /// Moves the oldest to a frame, which becomes no longer than `most` bytes.
    fn move_to(&mut self, frame: &mut Vec<u8>, most: usize) {
        while let Some(update) = self.updates.front()
            && frame.len() + LENGTH + update.len() <= most
        {
            self.bytes -= LENGTH + update.len();
            add(frame, update);
            self.updates.pop_front();
        }
    }
}

/// Adds an update to a frame: its length, then its bytes.
fn add(frame: &mut Vec<u8>, update: &[u8]) {
    let length = u16::try_from(update.len()).expect("a value is short");
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(update);
}

/// The updates of a frame; what is not one ends it.
fn updates(mut bytes: &[u8]) -> impl Iterator<Item = Update<Vec<u8>>> + '_ {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (update, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        bytes = rest;
        wire::decode(update).ok()
    })
}

/// Sends a frame; whether it waits in the scheduler now.
fn send_frame(nic: &mut Context<'_>, to: NodeId, frame: &[u8]) -> bool {
    let (source, token) = (Source::Bytes(Payload::from(frame)), Some(to.0.into()));
    // One that can't be sent is lost, as frames may be.
    nic.send_packet(&Packet { source, token, ..Packet::to(to) }) == Ok(Sending::Queued)
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
        self.memory = Some(Memory::new(me, &self.config.nodes, self.config.delay));
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            SLOW_WRITE | PRAM_WRITE | CO_WRITE => self.write(nic, command),
            READ => return self.read(nic, &command),
            FLUSH => self.flushing.push(command),
            _ => return nic.refuse(&command, Status::Invalid),
        }
        self.pump(nic);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        let Some((mark, part)) = message.split_first() else { return };
        let whole = self.parts.entry(from).or_default();
        if whole.len() + part.len() > wire::LIMIT {
            // No update is so long: whatever it is, it is none.
            whole.clear();
            return;
        }
        whole.extend_from_slice(part);
        if *mark == MORE {
            return;
        }
        let whole = std::mem::take(whole);
        let (Some(memory), Ok(update)) = (&mut self.memory, wire::decode(&whole)) else { return };
        if Update::is_reliable(&update) {
            memory.handle_update(nic.now(), from, update);
            self.pump(nic);
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
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
        }
        self.pump(nic);
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        self.placing.retain(|(_, command)| command.region.port != port);
        self.flushing.retain(|command| command.region.port != port);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        let (PeerEvent::Down(node) | PeerEvent::Restarted(node, _)) = event else { return };
        self.unsent.remove(&node);
        self.acks.remove(&node);
        self.parts.remove(&node);
        if let Some(memory) = &mut self.memory {
            memory.on_peer_lost(node);
        }
        self.pump(nic);
    }

    fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        self.blocked.retain(|node| u64::from(node.0) != sent.token);
        self.pump(nic);
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        let waiting = self.placing.drain(..).map(|(_, command)| command);
        for command in waiting.chain(self.flushing.drain(..)) {
            nic.refuse(&command, Status::ExtensionDown);
        }
    }
}

/// The level of a read, as its completion says it.
pub(super) const fn level_of(word: u64) -> Option<Level> {
    match word {
        0 => Some(Level::Slow),
        1 => Some(Level::Pram),
        2 => Some(Level::Coherent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissector;
    use crate::memory::coherent::Coherence;

    #[test]
    fn the_dissector_knows_all_updates() {
        assert_eq!(dissector::table("updates"), dissector::variants::<Update<Vec<u8>>>());
        assert_eq!(dissector::table("coherence"), dissector::variants::<Coherence<Vec<u8>>>());
        assert_eq!(dissector::table("parts"), dissector::names([(MORE, "more"), (LAST, "last")]));
    }
}
