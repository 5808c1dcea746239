//! The default service (DVCM paper, section 2): zero-copy, unreliable messages between ports.
//!
//! A message goes from registered memory of one application into a posted buffer of another. A large message is cut
//! into frames; if one frame is lost, the message is lost and its buffer takes the next one. A message that the network
//! duplicates is delivered once, unless 64 messages of its sender lie between the copies. A message for a suspended
//! process takes its buffer at once, and is written there when the process is resumed. If a message finds no buffer, it
//! takes that of another one of which no frame has arrived for 100 ms, or up to 10 ms more: its sender may be down.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::{Instant, nanos};

use crate::admission::CONTROLLED;
use crate::context::Context;
use crate::extension::Extension;
use crate::planted::{self, Bug};
use crate::reassembly::{Assembly, Place, Streams};
use crate::transmit::{FlowId, Fragment, Message};

/// The extension number of the default service.
pub const MESSAGES: ExtensionId = ExtensionId(1);

/// Opcode: sends `region` to `port` of `node`; completes when the memory has been read. Argument 0 is a 32-bit tag that
/// travels with the message.
pub const SEND: u8 = 1;
/// Opcode: posts `region` as the buffer of the next message for this port. Completes with the message's source, length
/// and tag (argument 0). If the message was longer, the status is [`Status::Truncated`] and argument 1 its length.
pub const RECEIVE: u8 = 2;

/// Builds a command that sends `region` to `port` of `node`.
#[must_use]
pub fn send(node: NodeId, port: PortId, region: RegionRef, cookie: u64) -> Command {
    Command { extension: MESSAGES, opcode: SEND, node, port, region, cookie, ..Command::default() }
}

/// Builds a command that posts `region` as a receive buffer.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: MESSAGES, opcode: RECEIVE, region, cookie, ..Command::default() }
}

/// Converts a send command into a message for the transmit scheduler.
pub(crate) fn outgoing(command: &Command) -> Message {
    let length = u64::from(command.region.length);
    let completion = Completion { length, ..Completion::of(command, Status::Done) };
    Message {
        extension: MESSAGES,
        node: command.node,
        // One flow per destination port: a blocked port blocks no other, and messages of a port keep their order. A
        // message of a suspended process does not block those of others to its port, unless a part of it has left.
        flow: FlowId(command.port.0),
        port: command.port,
        source: command.region,
        tag: command.args[0] as u32,
        controlled: false,
        first: 0,
        completion: Some((command.region.port, completion)),
    }
}

/// Default number of streams that are remembered, each of one sender and port.
const DEFAULT_STREAMS: usize = 4096;

/// Time without a frame after which the buffer of a partly received message may go to another message.
const STALLED_AFTER: Duration = Duration::from_millis(100);
/// Time between two searches of a port for such a message.
const SEARCH_AFTER: Duration = Duration::from_millis(10);

/// Counts the service's messages and frames since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MessageCounters {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages for which no buffer was posted.
    pub without_buffer: u64,
    /// Messages of which a part was lost.
    pub incomplete: u64,
    /// Frames that had arrived before, or arrived too late.
    pub void_frames: u64,
    /// Frames that contradict themselves or their message.
    pub malformed: u64,
    /// Frames kept on the NIC because the receiving process was suspended.
    pub stopped: u64,
}

/// A stream: sender, receiving port, and whether it is under flow control. Messages of one stream leave the sender in
/// order.
type StreamKey = (NodeId, PortId, bool);

/// A posted buffer that a message has taken.
#[derive(Debug)]
struct Buffer {
    /// The command that has posted it.
    command: Command,
    /// When a frame of the message last arrived.
    touched: Instant,
    /// Offsets and bytes that arrived while its process was suspended; at most the buffer's length.
    unwritten: Vec<(u32, Vec<u8>)>,
}

/// The buffers of a port that no message has taken.
#[derive(Debug, Default)]
struct Posted {
    /// The commands that have posted them.
    commands: VecDeque<Command>,
    /// When a stalled message of the port may be searched again.
    search_at: Instant,
}

