//! Completed receive descriptors: packets, and messages of the protocol.

use midplane_simhw::wire;

use super::{Arrival, Broken, CONTROL_BYTES, HELLO_BYTES, Hello, Link};
use crate::descriptor::Completed;
use crate::message::envelope::{Envelope, Kind, LONGEST};
use crate::nic::Nic;
use crate::outcome::Operation;
use crate::rdma::credit::Credit;
use crate::rdma::rendezvous::{NAME_BYTES, Place};

impl Link {
    /// Takes a completed receive descriptor; returns its packet, if it has brought one.
    pub(in crate::rdma) fn on_descriptor(
        &mut self,
        nic: &mut Nic,
    ) -> Result<Option<Arrival>, Broken> {
        let Some(done) = nic.receive_done(self.vi)? else { return Ok(None) };
        self.posted -= 1;
        if done.outcome.is_err() {
            // The connection has ended: the NIC reports that as well.
            return Ok(None);
        }
        let Completed { descriptor, operation, immediate, length, .. } = done;
        if operation == Operation::Receive {
            return self.on_hello(length).map(|()| None);
        }
        self.post_receive(nic, descriptor)?;
        let immediate = immediate.unwrap_or(0).cast_signed();
        if immediate == 0 {
            self.exchange.on_taken();
            self.read_published();
            self.publish_if_due(nic, false);
            return Ok(None);
        }
        let (offset, length, frees) = self.exchange.reader.locate(immediate).ok_or(Broken)?;
        let mut head = [0; LONGEST];
        let size = length.min(LONGEST);
        self.area.read(offset, &mut head[..size]).map_err(|_| Broken)?;
        let envelope = Envelope::parse(&head[..size]).map_err(|_| Broken)?;
        let size = envelope.size();
        let length = length.checked_sub(size).ok_or(Broken)?;
        let mut arrival = Arrival {
            envelope,
            offset: offset + size,
            length,
            frees,
            placed: false,
            in_place: false,
        };
        self.place(&mut arrival)?;
        Ok(Some(arrival))
    }

    /// Handles the rendezvous part of a packet. Takes the name of memory from a CTS. If a data packet has no payload,
    /// finds the payload that was written into this side's memory.
    fn place(&mut self, arrival: &mut Arrival) -> Result<(), Broken> {
        let Envelope { kind, length, from, to, .. } = arrival.envelope;
        match kind {
            Kind::Cts if arrival.length == NAME_BYTES => {
                let mut name = [0; NAME_BYTES];
                self.area.read(arrival.offset, &mut name).map_err(|_| Broken)?;
                self.rendezvous.on_named(from, name, length as usize);
                arrival.length = 0;
            }
            Kind::Data if arrival.length == 0 => {
                let place = self.rendezvous.written(to).ok_or(Broken)?;
                arrival.placed = true;
                (arrival.offset, arrival.length) = (0, length as usize);
                let room = match place {
                    Place::Pooled(memory) => memory.len(),
                    Place::Receive(room) => room.len(),
                };
                arrival.in_place = matches!(place, Place::Receive(_));
                if arrival.length > room {
                    return Err(Broken);
                }
            }
            // The message goes in parts after all.
            Kind::Data => self.rendezvous.close(to),
            _ => {}
        }
        Ok(())
    }

    fn on_hello(&mut self, length: usize) -> Result<(), Broken> {
        let mut bytes = [0; HELLO_BYTES];
        let bytes = bytes.get_mut(..length).ok_or(Broken)?;
        self.control.read(CONTROL_BYTES, bytes).map_err(|_| Broken)?;
        let hello: Hello = wire::decode(bytes).map_err(|_| Broken)?;
        // A second first message would grant spent credit again.
        if self.remote.is_some() || !(8..=256).contains(&hello.descriptors) {
            return Err(Broken);
        }
        if hello.area.len() as usize != self.config.area {
            return Err(Broken);
        }
        self.exchange.credit = Credit::new(self.config.area, hello.descriptors);
        self.remote = Some(hello);
        Ok(())
    }
}
