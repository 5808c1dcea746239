//! One other process: its connection, its area here, and the copy of ours there.

mod arrivals;
mod departures;
mod notices;
mod renewal;

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::Payload;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};

use super::RdmaConfig;
use super::credit::{Credit, Reader};
use super::places::{Place, Places, Registration};
use crate::attributes::{Address, Discriminator};
use crate::descriptor::Descriptor;
use crate::memory::{Memory, MemoryOptions, RemoteMemory, Segment};
use crate::message::envelope::{Envelope, Peer};
use crate::nic::{Nic, NicError, Ticket, ViId, WorkQueue};

/// How long the other process may take to come up for the first time.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Words that one side publishes and the other reads: bytes freed, descriptors posted, the last
/// question answered, the last question asked, and the low-water request.
const WORDS: usize = 5;
const CONTROL_BYTES: usize = WORDS * 8;
/// Place of the low-water request among them, in bytes.
const LOW_WATER: usize = 4 * 8;
/// What each side tells the other first.
const HELLO_BYTES: usize = 64;

/// Where a process's memory is for the other one.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Hello {
    area: RemoteMemory,
    control: RemoteMemory,
    /// Receive descriptors that are posted from the start.
    descriptors: u16,
}

/// A packet that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) envelope: Envelope,
    offset: usize,
    length: usize,
    frees: u64,
    /// Its bytes lie where the other side has written them for a receive.
    placed: bool,
    /// That is the receive's own memory.
    pub(super) lent: bool,
}

/// What a descriptor under way holds until it is done.
#[derive(Debug)]
enum Held {
    Nothing,
    /// Memory of the pool.
    Pooled(Memory),
    /// Memory of this send, which waits for it.
    Send(u64),
}

/// The link is of no use any more: not connected, broken, or the other side does not follow the
/// protocol. Whichever it is, the process there is lost.
#[derive(Debug)]
pub(super) struct Broken;

impl From<NicError> for Broken {
    fn from(_: NicError) -> Self {
        Self
    }
}

/// One other process.
#[derive(Debug)]
pub(super) struct Link {
    vi: ViId,
    node: NodeId,
    config: RdmaConfig,
    ticket: Option<Ticket>,
    /// The interface is connected.
    connected: bool,
    /// The other side knows our memory, or soon will.
    greeted: bool,
    lost: bool,
    /// The end of a connection that is over, as the NIC carries it out.
    ending: Option<u64>,
    /// It was lost before.
    returns: bool,
    /// Receives that the NIC has.
    posted: usize,
    /// The other side writes here.
    area: Memory,
    control: Memory,
    /// What we write there is taken from here: packets at the offset that they have there.
    staging: Memory,
    published: Memory,
    remote: Option<Hello>,
    credit: Credit,
    reader: Reader,
    /// Questions that we have asked, and that were answered; those of the other side.
    asked: u64,
    answered: u64,
    heard: u64,
    replied: u64,
    /// Our last low-water request: the descriptors that the other side had posted, as far as was known then.
    low: u64,
    /// A packet was refused: whoever posted it wants to know of room.
    refused: bool,
    /// It was for want of registered memory, while so many were under way.
    starved: Option<usize>,
    /// It was as the port was full.
    crowded: bool,
    spare: Vec<Descriptor>,
    /// Receive descriptors that found the port full.
    unposted: Vec<Descriptor>,
    /// What is under way, in order: memory that is free once it has left.
    sending: VecDeque<Held>,
    /// Sends whose memory the NIC no longer reads.
    released: VecDeque<u64>,
    places: Places,
}

