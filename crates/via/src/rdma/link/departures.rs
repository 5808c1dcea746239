//! What leaves for the other process: packets into its area, long messages into memory that it has named.

use super::{Held, Link};
use crate::descriptor::Transfer;
use crate::memory::{RemoteMemory, Segment};
use crate::message::carrier::{Posted, Refusal};
use crate::message::envelope::{Envelope, Kind, LONGEST};
use crate::nic::{Nic, NicError};
use crate::rdma::credit::Credit;

impl Link {
    /// A packet for the other process.
    pub(in crate::rdma) fn post(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        match envelope.kind {
            Kind::Cts => {
                let opened = self.places.open(nic, envelope.from, envelope.length as usize);
                let name = opened.as_ref().map_or(&[][..], |name| &name[..]);
                self.post_packet(nic, envelope, name)
                    .inspect_err(|_| self.places.close(envelope.from))
            }
            Kind::Data if self.places.is_named(envelope.to) => {
                self.post_placed(nic, envelope, payload)
            }
            _ => self.post_packet(nic, envelope, payload),
        }
    }

    /// Posts a data packet from registered memory of the send `send`: written from there where its receiver has named
    /// memory for it, else copied.
    pub(in crate::rdma) fn post_memory(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &Segment,
        send: u64,
    ) -> Result<Posted, Refusal> {
        let named = self.places.named(envelope.to);
        let Some(to) = named.filter(|_| self.places.may_send(nic, payload.memory())) else {
            return self.post(nic, envelope, &payload.to_vec()).map(|()| Posted::Copied);
        };
        self.await_credit(nic, envelope)?;
        self.write(nic, payload.clone(), to, Held::Send(send))?;
        self.places.on_written(envelope.to);
        self.post_packet(nic, envelope, &[]).map(|()| Posted::InUse)
    }

    /// Refuses a packet until its receiver has room for it.
    fn await_credit(&mut self, nic: &mut Nic, envelope: &Envelope) -> Result<(), Refusal> {
        self.reap(nic);
        if self.has_credit(envelope.size()) {
            return Ok(());
        }
        self.ask(nic);
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
            Err(NicError::QueueFull) => self.refuse_crowded(),
            Err(_) => Err(Refusal::Lost),
        }
    }

    /// Writes a message where its receiver has named memory for it, and a packet behind it.
    fn post_placed(
        &mut self,
        nic: &mut Nic,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.await_credit(nic, envelope)?;
        let Some((memory, to)) = self.places.load(nic, envelope.to, payload) else {
            // Memory comes back with what has left; without any under way, in no way.
            if self.sending.is_empty() {
                return Err(Refusal::Lost);
            }
            self.starved = Some(self.sending.len());
            return self.refuse();
        };
        let segment = memory.segment(0, payload.len()).expect("it is as long");
        self.write(nic, segment, to, Held::Pooled(memory))?;
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
        self.crowded = false;
        let Some(remote) = self.remote.filter(|_| self.greeted) else { return self.refuse() };
        self.reap(nic);
        let bytes = envelope.size() + payload.len();
        if self.credit.is_past_front() {
            self.read_published();
        }
        let before = self.credit;
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
        match self.send(nic, descriptor, Held::Nothing) {
            Ok(()) if written => {
                self.request_when_low(nic);
                Ok(())
            }
            // Processes share the port: this one has credit, and all of them together more.
            Err(NicError::QueueFull) => {
                self.credit.put_back(&before);
                self.refuse_crowded()
            }
            _ => Err(Refusal::Lost),
        }
    }

    /// Refuses a packet until the port has room, which some completion makes.
    pub(in crate::rdma) const fn refuse_crowded(&mut self) -> Result<(), Refusal> {
        self.crowded = true;
        self.refuse()
    }

    const fn refuse(&mut self) -> Result<(), Refusal> {
        self.refused = true;
        Err(Refusal::Full)
    }
}
