//! The receiving half of a Virtual Interface: frames become messages in posted memory.

use midplane_nicvm::context::Context;
use midplane_simhw::frame::Frame;
use midplane_simhw::region::{Payload, Rights};

use super::endpoint::{Arriving, Endpoint, ReceiveWork, Response, SendWork};
use super::frame::{Fields, FrameKind};
use super::send::named_region;
use super::window::Arrival;
use crate::attributes::Reliability;
use crate::outcome::{AsyncError, DescriptorError, Operation};

/// Most reads of the other end that wait to be answered. A sender has no more open.
pub(crate) const MAX_RESPONSES: usize = 64;

/// An error in the frame that was expected next. On a reliable interface, it ends the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fault {
    /// The error that the sender's descriptor gets.
    pub(super) remote: DescriptorError,
    /// The error that this end gets, if no descriptor here reports it.
    pub(super) local: Option<AsyncError>,
}

impl Fault {
    const fn new(remote: DescriptorError, local: AsyncError) -> Self {
        Self { remote, local: Some(local) }
    }
}

impl Endpoint {
    /// Handles a frame of the present connection.
    pub(super) fn on_frame(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        frame: &Frame<'_>,
        pause_ns: u64,
    ) -> Result<(), Fault> {
        let now = nic.now();
        let header = &frame.header;
        let reliable = self.is_reliable();
        let Some(link) = &mut self.link else { return Ok(()) };
        link.heard_at = now;
        if self.is_stopped {
            let is_new = !reliable || link.receiving.is_new(header.sequence);
            if fields.kind != FrameKind::Acknowledge && is_new {
                self.has_refused = reliable;
                nic.note_arrival(self.owner);
            }
            // Answers probes and data with the same acknowledgement as before, to show that the NIC is alive.
            let asks = fields.kind != FrameKind::Acknowledge || fields.first;
            if reliable && asks {
                self.acknowledge(nic, false);
            }
            return Ok(());
        }
        if fields.kind == FrameKind::Acknowledge {
            if fields.first {
                link.receiving.ask();
            }
            let arrived = link.sending.on_acknowledgement(now, header.acknowledgement);
            if fields.urgent && arrived.is_some() {
                link.sending.on_gap(now, pause_ns);
            }
            self.on_arrived(nic, arrived.map_or(0, |arrived| arrived.ended));
            return Ok(());
        }
        if !reliable {
            return self.on_unreliable(nic, fields, frame);
        }
        let arrived = link.sending.on_acknowledgement(now, header.acknowledgement);
        self.on_arrived(nic, arrived.map_or(0, |arrived| arrived.ended));
        if !self.accepts() {
            // The host has the receive queue, and first takes the earlier messages from its ring.
            self.acknowledge(nic, false);
            return Ok(());
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        let place = link.receiving.place(header.sequence);
        if place != Arrival::Next {
            return Ok(());
        }
        let settled = self.has_settled();
        let taken = self.take(nic, fields, frame);
        let Some(link) = &mut self.link else { return taken };
        match taken {
            Ok(()) => {
                link.receiving.on_taken(frame.payload.len(), fields.urgent);
                self.settle_received(nic);
            }
            // Ending the connection acknowledges the earlier frames, which first have to be in memory. The sender sends
            // this frame again.
            Err(_) if !settled => link.receiving.report_gap(),
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    /// Lets the frames be acknowledged that were accepted: with reliable reception, once they are in memory.
    pub(super) fn settle_received(&mut self, nic: &mut Context<'_>) {
        let awaits = self.attributes.reliability == Reliability::ReliableReception;
        let token = u64::from(self.number.0) | u64::from(self.connection) << 16;
        if let Some(link) = &mut self.link {
            link.receiving.settle(nic.now(), || awaits && nic.fence(token));
        }
    }

    /// Returns whether all frames that were accepted can be acknowledged.
    fn has_settled(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.receiving.is_settled())
    }

    /// Handles a frame of an unreliable interface: drops the rest of a message after a lost frame.
    fn on_unreliable(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        frame: &Frame<'_>,
    ) -> Result<(), Fault> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let place = link.receiving.place(frame.header.sequence);
        if place == Arrival::Again {
            return Ok(());
        }
        let lost = place == Arrival::Early;
        link.receiving.skip_to(frame.header.sequence.wrapping_add(1));
        let broken = lost || link.arriving.is_none();
        if broken && !fields.first {
            if fields.kind == FrameKind::Write && link.arriving.is_some() {
                self.errors.push_back(AsyncError::RdmaWriteData);
            }
            if let Some(link) = &mut self.link {
                link.arriving = None;
            }
            return Ok(());
        }
        if fields.first {
            link.arriving = None;
        }
        if let Err(fault) = self.take(nic, fields, frame) {
            self.errors.extend(fault.local);
            if let Some(link) = &mut self.link {
                link.arriving = None;
            }
        }
        Ok(())
    }

    /// Handles the next frame in order.
    fn take(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        frame: &Frame<'_>,
    ) -> Result<(), Fault> {
        match fields.kind {
            FrameKind::Send => self.take_send(nic, fields, frame.payload),
            FrameKind::Write => self.take_write(nic, fields, frame.payload),
            FrameKind::ReadRequest => self.take_read_request(nic, fields),
            FrameKind::ReadResponse => self.take_read_response(nic, fields, frame.payload),
            FrameKind::Acknowledge => Ok(()),
        }
    }

    fn take_send(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let (total, length) = (fields.generation, payload.len() as u32);
        let end = fields.offset.checked_add(length).filter(|end| *end <= total);
        let Some(work) = self.receives.front() else {
            return Err(Fault::new(
                DescriptorError::RemoteDescriptor,
                AsyncError::ReceiveQueueEmpty,
            ));
        };
        let received =
            self.link.as_ref().and_then(|link| link.arriving).map_or(0, |now| now.received);
        let fits = total <= work.room && total <= self.attributes.max_transfer;
        let Some(end) = end.filter(|_| fits && received == fields.offset) else {
            return Err(self.fail_receive(nic, DescriptorError::Length, fields.immediate_data()));
        };
        if !scatter(nic, work, fields.offset, payload) {
            return Err(self.fail_receive(nic, DescriptorError::Protection, None));
        }
        self.on_received(nic, fields, end, Operation::Receive, fields.last && end == total);
        Ok(())
    }

    fn take_write(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let length = payload.len() as u32;
        let region = self.real(named_region(self.owner, fields, length));
        let access = self.access(Rights::REMOTE_WRITE);
        let refused = Fault::new(DescriptorError::RdmaProtection, AsyncError::RdmaWriteProtection);
        if !self.attributes.rdma_write || length > 0 && nic.check(region, access).is_err() {
            return Err(refused);
        }
        let consumes = fields.last && fields.immediate;
        if consumes && self.receives.is_empty() {
            return Err(Fault::new(
                DescriptorError::RemoteDescriptor,
                AsyncError::ReceiveQueueEmpty,
            ));
        }
        if length > 0 && nic.write(region, payload).is_err() {
            return Err(refused);
        }
        let received =
            self.link.as_ref().and_then(|link| link.arriving).map_or(0, |now| now.received);
        let end = received.saturating_add(length);
        self.on_received(nic, fields, end, Operation::RemoteRdmaWrite, consumes);
        Ok(())
    }

    /// Records how much of a message has arrived; its last frame completes the descriptor that it consumes.
    fn on_received(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        received: u32,
        operation: Operation,
        consumes: bool,
    ) {
        if let Some(link) = &mut self.link {
            link.arriving = (!fields.last).then_some(Arriving { received });
        }
        if consumes && let Some(work) = self.receives.pop_front() {
            self.complete_receive(nic, &work, operation, Ok(()), received, fields.immediate_data());
        }
    }

    /// Fails the next receive descriptor, which does not fit its message. While earlier frames are not in memory, only
    /// returns the fault, which then occurs again.
    fn fail_receive(
        &mut self,
        nic: &mut Context<'_>,
        error: DescriptorError,
        immediate: Option<u32>,
    ) -> Fault {
        if self.has_settled()
            && let Some(work) = self.receives.pop_front()
        {
            self.complete_receive(nic, &work, Operation::Receive, Err(error), 0, immediate);
        }
        Fault { remote: DescriptorError::RemoteDescriptor, local: None }
    }

    fn take_read_request(&mut self, nic: &Context<'_>, fields: &Fields) -> Result<(), Fault> {
        let region = self.real(named_region(self.owner, fields, fields.value));
        let access = self.access(Rights::REMOTE_READ);
        let allowed = self.attributes.rdma_read && nic.check(region, access).is_ok();
        let Some(link) = self.link.as_mut().filter(|link| link.responses.len() < MAX_RESPONSES)
        else {
            return Err(Fault { remote: DescriptorError::RemoteDescriptor, local: None });
        };
        if !allowed {
            return Err(Fault { remote: DescriptorError::RdmaProtection, local: None });
        }
        link.responses.push_back(Response { region, sent: 0 });
        Ok(())
    }

    /// Handles data of a read: it belongs to the oldest read that is not done.
    fn take_read_response(
        &mut self,
        nic: &mut Context<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let malformed = Fault { remote: DescriptorError::Format, local: None };
        let is_it =
            |work: &&mut SendWork| work.operation == Operation::RdmaRead && work.done.is_none();
        let work = self.sends.iter_mut().take(self.cutting).find(is_it).ok_or(malformed)?;
        let end = work.moved.checked_add(payload.len() as u32).filter(|end| *end <= work.length);
        let end =
            end.filter(|end| fields.offset == work.moved && fields.last == (*end == work.length));
        let Some(end) = end else { return Err(malformed) };
        let mut done = 0;
        while done < payload.len() {
            let left = (payload.len() - done) as u32;
            let piece = work.segments.piece(work.moved + done as u32, left).ok_or(malformed)?;
            let next = done + piece.length as usize;
            let part = payload.slice(done..next).ok_or(malformed)?;
            if nic.write(piece, part).is_err() {
                work.done = Some(Err(DescriptorError::Protection));
                return Err(malformed);
            }
            done = next;
        }
        work.moved = end;
        if fields.last {
            work.done = Some(Ok(()));
            self.reap_sends(nic);
        }
        Ok(())
    }
}

/// Writes a frame's bytes into a receive's memory; returns `false` if that memory was deregistered.
fn scatter(nic: &mut Context<'_>, work: &ReceiveWork, offset: u32, payload: Payload<'_>) -> bool {
    let mut done = 0;
    while done < payload.len() {
        let left = (payload.len() - done) as u32;
        let piece = work.segments.piece(offset + done as u32, left);
        let Some(piece) = piece.filter(|piece| piece.length > 0) else { return false };
        let next = done + piece.length as usize;
        let Some(part) = payload.slice(done..next) else { return false };
        if nic.write(piece, part).is_err() {
            return false;
        }
        done = next;
    }
    true
}