/// The default service.
#[derive(Debug)]
pub struct Messages {
    /// The buffers by port; `None` for ports on which none was ever posted.
    buffers: Vec<Option<Posted>>,
    /// Each stream assembles one message at a time.
    streams: Streams<StreamKey, Buffer>,
    /// Whole messages for suspended processes, in order of arrival.
    unread: BTreeMap<PortId, Vec<(Buffer, Completion)>>,
    /// Messages under flow control that have begun to arrive, or found no buffer.
    arrived: u32,
    counters: MessageCounters,
}

impl Default for Messages {
    fn default() -> Self {
        Self::new()
    }
}

impl Messages {
    /// Creates the service without buffers.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            streams: Streams::new(DEFAULT_STREAMS),
            unread: BTreeMap::new(),
            arrived: 0,
            counters: MessageCounters {
                delivered: 0,
                without_buffer: 0,
                incomplete: 0,
                void_frames: 0,
                malformed: 0,
                stopped: 0,
            },
        }
    }

    /// Sets how many streams are remembered, each of one sender and port; at least 1. Streams with a partly received
    /// message count in addition. Each takes some 100 bytes. If more senders than this alternate, a frame that the
    /// network duplicates may be delivered twice. Default: 4,096.
    #[must_use]
    pub const fn streams(mut self, most: usize) -> Self {
        self.streams.set_most(if most == 0 { 1 } else { most });
        self
    }

    /// Returns how many buffers are posted, on all ports, and not taken by a message that has begun.
    #[must_use]
    pub fn free_buffers(&self) -> u32 {
        self.buffers.iter().flatten().map(|posted| posted.commands.len() as u32).sum()
    }

    /// Returns how many messages under flow control have begun to arrive, or found no buffer; wraps around.
    pub(crate) const fn arrived(&self) -> u32 {
        self.arrived
    }

    /// Posts the buffers again that partly received messages of `senders` under flow control have taken, if no frame of
    /// them has arrived for `lost_after_ns`. The rest of these messages counts as lost. Returns when to try again, if
    /// there are others.
    pub(crate) fn release_controlled(
        &mut self,
        now: Instant,
        lost_after_ns: u64,
        senders: &[NodeId],
    ) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let streams = self.streams.iter_mut();
        let is_theirs = |(from, _, controlled): StreamKey| controlled && senders.contains(&from);
        for ((_, port, _), stream) in streams.filter(|(key, _)| is_theirs(*key)) {
            let Some(open) = &stream.open else { continue };
            let due = open.target.touched.plus_nanos(lost_after_ns);
            let Some(open) = stream.open.take_if(|_| due <= now) else {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            };
            self.counters.incomplete += 1;
            if let Some(Some(posted)) = self.buffers.get_mut(port.index()) {
                posted.commands.push_front(open.target.command);
            }
        }
        next
    }

    /// Returns the service's counters.
    #[must_use]
    pub const fn counters(&self) -> MessageCounters {
        self.counters
    }

    /// Returns the queue of a port's posted buffers, to which the caller adds one.
    fn buffers_of(&mut self, port: PortId) -> &mut VecDeque<Command> {
        if port.index() >= self.buffers.len() {
            self.buffers.resize_with(port.index() + 1, || None);
        }
        &mut self.buffers[port.index()].get_or_insert_default().commands
    }

    /// Takes the message that a frame belongs to; `None` if the frame is void or no buffer is posted.
    #[inline]
    fn message(
        &mut self,
        now: Instant,
        header: &Header,
        fragment: Fragment,
        length: u32,
    ) -> Option<Taken> {
        let port = header.port;
        let controlled = header.flags & CONTROLLED != 0;
        let key = (header.source, port, controlled);
        let Some(Some(posted)) = self.buffers.get_mut(port.index()) else {
            // No buffer was ever posted on this port, so no stream state is kept for it.
            self.counters.without_buffer += u64::from(fragment.offset == 0);
            self.arrived = self.arrived.wrapping_add(controlled.into());
            return None;
        };
        let (incarnation, message) = (header.incarnation, fragment.message);
        let stream = self.streams.stream(key, incarnation, message);
        if let Some(former) = stream.on_incarnation(incarnation, message) {
            self.counters.incomplete += 1;
            if !planted::is(Bug::RestartLeaks) {
                posted.commands.push_front(former.command);
            }
        }
        let open = match stream.place(incarnation, fragment, length) {
            Place::Open => return stream.open.take().map(Taken::Open),
            Place::Void => {
                self.counters.void_frames += 1;
                return None;
            }
            Place::Newer => stream.open.take(),
            Place::Overtaken => None,
        };
        self.arrived = self.arrived.wrapping_add(controlled.into());
        // The rest of the previous message was lost: its buffer takes this one.
        self.counters.incomplete += u64::from(open.is_some());
        let buffer = open.map(|open| open.target.command).or_else(|| posted.commands.pop_front());
        let buffer = buffer.or_else(|| self.take_stalled(now, port));
        self.counters.without_buffer += u64::from(buffer.is_none());
        buffer.map(Taken::New)
    }

    /// Takes the buffer of the message for `port` of which no frame has arrived for the longest time, at least
    /// [`STALLED_AFTER`]. The rest of that message counts as lost.
    fn take_stalled(&mut self, now: Instant, port: PortId) -> Option<Command> {
        let posted = self.buffers.get_mut(port.index())?.as_mut()?;
        if now < posted.search_at {
            return None;
        }
        let is_stalled =
            |open: &Assembly<Buffer>| now.nanos_since(open.target.touched) >= nanos(STALLED_AFTER);
        let streams = self.streams.iter_mut().filter(|((_, to, _), _)| *to == port);
        let open = streams.map(|(_, stream)| &mut stream.open);
        let stalled = open.filter(|open| open.as_ref().is_some_and(is_stalled));
        let longest = stalled.min_by_key(|open| open.as_ref().map(|open| open.target.touched));
        let Some(open) = longest.and_then(Option::take) else {
            posted.search_at = now + SEARCH_AFTER;
            return None;
        };
        self.counters.incomplete += 1;
        Some(open.target.command)
    }

    fn keep(&mut self, header: &Header, assembly: Assembly<Buffer>) {
        let key = (header.source, header.port, header.flags & CONTROLLED != 0);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.open = Some(assembly);
        }
    }

    /// Keeps a frame for a suspended process, whose memory must not be written.
    fn keep_unwritten(
        &mut self,
        header: &Header,
        mut assembly: Assembly<Buffer>,
        payload: &Payload<'_>,
        (offset, completion): (u32, Completion),
    ) {
        self.counters.stopped += 1;
        let buffer = &mut assembly.target;
        let room = buffer.command.region.length.saturating_sub(offset);
        let length = room.min(payload.len() as u32) as usize;
        if let Some(payload) = payload.slice(0..length).filter(|payload| !payload.is_empty()) {
            buffer.unwritten.push((offset, payload.to_vec()));
        }
        if assembly.is_whole() {
            self.unread.entry(header.port).or_default().push((assembly.target, completion));
        } else {
            self.keep(header, assembly);
        }
    }

    /// Delivers a message of one frame.
    #[inline]
    fn deliver(
        &mut self,
        nic: &mut Context<'_>,
        payload: &Payload<'_>,
        buffer: Command,
        completion: &Completion,
    ) {
        match write(nic, payload, 0, buffer) {
            true => self.complete(nic, completion),
            false => nic.complete(completion.port, &memory_gone(completion)),
        }
    }

    /// Completes the buffer of a whole message.
    fn complete(&mut self, nic: &mut Context<'_>, completion: &Completion) {
        self.counters.delivered += 1;
        nic.complete(completion.port, completion);
    }
}

