//! A process's end of a channel: two FIFOs in memory that it maps, and a doorbell.
//!
//! What a process puts into the send FIFO stays there until its receiver has taken it; what it
//! receives stays in the receive FIFO until it is consumed. It may be stopped between any two
//! instructions: a message is in the FIFO once the word that counts them says so, and not before.

pub mod ack;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod endpoint;
pub(crate) mod frame;
pub mod geometry;
pub(crate) mod memory;
#[cfg(target_os = "linux")]
mod ticket;

use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll};

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::port::{Command, Completion, Port, PortClosed, PortOptions, Status};
use midplane_simhw::region::Payload;
use thiserror::Error;

use crate::names::Rank;
use crate::wait::{WAIT_BYTES, WAIT_STATE, WaitState};
use command::{ATTACH, GANG, LOOK, WAIT, WANTS_ROOM};
use geometry::{ByteRing, CONSUMED, Geometry, RECORD_BYTES, Record, SENT};
#[cfg(target_os = "linux")]
pub use ticket::{Ticket, TicketError};

/// Commands that a process may have under way.
const DEPTH: usize = 64;

/// Names a context to the process that is to use it, as a descriptor names a file: whoever has it may
/// attach, one at a time.
#[derive(Clone, Debug)]
pub struct Descriptor {
    pub(crate) handle: u64,
    pub(crate) key: u64,
    pub(crate) memory: memory::Memory,
    pub(crate) geometry: Geometry,
    pub(crate) rank: Rank,
    pub(crate) ranks: u16,
}

impl Descriptor {
    /// The rank whose context it is.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }
}

/// Why a channel was not attached.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AttachError {
    /// The NIC has no port for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// Another process is attached, or the context is closed.
    #[error(
        "the context is closed, or another process is attached to it: ask its daemon for another"
    )]
    Refused,
}

/// Why a message was not put into the FIFO.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendError {
    /// There is no room until the first message there is taken; wait with [`Channel::room`].
    #[error("the send FIFO is full: wait for room, or send with `send`")]
    Full,
    /// Cut it up.
    #[error("a message has at most {most} bytes, not {length}")]
    TooLong {
        /// The message's.
        length: usize,
        /// The channel's.
        most: u32,
    },
    /// There is no such rank.
    #[error("the job has {ranks} ranks, from 0; {to} is none of them")]
    Rank {
        /// The one that was named.
        to: Rank,
        /// The job's.
        ranks: u16,
    },
    /// The NIC, or the context, is gone.
    #[error("the channel is closed")]
    Closed,
}

/// The channel is gone: its NIC has stopped, or its context was closed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the channel is closed")]
pub struct Closed;

impl From<PortClosed> for Closed {
    fn from(_: PortClosed) -> Self {
        Self
    }
}

/// A process's end of a channel.
#[derive(Debug)]
pub struct Channel {
    port: Port,
    descriptor: Descriptor,
    /// Messages ever put in, and of them the first whose room is not free.
    sent: u64,
    freed: u64,
    send_ring: ByteRing,
    /// Where the messages from `freed` on begin.
    positions: VecDeque<u64>,
    /// Messages that came, as far as is known, and that were consumed.
    received: u64,
    consumed: u64,
    /// Of them, those that the NIC was told of.
    told: u64,
    /// Waits under way, and whether the last of them asked for room.
    waits: u32,
    wants_room: bool,
    is_closed: bool,
}

impl Channel {
    /// Attaches this process to a context.
    ///
    /// # Errors
    /// [`AttachError`] says what is in the way.
    ///
    /// # Cancel safety
    /// Dropped, this process is attached to nothing.
    pub async fn attach(host: &impl Host, descriptor: Descriptor) -> Result<Self, AttachError> {
        let mut port = host.open_port_with(PortOptions::default().depth(DEPTH))?;
        let Descriptor { handle, key, .. } = descriptor;
        let command = gang(ATTACH, [handle, key, 0]);
        if port.submit(&command).is_err() {
            return Err(AttachError::Closed(PortClosed));
        }
        let completion = port.completion().await?;
        if completion.status != Status::Done {
            return Err(AttachError::Refused);
        }
        let [freed, received, sent, consumed] = completion.args;
        let mut channel = Self {
            port,
            descriptor,
            sent,
            freed,
            send_ring: ByteRing::default(),
            positions: VecDeque::new(),
            received,
            consumed,
            told: consumed,
            waits: 0,
            wants_room: false,
            is_closed: false,
        };
        channel.adopt();
        Ok(channel)
    }

    /// Takes note of messages that another process has put in.
    fn adopt(&mut self) {
        let geometry = self.descriptor.geometry;
        for number in self.freed..self.sent {
            let Some(record) = self.record(geometry.send_record(number)) else { return };
            if self.positions.is_empty() {
                self.send_ring.head = record.position;
            }
            self.send_ring.take(record.position, record.length);
            self.positions.push_back(record.position);
        }
    }

