//! The sending half of a Virtual Interface: cuts descriptors into frames, and sends frames again.

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{FlowId, Packet, Sending};
use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::PortId;
use midplane_simhw::region::{Payload, RegionRef};

use super::endpoint::{Endpoint, Link, Response, SendWork};
use super::fragments::{CUT_INSTRUCTIONS, Cutter};
use super::frame::{Fields, FrameKind};
use super::receive::MAX_RESPONSES;
use super::window::Flight;
use crate::outcome::{DescriptorError, Operation};

/// The flow of acknowledgements, which therefore do not wait behind data.
const ACKNOWLEDGEMENTS: FlowId = FlowId(u16::MAX);
/// Most sends of an unreliable interface whose frames wait in the NIC: enough to keep the line busy, few enough to take
/// little of its memory. The window of a reliable interface bounds its sends.
const UNSENT_SENDS: usize = 8;

impl Endpoint {
    /// Sends as many frames as possible: first lost ones, then data that the other end reads, then posted
    /// descriptors.
    pub(super) fn pump(
        &mut self,
        nic: &mut Context<'_>,
        cutter: &mut Cutter,
    ) -> Result<(), DescriptorError> {
        if self.link.is_none() || self.is_stopped {
            return Ok(());
        }
        while let Some(link) = &mut self.link {
            if let Some((sequence, flight)) = link.sending.next_resend() {
                let names = (self.number.0, self.owner);
                transmit(nic, names, link, sequence, (&flight, None), None)?;
                continue;
            }
            let waits = !self.attributes.reliability.is_reliable() && self.cutting >= UNSENT_SENDS;
            if waits || !link.sending.has_room() {
                return Ok(());
            }
            let mtu = (nic.mtu_bytes_to(link.node) as usize - HEADER_BYTES) as u32;
            let Some((flight, gathered)) = self.next_flight(nic, cutter, mtu) else {
                return Ok(());
            };
            nic.charge(CUT_INSTRUCTIONS.into());
            self.send_new(nic, flight, gathered.as_deref())?;
        }
        Ok(())
    }

    /// Sends a frame for the first time; `gathered` are its bytes if they lie in several segments.
    fn send_new(
        &mut self,
        nic: &mut Context<'_>,
        flight: Flight,
        gathered: Option<&[u8]>,
    ) -> Result<(), DescriptorError> {
        let reliable = self.is_reliable();
        let Some(link) = &mut self.link else { return Ok(()) };
        let sequence = link.sending.push(nic.now(), flight);
        let names = (self.number.0, self.owner);
        if reliable {
            return transmit(nic, names, link, sequence, (&flight, None), None).map(|_| ());
        }
        // Unreliable frames get no acknowledgement: they are done once sent.
        link.sending.on_acknowledgement(nic.now(), sequence.wrapping_add(1));
        let token = flight.ends.then_some(u64::from(self.number.0));
        match transmit(nic, names, link, sequence, (&flight, gathered), token) {
            Ok(Sending::Now(_)) if flight.ends => self.on_sent(nic, Ok(())),
            Ok(_) => {}
            Err(error) => {
                self.skip_rest();
                self.on_sent(nic, Err(error));
            }
        }
        Ok(())
    }

    /// Drops the rest of the descriptor that is being cut.
    fn skip_rest(&mut self) {
        if let Some(work) = self.sends.get_mut(self.cutting)
            && work.moved > 0
            && work.moved < work.length
        {
            work.moved = work.length;
            self.cutting += 1;
        }
    }

    /// Completes the first unfinished send of an unreliable interface: it was sent, or never will be.
    pub(super) fn on_sent(&mut self, nic: &mut Context<'_>, outcome: Result<(), DescriptorError>) {
        if let Some(work) = self.sends.iter_mut().find(|work| work.done.is_none()) {
            work.done = Some(outcome);
        }
        self.reap_sends(nic);
    }

