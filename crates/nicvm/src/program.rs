//! Programs: sequences of commands that an application builds once and triggers many times.
//!
//! After the Virtual Communication Machine (DVCM paper, sections 2 and 3): most instructions assemble a message from
//! application memory, or scatter one into it. A program is checked when it is built. So a run fails only if its memory
//! was deregistered, it exceeds a limit on steps or effects, too few waits are posted, or its messages find no room in a
//! queue. Its effects are carried out when it ends, and dropped if it fails. A holder of a capability with the right to
//! run a program may trigger it from another node, and receives its completion: [`Status::PeerLost`] if the node does
//! not answer within 2 s.
//!
//! A message of up to 97 bytes is one control message: reliable, and in order with other such messages to its node. A
//! longer one, of up to 64 KiB ([`MESSAGE`]), travels in data frames, as the paper's messages do. It is unreliable: a
//! lost frame loses the message, and short messages may overtake it. The receiving NIC reassembles it in its own
//! memory, and takes a posted buffer when it is whole.
//!
//! The paper does not list the instructions of its machine; these are our own.

mod code;
mod long;
mod remote;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use crate::capability::{Capabilities, Capability, CapabilityRights};
use crate::context::Context;
use crate::control::MAX_MESSAGE;
use crate::extension::{Extension, InitError, PeerEvent, TimeoutId};
use crate::timeout::Service;
use crate::transmit::Sent;
use long::{ASSEMBLY_TIMEOUT, LongMessages, Unsent};
use remote::RemoteRuns;

pub use code::{CheckError, Condition, Instruction, Range, assemble, check, disassemble};

/// The number of the extension that runs programs.
pub const PROGRAMS: ExtensionId = ExtensionId(8);

/// Opcode: builds the program encoded in `region`, over the port's memory that arguments 0 and 1 name (see
/// [`RegionRef::to_words`]). Completes with a capability to run it (arguments 0 to 2), or with [`Status::Invalid`]
/// (argument 0: index of the wrong instruction, argument 1: number of a [`CheckError`]).
pub(crate) const BUILD: u8 = 1;
/// Opcode: runs the program that the capability in the arguments names, on any node. Completes with the program's count
/// (argument 0) and the number of steps that it took (argument 1).
pub(crate) const RUN: u8 = 2;
/// Opcode: removes the program whose capability is in the arguments.
pub const DROP: u8 = 3;
/// Opcode: posts `region` as the buffer of the next message that a program sends to this port; completes with its
/// length.
pub const RECEIVE: u8 = 4;
/// Opcode: waits for a program over this port's memory. The next signal completes it (argument 0: the signal's number).
/// If a program passes another extension a command, that command's completion takes the place of the next wait's. A run
/// that needs more waits than are posted is refused.
pub const WAIT: u8 = 5;

/// Most instructions of a program.
const MAX_PROGRAM: usize = 256;
/// Most steps of one run: beyond that it fails, and its effects are dropped. A copy, a gather and a scatter count as
/// one more step for each 256 bytes.
pub(crate) const MAX_STEPS: u32 = 10_000;
/// Most bytes of the memory that a program works on: each run copies them.
#[doc(hidden)]
pub const MAX_MEMORY: usize = 1 << 20;
/// Most bytes of the message that a program assembles. Up to 97 bytes are sent reliably; longer messages are not.
pub const MESSAGE: usize = 64 << 10;
/// Most bytes of a message that is sent as one control message, which has 3 bytes of header.
const SHORT: usize = MAX_MESSAGE - 3;
/// Time for which a program's writes are remembered: longer than they take to reach memory. Within that time, writes of
/// the host to the same bytes are not seen by a run.
const REMEMBERED: Duration = Duration::from_millis(1);
/// Coprocessor instructions charged for each step of a program.
const STEP_INSTRUCTIONS: u64 = 10;

/// Builds a command that builds a program over `memory`.
#[must_use]
pub fn build(code: RegionRef, memory: RegionRef, cookie: u64) -> Command {
    let [first, second] = memory.to_words();
    let args = [first, second, 0];
    Command { extension: PROGRAMS, opcode: BUILD, region: code, cookie, args, ..Command::default() }
}

/// Builds a command that runs a program, on this node or another.
#[must_use]
pub fn run(program: &Capability, cookie: u64) -> Command {
    let args = program.to_words();
    Command { extension: PROGRAMS, opcode: RUN, cookie, args, ..Command::default() }
}

