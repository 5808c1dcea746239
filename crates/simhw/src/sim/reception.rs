//! Accepts frames from a NIC's link, or leaves them there.

use super::World;
use super::nic::Work;
use crate::drops::DropCause;
use crate::frame::HEADER_BYTES;
use crate::hardware::Firmware;
use crate::id::NodeId;

impl<F: Firmware> World<F> {
    /// Handles a frame that has arrived at its NIC.
    pub(super) fn receive(&mut self, node: NodeId, key: u32) {
        let bytes = self.frame_bytes(key);
        let nic = &mut self.nics[node.index()];
        let is_full = nic.held + bytes > nic.profile.receive_memory;
        if !nic.up {
            self.network.drop_frame(key, DropCause::NicDown);
        } else if self.network.back_pressure.is_on() && (is_full || !nic.on_link.is_empty()) {
            nic.on_link.push_back(key);
            self.network.hold_nic(&mut self.queue, self.now, node, true);
        } else if is_full
            || !self.network.active_faults.is_none()
                && self.network.active_faults.is_memory_full(node, nic.held + bytes)
        {
            self.network.drop_frame(key, DropCause::NicMemory);
        } else {
            nic.held += bytes;
            self.dispatch(node, Work::Frame(key));
        }
    }

    /// Handles a frame from its own node; one that an earlier incarnation of the NIC sent is dropped.
    pub(super) fn on_looped(&mut self, node: NodeId, key: u32, restarts: u16) {
        if self.nics[node.index()].restarts == restarts {
            self.receive(node, key);
        } else {
            self.network.drop_frame(key, DropCause::NicDown);
        }
    }

    fn frame_bytes(&mut self, key: u32) -> u32 {
        HEADER_BYTES as u32 + u32::from(self.network.frames.at(key).header.length)
    }

    /// Leaves a frame on the link at the firmware's request; it waits there with all later frames.
    pub(super) fn leave(&mut self, node: NodeId, key: u32) {
        let inbox = std::mem::take(&mut self.nics[node.index()].inbox);
        let mut behind = vec![key];
        for work in inbox {
            match work {
                Work::Frame(other) => {
                    let bytes = self.frame_bytes(other);
                    self.nics[node.index()].held -= bytes;
                    behind.push(other);
                }
                other => self.nics[node.index()].inbox.push_back(other),
            }
        }
        let nic = &mut self.nics[node.index()];
        nic.offered = false;
        for key in behind.into_iter().rev() {
            nic.on_link.push_front(key);
        }
        self.network.hold_nic(&mut self.queue, self.now, node, true);
    }

    /// Offers the firmware the first frame that waits on the link, after another turn. If none waits, the link
    /// resumes.
    pub(super) fn offer(&mut self, node: NodeId) {
        let nic = &self.nics[node.index()];
        if nic.offered {
            return;
        }
        let Some(&key) = nic.on_link.front() else {
            self.network.hold_nic(&mut self.queue, self.now, node, false);
            return;
        };
        let bytes = self.frame_bytes(key);
        let nic = &mut self.nics[node.index()];
        if nic.held + bytes <= nic.profile.receive_memory {
            nic.on_link.pop_front();
            nic.offered = true;
            nic.held += bytes;
            self.dispatch(node, Work::Frame(key));
        }
    }
}
