//! A NIC's link over libfabric: the firmware of `midplane-simhw`'s NICs runs on it, extensions included.
//!
//! [`OfiLink`] is a [`FrameLink`]: pass it to [`CustomNic::start`](midplane_simhw::nic::custom::CustomNic::start). Each
//! frame is preceded by eight bytes: the sender's node (2 bytes, little-endian), two zeros, and the frame's number (4
//! bytes), by which the receiver restores the order. If the provider fails, the link logs its error, and the NIC stops.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::custom::FrameLink;
use midplane_simhw::time::LineRate;
use thiserror::Error;
use tokio::time::Instant;

use crate::CallError;
use crate::endpoint::{Endpoint, Event, PeerId, SendError};
use crate::order::{MOST, Order};

/// Bytes before each frame.
const PREFIX: usize = 8;
/// Default rate that the firmware assumes: 25 Gb/s.
const RATE: LineRate = LineRate::mbps(25_000);

/// Returns the bytes of an endpoint's frames for a NIC with this MTU.
#[must_use]
pub const fn frame_bytes(mtu: usize) -> usize {
    PREFIX + HEADER_BYTES + mtu
}

/// The reason why a link can't be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The list of names has no such node.
    #[error("the list of endpoints' names has {1} nodes, and not the own one, {0}")]
    NoSuchNode(NodeId, usize),
    /// Two nodes have one name.
    #[error("the endpoints of nodes {0} and {1} have the same name")]
    Twice(NodeId, NodeId),
    /// The name of a node is not valid for this provider.
    #[error("the name of node {0}'s endpoint is refused: do all nodes use the same provider? {1}")]
    Name(NodeId, CallError),
}

/// The link of one NIC.
#[derive(Debug)]
pub struct OfiLink {
    endpoint: Endpoint,
    node: NodeId,
    rate: LineRate,
    /// Most frames in flight to one node, within the endpoint's slots.
    most: usize,
    /// The other nodes by number; this node's own entry has no peer.
    nodes: Vec<Remote>,
    /// The nodes, sorted by the numbers of their peers.
    by_peer: Vec<(PeerId, NodeId)>,
    /// Nodes with received frames that may be in order now.
    due: VecDeque<NodeId>,
    /// The provider's error; nothing is sent or received after it.
    failed: Option<CallError>,
}

/// The state of another node.
#[derive(Debug, Default)]
struct Remote {
    peer: Option<PeerId>,
    /// The number of the next frame to it.
    next: u32,
    received: Order<Vec<u8>>,
}

impl OfiLink {
    /// Creates the link of `node` on an endpoint. `names` has the names of all nodes' endpoints, including this one's,
    /// in the order of their numbers.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn new(
        mut endpoint: Endpoint,
        node: NodeId,
        names: &[impl AsRef<[u8]>],
    ) -> Result<Self, LinkError> {
        let count = u16::try_from(names.len()).unwrap_or(u16::MAX);
        if node.0 >= count {
            return Err(LinkError::NoSuchNode(node, names.len()));
        }
        let mut nodes: Vec<Remote> = Vec::new();
        let mut by_peer: Vec<(PeerId, NodeId)> = Vec::new();
        for (other, name) in (0..count).map(NodeId).zip(names) {
            let mut remote = Remote::default();
            if other != node {
                let peer = endpoint.insert(name.as_ref());
                let peer = peer.map_err(|error| LinkError::Name(other, error))?;
                if let Some((_, first)) = by_peer.iter().find(|(known, _)| *known == peer) {
                    return Err(LinkError::Twice(*first, other));
                }
                by_peer.push((peer, other));
                remote.peer = Some(peer);
            }
            nodes.push(remote);
        }
        by_peer.sort_unstable();
        let most = (endpoint.room() / by_peer.len().max(1)).clamp(1, MOST);
        let (due, failed) = (VecDeque::new(), None);
        Ok(Self { endpoint, node, rate: RATE, most, nodes, by_peer, due, failed })
    }

    /// Sets the line rate that the firmware assumes. Default: 25 Gb/s.
    #[must_use]
    pub const fn rate(mut self, rate: LineRate) -> Self {
        self.rate = rate;
        self
    }

    /// Parses an endpoint's frame; returns its sender, its number, and the NIC's frame. `None` if it is invalid.
    fn parse(&self, from: Option<PeerId>, bytes: &[u8]) -> Option<(NodeId, u32, Vec<u8>)> {
        let (prefix, frame) = bytes.split_first_chunk::<PREFIX>()?;
        let [low, high, 0, 0, number @ ..] = *prefix else { return None };
        let node = NodeId(u16::from_le_bytes([low, high]));
        let is_told = match from {
            // The provider's sender is authoritative.
            Some(peer) => self.node_of(peer) == Some(node),
            // The sender is not on the list, unless the provider never reports senders.
            None => !self.endpoint.provider().has_source,
        };
        let is_other = node != self.node && node.index() < self.nodes.len();
        (is_told && is_other).then(|| (node, u32::from_le_bytes(number), frame.to_vec()))
    }

    fn node_of(&self, peer: PeerId) -> Option<NodeId> {
        let at = self.by_peer.binary_search_by_key(&peer, |(known, _)| *known).ok()?;
        Some(self.by_peer[at].1)
    }

    /// Returns a received frame that is next in its sender's order.
    fn ready(&mut self) -> Option<(NodeId, Vec<u8>)> {
        if self.due.is_empty() {
            return None;
        }
        let now = Instant::now();
        for _ in 0..self.due.len() {
            let node = self.due.pop_front()?;
            let received = &mut self.nodes[node.index()].received;
            let frame = received.next(now);
            if received.is_waiting() {
                self.due.push_back(node);
            }
            if let Some(frame) = frame {
                return Some((node, frame));
            }
        }
        None
    }
}