/// Builds a command that waits for a signal.
#[must_use]
pub fn wait(cookie: u64) -> Command {
    Command { extension: PROGRAMS, opcode: WAIT, cookie, ..Command::default() }
}

/// Builds a command that posts a buffer for the next message of a program.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: PROGRAMS, opcode: RECEIVE, region, cookie, ..Command::default() }
}

/// Counts the extension's runs and messages since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ProgramCounters {
    /// Runs that completed.
    pub runs: u64,
    /// Runs that failed, or were not allowed.
    pub failed: u64,
    /// Messages that found no buffer.
    pub without_buffer: u64,
    /// Messages and frames that cannot be parsed.
    pub malformed: u64,
    /// Long messages of which a frame was lost, or whose sender failed halfway.
    pub incomplete: u64,
    /// Long messages for whose reassembly no memory was free.
    pub without_memory: u64,
    /// Frames that had arrived before, arrived too late, or contradict the other frames of their message.
    pub void_frames: u64,
}

/// A checked program.
#[derive(Debug)]
struct Program {
    code: Vec<Instruction>,
    memory: RegionRef,
    /// Its recent writes, which may still be on their way into memory.
    recent: Vec<(Range, Vec<u8>, Instant)>,
}

/// The result of a run: its count and its steps.
type Ended = Result<(u64, u32), Status>;

/// The extension that runs programs and receives their messages.
#[derive(Debug)]
pub struct Programs {
    table: Capabilities,
    programs: BTreeMap<u16, Program>,
    buffers: BTreeMap<PortId, Vec<Command>>,
    waits: BTreeMap<PortId, VecDeque<Command>>,
    remote: RemoteRuns,
    long: LongMessages,
    unsent: Unsent,
    counters: ProgramCounters,
}

/// The timeout of the messages that are being reassembled.
const EXPIRE: TimeoutId = TimeoutId(0);

const PROGRAM_MESSAGE: u8 = 3;

impl Default for Programs {
    fn default() -> Self {
        Self::new()
    }
}

