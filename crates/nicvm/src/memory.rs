//! The distributed address space: nodes that hold a capability read, write, compare-and-swap and add to a node's
//! memory, without its host.
//!
//! A small access is one control message each way. A large one is sent in frames; lost frames are requested or sent
//! again until all have arrived. Every access completes: done, refused by the owner, or with [`Status::PeerLost`].
//! Small accesses of one node to another's memory are carried out in the order in which they were posted; a large one
//! may end after small ones that follow it. Messages that find a full queue wait for room; while a thousand of them wait
//! for a node, further accesses to its memory end as [`Status::Refused`]. Words that were changed remotely in the last
//! millisecond are read from the NIC, not from memory. So a host that shares words with other nodes must change them by
//! commands, too.

mod bulk;
mod owner;
mod wire;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use crate::backlog::Backlog;
use crate::capability::{Capabilities, Capability, CapabilityRights};
use crate::context::Context;
use crate::extension::{Extension, InitError, PeerEvent, TimeoutId};
use crate::timeout::Service;
use bulk::{Incoming, Outgoing};
use wire::{Access, Message};
use words::RecentWords;

pub(crate) use wire::INLINE;

/// The extension number of the distributed address space.
pub const MEMORY: ExtensionId = ExtensionId(6);

/// Opcode: gives a capability to `region` with the rights of argument 0, a [`CapabilityRights`]; completes with its
/// three words (arguments 0 to 2).
const GRANT: u8 = 1;
/// Opcode: revokes the capability in the arguments, with all that were delegated from it. Large reads under way end as
/// [`Status::Region`], unless all their frames have left.
pub const REVOKE: u8 = 2;
/// Opcode: delegates the capability in the arguments, for its range, with the rights in `flags`.
const DELEGATE: u8 = 3;
/// Opcode: reads the capability's memory into `region`, for the region's length.
pub const READ: u8 = 4;
/// Opcode: writes `region` to the beginning of the capability's range.
pub const WRITE: u8 = 5;
/// Opcode: compares the capability's word with the region's first word, and if they are equal, replaces it by the
/// region's second word. Completes with the previous value (argument 0), which is written to the region's first word as
/// well.
pub const COMPARE_AND_SWAP: u8 = 6;
/// Opcode: adds the region's word to the capability's word; completes with the previous value, as above.
pub const FETCH_AND_ADD: u8 = 7;

/// Time in which an owner has to answer, plus one microsecond per byte: an owner without this extension never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const SWEEP: TimeoutId = TimeoutId(0);
const RETRY: TimeoutId = TimeoutId(1);
const RETRY_WAITING: TimeoutId = TimeoutId(2);
/// Messages that wait for room in the queue to a node, from which on this node's accesses to it are refused.
const MOST_WAITING: usize = 1_024;
/// Time between two checks for missing frames: frames that were sent before a message may arrive after it, by the delay
/// of a queue.
const RETRY_AFTER: Duration = Duration::from_micros(500);
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Time for which a changed word is remembered: longer than it takes to reach memory.
const REMEMBERED: Duration = Duration::from_millis(1);
/// Most changes of words that are remembered: more than a NIC carries out in a millisecond. Further small writes and
/// atomic accesses end as [`Status::Refused`] until changes have reached memory.
#[doc(hidden)]
pub const WORDS: usize = 16_384;
/// Large writes of one other node that may be under way here at once; further ones are refused.
#[doc(hidden)]
pub const ARRIVING: usize = 1_024;
/// Instructions charged for a handler itself, without its effects.
const STEP_INSTRUCTIONS: u64 = 20;

/// Builds a command that gives a capability to `region`.
#[must_use]
pub fn grant(region: RegionRef, rights: CapabilityRights, cookie: u64) -> Command {
    let args = [rights.0.into(), 0, 0];
    Command { extension: MEMORY, opcode: GRANT, region, cookie, args, ..Command::default() }
}

/// Builds a command that uses a capability: [`REVOKE`], [`READ`], [`WRITE`], [`COMPARE_AND_SWAP`] or [`FETCH_AND_ADD`].
#[must_use]
pub fn access(opcode: u8, capability: &Capability, region: RegionRef, cookie: u64) -> Command {
    let args = capability.to_words();
    Command { extension: MEMORY, opcode, region, cookie, args, ..Command::default() }
}

