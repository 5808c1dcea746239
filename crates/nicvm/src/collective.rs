//! Runs collective operations on the NICs: a host posts one command and receives one completion.
//!
//! Every member of a group posts the same operations in the same order. Members exchange control messages for a small
//! operation, so it is reliable and in order. A large broadcast is cut into data frames, which each member forwards
//! down the tree on arrival; lost frames are sent again. A member whose host is late delays only the results that need
//! its contribution: it forwards other members' data at once.
//!
//! Messages that find a full queue are sent as soon as it has room. While a thousand of them wait, the host's next
//! operations wait as well, and begin in their order. So does an operation that comes 2,047 or more after the next one of
//! another host, or as few as 1,024: the NIC of that host stores all before it.
//!
//! | operation | algorithm |
//! |---|---|
//! | barrier | pairwise exchange: in round k with the member whose rank differs in bit k; if the size is no power |
//! | | of two, dissemination: signals the member 2^k after, waits for the one 2^k before |
//! | broadcast | a binomial tree up to 88 bytes, a binary tree of frames above |
//! | reduce | a binomial tree; a member other than the root is done when its NIC has its words |
//! | all-reduce | recursive doubling; if the size is no power of two, reduce and broadcast |
//! | all-gather | a ring |
//!
//! After Buntinas, Panda and Sadayappan ("Fast NIC-Based Barrier over Myrinet/GM", IPDPS 2001), Yu, Buntinas and Panda
//! (NIC-based multicast, ICPP 2003); `host` has the same algorithms run by hosts.

mod broadcast;
mod command;
mod gather;
mod group;
mod holder;
#[doc(hidden)]
pub mod host;
mod pace;
mod reduce;
mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::Payload;

use crate::context::Context;
use crate::extension::{Extension, InitError, PeerEvent, TimeoutId};
use crate::planted::{self, Bug};
use crate::timeout::Service;
use broadcast::Broadcast;
use gather::Gather;
use group::Group;
use holder::Holder;
use reduce::Reduce;

pub(crate) use command::ALL_GATHER;
pub(crate) use command::ALL_REDUCE;
pub(crate) use command::BARRIER;
pub(crate) use command::REDUCE;
pub use command::{
    BROADCAST, HOLD, START, all_gather, all_reduce, barrier, broadcast, hold, reduce, start,
};
pub use reduce::Operation;

/// The extension number of the collective operations.
pub const COLLECTIVES: ExtensionId = ExtensionId(5);
/// Most bytes of a reduction, of one member's part of an all-gather, and of a broadcast in control messages: eleven
/// 8-byte words.
#[doc(hidden)]
pub const SMALL: usize = 88;
/// Most bytes of a broadcast.
pub const MAX_BROADCAST: usize = 1 << 20;

/// Interval between messages to each member while operations run, so that a dead one is detected. Longer than any
/// round.
const PROBE_AFTER: Duration = Duration::from_millis(100);
const WATCH: TimeoutId = TimeoutId(u32::MAX);
const RETRY: TimeoutId = TimeoutId(u32::MAX - 1);
/// Messages that wait for room in the queues to other members, from which on the host's operations wait.
const MOST_WAITING: usize = 1_024;
/// Operations that have not ended here, from which on none is added for a message of another member. Members that keep
/// pace with the slowest cause far fewer.
const MOST_RUNNING: usize = 32_768;
/// Bytes of a message's header: opcode, round, operation number.
const HEAD: usize = 6;
const ASK: u8 = 0;
/// Number of operations, from the next one of this host on, of whose broadcasts frames are stored.
const AHEAD: u32 = 32;
/// Instructions charged for handling a message, without its effects.
const STEP_INSTRUCTIONS: u64 = 10;

/// Counts a group's operations at this member.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CollectiveCounters {
    /// Operations that completed as done.
    pub done: u64,
    /// Operations that completed otherwise.
    pub failed: u64,
    /// Messages and frames that fit no operation.
    pub malformed: u64,
    /// Frames of broadcasts that were sent again.
    pub retransmitted: u64,
}

/// The progress of an operation.
enum Progress {
    Waiting,
    /// The host is done; the NIC continues without it.
    Released,
    Done,
    Failed(Status),
    /// The member of this rank is lost.
    Lost(u16),
    /// Another member contributes this many bytes, which is not this member's number.
    Differs(usize),
}

