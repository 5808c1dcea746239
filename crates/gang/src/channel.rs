//! A process's end of a channel: two FIFOs in memory that the process maps, and a doorbell.
//!
//! A message stays in the send FIFO until its receiver has accepted it, and in the receive FIFO until the process has
//! consumed it. A process may be suspended between any two instructions. Therefore a message counts as sent only once
//! the word with the number of sent messages includes it.

mod ack;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod endpoint;
mod errors;
pub(crate) mod frame;
pub mod geometry;
mod local;
pub(crate) mod local_rings;
pub(crate) mod memory;
#[cfg(all(target_os = "linux", feature = "live"))]
mod ticket;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use midplane_simhw::host::Host;
use midplane_simhw::port::{Command, Completion, Port, PortClosed, PortOptions, Status};
use midplane_simhw::region::Payload;

use crate::names::Rank;
use crate::wait::{News, WAIT_BYTES, WAIT_STATE, WaitState};
use command::{ATTACH, GANG, NOTIFY, WAIT, WANTS_ROOM};
pub use errors::{AttachError, Closed, SendError};
use geometry::{ByteRing, CONSUMED, Geometry, Record, SENT};
use local_rings::{LocalRings, RingEnds};
#[cfg(all(target_os = "linux", feature = "live"))]
pub use ticket::{Ticket, TicketError};

/// Most outstanding commands of a process.
const DEPTH: usize = 64;

/// A capability to attach to a context, comparable to a file descriptor. At most one process is attached at a time.
#[derive(Clone, Debug)]
pub struct Descriptor {
    pub(crate) handle: u64,
    pub(crate) key: u64,
    pub(crate) memory: memory::Memory,
    pub(crate) geometry: Geometry,
    pub(crate) rank: Rank,
    pub(crate) ranks: u16,
    /// The rings of the job on this host, if it has any.
    pub(crate) rings: Option<LocalRings>,
}

impl Descriptor {
    /// Returns the rank of the context.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }
}

/// A process's end of a channel.
#[derive(Debug)]
pub struct Channel {
    port: Port,
    descriptor: Descriptor,
    /// Number of messages ever sent, and number of the oldest message that still occupies the send FIFO.
    sent: u64,
    freed: u64,
    send_ring: ByteRing,
    /// Positions in the send FIFO of the messages from `freed` on.
    positions: VecDeque<u64>,
    /// Number of messages ever received, as reported by the NIC, and of messages ever consumed.
    received: u64,
    consumed: u64,
    /// The last value of `consumed` of which the NIC was notified.
    notified: u64,
    /// Outstanding [`WAIT`] commands, and whether the last of them waits for room in the send FIFO.
    waits: u32,
    wants_room: bool,
    is_closed: bool,
    /// Number of completions processed so far.
    completions: u64,
    /// This process's ends of the job's rings on this host.
    rings: Option<RingEnds>,
    /// True if the message that `peek` returned last is in the receive FIFO.
    is_from_nic: bool,
    /// Messages consumed from rings since the last one from the receive FIFO.
    in_a_row: u32,
}

impl Channel {
    /// Attaches this process to a context.
    ///
    /// # Errors
    /// [`AttachError`]; see its variants.
    ///
    /// # Cancel safety
    /// If the future is dropped, this process is not attached.
    pub async fn attach(host: &impl Host, descriptor: Descriptor) -> Result<Self, AttachError> {
        let mut port = host.open_port_with(PortOptions::default().depth(DEPTH))?;
        let Descriptor { handle, key, rank, .. } = descriptor;
        let command = gang(ATTACH, [handle, key, 0]);
        if port.submit(&command).is_err() {
            return Err(AttachError::Closed(PortClosed));
        }
        let completion = port.completion().await?;
        if completion.status != Status::Done {
            return Err(AttachError::Refused);
        }
        let [freed, received, sent, consumed] = completion.args;
        let rings = descriptor.rings.clone().map(|rings| RingEnds::open(rings, rank));
        let rings = rings.transpose().map_err(|error| AttachError::System(error.kind()))?.flatten();
        let mut channel = Self {
            port,
            descriptor,
            sent,
            freed,
            send_ring: ByteRing::default(),
            positions: VecDeque::new(),
            received,
            consumed,
            notified: consumed,
            waits: 0,
            wants_room: false,
            is_closed: false,
            completions: 0,
            rings,
            is_from_nic: false,
            in_a_row: 0,
        };
        channel.adopt();
        Ok(channel)
    }

