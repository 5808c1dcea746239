//! `Bytes` in and out of registered slots, over one connection.
//!
//! Each end keeps slots posted; what arrives in one is handed out as [`Bytes`], and the drop of the
//! last clone posts the slot again and returns its credit to the sender. Who keeps what it received
//! holds the sender up, and nobody else. Registered memory is never lent as a slice, for its NIC may be
//! told to write it by others: what arrives is copied once, into memory that the slot keeps for that.
//!
//! To lend the slot itself, nobody may be able to write it while a [`Bytes`] of it lives: neither another
//! descriptor that names its region, nor a stale one, nor a peer's write. `midplane-simhw` would have to own
//! such memory apart from regions, with a state of each slot that its NICs respect before each write. A NIC
//! in another process, as `nicd`'s, can't be held to that: what it maps, it may write at any time, and a slice
//! of such memory is undefined behaviour however well it behaves. One copy is what a promise that holds
//! everywhere costs.
//!
//! All progress is made while a future of the [`Channel`] is polled; a drop elsewhere wakes it.

mod ledger;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use midplane_simhw::region::{ProtectionTag, RegionError};
use thiserror::Error;

use crate::descriptor::{Completed, Descriptor};
use crate::memory::{Memory, MemoryOptions};
use crate::nic::{Nic, NicError, ViId, WorkQueue};
use crate::outcome::{DescriptorError, Operation};
use ledger::{Kind, Ledger, Note, RESERVED};

/// Slots of each direction.
pub const DEFAULT_SLOTS: u16 = 16;
/// Bytes of a slot.
pub const DEFAULT_BYTES: usize = 4096;

/// What a channel is like; both ends have the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlotsConfig {
    slots: u16,
    bytes: usize,
    tag: ProtectionTag,
}

impl Default for SlotsConfig {
    fn default() -> Self {
        Self { slots: DEFAULT_SLOTS, bytes: DEFAULT_BYTES, tag: ProtectionTag::default() }
    }
}

impl SlotsConfig {
    /// Slots of each direction, 1 to 1,024. Memory: each is registered on both ends, and once more not
    /// registered on the one that receives. Default: [`DEFAULT_SLOTS`].
    #[must_use]
    pub const fn slots(mut self, count: u16) -> Self {
        self.slots = match count {
            0 => 1,
            1..=1024 => count,
            _ => 1024,
        };
        self
    }

    /// Bytes of a slot, the most of one message; at least 1, and no more than the interface transfers
    /// at once. Default: [`DEFAULT_BYTES`].
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// The interface's protection tag. Default: that of default attributes.
    #[must_use]
    pub const fn tag(mut self, tag: ProtectionTag) -> Self {
        self.tag = tag;
        self
    }
}

/// Why nothing more comes or goes.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ChannelError {
    /// The NIC says no.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The connection has ended.
    #[error(transparent)]
    Ended(#[from] DescriptorError),
    /// The other end is no channel, or one with other slots.
    #[error("the other end does not keep to the rules of a channel: has it the same slots?")]
    Malformed,
    /// A message is longer than a slot.
    #[error("a message of {length} bytes: a slot has {most}; give both ends longer ones")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of a slot.
        most: usize,
    },
}

impl From<RegionError> for ChannelError {
    fn from(_: RegionError) -> Self {
        Self::Malformed
    }
}

/// Slots that have come back from the application, with the memory that each keeps.
#[derive(Debug, Default)]
struct Returns {
    came: Vec<(u16, Vec<u8>)>,
    waker: Option<Waker>,
}

type Home = Arc<Mutex<Returns>>;

fn lock(home: &Mutex<Returns>) -> MutexGuard<'_, Returns> {
    home.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands behind the bytes of a message.
