//! The link to one other process: its connection, the area that it writes here, and the memory for writes to its area.

mod arrivals;
mod departures;
mod notices;
mod renewal;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::Payload;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};

use super::RdmaConfig;
use super::exchange::{Exchange, WORDS};
use super::rendezvous::{Place, Registration, RendezvousBuffers};
use crate::attributes::{Address, Discriminator};
use crate::descriptor::Descriptor;
use crate::memory::{Memory, MemoryOptions, RemoteMemory, Segment};
use crate::message::envelope::{Envelope, Peer};
use crate::nic::{Nic, NicError, Ticket, ViId, WorkQueue};

/// The time that the other process may take to connect for the first time.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

const CONTROL_BYTES: usize = WORDS * 8;
/// Most bytes of the first message of each side.
const HELLO_BYTES: usize = 64;

/// The first message of each side: its memory that the other side writes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Hello {
    area: RemoteMemory,
    control: RemoteMemory,
    /// Receive descriptors posted from the start.
    descriptors: u16,
}

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) envelope: Envelope,
    offset: usize,
    length: usize,
    frees: u64,
    /// True if the other side has written the payload into memory that was opened for its receive.
    placed: bool,
    /// True if that memory is the receive's own.
    pub(super) in_place: bool,
}

/// The resource that a descriptor under way uses until it completes.
#[derive(Debug)]
enum Held {
    Nothing,
    /// Memory of the pool.
    Pooled(Memory),
    /// Memory of this send, which waits for its release.
    Send(u64),
}

/// The link is unusable: not connected, broken, or used against the protocol. The other process then counts as lost.
#[derive(Debug)]
pub(super) struct Broken;

impl From<NicError> for Broken {
    fn from(_: NicError) -> Self {
        Self
    }
}

