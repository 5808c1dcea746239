//! Messages too long for a control message: cut into data frames, and reassembled in memory of the receiving NIC.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::frame::{Frame, HEADER_BYTES};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;

use super::{MESSAGE, ProgramCounters, SHORT};
use crate::context::Context;
use crate::heap::{Heap, Vector};
use crate::reassembly::{Assembly, Place, Streams};
use crate::transmit::{FlowId, Fragment, Packet, Sending, Sent};

/// Bytes of the messages that are being reassembled, of all senders together: 16 of the longest. Each sender has one.
const ASSEMBLY_BYTES: usize = 1 << 20;
/// Senders that are remembered, so that a frame that the network duplicates is not delivered again. Each takes some 100
/// bytes.
const SENDERS: usize = 1_024;
/// Time without a new frame after which a message is dropped: long compared with any queue on its path, short enough
/// that dead senders do not occupy the memory of live ones.
pub(super) const ASSEMBLY_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes that may wait to leave to one node: four of the longest messages.
const UNSENT_TO_NODE: usize = 256 << 10;
/// Bytes that may wait to leave to all nodes.
const UNSENT: usize = 1 << 20;

static ZEROS: [u8; MESSAGE] = [0; MESSAGE];

/// A message that is being reassembled.
#[derive(Debug)]
struct Partial {
    bytes: Vector<u8>,
    port: PortId,
    /// When its newest frame arrived.
    touched: Instant,
}

/// The long messages that are being reassembled: of each sender the newest one, all within [`ASSEMBLY_BYTES`].
#[derive(Debug)]
pub(super) struct LongMessages {
    heap: Heap,
    streams: Streams<NodeId, Partial>,
}

impl LongMessages {
    pub(super) fn new() -> Self {
        Self { heap: Heap::new(ASSEMBLY_BYTES), streams: Streams::new(SENDERS) }
    }

    /// Returns whether no message is being reassembled.
    pub(super) fn is_empty(&self) -> bool {
        self.heap.used() == 0
    }

    /// Handles a frame. If its message is whole now, returns the message; counts every frame and message that it drops.
    pub(super) fn take(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        counters: &mut ProgramCounters,
    ) -> Option<Vec<u8>> {
        let header = &frame.header;
        let (fragment, length) = (Fragment::of(header), frame.payload.len() as u32);
        let end = fragment.offset.checked_add(length).filter(|end| *end <= fragment.total);
        let is_long = (SHORT + 1..=MESSAGE).contains(&(fragment.total as usize));
        if !is_long || length == 0 || end.is_none() {
            counters.malformed += 1;
            return None;
        }
        let stream = self.streams.stream(header.source, header.incarnation, fragment.message);
        if stream.on_incarnation(header.incarnation, fragment.message).is_some() {
            counters.incomplete += 1;
        }
        let place = stream.place(header.incarnation, fragment, length);
        match place {
            Place::Void => {
                counters.void_frames += 1;
                return None;
            }
            // The rest of the previous message is lost.
            Place::Newer => counters.incomplete += u64::from(stream.open.take().is_some()),
            Place::Open | Place::Overtaken => {}
        }
        if length == fragment.total && place != Place::Open {
            return Some(frame.payload.to_vec());
        }
        if place == Place::Newer {
            let Ok(bytes) = self.heap.copy(&ZEROS[..fragment.total as usize]) else {
                counters.without_memory += 1;
                return None;
            };
            let partial = Partial { bytes, port: header.port, touched: now };
            stream.open = Some(Assembly::new(fragment, partial));
        }
        let open = stream.open.as_mut()?;
        if open.target.port != header.port || !open.take(fragment, length) {
            counters.void_frames += 1;
            return None;
        }
        open.target.touched = now;
        frame.payload.copy_to(&mut open.target.bytes[fragment.offset as usize..]);
        if !open.is_whole() {
            return None;
        }
        stream.open.take().map(|open| open.target.bytes.to_vec())
    }

    /// Drops the messages without a new frame for [`ASSEMBLY_TIMEOUT`]. Returns how many those are.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        self.drop_if(|_, partial| partial.touched + ASSEMBLY_TIMEOUT <= now)
    }

    /// Drops the message of a sender that is down or has restarted. Returns how many that is.
    pub(super) fn forget_sender(&mut self, sender: NodeId) -> u64 {
        self.drop_if(|from, _| from == sender)
    }

    /// Drops the messages for a closed port. Returns how many those are.
    pub(super) fn forget_port(&mut self, port: PortId) -> u64 {
        self.drop_if(|_, partial| partial.port == port)
    }

    fn drop_if(&mut self, goes: impl Fn(NodeId, &Partial) -> bool) -> u64 {
        let mut dropped = 0;
        for (from, stream) in self.streams.iter_mut() {
            if stream.open.take_if(|open| goes(from, &open.target)).is_some() {
                dropped += 1;
            }
        }
        dropped
    }
}

/// The bytes of long messages that wait to leave, by destination.
#[derive(Debug, Default)]
pub(super) struct Unsent(BTreeMap<NodeId, usize>);

impl Unsent {
    /// Returns whether messages of these lengths may be queued, too. Short ones are not counted here.
    pub(super) fn has_room(&self, messages: impl Iterator<Item = (NodeId, usize)>) -> bool {
        let mut waiting = self.0.clone();
        for (node, bytes) in messages.filter(|(_, bytes)| *bytes > SHORT) {
            let to_node = waiting.entry(node).or_default();
            *to_node += bytes;
            if *to_node > UNSENT_TO_NODE {
                return false;
            }
        }
        waiting.values().sum::<usize>() <= UNSENT
    }

    /// Sends a message of memory of `owner`, in frames as long as the path allows.
    pub(super) fn send(
        &mut self,
        nic: &mut Context<'_>,
        (node, port): (NodeId, PortId),
        owner: PortId,
        bytes: &[u8],
    ) {
        let message = nic.next_message();
        let chunk = (nic.mtu_bytes_to(node) as usize).saturating_sub(HEADER_BYTES).max(1);
        for (index, part) in bytes.chunks(chunk).enumerate() {
            let (offset, total) = ((index * chunk) as u32, bytes.len() as u32);
            let packet = Packet {
                flow: FlowId(0),
                owner: Some(owner),
                port,
                words: Fragment { message, offset, total, tag: 0 }.words(),
                source: Source::Bytes(Payload::from(part)),
                token: Some(u64::from(node.0) << 32 | part.len() as u64),
                ..Packet::to(node)
            };
            match nic.send_packet(&packet) {
                Ok(Sending::Now(_)) => {}
                Ok(Sending::Queued) => *self.0.entry(node).or_default() += part.len(),
                // The NIC does not take the frame: the message is lost.
                Err(_) => return,
            }
        }
    }

    /// Notes that a frame has left, or never will.
    pub(super) fn on_sent(&mut self, sent: Sent) {
        let (node, bytes) = (NodeId((sent.token >> 32) as u16), sent.token as u32 as usize);
        if let Some(waiting) = self.0.get_mut(&node) {
            *waiting = waiting.saturating_sub(bytes);
            if *waiting == 0 {
                self.0.remove(&node);
            }
        }
    }
}

#[cfg(test)]
mod tests;
