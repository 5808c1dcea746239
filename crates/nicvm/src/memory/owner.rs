//! The owner's side: carries out accesses to its memory.

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::region::{Payload, RegionRef};

use super::bulk::{self, Incoming, Outgoing};
use super::wire::{Access, INLINE, Message};
use super::{ARRIVING, Context, Memory};
use crate::capability::{Capability, CapabilityRights};

impl Memory {
    /// Carries out an access to memory of this node, and answers it.
    pub(super) fn serve(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        number: u32,
        (access, capability): (Access, Capability),
        inline: &[u8],
    ) {
        let wanted = match access {
            Access::Read | Access::ReadPart => CapabilityRights::READ,
            Access::Write | Access::WriteMany => CapabilityRights::WRITE,
            Access::Swap | Access::Add => CapabilityRights::ATOMIC,
        };
        let region = match self.table.check(&capability, wanted) {
            Ok(region) if capability.node == nic.node() => region,
            _ => {
                self.deny(nic, from, number, Status::Region);
                return;
            }
        };
        let served = match access {
            Access::Read => self.serve_read(nic, from, number, region),
            Access::ReadPart => {
                let word =
                    |at: usize| Some(u32::from_le_bytes(inline.get(at..at + 4)?.try_into().ok()?));
                let Some((first, count)) = word(0).zip(word(4)) else { return };
                let outgoing = Outgoing::new(region, bulk::OF_READ);
                match outgoing.send(nic, from, number, first, count) {
                    Some(sent) => self.counters.retransmitted += sent,
                    None => self.deny(nic, from, number, Status::Region),
                }
                return;
            }
            Access::WriteMany => {
                let own = self.arriving.range((from, 0)..=(from, u32::MAX));
                if own.count() >= ARRIVING {
                    self.deny(nic, from, number, Status::Refused);
                    return;
                }
                self.start_sweeping(nic);
                let incoming = Incoming::new(region, Some(capability), nic.now());
                self.arriving.insert((from, number), incoming);
                return;
            }
            Access::Write | Access::Swap | Access::Add
                if !self.words.has_room(nic.now(), INLINE / 8) =>
            {
                self.deny(nic, from, number, Status::Refused);
                return;
            }
            Access::Write => self.serve_write(nic, region, inline).map(|()| Vec::new()),
            Access::Swap | Access::Add => {
                self.serve_atomic(nic, access, region, inline).map(|word| word.to_le_bytes().into())
            }
        };
        match served {
            Some(bytes) => {
                self.counters.served += 1;
                self.answer(nic, from, number, Status::Done, &bytes);
            }
            None => self.deny(nic, from, number, Status::Region),
        }
    }

    pub(super) fn deny(&mut self, nic: &mut Context<'_>, to: NodeId, number: u32, status: Status) {
        self.counters.denied += 1;
        self.answer(nic, to, number, status, &[]);
    }

    /// Refuses the large writes that are under way to the memory of a closed port.
    pub(super) fn deny_arriving(&mut self, nic: &mut Context<'_>, port: PortId) {
        let to_port = self.arriving.iter().filter(|(_, incoming)| incoming.port() == port);
        for (from, number) in to_port.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.arriving.remove(&(from, number));
            self.deny(nic, from, number, Status::Region);
        }
    }

    pub(super) fn serve_read(
        &self,
        nic: &mut Context<'_>,
        from: NodeId,
        number: u32,
        region: RegionRef,
    ) -> Option<Vec<u8>> {
        if region.length as usize > INLINE {
            Outgoing::new(region, bulk::OF_READ).send_all(nic, from, number)?;
            return Some(Vec::new());
        }
        let mut bytes = nic.read(region).ok()?.to_vec();
        // A remembered word may not have reached memory yet, so it is newer than memory.
        for (at, part) in bytes.chunks_exact_mut(8).enumerate() {
            if let Some(word) = self.words.get(nic.now(), region, at as u32 * 8) {
                part.copy_from_slice(&word.to_le_bytes());
            }
        }
        Some(bytes)
    }

    pub(super) fn serve_write(
        &mut self,
        nic: &mut Context<'_>,
        region: RegionRef,
        bytes: &[u8],
    ) -> Option<()> {
        if bytes.len() != region.length as usize {
            return None;
        }
        nic.write(region, Payload::from(bytes)).ok()?;
        self.words.overwrite(region, Payload::from(bytes));
        for (at, part) in bytes.chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(part.try_into().expect("eight bytes"));
            self.words.remember(nic.now(), region, at as u32 * 8, value);
        }
        Some(())
    }

    pub(super) fn serve_atomic(
        &mut self,
        nic: &mut Context<'_>,
        access: Access,
        region: RegionRef,
        inline: &[u8],
    ) -> Option<u64> {
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        if region.length != 8 || !region.offset.is_multiple_of(8) {
            return None;
        }
        let there = match self.words.get(nic.now(), region, 0) {
            Some(word) => word,
            None => word(&nic.read(region).ok()?.to_vec())?,
        };
        let first = word(inline.get(..8)?)?;
        let new = match access {
            Access::Add => there.wrapping_add(first),
            _ if there == first => word(inline.get(8..16)?)?,
            _ => return Some(there),
        };
        nic.write(region, Payload::from(&new.to_le_bytes()[..])).ok()?;
        self.words.remember(nic.now(), region, 0, new);
        Some(there)
    }

    pub(super) fn answer(
        &mut self,
        nic: &mut Context<'_>,
        to: NodeId,
        number: u32,
        status: Status,
        bytes: &[u8],
    ) {
        // If even the backlog is full, the access ends by its timeout.
        self.backlog.send(nic, to, &Message::Answer { number, status, bytes }.emit());
    }

    /// Completes a large write all of whose frames have arrived.
    pub(super) fn end_arriving(&mut self, nic: &mut Context<'_>, from: NodeId, number: u32) {
        self.arriving.remove(&(from, number));
        self.counters.served += 1;
        self.answer(nic, from, number, Status::Done, &[]);
    }
}