    /// This process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.descriptor.rank
    }

    /// The job's ranks.
    #[must_use]
    pub const fn ranks(&self) -> u16 {
        self.descriptor.ranks
    }

    /// Most bytes of a message.
    #[must_use]
    pub const fn message_bytes(&self) -> u32 {
        self.descriptor.geometry.message
    }

    fn record(&self, offset: usize) -> Option<Record> {
        let mut bytes = [0; RECORD_BYTES];
        self.descriptor.memory.read(offset, &mut bytes).ok()?;
        Some(Record::parse(bytes))
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        self.descriptor.memory.write(offset, bytes).expect("the geometry fits the memory");
    }

    /// Puts a message into the send FIFO.
    ///
    /// # Errors
    /// [`SendError`] says why not; [`SendError::Full`] may pass.
    pub fn try_send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), SendError> {
        self.try_send_parts(to, [bytes, &[]])
    }

    /// Puts a message in two parts into the send FIFO.
    ///
    /// # Errors
    /// [`SendError`] says why not; [`SendError::Full`] may pass.
    pub fn try_send_parts(&mut self, to: Rank, parts: [&[u8]; 2]) -> Result<(), SendError> {
        let Descriptor { geometry, ranks, .. } = self.descriptor;
        let total = parts[0].len() + parts[1].len();
        if total > geometry.message as usize {
            return Err(SendError::TooLong { length: total, most: geometry.message });
        }
        if to.0 >= ranks {
            return Err(SendError::Rank { to, ranks });
        }
        let length = total as u32;
        let Some(position) = self.place(length) else { return Err(SendError::Full) };
        // It may be stopped here, and its FIFOs be another's until it goes on.
        let unfinished = [position, length.into(), self.sent + 1];
        let [number, place, bytes] = geometry::UNFINISHED;
        for (at, word) in [place, bytes, number].into_iter().zip(unfinished) {
            self.store(at, &word.to_le_bytes());
        }
        let at = geometry.send_byte(position);
        self.store(at, parts[0]);
        self.store(at + parts[0].len(), parts[1]);
        let record = Record { peer: to, length, position };
        self.store(geometry.send_record(self.sent), &record.emit());
        self.send_ring.take(position, length);
        self.positions.push_back(position);
        self.sent += 1;
        self.store(SENT, &self.sent.to_le_bytes());
        self.ring_bell()
    }

    /// Where a message could be put, after a look at what is freed; where it could not be, the NIC is asked to tell.
    fn place(&mut self, length: u32) -> Option<u64> {
        let place = |channel: &Self| {
            let size = channel.descriptor.geometry.send;
            let full = channel.sent - channel.freed >= u64::from(size.messages);
            channel.send_ring.place(size.bytes, length).filter(|_| !full)
        };
        place(self).or_else(|| {
            let _ = self.arm(true);
            place(self)
        })
    }

    fn ring_bell(&mut self) -> Result<(), SendError> {
        let command = gang(LOOK, [self.descriptor.handle, 0, 0]);
        for _ in 0..2 {
            if self.port.submit(&command).is_ok() {
                return Ok(());
            }
            self.poll();
        }
        // All completions are yet to come: the NIC looks at the FIFO once more for each.
        if self.port.is_closed() { Err(SendError::Closed) } else { Ok(()) }
    }

    /// Takes note of what the NIC has to tell.
    pub fn poll(&mut self) {
        while let Some(completion) = self.port.poll() {
            self.on_completion(&completion);
        }
        self.is_closed |= self.port.is_closed();
    }

    fn on_completion(&mut self, completion: &Completion) {
        if completion.opcode == WAIT {
            self.waits -= 1;
        }
        if completion.status != Status::Done {
            self.is_closed = true;
            return;
        }
        let [freed, received, ..] = completion.args;
        self.received = self.received.max(received);
        if freed > self.freed {
            self.positions.drain(..((freed - self.freed) as usize).min(self.positions.len()));
            self.freed = freed;
            self.send_ring.release(self.positions.front().copied());
        }
    }

    /// The next message, where it lies, if one has come: [`Channel::consume`] it.
    #[must_use]
    pub fn peek(&mut self) -> Option<(Rank, Payload<'_>)> {
        if self.received == self.consumed {
            self.poll();
        }
        if self.received == self.consumed {
            // Who only looks, now and then, is told as well; of a closed channel there is nothing to tell.
            let _ = self.arm(false);
        }
        if self.received == self.consumed {
            return None;
        }
        let geometry = self.descriptor.geometry;
        let record = self.record(geometry.receive_record(self.consumed))?;
        let at = geometry.receive_byte(record.position);
        let payload = self.descriptor.memory.view(at, record.length as usize)?;
        Some((record.peer, payload))
    }

    /// Gives the room of the next message back.
    ///
    /// # Panics
    /// If there is none.
    pub fn consume(&mut self) {
        assert!(self.consumed < self.received, "a message is consumed once it is there");
        self.consumed += 1;
        self.store(CONSUMED, &self.consumed.to_le_bytes());
        let quarter = u64::from(self.descriptor.geometry.receive.messages / 4).max(1);
        if self.consumed - self.told >= quarter {
            self.told = self.consumed;
            // A closed channel says so when it is asked for messages.
            let _ = self.ring_bell();
        }
    }

    /// The next message, copied out, if one has come.
    pub fn try_receive(&mut self) -> Option<(Rank, Vec<u8>)> {
        let (from, payload) = self.peek()?;
        let message = (from, payload.to_vec());
        self.consume();
        Some(message)
    }

    /// The next message.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<(Rank, Vec<u8>), Closed> {
        loop {
            if let Some(message) = self.try_receive() {
                return Ok(message);
            }
            self.news(false).await?;
        }
    }

    /// Sends a message once there is room.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    ///
    /// # Cancel safety
    /// A future that is dropped before its end has sent nothing.
    pub async fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), SendError> {
        loop {
            match self.try_send(to, bytes) {
                Err(SendError::Full) => self.room().await.map_err(|_| SendError::Closed)?,
                done => return done,
            }
        }
    }

    /// Waits until something in the send FIFO is taken, or a message comes.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn room(&mut self) -> Result<(), Closed> {
        self.news(true).await
    }

    /// Waits as [`Channel::room`] does, or as [`Channel::receive`] but for the message, and says meanwhile what for: to a
    /// [cut](crate::detect) of the job, this process does nothing before that. So it may wait for nothing else at the
    /// same time, such as a clock, and takes messages first that are there. A process that waits otherwise counts as one
    /// that computes.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; this process computes then.
    pub async fn wait_as(&mut self, state: WaitState) -> Result<(), Closed> {
        let Descriptor { memory, handle, .. } = &self.descriptor;
        let said = Said { memory: memory.clone(), owner: *handle };
        said.say(state);
        self.news(matches!(state, WaitState::Send { .. })).await
    }

    /// Waits until something has come, or with `room` also until something in the send FIFO is taken.
    async fn news(&mut self, room: bool) -> Result<(), Closed> {
        if self.arm(room)? {
            let completion = self.port.completion().await?;
            self.on_completion(&completion);
        }
        if self.is_closed { Err(Closed) } else { Ok(()) }
    }

    /// Asks the NIC to tell of news; `false` if there is some already.
    fn arm(&mut self, room: bool) -> Result<bool, Closed> {
        let before = (self.freed, self.received);
        self.poll();
        if self.is_closed {
            return Err(Closed);
        }
        if self.received != before.1 || room && self.freed != before.0 {
            return Ok(false);
        }
        if self.waits == 0 || room && !self.wants_room {
            let mut command = gang(WAIT, [self.descriptor.handle, self.freed, self.received]);
            command.flags = if room { WANTS_ROOM } else { 0 };
            // Completions are under way where the ring is full: they are news enough.
            if self.port.submit(&command).is_ok() {
                self.waits += 1;
                self.wants_room = room;
                self.told = self.consumed;
            }
        }
        Ok(true)
    }

    /// Wakes the task of `context` at the next news; ready if there is some.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn poll_news(&mut self, context: &mut Context<'_>, room: bool) -> Poll<Result<(), Closed>> {
        match self.arm(room) {
            Err(closed) => return Poll::Ready(Err(closed)),
            Ok(false) => return Poll::Ready(Ok(())),
            Ok(true) => {}
        }
        let polled = pin!(self.port.completion()).poll(context);
        polled.map(|completion| {
            self.on_completion(&completion?);
            Ok(())
        })
    }

    /// Messages that have come, as far as is known, and are not consumed.
    #[must_use]
    pub const fn waiting(&self) -> u64 {
        self.received - self.consumed
    }

    /// Whether all that was sent is taken by its receivers.
    pub fn is_flushed(&mut self) -> bool {
        self.poll();
        self.sent == self.freed
    }
}

/// Publishes a process's wait state in the channel's memory, and withdraws it when dropped.
struct Said {
    memory: memory::Memory,
    /// The handle of its context.
    owner: u64,
}

impl Said {
    fn say(&self, state: WaitState) {
        let written = self.memory.write(WAIT_STATE, &state.emit(self.owner));
        written.expect("the geometry fits the memory");
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let mut bytes = [0; WAIT_BYTES];
        let read = self.memory.read(WAIT_STATE, &mut bytes);
        // A process that is ended while its context is saved elsewhere has no say in this memory.
        if read.is_ok() && WaitState::is_of(self.owner, &bytes) {
            self.say(WaitState::Running);
        }
    }
}

/// A command for the extension.
pub(crate) fn gang(opcode: u8, args: [u64; 3]) -> Command {
    Command { extension: GANG, opcode, args, ..Command::default() }
}