    /// Handles acknowledgements: descriptors whose last frame has arrived are done, except reads.
    pub(super) fn on_arrived(&mut self, nic: &mut Context<'_>, ended: usize) {
        for _ in 0..ended {
            if let Some(work) = self.sends.get_mut(self.unacknowledged)
                && work.operation != Operation::RdmaRead
            {
                work.done = Some(Ok(()));
            }
            self.unacknowledged += 1;
        }
        if ended > 0 {
            self.reap_sends(nic);
        }
    }

    /// Returns the next new frame, if there is anything to send; and its bytes, if they lie in several segments.
    fn next_flight(
        &mut self,
        nic: &Context<'_>,
        cutter: &mut Cutter,
        mtu: u32,
    ) -> Option<(Flight, Option<Vec<u8>>)> {
        let gathers = !self.is_reliable();
        let link = self.link.as_mut()?;
        if let Some(response) = link.responses.front_mut() {
            let (flight, whole) = cut_response(link.connection, response, mtu);
            if whole {
                link.responses.pop_front();
            }
            return Some((flight, None));
        }
        let connection = link.connection;
        let reads = |work: &SendWork| work.operation == Operation::RdmaRead && work.done.is_none();
        // Descriptors that could not start are done already.
        while self.sends.get(self.cutting)?.done.is_some() {
            self.cutting += 1;
        }
        let work = self.sends.get(self.cutting)?;
        if work.moved == 0 && !self.gate.may_begin() {
            return None;
        }
        if work.fence && self.sends.iter().take(self.cutting).any(reads) {
            return None;
        }
        let open = || self.sends.iter().take(self.cutting).filter(|work| reads(work)).count();
        if work.operation == Operation::RdmaRead && open() >= MAX_RESPONSES {
            return None;
        }
        let is_last = self.cutting + 1 == self.sends.len();
        let work = self.sends.get_mut(self.cutting)?;
        let mut gathered = None;
        let flight = match work.operation {
            Operation::RdmaRead => cut_read(connection, work),
            _ => {
                let cutter = is_last.then_some(cutter);
                let most = self.fragments.next(cutter, work.moved, work.length, mtu);
                if gathers {
                    gathered = gather(nic, work, most);
                }
                let before = work.moved;
                let flight = cut(connection, work, most, gathered.as_deref());
                self.fragments.on_cut(work.moved - before);
                flight
            }
        };
        self.cutting += usize::from(flight.ends);
        Some((flight, gathered))
    }

    /// Has the other end send all frames again that this end has not accepted.
    pub(super) fn report_gap(&mut self, nic: &mut Context<'_>) {
        if let Some(link) = &mut self.link {
            link.receiving.report_gap();
            self.acknowledge(nic, false);
        }
    }

    /// Sends an acknowledgement alone; `asks` requests one in return.
    pub(super) fn acknowledge(&mut self, nic: &mut Context<'_>, asks: bool) {
        let Some(link) = &mut self.link else { return };
        let fields = Fields {
            urgent: link.receiving.has_gap(),
            first: asks,
            ..Fields::new(FrameKind::Acknowledge, link.connection)
        };
        let sequence = link.sending.next_sequence();
        let flight = Flight { fields, source: None, ends: false };
        let packet = Packet { flow: ACKNOWLEDGEMENTS, ..packet_of(link, sequence, &flight, None) };
        link.receiving.on_alone();
        // If it can't be sent now, the next one carries the same number.
        let _ = nic.send_packet(&packet);
    }
}