#[derive(Debug, Default)]
struct Barrier {
    /// Rounds begun by this member; none before its host has posted the operation.
    sent: u8,
    /// Bit k: the message of round k has arrived.
    heard: u32,
}

impl Barrier {
    fn advance(&mut self, nic: &mut Context<'_>, group: &mut Group, number: u32) -> Progress {
        let rounds = tree::rounds(group.size());
        while self.sent < rounds + u8::from(!planted::is(Bug::BarrierShort)) {
            if self.sent > 0 && self.heard & 1 << (self.sent - 1) == 0 {
                return Progress::Waiting;
            }
            if self.sent < rounds {
                let to = tree::partners(group.rank, self.sent, group.size()).0;
                group.send(nic, to, (BARRIER, self.sent, number), &[]);
            }
            self.sent += 1;
        }
        Progress::Done
    }
}

#[derive(Debug)]
enum Kind {
    Barrier(Barrier),
    Broadcast(Broadcast),
    Reduce(Reduce),
    Gather(Gather),
}

impl Kind {
    fn new(opcode: u8) -> Option<Self> {
        Some(match opcode {
            BARRIER => Self::Barrier(Barrier::default()),
            BROADCAST => Self::Broadcast(Broadcast::default()),
            REDUCE | ALL_REDUCE => Self::Reduce(Reduce::new(opcode)),
            ALL_GATHER => Self::Gather(Gather::default()),
            _ => return None,
        })
    }
}

#[derive(Debug)]
struct Running {
    opcode: u8,
    kind: Kind,
    /// The host's command, from its arrival until its completion.
    command: Option<Command>,
    begun: bool,
}

/// The collective operations of one group.
#[derive(Debug)]
pub struct Collectives {
    group: Group,
    /// Number of the host's next operation.
    next: u32,
    running: BTreeMap<u32, Running>,
    /// Operations of the host that begin once fewer messages wait, and the slowest member has begun more operations.
    postponed: VecDeque<Command>,
    /// The next operation of each member, by rank, as last reported.
    reached: Vec<u32>,
    holder: Holder,
    counters: CollectiveCounters,
}

impl Collectives {
    /// Creates the group of `members`, in the order of their ranks.
    #[must_use]
    pub fn new(members: Vec<NodeId>) -> Self {
        Self {
            reached: vec![0; members.len()],
            group: Group::new(members),
            next: 0,
            running: BTreeMap::new(),
            postponed: VecDeque::new(),
            holder: Holder::default(),
            counters: CollectiveCounters::default(),
        }
    }

    /// Returns the group's counters at this member.
    #[must_use]
    pub const fn counters(&self) -> CollectiveCounters {
        self.counters
    }

