//! The sending half of a NIC over shared memory: frames are staged in unpublished slots of their direction, and a
//! commit publishes them.

use std::ops::Range;
use std::sync::Arc;

use super::config::ShmConfig;
use super::lane::{Extent, Receiver, Sender};
use super::rendezvous;
use super::retry::Retry;
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Source, TransmitRefused};
use crate::id::NodeId;
use crate::nic::{Link, Nic, TurnTime, payload};
use crate::passing::Socket;
use crate::region::Payload;
use crate::segment::{Segment, View};
use crate::time::{Instant, LineRate};

/// The sending side of a peer.
#[derive(Debug)]
struct Peer {
    sender: Sender,
    /// The memory of the payloads of its frames.
    segment: Arc<Segment>,
    /// Channel on which the peer's NIC is woken.
    channel: Arc<Socket>,
    /// True if a frame is staged for the peer, or was published and the peer not woken since.
    is_touched: bool,
    /// The schedule of polls while the slots are full.
    retry: Retry,
}

/// The sending half, for all peers.
#[derive(Debug)]
pub(super) struct ShmLink {
    rate: LineRate,
    peers: Vec<Option<Peer>>,
    /// The peers whose `is_touched` is true.
    touched: Vec<NodeId>,
    /// The frame that is being handled: its sender, and the range of its payload in the segment.
    current: Option<(NodeId, Range<usize>)>,
    staged: Counts,
}

/// Counts of staged frames.
#[derive(Debug, Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    unroutable: u64,
    unlinked: u64,
    /// Copies of broadcasts for which their peers had no space.
    full: u64,
}

impl ShmLink {
    pub(super) fn new(config: &ShmConfig) -> Self {
        let peers = (0..config.nodes).map(|_| None).collect();
        let (touched, staged) = (Vec::new(), Counts::default());
        Self { rate: config.rate, peers, touched, current: None, staged }
    }

    /// Adds the sending half of a connection; returns the receiving half.
    pub(super) fn join(&mut self, link: rendezvous::Link) -> Receiver {
        let segment = Arc::clone(link.receiver.segment());
        let (sender, channel) = (link.sender, link.channel);
        let peer = Peer { sender, segment, channel, is_touched: false, retry: Retry::default() };
        self.peers[link.node.index()] = Some(peer);
        self.touched.retain(|node| *node != link.node);
        link.receiver
    }

    /// Removes the sending half of a connection.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.peers[node.index()] = None;
        self.touched.retain(|touched| *touched != node);
    }

    /// Begins the handling of a frame of `from`.
    pub(super) fn begin_frame(&mut self, from: NodeId, payload: Extent) {
        self.current = Some((from, payload.offset..payload.offset + payload.length));
    }

    /// Stages a frame. A frame for which there is no peer is dropped and counted.
    fn stage(
        &mut self,
        time: &TurnTime,
        header: &Header,
        payload: &Payload<'_>,
    ) -> Result<(), TransmitRefused> {
        let peer = match self.peers.get_mut(header.destination.index()) {
            Some(Some(peer)) => peer,
            Some(None) => {
                self.staged.unlinked += 1;
                return Ok(());
            }
            None => {
                self.staged.unroutable += 1;
                return Ok(());
            }
        };
        if peer.sender.stage(&header.emit(), payload.view()).is_err() {
            return Err(TransmitRefused::PeerBusy { until: peer.retry.on_full(time.get()) });
        }
        peer.retry.on_room();
        self.staged.frames += 1;
        self.staged.bytes += header.frame_bytes() as u64;
        if !std::mem::replace(&mut peer.is_touched, true) {
            self.touched.push(header.destination);
        }
        Ok(())
    }
}

impl Link for ShmLink {
    const PARKING_LOCKS: bool = true;

    fn line_rate(&self) -> LineRate {
        self.rate
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        u32::try_from(HEADER_BYTES + payload).unwrap_or(u32::MAX)
    }

    #[inline]
    fn transmit(
        nic: &mut Nic<Self>,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        let Nic { link, ports, node, mtu, time, .. } = nic;
        let payload = payload(ports, *mtu, header, source)?;
        if header.destination != NodeId::BROADCAST {
            link.stage(time, header, &payload)?;
            return Ok(time.last());
        }
        let nodes = (0..link.peers.len() as u16).map(NodeId);
        for destination in nodes.filter(|other| other != node) {
            // A peer without space for its copy misses it, because copies for other peers are already staged.
            if link.stage(time, &Header { destination, ..*header }, &payload).is_err() {
                link.staged.full += 1;
            }
        }
        Ok(time.last())
    }

    fn publish(nic: &mut Nic<Self>) {
        let Nic { link, counters, .. } = nic;
        let staged = std::mem::take(&mut link.staged);
        counters.frames_sent += staged.frames;
        counters.bytes_sent += staged.bytes;
        counters.drops.add_many(DropCause::NoRoute, staged.unroutable);
        counters.drops.add_many(DropCause::NicDown, staged.unlinked);
        counters.drops.add_many(DropCause::BufferFull, staged.full);
        for node in &link.touched {
            if let Some(peer) = &mut link.peers[node.index()] {
                peer.sender.publish();
            }
        }
    }

    fn abort(&mut self) {
        for node in &self.touched {
            if let Some(peer) = &mut self.peers[node.index()] {
                peer.sender.abort();
            }
        }
        self.staged = Counts::default();
    }

    #[inline]
    fn current(&self) -> Option<View<'_>> {
        let (node, range) = self.current.as_ref()?;
        let peer = self.peers.get(node.index())?.as_ref()?;
        peer.segment.view(range.start, range.len())
    }

    #[inline]
    fn end_frame(&mut self) {
        self.current = None;
    }

    #[inline]
    fn owes_wake(&self) -> bool {
        !self.touched.is_empty()
    }

    fn wake(&mut self) {
        for node in self.touched.drain(..) {
            let Some(peer) = &mut self.peers[node.index()] else { continue };
            peer.is_touched = false;
            if peer.sender.takes_wake() {
                peer.channel.wake();
            }
        }
    }
}