/// The message that a frame belongs to.
enum Taken {
    /// A message that begins with this frame, and the buffer that it takes.
    New(Command),
    /// A message that had begun before.
    Open(Assembly<Buffer>),
}

/// Writes bytes at their offset, up to the end of the buffer. Returns `false` if the memory is no longer registered.
fn write(nic: &mut Context<'_>, payload: &Payload<'_>, offset: u32, buffer: Command) -> bool {
    let room = buffer.region.length.saturating_sub(offset);
    let length = room.min(payload.len() as u32);
    let to = buffer.region.part(offset.min(buffer.region.length), length);
    let (Some(to), Some(payload)) = (to, payload.slice(0..length as usize)) else {
        return false;
    };
    length == 0 || nic.write(to, payload).is_ok()
}

/// Writes the frames kept while the buffer's process was suspended. Returns `false` if the memory is no longer
/// registered.
fn catch_up(nic: &mut Context<'_>, buffer: &mut Buffer) -> bool {
    let pieces = std::mem::take(&mut buffer.unwritten);
    let command = buffer.command;
    pieces.iter().all(|(offset, bytes)| write(nic, &Payload::from(&bytes[..]), *offset, command))
}

/// Returns the completion of a message whose buffer is no longer registered.
fn memory_gone(completion: &Completion) -> Completion {
    Completion { status: Status::Region, length: 0, ..*completion }
}