    /// Returns how many operations have begun at some member and not ended here.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    fn begin(&mut self, nic: &mut Context<'_>, command: Command) {
        let Some(kind) = Kind::new(command.opcode) else {
            nic.refuse(&command, Status::Invalid);
            return;
        };
        if let Err(status) = self.holder.admits(command.region.port) {
            nic.refuse(&command, status);
            return;
        }
        let number = self.next;
        if let Some(rank) = self.holder.lost(number) {
            nic.complete(command.region.port, &holder::lost(&command, rank));
            return;
        }
        self.next = self.next.wrapping_add(1);
        self.report(nic);
        let opcode = command.opcode;
        let running = self.running.entry(number).or_insert(Running {
            opcode,
            kind,
            command: None,
            begun: false,
        });
        running.command = Some(command);
        let group = &mut self.group;
        let progress = if running.opcode != opcode {
            // Other members posted another operation under this number: all later ones would mismatch.
            Progress::Failed(Status::Invalid)
        } else {
            running.begun = true;
            match &mut running.kind {
                Kind::Barrier(barrier) => barrier.advance(nic, group, number),
                Kind::Broadcast(broadcast) => broadcast.begin(nic, group, number, &command),
                Kind::Reduce(reduce) => reduce.begin(nic, group, number, &command),
                Kind::Gather(gather) => gather.begin(nic, group, number, &command),
            }
        };
        self.settle(nic, number, &progress);
        if !self.running.is_empty() {
            nic.set_timeout(WATCH, Service::Coarse, PROBE_AFTER);
        }
    }

    fn settle(&mut self, nic: &mut Context<'_>, number: u32, progress: &Progress) {
        let Some(running) = self.running.get_mut(&number) else { return };
        let status = match progress {
            Progress::Waiting => return,
            Progress::Done | Progress::Released => Status::Done,
            Progress::Failed(status) => *status,
            Progress::Lost(_) => Status::PeerLost,
            Progress::Differs(_) => Status::Truncated,
        };
        if let Some(command) = running.command.take() {
            self.counters.done += u64::from(status == Status::Done);
            self.counters.failed += u64::from(status != Status::Done);
            let length = match *progress {
                Progress::Differs(bytes) => bytes as u64,
                _ => command.region.length.into(),
            };
            let completion = match *progress {
                Progress::Lost(rank) => holder::lost(&command, rank),
                _ => Completion { length, ..Completion::of(&command, status) },
            };
            nic.complete(command.region.port, &completion);
        }
        // The NIC may still have to forward the broadcast to its children.
        let rest = matches!(&running.kind, Kind::Broadcast(broadcast) if !broadcast.is_over());
        let rest = rest || matches!(progress, Progress::Released);
        if status != Status::Done || !rest {
            self.running.remove(&number);
        }
    }

    fn on_message(&mut self, nic: &mut Context<'_>, from: u16, message: &[u8]) -> Option<()> {
        let (head, body) = message.split_first_chunk::<HEAD>()?;
        let [opcode, round, number @ ..] = *head;
        let number = u32::from_le_bytes(number);
        if opcode == ASK {
            // A probe needs no answer: its acknowledgement shows that this member is alive.
            self.on_reached(nic, from, number);
            return Some(());
        }
        if opcode == HOLD {
            return self.on_holder(nic, from, round, number);
        }
        let is_new = !self.running.contains_key(&number);
        // The operation has ended here, so the message is late.
        if is_new && self.next.wrapping_sub(number) as i32 > 0 {
            self.on_late(nic, from, opcode, round, number);
            return Some(());
        }
        let is_probe = opcode == BROADCAST && round == broadcast::PROBE;
        if is_probe && is_new && self.is_far_ahead(number) {
            // The parent asks again.
            return Some(());
        }
        if is_new && self.running.len() >= MOST_RUNNING {
            return None;
        }
        let fresh = Running { opcode, kind: Kind::new(opcode)?, command: None, begun: false };
        let running = self.running.entry(number).or_insert(fresh);
        if running.opcode != opcode {
            return None;
        }
        let group = &mut self.group;
        let progress = match &mut running.kind {
            Kind::Barrier(barrier) => {
                barrier.heard |= 1_u32.checked_shl(round.into())?;
                if !running.begun {
                    return Some(());
                }
                barrier.advance(nic, group, number)
            }
            Kind::Broadcast(broadcast) => {
                let (progress, retransmitted) =
                    broadcast.on_message(nic, group, number, (from, round), body)?;
                self.counters.retransmitted += retransmitted;
                progress
            }
            Kind::Reduce(reduce) => {
                reduce.on_message(from, round, body)?;
                reduce.advance(nic, group, number)
            }
            Kind::Gather(gather) => gather.on_message(nic, group, number, round, body)?,
        };
        self.settle(nic, number, &progress);
        Some(())
    }

    /// Returns whether an operation has ended here, or is too far ahead for its broadcast's frames to be stored.
    const fn is_far_ahead(&self, number: u32) -> bool {
        number.wrapping_sub(self.next) >= AHEAD
    }

    /// Answers a member's probe about a broadcast that has ended here: this member needs nothing more.
    fn on_late(&self, nic: &mut Context<'_>, from: u16, opcode: u8, round: u8, number: u32) {
        if opcode == BROADCAST && round == broadcast::PROBE {
            self.group.try_send(nic, from, (BROADCAST, broadcast::DONE, number), &[]);
        }
    }
}