/// The link to one other process.
#[derive(Debug)]
pub(super) struct Link {
    vi: ViId,
    node: NodeId,
    config: RdmaConfig,
    ticket: Option<Ticket>,
    /// True once the interface is connected.
    connected: bool,
    /// True once the first message, which names this side's memory, was sent.
    has_greeted: bool,
    lost: bool,
    /// The command that ends the former connection, while it is under way.
    ending: Option<u64>,
    /// True once all state of the former connection is reset, until the next one is requested.
    is_reset: bool,
    /// True if the next connection replaces one that was lost.
    replaces_lost: bool,
    /// Receive descriptors that the NIC has.
    posted: usize,
    /// The area that the other side writes.
    area: Memory,
    control: Memory,
    /// Memory from which packets are written to the other side's area, at the same offsets.
    staging: Memory,
    published: Memory,
    remote: Option<Hello>,
    exchange: Exchange,
    /// True if a packet was refused, and its sender waits for room.
    refused: bool,
    /// Number of descriptors under way when a packet was refused for lack of registered memory.
    starved: Option<usize>,
    /// True if the packet was refused because the port was full.
    port_full: bool,
    spare: Vec<Descriptor>,
    /// Receive descriptors that found the port full.
    unposted: Vec<Descriptor>,
    /// Resources of the descriptors under way, oldest first.
    sending: VecDeque<Held>,
    /// Sends whose memory the NIC no longer reads.
    released: VecDeque<u64>,
    rendezvous: RendezvousBuffers,
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
        // Without reliability, the loss of a write outside the area would go unnoticed.
        let registration = match config.reliability.is_reliable() {
            true => config.registration,
            false => Registration::Copied,
        };
        let rendezvous = RendezvousBuffers::new(nic, options, registration);
        let mut link = Self {
            vi,
            node,
            config,
            ticket: None,
            connected: false,
            has_greeted: false,
            lost: false,
            ending: None,
            is_reset: false,
            replaces_lost: false,
            posted: 0,
            area,
            control,
            staging,
            published,
            remote: None,
            exchange: Exchange::new(config.area, config.descriptors),
            refused: false,
            starved: None,
            port_full: false,
            spare: Vec::new(),
            unposted: Vec::new(),
            sending: VecDeque::new(),
            released: VecDeque::new(),
            rendezvous,
        };
        link.post_receives(nic)?;
        Ok(link)
    }

    /// Posts the receive descriptors of a new connection. If that fails, the next call posts the rest.
    fn post_receives(&mut self, nic: &mut Nic) -> Result<(), NicError> {
        while self.posted <= self.config.descriptors.into() {
            // The first message is received into memory. All others are written to the area, and only consume a
            // descriptor.
            let descriptor = match self.posted {
                0 => Descriptor::of(
                    self.control.segment(CONTROL_BYTES, HELLO_BYTES).expect("its second half"),
                ),
                _ => Descriptor::default(),
            };
            nic.post_receive(self.vi, descriptor).map_err(|failed| failed.error)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Returns whether the other side has named memory for the message to its receive `receive`.
    pub(super) fn is_named(&self, receive: u64) -> bool {
        self.rendezvous.is_named(receive)
    }

    pub(super) const fn is_new(&self) -> bool {
        self.ticket.is_none() && !self.connected
    }

    /// Starts to connect with the other process.
    pub(super) fn begin(
        &mut self,
        nic: &mut Nic,
        (job, own, peer): (u32, Peer, Peer),
        timeout: Option<Duration>,
    ) -> Result<(), NicError> {
        let name = |from: Peer, to: Peer| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&job.to_le_bytes());
            bytes[4..8].copy_from_slice(&from.0.to_le_bytes());
            bytes[8..].copy_from_slice(&to.0.to_le_bytes());
            Discriminator::new(&bytes).expect("12 bytes")
        };
        let to = Address { node: self.node, discriminator: name(peer, own) };
        let ticket = nic.connect_peer(self.vi, to, name(own, peer), timeout)?;
        self.ticket = Some(ticket);
        Ok(())
    }

    /// Continues to connect; returns whether this side has done its part.
    pub(super) fn connect(&mut self, nic: &mut Nic) -> Result<bool, Broken> {
        if let Some(ticket) = &self.ticket {
            match nic.connected(ticket) {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => (self.ticket, self.connected) = (None, true),
                Err(_) => return Err(Broken),
            }
        }
        if self.has_greeted {
            return Ok(true);
        }
        let (area, control) = (self.area.remote(), self.control.remote());
        let hello = Hello { area, control, descriptors: self.config.descriptors };
        let bytes = wire::encode(&hello).expect("it is small");
        self.published.write(CONTROL_BYTES, &bytes).expect("its second half");
        let segment = self.published.segment(CONTROL_BYTES, bytes.len()).expect("its second half");
        match self.send(nic, Descriptor::of(segment), Held::Nothing) {
            Ok(()) => self.has_greeted = true,
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
        // Needs no doorbell: the write that publishes the descriptor to the other side rings it.
        match nic.post_receive_quietly(self.vi, descriptor) {
            Ok(()) => {
                self.posted += 1;
                self.exchange.reader.posted += 1;
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

    /// Posts the receive descriptors that found the port full; returns whether none is left.
    pub(super) fn repost(&mut self, nic: &mut Nic) -> bool {
        while let Some(descriptor) = self.unposted.pop() {
            let before = self.unposted.len();
            // If the interface is gone, the NIC reports that as well.
            if self.post_receive(nic, descriptor).is_ok() && self.unposted.len() > before {
                return false;
            }
            self.publish_if_due(nic, false);
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
                self.spare(failed.descriptor);
                Err(failed.error)
            }
        }
    }

    /// Keeps a descriptor for a later send. It must not keep memory registered.
    fn spare(&mut self, mut descriptor: Descriptor) {
        descriptor.segments.clear();
        self.spare.push(descriptor);
    }

    /// Takes completed sends from the NIC.
    fn reap(&mut self, nic: &mut Nic) {
        while !self.sending.is_empty() {
            let Ok(Some(done)) = nic.taken(self.vi, WorkQueue::Send) else { return };
            match self.sending.pop_front() {
                Some(Held::Pooled(memory)) => self.rendezvous.unload(memory),
                Some(Held::Send(send)) => self.released.push_back(send),
                Some(Held::Nothing) | None => {}
            }
            self.spare(done.descriptor);
        }
    }

    /// Returns the next send whose memory the NIC no longer reads.
    pub(super) fn next_released(&mut self, nic: &mut Nic) -> Option<u64> {
        if self.sending.iter().any(|held| matches!(held, Held::Send(_))) {
            self.reap(nic);
        }
        self.released.pop_front()
    }

    /// Returns whether the memory of some send was released.
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Registers memory for messages from and to the other process.
    pub(super) fn register(&self, nic: &mut Nic, bytes: usize) -> Option<Memory> {
        self.rendezvous.register(nic, bytes)
    }

    /// Offers a receive's own memory for its message; the next CTS names it.
    pub(super) fn offer(&mut self, nic: &Nic, receive: u64, room: &Segment) {
        self.rendezvous.offer(nic, receive, room);
    }

    /// Returns whether all sends have completed, or never will.
    pub(super) fn is_flushed(&mut self, nic: &mut Nic) -> bool {
        self.reap(nic);
        self.lost || self.sending.is_empty()
    }

    /// Returns the packet's payload, in the memory where it was received.
    pub(super) fn payload(&self, arrival: &Arrival) -> Option<Payload<'_>> {
        let memory = match arrival.placed.then(|| self.rendezvous.written(arrival.envelope.to)) {
            Some(Some(Place::Pooled(memory))) => memory,
            Some(_) => return None,
            None => &self.area,
        };
        memory.view(arrival.offset, arrival.length)
    }

    /// Frees the room of a packet that was read.
    pub(super) fn free(&mut self, nic: &mut Nic, arrival: &Arrival) {
        if arrival.placed {
            self.rendezvous.close(arrival.envelope.to);
        }
        self.exchange.reader.freed += arrival.frees;
        self.publish_if_due(nic, false);
    }

    /// Marks the other process as lost; returns whether it was not before.
    pub(super) const fn lose(&mut self) -> bool {
        !std::mem::replace(&mut self.lost, true)
    }

    /// Ends this side's part of the connection.
    pub(super) fn close(&mut self, nic: &mut Nic) {
        self.answer_request(nic);
        // A NIC that has stopped has no connections.
        let _ = nic.start_disconnect(self.vi);
        self.lost = true;
    }
}