impl Link {
    pub(super) fn new(
        nic: &mut Nic,
        vi: ViId,
        node: NodeId,
        options: MemoryOptions,
        config: RdmaConfig,
    ) -> Result<Self, NicError> {
        let own = MemoryOptions { rdma_write: false, ..options };
        let area = nic.register(config.area, options)?;
        let control = nic.register(CONTROL_BYTES + HELLO_BYTES, options)?;
        let staging = nic.register(config.area, own)?;
        let published = nic.register(CONTROL_BYTES + HELLO_BYTES, own)?;
        // What is written past the area is not missed where it is lost.
        let registration = match config.reliability.is_reliable() {
            true => config.registration,
            false => Registration::Copied,
        };
        let places = Places::new(nic, options, registration);
        let mut link = Self {
            vi,
            node,
            config,
            ticket: None,
            connected: false,
            greeted: false,
            lost: false,
            ending: None,
            returns: false,
            posted: 0,
            area,
            control,
            staging,
            published,
            remote: None,
            credit: Credit::new(config.area, config.descriptors),
            reader: Reader::new(config.area, config.descriptors),
            asked: 0,
            answered: 0,
            heard: 0,
            replied: 0,
            low: 0,
            refused: false,
            starved: None,
            crowded: false,
            spare: Vec::new(),
            unposted: Vec::new(),
            sending: VecDeque::new(),
            released: VecDeque::new(),
            places,
        };
        link.post_receives(nic)?;
        Ok(link)
    }

    fn post_receives(&mut self, nic: &mut Nic) -> Result<(), NicError> {
        // The first message comes into memory, all others are written past their descriptor.
        let hello = self.control.segment(CONTROL_BYTES, HELLO_BYTES).expect("its second half");
        post(nic.post_receive(self.vi, Descriptor::of(hello)))?;
        self.posted += 1;
        for _ in 0..self.config.descriptors {
            post(nic.post_receive(self.vi, Descriptor::default()))?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Whether the other side has named memory for a message to this receive of its.
    pub(super) fn is_named(&self, receive: u64) -> bool {
        self.places.is_named(receive)
    }

    pub(super) const fn is_new(&self) -> bool {
        self.ticket.is_none() && !self.connected
    }

    /// Begins to connect.
    pub(super) fn begin(
        &mut self,
        nic: &mut Nic,
        (job, own, peer): (u32, Peer, Peer),
        patience: Option<Duration>,
    ) -> Result<(), NicError> {
        let name = |from: Peer, to: Peer| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&job.to_le_bytes());
            bytes[4..8].copy_from_slice(&from.0.to_le_bytes());
            bytes[8..].copy_from_slice(&to.0.to_le_bytes());
            Discriminator::new(&bytes).expect("12 bytes")
        };
        let to = Address { node: self.node, discriminator: name(peer, own) };
        let ticket = nic.connect_peer(self.vi, to, name(own, peer), patience)?;
        self.ticket = Some(ticket);
        Ok(())
    }

    /// Goes on connecting; whether that is done as far as this side is concerned.
    pub(super) fn connect(&mut self, nic: &mut Nic) -> Result<bool, Broken> {
        if let Some(ticket) = &self.ticket {
            match nic.connected(ticket) {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => (self.ticket, self.connected) = (None, true),
                Err(_) => return Err(Broken),
            }
        }
        if self.greeted {
            return Ok(true);
        }
        let (area, control) = (self.area.remote(), self.control.remote());
        let hello = Hello { area, control, descriptors: self.config.descriptors };
        let bytes = wire::encode(&hello).expect("it is small");
        self.published.write(CONTROL_BYTES, &bytes).expect("its second half");
        let segment = self.published.segment(CONTROL_BYTES, bytes.len()).expect("its second half");
        match self.send(nic, Descriptor::of(segment), Held::Nothing) {
            Ok(()) => self.greeted = true,
            Err(NicError::QueueFull) => return Ok(false),
            Err(_) => return Err(Broken),
        }
        Ok(true)
    }

    /// Posts a receive descriptor, now or once the port has room.
    fn post_receive(&mut self, nic: &mut Nic, descriptor: Descriptor) -> Result<(), Broken> {
        if self.lost {
            return Ok(());
        }
        // It is told of before the other side is: with the frame that says so.
        match nic.post_receive_quietly(self.vi, descriptor) {
            Ok(()) => {
                self.posted += 1;
                self.reader.posted += 1;
            }
            Err(failed) if failed.error == NicError::QueueFull => {
                self.unposted.push(failed.descriptor);
            }
            Err(_) => return Err(Broken),
        }
        Ok(())
    }