impl Extension for Collectives {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        let rank = self.group.rank_of(nic.node()).ok_or_else(|| InitError::Refused {
            extension: nic.extension(),
            reason: "this node is not a member of the group; list it",
        })?;
        self.group.rank = rank;
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        nic.charge(STEP_INSTRUCTIONS);
        match command.opcode {
            HOLD => self.hold(nic, &command),
            START => self.start(nic, command),
            _ if self.must_wait(command.region.port) || !self.postponed.is_empty() => {
                // The host's ports bound their number.
                self.postponed.push_back(command);
                nic.set_timeout(WATCH, Service::Coarse, PROBE_AFTER);
            }
            _ => self.begin(nic, command),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        nic.charge(STEP_INSTRUCTIONS);
        let heard = self.group.rank_of(from);
        if heard.and_then(|from| self.on_message(nic, from, message)).is_none() {
            self.counters.malformed += 1;
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        nic.charge(STEP_INSTRUCTIONS);
        let number = frame.header.sequence;
        // The parent sends frames of operations that are too far ahead again.
        if !self.running.contains_key(&number) && self.is_far_ahead(number) {
            return;
        }
        if !broadcast::is_of_parent(&self.group, from, frame) {
            self.counters.malformed += 1;
            return;
        }
        let kind = Kind::Broadcast(Broadcast::default());
        let fresh = Running { opcode: BROADCAST, kind, command: None, begun: false };
        let running = self.running.entry(number).or_insert(fresh);
        let progress = match &mut running.kind {
            Kind::Broadcast(broadcast) => broadcast.on_frame(nic, &self.group, number, frame),
            _ => None,
        };
        match progress {
            Some(progress) => self.settle(nic, number, &progress),
            None => self.counters.malformed += 1,
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        if timeout == RETRY {
            self.group.backlog.retry(nic);
            for rank in std::mem::take(&mut self.group.stuck) {
                self.on_member_gone(nic, rank, false);
            }
            self.resume(nic);
            return;
        }
        if timeout != WATCH {
            if let Some(running) = self.running.get_mut(&timeout.0)
                && let Kind::Broadcast(broadcast) = &mut running.kind
            {
                broadcast.probe(nic, &self.group, timeout.0);
            }
            return;
        }
        self.resume(nic);
        let waits = self.holder.is_starting() || !self.postponed.is_empty();
        if waits || self.running.values().any(|running| running.command.is_some()) {
            // If a member is dead, the missing acknowledgement of this message reveals it.
            for rank in (0..self.group.size()).filter(|rank| *rank != self.group.rank) {
                self.group.try_send(nic, rank, (ASK, 0, self.next), &[]);
            }
        }
        if waits || !self.running.is_empty() {
            nic.set_timeout(WATCH, Service::Coarse, PROBE_AFTER);
        }
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.leave(nic, port);
        self.postponed.retain(|command| command.region.port != port);
        for running in self.running.values_mut() {
            running.command.take_if(|command| command.region.port == port);
        }
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        let (node, is_another) = match event {
            PeerEvent::Down(node) => (node, false),
            PeerEvent::Restarted(node, _) => (node, true),
            PeerEvent::Up(..) => return,
        };
        self.group.backlog.forget(node);
        if let Some(rank) = self.group.rank_of(node) {
            self.group.stuck.remove(&rank);
            self.on_member_gone(nic, rank, is_another);
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let running = self.running.values_mut().filter_map(|running| running.command.take());
        running.chain(self.postponed.drain(..)).chain(self.holder.take_start()).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.cancel_start(nic);
        self.cancel_postponed(nic);
        for number in self.running.keys().copied().collect::<Vec<_>>() {
            self.settle(nic, number, &Progress::Failed(Status::Cancelled));
        }
    }
}

/// Writes a result into a member's region. A region that is too small takes its beginning, and the operation ends as
/// truncated.
fn deliver(nic: &mut Context<'_>, command: &Command, bytes: &[u8]) -> Progress {
    let length = bytes.len().min(command.region.length as usize);
    if length == 0 {
        return Progress::Done;
    }
    let to = command.region.part(0, length as u32).expect("no longer than it");
    match nic.write(to, Payload::from(&bytes[..length])) {
        Ok(()) if length < bytes.len() => Progress::Failed(Status::Truncated),
        Ok(()) => Progress::Done,
        Err(_) => Progress::Failed(Status::Region),
    }
}

/// Returns the bytes of a command's region.
fn taken(nic: &Context<'_>, command: &Command) -> Option<Vec<u8>> {
    if command.region.length == 0 {
        return Some(Vec::new());
    }
    nic.read(command.region).ok().map(|bytes| bytes.to_vec())
}