/// Copies the bytes of the next frame, at most `most`, if they lie in several segments. A reliable interface sends a
/// frame for each segment instead, as it would have to keep the copy until it is acknowledged.
fn gather(nic: &Context<'_>, work: &SendWork, most: u32) -> Option<Vec<u8>> {
    let length = most.min(work.length - work.moved);
    let first = work.segments.piece(work.moved, length)?;
    if first.length == length {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < length {
        let piece = work.segments.piece(work.moved + done, length - done)?;
        // If a segment's memory was deregistered, the frame that begins with it reports that.
        nic.read(piece).ok()?.copy_to(&mut bytes[done as usize..]);
        done += piece.length;
    }
    Some(bytes)
}

/// Cuts the next frame of a send or a write: the gathered bytes, or those of one segment.
fn cut(connection: u16, work: &mut SendWork, mtu: u32, gathered: Option<&[u8]>) -> Flight {
    let write = work.operation == Operation::RdmaWrite;
    let (source, length) = match gathered {
        Some(bytes) => (None, bytes.len() as u32),
        None => {
            let source = work.segments.piece(work.moved, mtu);
            (source, source.map_or(0, |source| source.length))
        }
    };
    let offset = work.moved;
    work.moved += length;
    let last = work.moved == work.length;
    let kind = if write { FrameKind::Write } else { FrameKind::Send };
    let fields = Fields {
        first: offset == 0,
        last,
        immediate: work.immediate.is_some(),
        slot: work.remote.slot,
        generation: if write { work.remote.generation } else { work.length },
        offset: if write { work.remote.offset.wrapping_add(offset) } else { offset },
        value: work.immediate.unwrap_or(0),
        ..Fields::new(kind, connection)
    };
    Flight { fields, source, ends: last }
}

/// Makes the one frame that requests memory of the other end.
const fn cut_read(connection: u16, work: &SendWork) -> Flight {
    let fields = Fields {
        first: true,
        last: true,
        slot: work.remote.slot,
        generation: work.remote.generation,
        offset: work.remote.offset,
        value: work.length,
        ..Fields::new(FrameKind::ReadRequest, connection)
    };
    Flight { fields, source: None, ends: true }
}

/// Cuts the next frame of data that the other end reads; returns whether it is the last.
fn cut_response(connection: u16, response: &mut Response, mtu: u32) -> (Flight, bool) {
    let offset = response.sent;
    let length = (response.region.length - offset).min(mtu);
    let source = response.region.part(offset, length).filter(|part| part.length > 0);
    response.sent += length;
    let last = response.sent == response.region.length;
    let fields = Fields {
        first: offset == 0,
        last,
        offset,
        ..Fields::new(FrameKind::ReadResponse, connection)
    };
    (Flight { fields, source, ends: false }, last)
}

fn packet_of<'a>(
    link: &mut Link,
    sequence: u32,
    flight: &Flight,
    gathered: Option<&'a [u8]>,
) -> Packet<'a> {
    let source = match (gathered, flight.source) {
        (Some(bytes), _) => Source::Bytes(bytes.into()),
        (None, Some(region)) => Source::Region(region),
        (None, None) => Source::Bytes(Payload::EMPTY),
    };
    Packet {
        incarnation: link.incarnation,
        port: link.vi,
        flags: flight.fields.flags(),
        sequence,
        acknowledgement: link.receiving.on_transmit(),
        words: flight.fields.words(),
        source,
        ..Packet::to(link.node)
    }
}

fn transmit(
    nic: &mut Context<'_>,
    (number, owner): (u16, PortId),
    link: &mut Link,
    sequence: u32,
    (flight, gathered): (&Flight, Option<&[u8]>),
    token: Option<u64>,
) -> Result<Sending, DescriptorError> {
    let (flow, owner) = (FlowId(number), Some(owner));
    let packet = Packet { flow, token, owner, ..packet_of(link, sequence, flight, gathered) };
    // The memory was valid when it was posted, so it was deregistered since.
    nic.send_packet(&packet).map_err(|_| DescriptorError::Protection)
}

/// Returns the region at this end that a frame names.
pub(super) const fn named_region(owner: PortId, fields: &Fields, length: u32) -> RegionRef {
    RegionRef {
        port: owner,
        slot: fields.slot,
        generation: fields.generation,
        offset: fields.offset,
        length,
    }
}