impl Programs {
    /// Creates the extension without programs. The keys of its capabilities derive from a secret that the NIC draws
    /// when it starts.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: Capabilities::unkeyed(),
            programs: BTreeMap::new(),
            buffers: BTreeMap::new(),
            waits: BTreeMap::new(),
            remote: RemoteRuns::new(),
            long: LongMessages::new(),
            unsent: Unsent::default(),
            counters: ProgramCounters::default(),
        }
    }

    /// Returns the extension's counters.
    #[must_use]
    pub const fn counters(&self) -> ProgramCounters {
        self.counters
    }

    fn build(&mut self, nic: &mut Context<'_>, command: &Command) {
        let port = command.region.port;
        let memory = RegionRef::from_words([command.args[0], command.args[1]]);
        let bytes = nic.read(command.region).ok().map(|bytes| bytes.to_vec());
        // A port may build only over its own memory.
        let is_own = memory.port == port && nic.read(memory).is_ok();
        let (Some(bytes), true) = (bytes, is_own) else {
            nic.refuse(command, Status::Region);
            return;
        };
        let code = disassemble(&bytes).and_then(|code| check(&code, memory.length).map(|()| code));
        let code = match code {
            Ok(code) => code,
            Err((at, error)) => {
                let args = [at as u64, error as u64, 0, 0];
                let status = Status::Invalid;
                nic.complete(port, &Completion { args, ..Completion::of(command, status) });
                return;
            }
        };
        let Ok(capability) =
            self.table.grant(memory, CapabilityRights::RUN.and(CapabilityRights::DELEGATE))
        else {
            nic.refuse(command, Status::Refused);
            return;
        };
        self.programs.insert(capability.entry, Program { code, memory, recent: Vec::new() });
        let [first, second, third] = capability.to_words();
        let args = [first, second, third, 0];
        nic.complete(port, &Completion { args, ..Completion::of(command, Status::Done) });
    }

    /// Runs a program of this node, and counts the run.
    fn execute(&mut self, nic: &mut Context<'_>, capability: &Capability) -> Ended {
        let ran = self.try_run(nic, capability);
        let counter = if ran.is_ok() { &mut self.counters.runs } else { &mut self.counters.failed };
        *counter += 1;
        ran
    }

    /// Runs a program of this node. Its writes reach memory later, so it remembers them for the next run to read.
    fn try_run(&mut self, nic: &mut Context<'_>, capability: &Capability) -> Ended {
        let checked = self.table.check(capability, CapabilityRights::RUN).is_ok();
        let program = self.programs.get_mut(&capability.entry);
        let Some(program) = program.filter(|_| checked && capability.node == nic.node()) else {
            return Err(Status::Region);
        };
        let mut image = nic.read(program.memory).map_err(|_| Status::Region)?.to_vec();
        let now = nic.now();
        program.recent.retain(|(.., until)| now < *until);
        for (range, bytes, _) in &program.recent {
            image[range.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let mut machine = code::Machine::new(image);
        let ran = machine.run(&program.code, MAX_STEPS);
        nic.charge(u64::from(machine.steps()) * STEP_INSTRUCTIONS);
        let memory = program.memory;
        let waits = self.waits.entry(memory.port).or_default();
        let ends = |effect: &&code::Effect| !matches!(effect, code::Effect::Send { .. });
        if machine.effects().iter().filter(ends).count() > waits.len() {
            return Err(Status::Refused);
        }
        let sends = machine.effects().iter().filter_map(|effect| match effect {
            code::Effect::Send { node, bytes, .. } => Some((NodeId(*node), bytes.len())),
            _ => None,
        });
        if !self.unsent.has_room(sends) || !has_room(nic, machine.effects()) {
            return Err(Status::Refused);
        }
        if !ran {
            return Err(Status::Cancelled);
        }
        for range in machine.written() {
            let to = memory.part(range.offset, range.length).ok_or(Status::Region)?;
            nic.write(to, Payload::from(machine.bytes(*range))).map_err(|_| Status::Region)?;
            program.recent.push((*range, machine.bytes(*range).to_vec(), now + REMEMBERED));
        }
        for effect in machine.effects() {
            take_effect(nic, effect, memory, (waits, &mut self.unsent))?;
        }
        Ok((machine.counted(), machine.steps()))
    }

    fn start(&mut self, nic: &mut Context<'_>, command: &Command) {
        let capability = Capability::from_words(command.args);
        if capability.node == nic.node() {
            let ran = self.execute(nic, &capability);
            finish(nic, command, ran);
            return;
        }
        self.remote.request(nic, &capability, command);
    }

    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) -> Option<()> {
        let (kind, rest) = message.split_first()?;
        if *kind == PROGRAM_MESSAGE {
            let (port, bytes) = rest.split_first_chunk::<2>()?;
            self.take_in(nic, from, PortId(u16::from_le_bytes(*port)), bytes);
            return Some(());
        }
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let number = u32::from_le_bytes(*number);
        self.on_run(nic, from, (*kind, number), rest)
    }

    /// Writes a program's message into the next buffer of its port.
    fn take_in(&mut self, nic: &mut Context<'_>, from: NodeId, port: PortId, bytes: &[u8]) {
        let buffers = self.buffers.get_mut(&port).filter(|buffers| !buffers.is_empty());
        let Some(command) = buffers.map(|buffers| buffers.remove(0)) else {
            self.counters.without_buffer += 1;
            return;
        };
        let length = bytes.len().min(command.region.length as usize);
        let to = command.region.part(0, length as u32).expect("no longer than it");
        let landed = length == 0 || nic.write(to, Payload::from(&bytes[..length])).is_ok();
        let status = match landed {
            false => Status::Region,
            true if length < bytes.len() => Status::Truncated,
            true => Status::Done,
        };
        let done =
            Completion { node: from, length: length as u64, ..Completion::of(&command, status) };
        nic.complete(port, &done);
    }
}

/// Returns whether the queues for control messages have room for the short messages of a run.
fn has_room(nic: &Context<'_>, effects: &[code::Effect]) -> bool {
    let mut needed = BTreeMap::<NodeId, usize>::new();
    for effect in effects {
        // The calls of other extensions take room among the messages to this node.
        let to = match effect {
            code::Effect::Send { node, bytes, .. } if bytes.len() <= SHORT => NodeId(*node),
            code::Effect::Call { .. } => nic.node(),
            _ => continue,
        };
        *needed.entry(to).or_default() += 1;
    }
    needed.into_iter().all(|(to, messages)| nic.control_room(to) >= messages)
}

