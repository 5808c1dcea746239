//! The default service (DVCM paper, section 2): zero-copy, unreliable messages between ports.
//!
//! A message goes from registered memory of one application into a posted buffer of another. Large
//! ones are cut into frames; where one is lost the message is, and its buffer takes the next one.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;

use crate::context::Context;
use crate::extension::{Extension, InitError, TimeoutId};
use crate::transmit::{Fragment, Message};

/// The number of the default service.
pub const MESSAGES: ExtensionId = ExtensionId(1);

/// Sends `region` to `port` of `node`; completes when the memory has been read. Argument 0 is a tag
/// of 32 bits that comes with the message.
pub const SEND: u8 = 1;
/// Lends `region` to the next message for this port; completes with its source, its length and its
/// tag (argument 0), [`Status::Truncated`] where it was longer (argument 1 is then its length).
pub const RECEIVE: u8 = 2;

/// A command that sends `region` to `port` of `node`.
#[must_use]
pub fn send(node: NodeId, port: PortId, region: RegionRef, cookie: u64) -> Command {
    Command { extension: MESSAGES, opcode: SEND, node, port, region, cookie, ..Command::default() }
}

/// A command that lends `region` to the next message.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: MESSAGES, opcode: RECEIVE, region, cookie, ..Command::default() }
}

/// The message of a send command, as the transmit scheduler takes it.
pub(crate) fn outgoing(command: &Command) -> Message {
    let completion = Completion {
        opcode: command.opcode,
        flags: command.flags,
        node: command.node,
        port: command.port,
        cookie: command.cookie,
        length: u64::from(command.region.length),
        ..Completion::default()
    };
    Message {
        extension: MESSAGES,
        node: command.node,
        port: command.port,
        source: command.region,
        tag: command.args[0] as u32,
        controlled: false,
        first: 0,
        completion: Some((command.region.port, completion)),
    }
}

/// A posted buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    region: RegionRef,
    cookie: u64,
}

/// A message that has begun to arrive.
#[derive(Clone, Copy, Debug)]
struct Assembly {
    message: u32,
    buffer: Buffer,
    received: u32,
}

/// What the service has seen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MessageCounters {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages for which no buffer was posted.
    pub without_buffer: u64,
    /// Messages of which a part was lost.
    pub incomplete: u64,
}

/// The default service.
#[derive(Debug, Default)]
pub struct Messages {
    buffers: BTreeMap<PortId, VecDeque<Buffer>>,
    /// By source and port: one message of each arrives at a time.
    assemblies: BTreeMap<(NodeId, PortId), Assembly>,
    counters: MessageCounters,
}

impl Messages {
    /// The service without buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Buffers that are posted, on all ports, and not taken by a message that has begun.
    pub(crate) fn free_buffers(&self) -> u32 {
        self.buffers.values().map(|buffers| buffers.len() as u32).sum()
    }

    /// What the service has seen.
    #[must_use]
    pub const fn counters(&self) -> MessageCounters {
        self.counters
    }

    fn begin(&mut self, from: NodeId, port: PortId, fragment: Fragment) -> Option<Assembly> {
        let buffer = match self.assemblies.remove(&(from, port)) {
            // The rest of the message before was lost: its buffer takes this one.
            Some(abandoned) => {
                self.counters.incomplete += 1;
                Some(abandoned.buffer)
            }
            None => self.buffers.get_mut(&port).and_then(VecDeque::pop_front),
        };
        let Some(buffer) = buffer else {
            self.counters.without_buffer += 1;
            return None;
        };
        Some(Assembly { message: fragment.message, buffer, received: 0 })
    }

    /// Where a frame's bytes go: into the message that it belongs to, or a new one.
    fn assembly(&mut self, from: NodeId, port: PortId, fragment: Fragment) -> Option<Assembly> {
        match self.assemblies.get(&(from, port)) {
            Some(open) if open.message == fragment.message => self.assemblies.remove(&(from, port)),
            _ if fragment.offset == 0 => self.begin(from, port, fragment),
            // The middle of a message whose beginning was lost.
            _ => None,
        }
    }
}

impl Extension for Messages {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            SEND => nic.send(outgoing(&command)),
            RECEIVE if command.region.length > 0 => {
                let buffer = Buffer { region: command.region, cookie: command.cookie };
                self.buffers.entry(command.region.port).or_default().push_back(buffer);
            }
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let port = frame.header.port;
        let fragment = Fragment::of(&frame.header);
        let Some(mut assembly) = self.assembly(from, port, fragment) else { return };
        let buffer = assembly.buffer;
        let room = buffer.region.length.saturating_sub(fragment.offset);
        let length = room.min(frame.payload.len() as u32);
        let to = buffer.region.part(fragment.offset.min(buffer.region.length), length);
        let payload = frame.payload.slice(0..length as usize);
        let (Some(to), Some(payload)) = (to, payload) else { return };
        let written = length == 0 || nic.write(to, payload).is_ok();
        assembly.received += frame.payload.len() as u32;
        if written && assembly.received < fragment.total {
            self.assemblies.insert((from, port), assembly);
            return;
        }
        self.counters.delivered += u64::from(written);
        let truncated = fragment.total > buffer.region.length;
        let completion = Completion {
            status: match (written, truncated) {
                (false, _) => Status::Region,
                (true, true) => Status::Truncated,
                (true, false) => Status::Done,
            },
            opcode: RECEIVE,
            node: from,
            port,
            cookie: buffer.cookie,
            length: u64::from(fragment.total.min(buffer.region.length)),
            args: [u64::from(fragment.tag), u64::from(fragment.total), 0, 0],
            ..Completion::default()
        };
        nic.complete(port, &completion);
    }

    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for (port, buffers) in std::mem::take(&mut self.buffers) {
            for buffer in buffers {
                let completion = Completion {
                    status: Status::Cancelled,
                    opcode: RECEIVE,
                    cookie: buffer.cookie,
                    ..Completion::default()
                };
                nic.complete(port, &completion);
            }
        }
    }
}
