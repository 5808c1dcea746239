//! Sends to the other process: packets into its area, long messages into memory that it has named.

use super::{Held, Link};
use crate::descriptor::Transfer;
use crate::memory::{RemoteMemory, Segment};
use crate::message::carrier::{Posted, Refusal};
use crate::message::envelope::{Envelope, Kind, LONGEST};
use crate::nic::{Nic, NicError};
use crate::rdma::credit::Credit;

impl Link {
    /// Sends a packet to the other process.
    pub(in crate::rdma) fn post(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        match envelope.kind {
            Kind::Cts => {
                let opened = self.rendezvous.open(nic, envelope.from, envelope.length as usize);
                let name = opened.as_ref().map_or(&[][..], |name| &name[..]);
                self.post_packet(nic, envelope, name)
                    .inspect_err(|_| self.rendezvous.close(envelope.from))
            }
            Kind::Data if self.rendezvous.is_named(envelope.to) => {
                self.post_placed(nic, envelope, payload)
            }
            _ => self.post_packet(nic, envelope, payload),
        }
    }

    /// Sends a data packet from registered memory of the send `send`. Writes it from there if its receiver has named
    /// memory for it, and else copies it.
    pub(in crate::rdma) fn post_memory(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &Segment,
        send: u64,
    ) -> Result<Posted, Refusal> {
        let named = self.rendezvous.named(envelope.to);
        let Some(to) = named.filter(|_| self.rendezvous.may_send(nic, payload.memory())) else {
            return self.post(nic, envelope, &payload.to_vec()).map(|()| Posted::Copied);
        };
        self.await_credit(nic, envelope)?;
        self.write(nic, payload.clone(), to, Held::Send(send))?;
        self.rendezvous.on_written(envelope.to);
        self.post_packet(nic, envelope, &[]).map(|()| Posted::InUse)
    }

    /// Refuses a packet until its receiver has room for it.
    fn await_credit(&mut self, nic: &mut Nic, envelope: &Envelope) -> Result<(), Refusal> {
        self.reap(nic);
        if self.has_credit(envelope.size()) {
            return Ok(());
        }
        self.request_credit(nic);
        self.refuse()
    }

    /// Writes a message to memory of the other process.
    fn write(
        &mut self,
        nic: &mut Nic,
        payload: Segment,
        to: RemoteMemory,
        held: Held,
    ) -> Result<(), Refusal> {
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(payload);
        descriptor.transfer = Transfer::RdmaWrite(to);
        descriptor.immediate = None;
        match self.send(nic, descriptor, held) {
            Ok(()) => Ok(()),
            Err(NicError::QueueFull) => self.refuse_port_full(),
            Err(_) => Err(Refusal::Lost),
        }
    }

    /// Writes a message into the memory that its receiver has named, and sends its packet after it.
    fn post_placed(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.await_credit(nic, envelope)?;
        let Some((memory, to)) = self.rendezvous.load(nic, envelope.to, payload) else {
            // Memory becomes free when a send completes. If none is under way, it never does: then the message goes in
            // parts.
            if self.sending.is_empty() {
                self.rendezvous.on_written(envelope.to);
            } else {
                self.starved = Some(self.sending.len());
            }
            return self.refuse();
        };
        let segment = memory.segment(0, payload.len()).expect("it is as long");
        if let Err(refusal) = self.write(nic, segment, to, Held::Pooled(memory.clone())) {
            self.rendezvous.unload(memory);
            return Err(refusal);
        }
        self.rendezvous.on_written(envelope.to);
        self.post_packet(nic, envelope, &[])
    }

    /// Returns whether a packet of `bytes` could be sent now.
    fn has_credit(&mut self, bytes: usize) -> bool {
        let fits = |mut credit: Credit| credit.take(bytes).is_some();
        if !fits(self.exchange.credit) {
            self.read_published();
        }
        fits(self.exchange.credit)
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
        self.port_full = false;
        let Some(remote) = self.remote.filter(|_| self.has_greeted) else { return self.refuse() };
        self.reap(nic);
        let bytes = envelope.size() + payload.len();
        if self.exchange.credit.is_past_front() {
            self.read_published();
        }
        let before = self.exchange.credit;
        let place = self.exchange.credit.take(bytes).or_else(|| {
            self.read_published();
            self.exchange.credit.take(bytes)
        });
        let Some(place) = place else {
            self.request_credit(nic);
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
        match self.send(nic, descriptor, Held::Nothing) {
            Ok(()) if written => {
                self.request_when_low(nic);
                Ok(())
            }
            // This link has credit, but the links together have more credit than the port that they share has room.
            Err(NicError::QueueFull) => {
                self.exchange.credit.put_back(&before);
                self.refuse_port_full()
            }
            _ => Err(Refusal::Lost),
        }
    }

    /// Refuses a packet until some completion makes room in the port.
    pub(in crate::rdma) const fn refuse_port_full(&mut self) -> Result<(), Refusal> {
        self.port_full = true;
        self.refuse()
    }

    const fn refuse(&mut self) -> Result<(), Refusal> {
        self.refused = true;
        Err(Refusal::Full)
    }
}