impl FrameLink for OfiLink {
    fn nodes(&self) -> u16 {
        u16::try_from(self.nodes.len()).expect("made for as many")
    }

    fn line_rate(&self) -> LineRate {
        self.rate
    }

    fn has_room(&mut self, to: NodeId, staged: usize) -> bool {
        let Some(peer) = self.nodes[to.index()].peer else { return false };
        let has_room = |endpoint: &Endpoint| {
            // The receiver counts a frame as lost if more than `MOST` overtake it.
            endpoint.outstanding(peer) + staged < self.most
                && endpoint.span(peer) + staged < MOST
                && endpoint.room() > staged
        };
        if has_room(&self.endpoint) {
            return true;
        }
        self.endpoint.progress();
        // Frames for a failed endpoint are dropped, like frames for an exited node.
        has_room(&self.endpoint) || self.failed.is_some()
    }

    fn send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), DropCause> {
        let remote = &mut self.nodes[to.index()];
        let peer = remote.peer.ok_or(DropCause::NoRoute)?;
        let mut prefix = [0; PREFIX];
        prefix[..2].copy_from_slice(&self.node.0.to_le_bytes());
        prefix[4..].copy_from_slice(&remote.next.to_le_bytes());
        let sent = self.endpoint.send(peer, &[&prefix, frame]);
        sent.map_err(|error| match error {
            SendError::Full => DropCause::BufferFull,
            SendError::TooLong(_) | SendError::Failed(_) => DropCause::System,
        })?;
        remote.next = remote.next.wrapping_add(1);
        Ok(())
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<(NodeId, Vec<u8>)> {
        loop {
            if let Some(frame) = self.ready() {
                return Poll::Ready(frame);
            }
            if self.failed.is_some() {
                return Poll::Pending;
            }
            let is_urgent = !self.due.is_empty();
            let mut received = None;
            let polled = self.endpoint.poll_event(context, is_urgent, |event| match event {
                Event::Frame { from, bytes } => received = Some((from, bytes.to_vec())),
                // The receiver skips its number after a while. The firmware repeats the frame if it must arrive.
                Event::Lost { .. } => {}
            });
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    tracing::error!(node = self.node.0, %error, "the link of a NIC has failed");
                    self.failed = Some(error);
                }
                Poll::Ready(Ok(())) => {
                    let parsed = received.and_then(|(from, bytes)| self.parse(from, &bytes));
                    let Some((node, number, frame)) = parsed else { continue };
                    let received = &mut self.nodes[node.index()].received;
                    if !received.is_waiting() {
                        self.due.push_back(node);
                    }
                    received.insert(number, frame, Instant::now());
                }
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
