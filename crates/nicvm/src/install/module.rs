//! Distribution of a module down the tree: a member that lacks it requests it and receives frames, which it forwards on
//! arrival; lost frames are requested again.

use std::time::Duration;

use midplane_simhw::frame::{Frame, HEADER_BYTES};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::NodeId;
use midplane_simhw::region::Payload;

use super::change::Phase;
use super::wire::{ChangeId, Message};
use super::{Context, Installer, Refusal, STALLED_AFTER, Service, TimeoutId, WATCH, hash};
use crate::transmit::Packet;

/// Bytes of a frame: so few that all levels of the tree work at once.
const FRAME: usize = 1 << 10;
pub(super) const LACKS: TimeoutId = TimeoutId(u32::MAX - 1);
/// Time without a frame after which the module is requested again.
const ASK_AFTER: Duration = Duration::from_millis(3);

impl Installer {
    /// Sends the offer to the children.
    pub(super) fn spread(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &self.change else { return };
        for child in &change.children {
            self.backlog.send(nic, *child, &Message::Offer(change.offer).emit());
        }
        nic.set_timeout(WATCH, Service::Coarse, STALLED_AFTER);
    }

    /// Sends a child the bytes of the module that are here, from `at` on.
    fn send_module(&self, nic: &mut Context<'_>, child: NodeId, at: usize) {
        let Some(change) = &self.change else { return };
        let module = self.modules.get(&change.offer.hash).unwrap_or(&change.module);
        let most = FRAME.min(nic.mtu_bytes() as usize - HEADER_BYTES);
        for (index, part) in module.get(at..).unwrap_or_default().chunks(most).enumerate() {
            send_part(nic, child, change.offer.id, at + index * most, Payload::from(part));
        }
    }

    /// Handles a child's request for the module from byte `at` on.
    pub(super) fn on_want(&mut self, nic: &mut Context<'_>, from: NodeId, id: ChangeId, at: u32) {
        if let Some(change) = self.of(id).filter(|change| change.children.contains(&from)) {
            change.wanting.insert(from);
            self.send_module(nic, from, at as usize);
        }
    }

    /// Handles a part of the module, and forwards it at once. Returns `None` if it is not from the parent or too long.
    pub(super) fn on_part(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        frame: &Frame<'_>,
    ) -> Option<()> {
        let [first, at] = frame.header.words;
        let id = ChangeId { coordinator: NodeId(first as u16), serial: first >> 16 };
        let at = usize::try_from(at).ok()?;
        let here = self.of(id).map(|change| change.offer.hash);
        if here.is_none_or(|hash| self.modules.contains_key(&hash)) {
            // The change has ended, or the module is present already.
            return Some(());
        }
        let change = self.change.as_mut().filter(|change| change.parent == Some(from))?;
        let length = change.offer.length as usize;
        let room = length.checked_sub(change.module.len())?;
        if at != change.module.len() || frame.payload.len() > room {
            // A duplicate, or a part after a lost one.
            return Some(());
        }
        change.module.extend_from_slice(&frame.payload.to_vec());
        let (wanting, offer) = (change.wanting.clone(), change.offer);
        let is_whole = change.module.len() == length;
        for child in wanting {
            send_part(nic, child, id, at, frame.payload);
        }
        if !is_whole {
            nic.set_timeout(LACKS, Service::Exact, ASK_AFTER);
            return Some(());
        }
        let module = std::mem::take(&mut self.change.as_mut()?.module);
        if hash(&module) == offer.hash {
            self.modules.insert(offer.hash, module);
            self.prepare(nic);
        } else {
            self.reject(nic, nic.node(), Refusal::Module);
        }
        Some(())
    }

    /// Requests the rest of the module, and repeats that until it is complete.
    pub(super) fn ask_for_module(&self, nic: &mut Context<'_>) {
        let Some(change) = &self.change else { return };
        let waits = change.phase == Phase::Preparing && change.ready.is_none();
        let Some(parent) = change.parent.filter(|_| waits) else { return };
        let (id, at) = (change.offer.id, change.module.len() as u32);
        let _ = nic.send_control(parent, &Message::Want { id, at }.emit());
        nic.set_timeout(LACKS, Service::Exact, ASK_AFTER);
    }
}

fn send_part(nic: &mut Context<'_>, to: NodeId, id: ChangeId, at: usize, part: Payload<'_>) {
    let words = [u64::from(id.coordinator.0) | id.serial << 16, at as u64];
    // A part that does not leave is requested again.
    let _ = nic.send_packet(&Packet { words, source: Source::Bytes(part), ..Packet::to(to) });
}
