//! Packets that wait for the NIC.

use std::collections::VecDeque;
use std::task::Waker;

use super::label::{Kind, Outgoing};

/// Most bytes of datagrams that wait for the NIC, and of segments; senders keep any more.
const OUTBOX_BYTES: usize = 256 << 10;

/// The packets that wait for the NIC, first in, first out. Datagrams and segments do not take each other's space.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Outgoing>,
    datagram_bytes: usize,
    segment_bytes: usize,
    /// Tasks that wait for space for a datagram.
    senders: Vec<Waker>,
}

impl Outbox {
    const fn bytes(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Datagram | Kind::Unreachable => &mut self.datagram_bytes,
            Kind::Segment => &mut self.segment_bytes,
        }
    }

    /// Returns whether there is space for packets of `bytes` bytes.
    pub(super) const fn has_space(&mut self, kind: Kind, bytes: usize) -> bool {
        *self.bytes(kind) + bytes <= OUTBOX_BYTES
    }

    /// Appends a packet; returns `false` if there is no space for it.
    pub(super) fn push(&mut self, outgoing: Outgoing) -> bool {
        let kind = outgoing.label.kind;
        if !self.has_space(kind, outgoing.bytes.len()) {
            return false;
        }
        *self.bytes(kind) += outgoing.bytes.len();
        self.waiting.push_back(outgoing);
        true
    }

    /// Returns whether there is space for datagrams of `bytes` bytes, at most the whole outbox. If not, wakes the task
    /// once there may be.
    pub(super) fn wait_for_space(&mut self, bytes: usize, waker: &Waker) -> bool {
        if self.has_space(Kind::Datagram, bytes.min(OUTBOX_BYTES)) {
            return true;
        }
        if !self.senders.iter().any(|known| known.will_wake(waker)) {
            self.senders.push(waker.clone());
        }
        false
    }

    /// Returns the packet that the NIC takes next.
    pub(super) fn front(&self) -> Option<&Outgoing> {
        self.waiting.front()
    }

    /// Removes the first packet, which the NIC has taken, and wakes tasks that wait for space.
    pub(super) fn on_posted(&mut self, wakes: &mut Vec<Waker>) {
        let Some(posted) = self.waiting.pop_front() else { return };
        let kind = posted.label.kind;
        let bytes = self.bytes(kind);
        *bytes = bytes.saturating_sub(posted.bytes.len());
        if kind != Kind::Segment {
            wakes.append(&mut self.senders);
        }
    }
}