/// Carries out one effect of a run. A signal or a call takes the next of `waits`, of which there are enough.
fn take_effect(
    nic: &mut Context<'_>,
    effect: &code::Effect,
    memory: RegionRef,
    (waits, unsent): (&mut VecDeque<Command>, &mut Unsent),
) -> Result<(), Status> {
    match effect {
        code::Effect::Send { node, port, bytes } if bytes.len() > SHORT => {
            unsent.send(nic, (NodeId(*node), PortId(*port)), memory.port, bytes);
        }
        code::Effect::Send { node, port, bytes } => {
            let mut message = vec![PROGRAM_MESSAGE];
            message.extend(port.to_le_bytes());
            message.extend(bytes);
            nic.send_control(NodeId(*node), &message).map_err(|_| Status::Refused)?;
        }
        code::Effect::Signal { cookie } => {
            let wait = waits.pop_front().expect("there are enough waits");
            let args = [*cookie, 0, 0, 0];
            nic.complete(memory.port, &Completion { args, ..Completion::of(&wait, Status::Done) });
        }
        code::Effect::Call { extension, opcode, cookie, range } => {
            waits.pop_front().expect("there are enough waits");
            let region = memory.part(range.offset, range.length).ok_or(Status::Region)?;
            nic.forward(Command {
                extension: ExtensionId(*extension),
                opcode: *opcode,
                cookie: *cookie,
                region,
                ..Command::default()
            });
        }
    }
    Ok(())
}

fn finish(nic: &mut Context<'_>, command: &Command, ran: Ended) {
    let completion = match ran {
        Ok((counted, steps)) => Completion {
            args: [counted, steps.into(), 0, 0],
            ..Completion::of(command, Status::Done)
        },
        Err(status) => Completion::of(command, status),
    };
    nic.complete(command.region.port, &completion);
}

impl Extension for Programs {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.table = Capabilities::new(nic.node(), nic.secret());
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            BUILD => self.build(nic, &command),
            RUN => self.start(nic, &command),
            DROP => {
                let capability = Capability::from_words(command.args);
                let owns = self.table.owner(&capability) == Some(command.region.port);
                if owns && self.table.revoke(&capability).is_ok() {
                    self.programs.remove(&capability.entry);
                    nic.complete(command.region.port, &Completion::of(&command, Status::Done));
                } else {
                    nic.refuse(&command, Status::Region);
                }
            }
            WAIT => self.waits.entry(command.region.port).or_default().push_back(command),
            RECEIVE => self.buffers.entry(command.region.port).or_default().push(command),
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        if self.on_message(nic, from, message).is_none() {
            self.counters.malformed += 1;
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let steps = 1 + frame.payload.len() as u64 / u64::from(code::BYTES_PER_STEP);
        nic.charge(steps * STEP_INSTRUCTIONS);
        let was_empty = self.long.is_empty();
        let whole = self.long.take(nic.now(), frame, &mut self.counters);
        if was_empty && !self.long.is_empty() {
            nic.set_timeout(EXPIRE, Service::Coarse, ASSEMBLY_TIMEOUT);
        }
        if let Some(bytes) = whole {
            self.take_in(nic, from, frame.header.port, &bytes);
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        match timeout {
            remote::RETRY => return self.remote.results.retry(nic),
            remote::SWEEP => return self.remote.sweep(nic),
            _ => {}
        }
        self.counters.incomplete += self.long.expire(nic.now());
        if !self.long.is_empty() {
            nic.set_timeout(EXPIRE, Service::Coarse, ASSEMBLY_TIMEOUT);
        }
    }

    fn on_sent(&mut self, _: &mut Context<'_>, sent: Sent) {
        self.unsent.on_sent(sent);
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        self.table.forget(port);
        self.programs.retain(|_, program| program.memory.port != port);
        self.buffers.remove(&port);
        self.waits.remove(&port);
        self.counters.incomplete += self.long.forget_port(port);
        self.remote.forget_port(port);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        if let PeerEvent::Down(node) | PeerEvent::Restarted(node, _) = event {
            self.counters.incomplete += self.long.forget_sender(node);
            self.remote.on_lost(nic, node);
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let pending = self.remote.take();
        let buffers = std::mem::take(&mut self.buffers).into_values().flatten();
        let waits = std::mem::take(&mut self.waits).into_values().flatten();
        pending.chain(buffers).chain(waits).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.outstanding_commands() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}