    pub(super) fn lacks_descriptors(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Posts the receive descriptors that found the port full; whether none is left.
    pub(super) fn repost(&mut self, nic: &mut Nic) -> bool {
        while let Some(descriptor) = self.unposted.pop() {
            let before = self.unposted.len();
            // Of an interface that is gone, the error comes by another way.
            if self.post_receive(nic, descriptor).is_ok() && self.unposted.len() > before {
                return false;
            }
            self.tell(nic, false);
        }
        true
    }

    fn send(&mut self, nic: &mut Nic, descriptor: Descriptor, held: Held) -> Result<(), NicError> {
        match nic.post_send(self.vi, descriptor) {
            Ok(()) => {
                self.sending.push_back(held);
                Ok(())
            }
            Err(failed) => {
                self.spare.push(failed.descriptor);
                Err(failed.error)
            }
        }
    }

    /// Takes back what was sent.
    fn reap(&mut self, nic: &mut Nic) {
        while !self.sending.is_empty() {
            let Ok(Some(done)) = nic.taken(self.vi, WorkQueue::Send) else { return };
            match self.sending.pop_front() {
                Some(Held::Pooled(memory)) => self.places.unload(memory),
                Some(Held::Send(send)) => self.released.push_back(send),
                Some(Held::Nothing) | None => {}
            }
            // A descriptor kept for later keeps no memory registered.
            let mut descriptor = done.descriptor;
            descriptor.segments.clear();
            self.spare.push(descriptor);
        }
    }

    /// Returns the next send whose memory the NIC no longer reads.
    pub(super) fn next_released(&mut self, nic: &mut Nic) -> Option<u64> {
        if self.sending.iter().any(|held| matches!(held, Held::Send(_))) {
            self.reap(nic);
        }
        self.released.pop_front()
    }

    /// Whether there is such a send.
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Registers memory for messages from and to the other process.
    pub(super) fn register(&self, nic: &mut Nic, bytes: usize) -> Option<Memory> {
        self.places.register(nic, bytes)
    }

    /// Takes memory for the message of a receive, which the next packet clears.
    pub(super) fn lend(&mut self, nic: &Nic, receive: u64, room: &Segment) {
        self.places.lend(nic, receive, room);
    }

    /// Whether all that was sent is there, or never will be.
    pub(super) fn is_flushed(&mut self, nic: &mut Nic) -> bool {
        self.reap(nic);
        self.lost || self.sending.is_empty()
    }

    /// A packet's bytes, where they lie.
    pub(super) fn payload(&self, arrival: &Arrival) -> Option<Payload<'_>> {
        let memory = match arrival.placed.then(|| self.places.written(arrival.envelope.to)) {
            Some(Some(Place::Pooled(memory))) => memory,
            Some(_) => return None,
            None => &self.area,
        };
        memory.view(arrival.offset, arrival.length)
    }

    /// A packet was read: its room is free.
    pub(super) fn free(&mut self, nic: &mut Nic, arrival: &Arrival) {
        if arrival.placed {
            self.places.close(arrival.envelope.to);
        }
        self.reader.freed += arrival.frees;
        self.tell(nic, false);
    }

    /// The other process is gone; whether that is news.
    pub(super) const fn lose(&mut self) -> bool {
        !std::mem::replace(&mut self.lost, true)
    }

    /// Takes part no longer.
    pub(super) fn close(&mut self, nic: &mut Nic) {
        self.answer(nic);
        // A NIC that has stopped has no connections.
        let _ = nic.start_disconnect(self.vi);
        self.lost = true;
    }
}

fn post(posted: Result<(), crate::nic::PostFailed>) -> Result<(), NicError> {
    posted.map_err(|failed| failed.error)
}
