//! One other process: its connection, its area here, and the copy of ours there.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::Payload;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};

use super::RdmaConfig;
use super::credit::{Credit, Reader};
use super::places::{NAME_BYTES, Places, Registration};
use crate::attributes::{Address, Discriminator};
use crate::descriptor::{Completed, Descriptor, Transfer};
use crate::memory::{Memory, MemoryOptions, RemoteMemory};
use crate::message::carrier::Refusal;
use crate::message::envelope::{Envelope, Kind, LONGEST, Peer};
use crate::nic::{Nic, NicError, Ticket, ViId, WorkQueue};
use crate::outcome::Operation;

/// How long the other process may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Words that one side publishes and the other reads: bytes freed, descriptors posted, the last
/// question answered, the last question asked.
const WORDS: usize = 4;
const CONTROL_BYTES: usize = WORDS * 8;
/// What each side tells the other first.
const HELLO_BYTES: usize = 64;

/// Where a process's memory is for the other one.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Hello {
    area: RemoteMemory,
    control: RemoteMemory,
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
    /// The other side knows our memory, or soon will.
    greeted: bool,
    lost: bool,
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
    /// A packet was refused: whoever posted it wants to know of room.
    refused: bool,
    /// It was for want of registered memory, while so many were under way.
    starved: Option<usize>,
    spare: Vec<Descriptor>,
    /// What is under way, in order: memory that is free once it has left.
    sending: VecDeque<Option<Memory>>,
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
        // The first message comes into memory, all others are written past their descriptor.
        let hello = control.segment(CONTROL_BYTES, HELLO_BYTES).expect("its second half");
        post(nic.post_receive(vi, Descriptor::of(hello)))?;
        for _ in 0..config.descriptors {
            post(nic.post_receive(vi, Descriptor::default()))?;
        }
        Ok(Self {
            vi,
            node,
            config,
            ticket: None,
            greeted: false,
            lost: false,
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
            refused: false,
            starved: None,
            spare: Vec::new(),
            sending: VecDeque::new(),
            places,
        })
    }

    /// Whether the other side has named memory for a message to this receive of its.
    pub(super) fn is_named(&self, receive: u64) -> bool {
        self.places.is_named(receive)
    }

    pub(super) const fn is_new(&self) -> bool {
        self.ticket.is_none() && !self.greeted
    }

    /// Begins to connect.
    pub(super) fn begin(
        &mut self,
        nic: &mut Nic,
        (job, own, peer): (u32, Peer, Peer),
    ) -> Result<(), NicError> {
        let name = |from: Peer, to: Peer| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&job.to_le_bytes());
            bytes[4..8].copy_from_slice(&from.0.to_le_bytes());
            bytes[8..].copy_from_slice(&to.0.to_le_bytes());
            Discriminator::new(&bytes).expect("12 bytes")
        };
        let to = Address { node: self.node, discriminator: name(peer, own) };
        let ticket = nic.connect_peer(self.vi, to, name(own, peer), Some(PATIENCE))?;
        self.ticket = Some(ticket);
        Ok(())
    }

    /// Goes on connecting; whether that is done as far as this side is concerned.
    pub(super) fn connect(&mut self, nic: &mut Nic) -> Result<bool, Broken> {
        let Some(ticket) = &self.ticket else { return Ok(true) };
        match nic.connected(ticket) {
            Ok(None) => return Ok(false),
            Ok(Some(_)) => self.ticket = None,
            Err(_) => return Err(Broken),
        }
        let hello = Hello { area: self.area.remote(), control: self.control.remote() };
        let bytes = wire::encode(&hello).expect("it is small");
        self.published.write(CONTROL_BYTES, &bytes).expect("its second half");
        let segment = self.published.segment(CONTROL_BYTES, bytes.len()).expect("its second half");
        self.send(nic, Descriptor::of(segment), None)?;
        self.greeted = true;
        Ok(true)
    }

    fn send(
        &mut self,
        nic: &mut Nic,
        descriptor: Descriptor,
        memory: Option<Memory>,
    ) -> Result<(), NicError> {
        match nic.post_send(self.vi, descriptor) {
            Ok(()) => {
                self.sending.push_back(memory);
                Ok(())
            }
            Err(failed) => {
                self.spare.push(failed.descriptor);
                Err(failed.error)
            }
        }
    }

    /// A packet for the other process.
    pub(super) fn post(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        match envelope.kind {
            Kind::Clear => {
                let opened = self.places.open(nic, envelope.from, envelope.length as usize);
                let name = opened.as_ref().map_or(&[][..], |name| &name[..]);
                self.post_packet(nic, envelope, name)
                    .inspect_err(|_| self.places.close(envelope.from))
            }
            Kind::Chunk if self.places.is_named(envelope.to) => {
                self.post_placed(nic, envelope, payload)
            }
            _ => self.post_packet(nic, envelope, payload),
        }
    }

    /// Writes a message where its receiver has named memory for it, and a packet behind it.
    fn post_placed(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.reap(nic);
        if !self.has_credit(envelope.size()) {
            self.ask(nic);
            return self.refuse();
        }
        let Some((memory, to)) = self.places.load(nic, envelope.to, payload) else {
            // Memory comes back with what has left; without any under way, in no way.
            if self.sending.is_empty() {
                return Err(Refusal::Lost);
            }
            self.starved = Some(self.sending.len());
            return self.refuse();
        };
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(memory.segment(0, payload.len()).expect("it is as long"));
        descriptor.transfer = Transfer::RdmaWrite(to);
        descriptor.immediate = None;
        self.send(nic, descriptor, Some(memory)).map_err(|_| Refusal::Lost)?;
        self.places.on_written(envelope.to);
        self.post_packet(nic, envelope, &[])
    }

    /// Whether a packet of so many bytes could leave now.
    fn has_credit(&mut self, bytes: usize) -> bool {
        let fits = |mut credit: Credit| credit.take(bytes).is_some();
        if !fits(self.credit) {
            self.read_published();
        }
        fits(self.credit)
    }

    fn post_packet(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if self.lost {
            return Err(Refusal::Lost);
        }
        let Some(remote) = self.remote.filter(|_| self.greeted) else { return self.refuse() };
        self.reap(nic);
        let bytes = envelope.size() + payload.len();
        let place = self.credit.take(bytes).or_else(|| {
            self.read_published();
            self.credit.take(bytes)
        });
        let Some(place) = place else {
            self.ask(nic);
            return self.refuse();
        };
        let mut head = [0; LONGEST];
        let size = envelope.emit(&mut head);
        let written = self.staging.write(place.offset, &head[..size]).is_ok()
            && self.staging.write(place.offset + size, payload).is_ok();
        let (Ok(segment), Some(to)) =
            (self.staging.segment(place.offset, bytes), remote.area.at(place.offset as u32))
        else {
            return Err(Refusal::Lost);
        };
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(segment);
        descriptor.transfer = Transfer::RdmaWrite(to);
        descriptor.immediate = Some(place.immediate.cast_unsigned());
        match self.send(nic, descriptor, None) {
            Ok(()) if written => Ok(()),
            // The port is as deep as all credits together.
            _ => Err(Refusal::Lost),
        }
    }

    const fn refuse(&mut self) -> Result<(), Refusal> {
        self.refused = true;
        Err(Refusal::Full)
    }

    /// Takes back what was sent.
    fn reap(&mut self, nic: &mut Nic) {
        while !self.sending.is_empty() {
            let Ok(Some(done)) = nic.taken(self.vi, WorkQueue::Send) else { return };
            if let Some(memory) = self.sending.pop_front().flatten() {
                self.places.unload(memory);
            }
            self.spare.push(done.descriptor);
        }
    }

    /// Whether all that was sent is there, or never will be.
    pub(super) fn is_flushed(&mut self, nic: &mut Nic) -> bool {
        self.reap(nic);
        self.lost || self.sending.is_empty()
    }

    /// Reads what the other side has published.
    fn read_published(&mut self) {
        let mut bytes = [0; CONTROL_BYTES];
        if self.control.read(0, &mut bytes).is_err() {
            return;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let [freed, posted, answered, asked] =
            [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes);
        self.credit.on_published(freed, posted);
        self.answered = answered.clamp(self.answered, self.asked);
        self.heard = self.heard.max(asked);
    }

    /// Publishes our own words; wakes the other side with a descriptor of the reserve, or silently.
    /// `false` if they did not leave: nothing is spent then.
    fn publish(&mut self, nic: &mut Nic, wakes: bool) -> bool {
        let Some(remote) = self.remote.filter(|_| self.greeted && !self.lost) else { return false };
        if wakes && !self.credit.has_reserved() {
            return false;
        }
        let words = [self.reader.freed, self.reader.posted, self.replied, self.asked];
        for (at, word) in words.iter().enumerate() {
            let written = self.published.write(at * 8, &word.to_le_bytes());
            written.expect("its first half");
        }
        let Ok(segment) = self.published.segment(0, CONTROL_BYTES) else { return false };
        self.reap(nic);
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(segment);
        descriptor.transfer = Transfer::RdmaWrite(remote.control);
        descriptor.immediate = wakes.then_some(0);
        let left = self.send(nic, descriptor, None).is_ok();
        if left {
            self.reader.on_told();
            if wakes {
                self.credit.take_reserved();
            }
        }
        left
    }

    /// Asks for credit, if no question is open.
    fn ask(&mut self, nic: &mut Nic) {
        if self.asked == self.answered {
            self.asked += 1;
            if !self.publish(nic, true) {
                self.asked -= 1;
            }
        }
    }

    /// Tells the other side what it should know by now; if it has asked and this side `parks`, that
    /// nothing more is free.
    fn tell(&mut self, nic: &mut Nic, parks: bool) {
        let due = self.reader.is_due(self.config.descriptors);
        if self.heard > self.replied && (due || parks) {
            let before = std::mem::replace(&mut self.replied, self.heard);
            if !self.publish(nic, true) {
                self.replied = before;
            }
        } else if due {
            self.publish(nic, false);
        }
    }

    /// Before this side parks: whoever has asked is answered. Who has not, and runs out, asks then,
    /// and that wakes this side.
    pub(super) fn answer(&mut self, nic: &mut Nic) {
        self.reap(nic);
        self.read_published();
        self.tell(nic, true);
    }

    /// Whether what was refused may be posted again.
    pub(super) fn has_room_again(&mut self) -> bool {
        if !self.refused {
            return false;
        }
        self.read_published();
        let room = self.config.area / 4;
        let mut credit = self.credit;
        let up = self.greeted && self.remote.is_some();
        let starves = self.starved.is_some_and(|then| self.sending.len() >= then);
        let again = self.lost || (up && !starves && credit.take(room).is_some());
        if again {
            self.refused = false;
            self.starved = None;
        }
        again
    }

    /// A receive descriptor is done: with a packet, or with news of the protocol.
    pub(super) fn on_descriptor(&mut self, nic: &mut Nic) -> Result<Option<Arrival>, Broken> {
        let Some(done) = nic.receive_done(self.vi)? else { return Ok(None) };
        done.outcome.map_err(|_| Broken)?;
        let Completed { descriptor, operation, immediate, length, .. } = done;
        if operation == Operation::Receive {
            return self.on_hello(length).map(|()| None);
        }
        // It is told of before the other side is: with the frame that says so.
        post(nic.post_receive_quietly(self.vi, descriptor))?;
        self.reader.posted += 1;
        let immediate = immediate.unwrap_or(0).cast_signed();
        if immediate == 0 {
            self.read_published();
            self.tell(nic, false);
            return Ok(None);
        }
        let (offset, length, frees) = self.reader.locate(immediate).ok_or(Broken)?;
        let mut head = [0; LONGEST];
        let size = length.min(LONGEST);
        self.area.read(offset, &mut head[..size]).map_err(|_| Broken)?;
        let envelope = Envelope::parse(&head[..size]).map_err(|_| Broken)?;
        let size = envelope.size();
        let length = length.checked_sub(size).ok_or(Broken)?;
        let mut arrival = Arrival { envelope, offset: offset + size, length, frees, placed: false };
        self.place(&mut arrival)?;
        Ok(Some(arrival))
    }

    /// Names of memory for our messages are taken from the packets that they came with, and what was
    /// written into ours is put in the place of what the packet would have carried.
    fn place(&mut self, arrival: &mut Arrival) -> Result<(), Broken> {
        let Envelope { kind, length, from, to, .. } = arrival.envelope;
        match kind {
            Kind::Clear if arrival.length == NAME_BYTES => {
                let mut name = [0; NAME_BYTES];
                self.area.read(arrival.offset, &mut name).map_err(|_| Broken)?;
                self.places.on_named(from, name, length as usize);
                arrival.length = 0;
            }
            Kind::Chunk if arrival.length == 0 => {
                let memory = self.places.written(to).ok_or(Broken)?;
                arrival.placed = true;
                (arrival.offset, arrival.length) = (0, length as usize);
                memory.view(0, arrival.length).ok_or(Broken)?;
            }
            // It goes in parts after all.
            Kind::Chunk => self.places.close(to),
            _ => {}
        }
        Ok(())
    }

    fn on_hello(&mut self, length: usize) -> Result<(), Broken> {
        let mut bytes = [0; HELLO_BYTES];
        let bytes = bytes.get_mut(..length).ok_or(Broken)?;
        self.control.read(CONTROL_BYTES, bytes).map_err(|_| Broken)?;
        let hello: Hello = wire::decode(bytes).map_err(|_| Broken)?;
        if hello.area.len() as usize != self.config.area {
            return Err(Broken);
        }
        self.remote = Some(hello);
        Ok(())
    }

    /// A packet's bytes, where they lie.
    pub(super) fn payload(&self, arrival: &Arrival) -> Option<Payload<'_>> {
        let memory = match arrival.placed {
            true => self.places.written(arrival.envelope.to)?,
            false => &self.area,
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