    /// Takes over the messages that an earlier process of the context has left in the send FIFO.
    fn adopt(&mut self) {
        let geometry = self.descriptor.geometry;
        for number in self.freed..self.sent {
            let Some(record) = self.descriptor.memory.record(geometry.send_record(number)) else {
                return;
            };
            if self.positions.is_empty() {
                self.send_ring.head = record.position;
            }
            self.send_ring.take(record.position, record.length);
            self.positions.push_back(record.position);
        }
    }

    /// Returns this process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.descriptor.rank
    }

    /// Returns the number of ranks of the job.
    #[must_use]
    pub const fn ranks(&self) -> u16 {
        self.descriptor.ranks
    }

    /// Returns the longest message, in bytes.
    #[must_use]
    pub const fn message_bytes(&self) -> u32 {
        self.descriptor.geometry.message
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        self.descriptor.memory.write(offset, bytes).expect("the geometry fits the memory");
    }

    /// Puts a message into the send FIFO or the ring to its receiver, without waiting.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Full`], try again later.
    pub fn try_send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), SendError> {
        self.try_send_parts(to, [bytes, &[]])
    }

    /// Puts a message in two parts into the send FIFO or the ring to its receiver, without waiting.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Full`], try again later.
    pub(crate) fn try_send_parts(&mut self, to: Rank, parts: [&[u8]; 2]) -> Result<(), SendError> {
        let Descriptor { geometry, ranks, .. } = self.descriptor;
        let total = parts[0].len() + parts[1].len();
        if total > geometry.message as usize {
            return Err(SendError::TooLong { length: total, most: geometry.message });
        }
        if to.0 >= ranks {
            return Err(SendError::Rank { to, ranks });
        }
        if self.rings.as_ref().is_some_and(|rings| rings.leads_to(to)) {
            return self.push(to, parts);
        }
        let length = total as u32;
        let Some(position) = self.place(length) else { return Err(SendError::Full) };
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

    /// Returns a position for a message. If there is none, requests a completion when room is freed, and tries again.
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
        let command = gang(NOTIFY, [self.descriptor.handle, 0, 0]);
        for _ in 0..2 {
            if self.port.submit(&command).is_ok() {
                return Ok(());
            }
            self.poll();
        }
        // The command ring is full. The NIC reads the FIFO again for each command in the ring.
        if self.port.is_closed() { Err(SendError::Closed) } else { Ok(()) }
    }

    /// Processes the NIC's completions.
    pub fn poll(&mut self) {
        while let Some(completion) = self.port.poll() {
            self.on_completion(&completion);
        }
        self.is_closed |= self.port.is_closed();
    }

    fn on_completion(&mut self, completion: &Completion) {
        self.completions += 1;
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

    /// Returns the next message in place, if one has arrived. [`Channel::consume`] releases it.
    #[must_use]
    pub fn peek(&mut self) -> Option<(Rank, Payload<'_>)> {
        if self.is_local_next() {
            return self.rings.as_ref()?.current();
        }
        if self.received == self.consumed {
            self.poll();
        }
        if self.received == self.consumed {
            // A process that only polls needs completions too. An error means that the channel is closed, so nothing
            // arrives.
            let _ = self.arm(false);
        }
        if self.received == self.consumed {
            return None;
        }
        self.is_from_nic = true;
        let geometry = self.descriptor.geometry;
        let record = self.descriptor.memory.record(geometry.receive_record(self.consumed))?;
        let at = geometry.receive_byte(record.position);
        let payload = self.descriptor.memory.view(at, record.length as usize)?;
        Some((record.peer, payload))
    }

    /// Consumes the next message, and releases its space.
    ///
    /// # Panics
    /// If no message has arrived.
    pub fn consume(&mut self) {
        if self.is_local_next() {
            return self.consume_local();
        }
        assert!(self.consumed < self.received, "no message has arrived that could be consumed");
        (self.is_from_nic, self.in_a_row) = (false, 0);
        self.consumed += 1;
        self.store(CONSUMED, &self.consumed.to_le_bytes());
        let quarter = u64::from(self.descriptor.geometry.receive.messages / 4).max(1);
        if self.consumed - self.notified >= quarter {
            self.notified = self.consumed;
            // If the channel is closed, the next receive reports that.
            let _ = self.ring_bell();
        }
    }

    /// Returns a copy of the next message, if one has arrived, and consumes it.
    pub fn try_receive(&mut self) -> Option<(Rank, Vec<u8>)> {
        let (from, payload) = self.peek()?;
        let message = (from, payload.to_vec());
        self.consume();
        Some(message)
    }

    /// Waits for the next message, and returns a copy.
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
            self.news(News::Message).await?;
        }
    }

    /// Sends a message, and waits for room in the FIFO if needed.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, nothing was sent.
    pub async fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), SendError> {
        loop {
            match self.try_send(to, bytes) {
                // A message that is not received must not end the wait: only the caller can receive it.
                Err(SendError::Full) => {
                    self.news(News::Room).await.map_err(|_| SendError::Closed)?;
                }
                done => return done,
            }
        }
    }

    /// Waits until a message in the send FIFO is accepted, or a message arrives.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn room(&mut self) -> Result<(), Closed> {
        self.news(News::Either).await
    }

    /// Waits like [`Channel::room`] if `state` is [`WaitState::Send`], otherwise for an arriving message, and
    /// publishes `state` meanwhile.
    ///
    /// A [cut](crate::detect) of the job assumes that the process does nothing until the published event happens. So
    /// receive all arrived messages first, and don't wait for anything else, such as a timer, at the same time. A
    /// process that waits in another way counts as computing.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the process counts as computing again.
    pub async fn wait_as(&mut self, state: WaitState) -> Result<(), Closed> {
        let _published = self.publish(state);
        let is_send = matches!(state, WaitState::Send { .. });
        self.news(if is_send { News::Either } else { News::Message }).await
    }

    /// Publishes a wait state, until the returned value is dropped.
    pub(crate) fn publish(&self, state: WaitState) -> PublishedWait {
        let Descriptor { memory, handle, .. } = &self.descriptor;
        let published = PublishedWait { memory: memory.clone(), owner: *handle };
        published.publish(state);
        published
    }

    /// Waits for one of these events. May end sooner.
    async fn news(&mut self, of: News) -> Result<(), Closed> {
        let mut before = None;
        poll_fn(|context| {
            let polled = self.poll_ready(context, of);
            // Any completion ends the wait, even one that reports nothing new.
            match *before.get_or_insert(self.completions) == self.completions {
                true => polled,
                false => Poll::Ready(Ok(())),
            }
        })
        .await?;
        if self.is_closed { Err(Closed) } else { Ok(()) }
    }

    /// Requests a completion at the next event from the NIC; returns `false` if an event has already happened.
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
            // If the command ring is full, completions will arrive and report the event.
            if self.port.submit(&command).is_ok() {
                self.waits += 1;
                self.wants_room = room;
                self.notified = self.consumed;
            }
        }
        Ok(true)
    }

    /// Registers the task of `context` to be woken at one of these events; ready if one has already happened.
    pub(crate) fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
        of: News,
    ) -> Poll<Result<(), Closed>> {
        match self.arm(of != News::Message) {
            Err(closed) => return Poll::Ready(Err(closed)),
            Ok(false) => return Poll::Ready(Ok(())),
            Ok(true) => {}
        }
        let rings = &mut self.rings;
        let mut has_news = || rings.as_mut().is_some_and(|rings| rings.has_news(of));
        match self.port.poll_completion(context, &mut has_news) {
            Poll::Ready(completion) => {
                if let Some(completion) = completion? {
                    self.on_completion(&completion);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending if rings.as_mut().is_some_and(|rings| !rings.park(context, of)) => {
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns whether the receivers have accepted all messages sent.
    pub fn is_flushed(&mut self) -> bool {
        self.poll();
        self.sent == self.freed
    }
}

/// Publishes a process's wait state in the channel's memory. When dropped, publishes that the process runs.
#[derive(Debug)]
pub(crate) struct PublishedWait {
    memory: memory::Memory,
    /// The handle of the process's context.
    owner: u64,
}

impl PublishedWait {
    fn publish(&self, state: WaitState) {
        let written = self.memory.write(WAIT_STATE, &state.emit(self.owner));
        written.expect("the geometry fits the memory");
    }
}

impl Drop for PublishedWait {
    fn drop(&mut self) {
        let mut bytes = [0; WAIT_BYTES];
        let read = self.memory.read(WAIT_STATE, &mut bytes);
        // If the process ends while its context is saved, another context may own this memory, which must not be
        // changed then.
        if read.is_ok() && WaitState::is_of(self.owner, &bytes) {
            self.publish(WaitState::Running);
        }
    }
}

/// Builds a command for the extension.
pub(crate) fn gang(opcode: u8, args: [u64; 3]) -> Command {
    Command { extension: GANG, opcode, args, ..Command::default() }
}