/// Builds a command that delegates a capability with fewer rights.
#[must_use]
pub fn delegate(capability: &Capability, rights: CapabilityRights, cookie: u64) -> Command {
    let flags = rights.0.into();
    Command { flags, ..access(DELEGATE, capability, RegionRef::default(), cookie) }
}

/// Returns the capability in a completion of [`grant`] or [`delegate`].
#[must_use]
pub const fn granted(completion: &Completion) -> Capability {
    let [first, second, third, _] = completion.args;
    Capability::from_words([first, second, third])
}

/// Counts the accesses of this node since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct MemoryCounters {
    /// Accesses, remote and local, that were carried out here.
    pub served: u64,
    /// Accesses that were refused here, because a right or memory was missing.
    pub denied: u64,
    /// Frames that the receiver requested because it lacked them: lost ones, and those beyond the first 65,536 of an
    /// access.
    pub retransmitted: u64,
    /// Messages that cannot be parsed or match no access.
    pub malformed: u64,
}

/// An access that this node has requested.
#[derive(Debug)]
struct PendingAccess {
    command: Command,
    owner: NodeId,
    since: Instant,
    incoming: Option<Incoming>,
    outgoing: Option<Outgoing>,
}

/// One node's part of the distributed address space.
#[derive(Debug)]
pub struct Memory {
    table: Capabilities,
    next: u32,
    pending: BTreeMap<u32, PendingAccess>,
    /// Large writes of other nodes, by node and number.
    arriving: BTreeMap<(NodeId, u32), Incoming>,
    words: RecentWords,
    /// Messages that no timeout repeats.
    backlog: Backlog,
    /// True while the timeout for missing frames is set.
    is_retrying: bool,
    counters: MemoryCounters,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Creates a node's part without capabilities. Their keys derive from a secret that the NIC draws when it starts.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: Capabilities::unkeyed(),
            next: 0,
            pending: BTreeMap::new(),
            arriving: BTreeMap::new(),
            words: RecentWords::new(),
            backlog: Backlog::new(RETRY_WAITING),
            is_retrying: false,
            counters: MemoryCounters { served: 0, denied: 0, retransmitted: 0, malformed: 0 },
        }
    }

    /// Returns the extension's counters.
    #[must_use]
    pub const fn counters(&self) -> MemoryCounters {
        self.counters
    }

    /// Returns how many accesses of this node have not completed.
    #[must_use]
    #[doc(hidden)]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns how many large writes of other nodes are under way here: up to [`ARRIVING`] of each node.
    #[must_use]
    #[doc(hidden)]
    pub fn arriving(&self) -> usize {
        self.arriving.len()
    }

    /// Gives, delegates or revokes a capability: all within this node's own table.
    fn change(&mut self, nic: &mut Context<'_>, command: &Command) {
        let capability = Capability::from_words(command.args);
        let port = command.region.port;
        let changed = match command.opcode {
            GRANT => self.table.grant(command.region, CapabilityRights(command.args[0] as u8)),
            _ if capability.node != nic.node() => {
                nic.refuse(command, Status::Invalid);
                return;
            }
            // Only the port that owns the memory may revoke its capabilities.
            REVOKE if self.table.owner(&capability) != Some(port) => {
                nic.refuse(command, Status::Region);
                return;
            }
            REVOKE => {
                // The requesters of the cancelled frames request them again, and are refused.
                let region = self.table.region(&capability);
                let revoked = self.table.revoke(&capability);
                region.filter(|_| revoked.is_ok()).into_iter().for_each(|at| nic.cancel_reads(at));
                revoked.map(|()| capability)
            }
            _ => self.table.delegate(&capability, CapabilityRights(command.flags as u8)),
        };
        match changed {
            Ok(capability) => {
                let [first, second, third] = capability.to_words();
                let done = Completion { args: [first, second, third, 0], ..done(command, 0) };
                nic.complete(port, &done);
            }
            Err(_) => {
                self.counters.denied += 1;
                nic.refuse(command, Status::Region);
            }
        }
    }

    /// Sends an access to the memory's owner; a large access to own memory is copied at once.
    fn ask(&mut self, nic: &mut Context<'_>, command: Command) {
        let capability = Capability::from_words(command.args);
        let owner = capability.node;
        let is_large =
            matches!(command.opcode, READ | WRITE) && command.region.length as usize > INLINE;
        if owner == nic.node() && is_large {
            self.copy(nic, &command, capability);
            return;
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let length = command.region.length;
        let mut pending =
            PendingAccess { command, owner, since: nic.now(), incoming: None, outgoing: None };
        let access = match command.opcode {
            READ if length <= capability.length && length > 0 => {
                if length as usize > INLINE {
                    pending.incoming = Some(Incoming::new(command.region, None, pending.since));
                }
                Access::Read
            }
            WRITE if length <= capability.length && length as usize > INLINE => {
                pending.outgoing = Some(Outgoing::new(command.region, 0));
                Access::WriteMany
            }
            WRITE if length <= capability.length && length > 0 => Access::Write,
            COMPARE_AND_SWAP if capability.length == 8 && length == 16 => Access::Swap,
            FETCH_AND_ADD if capability.length == 8 && length == 8 => Access::Add,
            _ => {
                nic.refuse(&command, Status::Invalid);
                return;
            }
        };
        let inline = match nic.read(command.region) {
            _ if access == Access::Read => Vec::new(),
            Ok(_) if access == Access::WriteMany => Vec::new(),
            Ok(bytes) => bytes.to_vec(),
            Err(_) => {
                nic.refuse(&command, Status::Region);
                return;
            }
        };
        let capability = match command.opcode {
            READ | WRITE => Capability { length, ..capability },
            _ => capability,
        };
        if self.backlog.waiting_for(owner) >= MOST_WAITING {
            nic.refuse(&command, Status::Refused);
            return;
        }
        let message = Message::Ask { number, access, capability, inline: &inline };
        self.backlog.send(nic, owner, &message.emit());
        if let Some(outgoing) = &pending.outgoing {
            self.send_write(nic, owner, number, outgoing);
        }
        self.start_sweeping(nic);
        self.pending.insert(number, pending);
    }

    /// Sends the frames of a large write, unless its first message waits: its owner would drop them, and requests them
    /// later.
    fn send_write(
        &mut self,
        nic: &mut Context<'_>,
        owner: NodeId,
        number: u32,
        outgoing: &Outgoing,
    ) {
        if self.backlog.waiting_for(owner) == 0 {
            outgoing.send_all(nic, owner, number);
        }
        self.backlog.send(nic, owner, &Message::Sent { number }.emit());
    }

    /// Starts the checks for accesses that take too long. The caller then adds one.
    fn start_sweeping(&self, nic: &mut Context<'_>) {
        if self.pending.is_empty() && self.arriving.is_empty() {
            nic.set_timeout(SWEEP, Service::Coarse, SWEEP_EVERY);
        }
    }

    /// Carries out a large access to this node's own memory, by a copy.
    fn copy(&mut self, nic: &mut Context<'_>, command: &Command, capability: Capability) {
        let length = command.region.length;
        let rights =
            if command.opcode == READ { CapabilityRights::READ } else { CapabilityRights::WRITE };
        let theirs =
            capability.part(0, length).and_then(|part| self.table.check(&part, rights).ok());
        let copied = theirs.and_then(|theirs| {
            let (from, to) = if command.opcode == READ {
                (theirs, command.region)
            } else {
                (command.region, theirs)
            };
            let bytes = nic.read(from).ok()?.to_vec();
            nic.write(to, Payload::from(&bytes[..])).ok()?;
            self.words.overwrite(to, Payload::from(&bytes[..]));
            Some(())
        });
        if copied.is_some() {
            self.counters.served += 1;
            nic.complete(command.region.port, &done(command, length));
        } else {
            self.counters.denied += 1;
            nic.refuse(command, Status::Region);
        }
    }

    fn end(&mut self, nic: &mut Context<'_>, number: u32, status: Status, word: u64) {
        let Some(pending) = self.pending.remove(&number) else { return };
        let command = &pending.command;
        if status != Status::Done {
            nic.refuse(command, status);
            return;
        }
        let completion =
            Completion { args: [word, 0, 0, 0], ..done(command, command.region.length) };
        nic.complete(command.region.port, &completion);
    }

    /// Handles the owner's answer.
    fn on_answer(&mut self, nic: &mut Context<'_>, number: u32, status: Status, bytes: &[u8]) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if status != Status::Done {
            self.end(nic, number, status, 0);
            return;
        }
        if let Some(incoming) = &mut pending.incoming {
            incoming.on_all_sent();
            if incoming.is_whole() {
                self.end(nic, number, Status::Done, 0);
            } else {
                self.start_retrying(nic);
            }
            return;
        }
        let region = pending.command.region;
        let length = bytes.len().min(region.length as usize) as u32;
        let to = region.part(0, length).expect("no longer than it");
        let word =
            bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let bytes = Payload::from(&bytes[..length as usize]);
        let landed = length == 0 || nic.write(to, bytes).is_ok();
        if landed {
            self.words.overwrite(to, bytes);
        }
        let word = if matches!(pending.command.opcode, READ | WRITE) { 0 } else { word };
        self.end(nic, number, if landed { Status::Done } else { Status::Region }, word);
    }

    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) -> Option<()> {
        match Message::parse(message)? {
            Message::Ask { number, access, capability, inline } => {
                self.serve(nic, from, number, (access, capability), inline);
            }
            Message::Answer { number, status, bytes } => {
                if self.pending.get(&number)?.owner != from {
                    return None;
                }
                self.on_answer(nic, number, status, bytes);
            }
            Message::Sent { number } => {
                // If there is no such write, it was refused before.
                let Some(incoming) = self.arriving.get_mut(&(from, number)) else {
                    return Some(());
                };
                incoming.on_all_sent();
                if incoming.is_whole() {
                    self.end_arriving(nic, from, number);
                } else {
                    self.start_retrying(nic);
                }
            }
            Message::Lacking { number, first, count } => {
                let pending = self.pending.get(&number).filter(|pending| pending.owner == from);
                if let Some(outgoing) = pending.and_then(|pending| pending.outgoing) {
                    match outgoing.send(nic, from, number, first, count) {
                        Some(sent) => self.counters.retransmitted += sent,
                        None => self.end(nic, number, Status::Region, 0),
                    }
                }
            }
        }
        Some(())
    }
}

