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
use super::window::Flight;
use crate::outcome::{DescriptorError, Operation};

/// The flow of acknowledgements: they do not wait behind data.
const ACKNOWLEDGEMENTS: FlowId = FlowId(u16::MAX);

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
                transmit(nic, (self.number.0, self.owner), link, sequence, &flight, None)?;
                continue;
            }
            if !link.sending.has_room() {
                return Ok(());
            }
            let mtu = (nic.mtu_bytes_to(link.node) as usize - HEADER_BYTES) as u32;
            let Some(flight) = self.next_flight(cutter, mtu) else { return Ok(()) };
            nic.charge(CUT_INSTRUCTIONS.into());
            self.send_new(nic, flight)?;
        }
        Ok(())
    }

    /// Sends a frame for the first time.
    fn send_new(&mut self, nic: &mut Context<'_>, flight: Flight) -> Result<(), DescriptorError> {
        let reliable = self.is_reliable();
        let Some(link) = &mut self.link else { return Ok(()) };
        let sequence = link.sending.push(nic.now(), flight);
        if reliable {
            let names = (self.number.0, self.owner);
            return transmit(nic, names, link, sequence, &flight, None).map(|_| ());
        }
        // Unreliable frames get no acknowledgement: once sent, they are done.
        link.sending.on_acknowledgement(nic.now(), sequence.wrapping_add(1));
        let token = flight.ends.then_some(u64::from(self.number.0));
        match transmit(nic, (self.number.0, self.owner), link, sequence, &flight, token) {
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

    /// Returns the next new frame, if there is anything to send.
    fn next_flight(&mut self, cutter: &mut Cutter, mtu: u32) -> Option<Flight> {
        let link = self.link.as_mut()?;
        if let Some(response) = link.responses.front_mut() {
            let (flight, whole) = cut_response(link.connection, response, mtu);
            if whole {
                link.responses.pop_front();
            }
            return Some(flight);
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
        let is_last = self.cutting + 1 == self.sends.len();
        let work = self.sends.get_mut(self.cutting)?;
        let flight = match work.operation {
            Operation::RdmaRead => cut_read(connection, work),
            _ => {
                let cutter = is_last.then_some(cutter);
                let most = self.fragments.next(cutter, work.moved, work.length, mtu);
                let flight = cut(connection, work, most);
                self.fragments.on_cut(flight.source.map_or(0, |source| source.length));
                flight
            }
        };
        self.cutting += usize::from(flight.ends);
        Some(flight)
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
        let packet = Packet { flow: ACKNOWLEDGEMENTS, ..packet_of(link, sequence, &flight) };
        link.receiving.on_alone();
        // If it can't be sent now, the next one carries the same number.
        let _ = nic.send_packet(&packet);
    }
}

/// Cuts the next frame of a send or a write.
fn cut(connection: u16, work: &mut SendWork, mtu: u32) -> Flight {
    let write = work.operation == Operation::RdmaWrite;
    let source = work.segments.piece(work.moved, mtu);
    let offset = work.moved;
    work.moved += source.map_or(0, |source| source.length);
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

fn packet_of(link: &mut Link, sequence: u32, flight: &Flight) -> Packet<'static> {
    let source = match flight.source {
        Some(region) => Source::Region(region),
        None => Source::Bytes(Payload::EMPTY),
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
    flight: &Flight,
    token: Option<u64>,
) -> Result<Sending, DescriptorError> {
    let owner = Some(owner);
    let packet = Packet { flow: FlowId(number), token, owner, ..packet_of(link, sequence, flight) };
    // The memory was checked when it was posted: it was deregistered since.
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