struct Filled {
    slot: u16,
    bytes: Vec<u8>,
    home: Home,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let mut returns = lock(&self.home);
        returns.came.push((self.slot, std::mem::take(&mut self.bytes)));
        let waker = returns.waker.take();
        drop(returns);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// One end of a connection, with slots in both directions.
#[derive(Debug)]
pub struct Channel {
    nic: Nic,
    vi: ViId,
    config: SlotsConfig,
    inbound: Memory,
    outbound: Memory,
    ledger: Ledger,
    home: Home,
    /// Memory that each slot's bytes are handed out in, while it is not handed out.
    spare: Vec<Vec<u8>>,
    /// Slots to send from that are free, and those under way in order: `None` is a note.
    free: Vec<u16>,
    leaving: VecDeque<Option<u16>>,
    arrived: VecDeque<Bytes>,
    failed: Option<ChannelError>,
}

impl Channel {
    /// A channel over an interface that is not connected yet and has nothing posted: connect it then,
    /// with [`interface`](Self::interface). It must be reliable.
    ///
    /// # Errors
    /// [`NicError`]: no memory, or a port that is not deep enough for twice as many descriptors as
    /// slots.
    pub fn new(mut nic: Nic, vi: ViId, config: SlotsConfig) -> Result<Self, NicError> {
        let options = MemoryOptions { tag: config.tag, ..MemoryOptions::default() };
        let slots = config.slots + RESERVED;
        let inbound = nic.register(usize::from(slots) * config.bytes, options)?;
        let outbound = nic.register(usize::from(config.slots) * config.bytes, options)?;
        let mut channel = Self {
            nic,
            vi,
            config,
            inbound,
            outbound,
            ledger: Ledger::new(config.slots),
            home: Home::default(),
            spare: vec![Vec::new(); slots.into()],
            free: (0..config.slots).collect(),
            leaving: VecDeque::new(),
            arrived: VecDeque::new(),
            failed: None,
        };
        for slot in 0..slots {
            channel.post(slot)?;
        }
        Ok(channel)
    }

    /// The interface and its NIC, to connect it and to ask for its state; post nothing on it.
    pub const fn interface(&mut self) -> (&mut Nic, ViId) {
        (&mut self.nic, self.vi)
    }

    /// Waits until a message may leave: the other end has a slot for it, and so has this one.
    ///
    /// # Errors
    /// [`ChannelError`] once the connection has ended.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing; nor has a room that is not used.
    pub async fn reserve(&mut self) -> Result<Room<'_>, ChannelError> {
        poll_fn(|context| self.poll_reserve(context)).await?;
        Ok(Room { channel: self })
    }