impl Extension for Memory {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.table = Capabilities::new(nic.node(), nic.secret());
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        nic.charge(STEP_INSTRUCTIONS);
        match command.opcode {
            GRANT | REVOKE | DELEGATE => self.change(nic, &command),
            _ => self.ask(nic, command),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        nic.charge(STEP_INSTRUCTIONS);
        if self.on_message(nic, from, message).is_none() {
            self.counters.malformed += 1;
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        nic.charge(STEP_INSTRUCTIONS);
        // After a loss, many late frames of completed accesses arrive: they are ignored.
        let _ = self.on_frame(nic, from, frame);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        match timeout {
            RETRY => return self.retry(nic),
            RETRY_WAITING => return self.backlog.retry(nic),
            _ => {}
        }
        let now = nic.now();
        self.arriving.retain(|_, incoming| !incoming.is_late(now));
        let late =
            |pending: &PendingAccess| now >= pending.since + patience(pending.command.region);
        let late =
            self.pending.iter().filter(|(_, pending)| late(pending)).map(|(number, _)| *number);
        let late: Vec<u32> = late.collect();
        for number in late {
            self.end(nic, number, Status::PeerLost, 0);
        }
        if !(self.pending.is_empty() && self.arriving.is_empty()) {
            nic.set_timeout(SWEEP, Service::Coarse, SWEEP_EVERY);
        }
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.table.forget(port);
        self.pending.retain(|_, pending| pending.command.region.port != port);
        self.words.forget(port);
        self.deny_arriving(nic, port);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        if let PeerEvent::Down(node) | PeerEvent::Restarted(node, _) = event {
            self.backlog.forget(node);
            nic.cancel_sends(node, Status::PeerLost);
            self.arriving.retain(|(from, _), _| *from != node);
            let of = self.pending.iter().filter(|(_, pending)| pending.owner == node);
            for number in of.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.end(nic, number, Status::PeerLost, 0);
            }
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let pending = std::mem::take(&mut self.pending).into_values();
        pending.map(|pending| pending.command).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.outstanding_commands() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}

/// Returns the time in which an access to as many bytes as the region has is to end.
fn patience(region: RegionRef) -> Duration {
    ANSWER_TIMEOUT + Duration::from_micros(region.length.into())
}

fn done(command: &Command, length: u32) -> Completion {
    Completion { length: length.into(), ..Completion::of(command, Status::Done) }
}