/// Returns the completion of the buffer that received a message.
fn received(from: NodeId, port: PortId, fragment: Fragment, buffer: Command) -> Completion {
    let room = buffer.region.length;
    Completion {
        status: if fragment.total > room { Status::Truncated } else { Status::Done },
        opcode: RECEIVE,
        node: from,
        port,
        cookie: buffer.cookie,
        length: u64::from(fragment.total.min(room)),
        args: [u64::from(fragment.tag), u64::from(fragment.total), 0, 0],
        ..Completion::default()
    }
}

impl Extension for Messages {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            SEND => nic.send(outgoing(&command)),
            RECEIVE if command.region.length > 0 => {
                self.buffers_of(command.region.port).push_back(command);
            }
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let header = &frame.header;
        let fragment = Fragment::of(header);
        let length = frame.payload.len() as u32;
        if fragment.offset.checked_add(length).is_none_or(|end| end > fragment.total) {
            self.counters.malformed += 1;
            return;
        }
        let now = nic.now();
        let mut assembly = match self.message(now, header, fragment, length) {
            Some(Taken::New(buffer))
                if length == fragment.total && !nic.is_suspended(header.port) =>
            {
                let completion = received(from, header.port, fragment, buffer);
                return self.deliver(nic, &frame.payload, buffer, &completion);
            }
            Some(Taken::New(command)) => {
                let buffer = Buffer { command, touched: now, unwritten: Vec::new() };
                Assembly::new(fragment, buffer)
            }
            Some(Taken::Open(assembly)) => assembly,
            None => return,
        };
        if !assembly.take(fragment, length) {
            self.counters.void_frames += 1;
            self.keep(header, assembly);
            return;
        }
        assembly.target.touched = now;
        let buffer = assembly.target.command;
        let completion = received(from, header.port, fragment, buffer);
        if nic.is_suspended(header.port) {
            nic.note_arrival(header.port);
            self.keep_unwritten(header, assembly, &frame.payload, (fragment.offset, completion));
        } else if !write(nic, &frame.payload, fragment.offset, buffer) {
            nic.complete(header.port, &memory_gone(&completion));
        } else if assembly.is_whole() {
            self.complete(nic, &completion);
        } else {
            self.keep(header, assembly);
        }
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        if planted::is(Bug::BuffersSurvive) {
            return;
        }
        if let Some(buffers) = self.buffers.get_mut(port.index()) {
            *buffers = None;
        }
        self.unread.remove(&port);
        for ((_, to, _), stream) in self.streams.iter_mut() {
            if to == port {
                stream.open = None;
            }
        }
    }

    fn on_port_resumed(&mut self, nic: &mut Context<'_>, port: PortId, _: Duration) {
        for (mut buffer, completion) in self.unread.remove(&port).unwrap_or_default() {
            if catch_up(nic, &mut buffer) {
                self.complete(nic, &completion);
            } else {
                nic.complete(port, &memory_gone(&completion));
            }
        }
        let open = self.streams.iter_mut().filter(|((_, to, _), _)| *to == port);
        for assembly in open.filter_map(|(_, stream)| stream.open.as_mut()) {
            // If the memory is no longer registered, writing the rest of the message fails too, and completes the
            // buffer.
            let _ = catch_up(nic, &mut assembly.target);
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let unread = std::mem::take(&mut self.unread).into_values().flatten();
        let unread = unread.map(|(buffer, _)| buffer.command);
        let streams = self.streams.iter_mut();
        let begun = streams.filter_map(|(_, stream)| Some(stream.open.take()?.target.command));
        let posted = std::mem::take(&mut self.buffers).into_iter().flatten();
        let posted = posted.flat_map(|posted| posted.commands);
        unread.chain(begun).chain(posted).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.outstanding_commands() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests;