    /// The same for who polls: ready once [`Room::send`] of the next [`reserve`](Self::reserve) would
    /// not wait.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub(crate) fn poll_reserve(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ChannelError>> {
        self.drive(context)?;
        let ready = self.ledger.has_credit() && !self.free.is_empty();
        if ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The next message. Its slot is posted again once the last clone of the bytes is dropped.
    ///
    /// # Errors
    /// [`ChannelError`] once the connection has ended and all that came before was taken.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn receive(&mut self) -> Result<Bytes, ChannelError> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// The same for who polls.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, ChannelError>> {
        let alive = self.drive(context);
        match self.arrived.pop_front() {
            Some(bytes) => Poll::Ready(Ok(bytes)),
            None => {
                alive?;
                Poll::Pending
            }
        }
    }

    /// Waits until all that was sent is in the other end's slots.
    ///
    /// # Errors
    /// [`ChannelError`] once the connection has ended.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn flush(&mut self) -> Result<(), ChannelError> {
        poll_fn(|context| {
            self.drive(context)?;
            if self.leaving.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    /// Moves everything forward; the task is woken when there is more to do.
    fn drive(&mut self, context: &mut Context<'_>) -> Result<(), ChannelError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let moved = self.advance(context);
        self.failed = moved.err();
        moved
    }

    fn advance(&mut self, context: &mut Context<'_>) -> Result<(), ChannelError> {
        loop {
            // The former one is dropped once the lock is not held: that may run any code.
            let former = lock(&self.home).waker.replace(context.waker().clone());
            drop(former);
            self.take_back()?;
            while let Some(done) = self.nic.taken(self.vi, WorkQueue::Receive)? {
                self.on_arrived(&done)?;
            }
            while let Some(done) = self.nic.taken(self.vi, WorkQueue::Send)? {
                done.outcome?;
                self.free.extend(self.leaving.pop_front().flatten());
            }
            while let Some(note) = self.ledger.next_note() {
                self.send(Descriptor::default(), note, None)?;
            }
            match self.nic.poll_progress(context) {
                Poll::Ready(progress) => progress?,
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Slots that the application has given back are posted, and owed.
    fn take_back(&mut self) -> Result<(), ChannelError> {
        loop {
            let Some((slot, bytes)) = lock(&self.home).came.pop() else { return Ok(()) };
            self.spare[usize::from(slot)] = bytes;
            self.post(slot)?;
            self.ledger.on_posted();
        }
    }

    fn on_arrived(&mut self, done: &Completed) -> Result<(), ChannelError> {
        done.outcome?;
        let note = done.immediate.and_then(Note::parse).ok_or(ChannelError::Malformed)?;
        self.ledger.on_note(note).map_err(|ledger::Breach| ChannelError::Malformed)?;
        let offset = done.descriptor.segments.first().map_or(0, |segment| segment.offset());
        let slot = (offset / self.config.bytes) as u16;
        if note.kind != Kind::Data {
            return Ok(self.post(slot)?);
        }
        // A write into other memory of this end may be longer than a slot, and consume one all the same.
        if done.operation != Operation::Receive {
            return Err(ChannelError::Malformed);
        }
        let mut bytes = std::mem::take(&mut self.spare[usize::from(slot)]);
        bytes.resize(done.length, 0);
        self.inbound.read(offset, &mut bytes)?;
        let home = Arc::clone(&self.home);
        self.arrived.push_back(Bytes::from_owner(Filled { slot, bytes, home }));
        Ok(())
    }

    /// Lends a slot to the NIC, to be filled.
    fn post(&mut self, slot: u16) -> Result<(), NicError> {
        let offset = usize::from(slot) * self.config.bytes;
        let segment = self.inbound.segment(offset, self.config.bytes).expect("a slot of it");
        let posted = self.nic.post_receive(self.vi, Descriptor::of(segment));
        posted.map_err(|failed| failed.error)
    }

    fn send(
        &mut self,
        descriptor: Descriptor,
        note: Note,
        slot: Option<u16>,
    ) -> Result<(), ChannelError> {
        let posted = self.nic.post_send(self.vi, descriptor.immediate(note.emit()));
        posted.map_err(|failed| failed.error)?;
        self.leaving.push_back(slot);
        Ok(())
    }
}

/// Room for one message of a [`Channel`], here and at the other end.
#[derive(Debug)]
#[must_use = "nothing is sent until `send` is called"]
pub struct Room<'a> {
    channel: &'a mut Channel,
}

impl Room<'_> {
    /// Lends the message to the NIC; it was copied into a slot then.
    ///
    /// # Errors
    /// [`ChannelError::TooLong`]; the room is free again.
    pub fn send(self, bytes: &[u8]) -> Result<(), ChannelError> {
        let Self { channel } = self;
        let (length, most) = (bytes.len(), channel.config.bytes);
        if length > most {
            return Err(ChannelError::TooLong { length, most });
        }
        let slot = channel.free.pop().expect("it was reserved");
        let offset = usize::from(slot) * most;
        channel.outbound.write(offset, bytes)?;
        let segment = channel.outbound.segment(offset, length).expect("a slot of it");
        let note = channel.ledger.send();
        let sent = channel.send(Descriptor::of(segment), note, Some(slot));
        channel.failed = sent.err();
        sent
    }
}
