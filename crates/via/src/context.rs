//! The state of a process's interfaces on a NIC, as data. It is saved while the process is suspended, can be
//! stored anywhere, and is restored on the same NIC or another.
//!
//! It contains no node, port or number of a NIC. The process's own names stand for interfaces, the names of
//! first registration for memory, and the process's rank for the other end of a connection. It does not contain
//! the bytes of memory: they belong to the process.

mod check;

use midplane_simhw::id::PortId;
use midplane_simhw::region::RegionRef;
use serde::{Deserialize, Serialize};

use crate::attributes::{ViAttributes, ViState};
use crate::outcome::{AsyncError, DescriptorError, Operation};

pub use check::{Inconsistency, Violation, check_cut};

/// All interfaces of one process. `P` names the other end of a connection.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PortContext<P = RemoteEnd> {
    /// Its interfaces, sorted by name.
    pub vis: Vec<ViContext<P>>,
    /// Asynchronous errors that the process has not received yet, oldest first: the interface's name and the
    /// error.
    pub errors: Vec<(u16, AsyncError)>,
}

/// An interface of another process.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct RemoteEnd {
    /// The process's rank in its job.
    pub rank: u16,
    /// The process's number of the interface.
    pub vi: u16,
}

/// The state of one interface.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ViContext<P = RemoteEnd> {
    /// The process's name of the interface.
    pub name: u16,
    /// The attributes with which it was created.
    pub attributes: ViAttributes,
    /// Its state; never [`ViState::ConnectPending`].
    pub state: ViState,
    /// Its connection, if it is connected.
    pub link: Option<LinkContext<P>>,
    /// Sends, writes and reads that have not completed, oldest first.
    pub sends: Vec<SendContext>,
    /// Index in `sends` of the first that is not completely cut into frames.
    pub cut: u32,
    /// Index in `sends` of the first whose last frame is not acknowledged.
    pub acknowledged: u32,
    /// On an unreliable interface: number of sends that are done and count as lost on the way.
    pub withdrawn: u32,
    /// The holders of its queues.
    pub gate: GateContext,
    /// Receives that have not completed, oldest first.
    pub receives: Vec<ReceiveContext>,
}

/// The queues of an interface that its process has, to send and receive bypassing the NIC. The NIC has the others.
/// Pairs are for the send queue and the receive queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct GateContext {
    /// True if the process has the queue, and must return it before the NIC uses it.
    pub lent: [bool; 2],
    /// True if the process offers to take over the queue.
    pub offers: [bool; 2],
    /// True if the process waits for the NIC to recall the queue.
    pub recalls: [bool; 2],
    /// Bytes that the process has sent of the next message, whose descriptor it has yet to post again.
    pub begun: u32,
    /// Receives that the process has yet to post again.
    pub filling: u32,
}

/// One end of a connection. Frames are numbered modulo 2^32.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct LinkContext<P = RemoteEnd> {
    /// The name of the other end.
    pub peer: P,
    /// The attributes of the other end's interface.
    pub remote: ViAttributes,
    /// The number of the first frame that this end has sent and that is not acknowledged.
    pub base: u32,
    /// Those frames, oldest first.
    pub flights: Vec<FlightContext>,
    /// The number of the next frame that this end accepts.
    pub expected: u32,
    /// Bytes received of a message that has arrived in part.
    pub arriving: Option<u32>,
    /// Reads by the other end of this one's memory that are not completely sent, oldest first.
    pub responses: Vec<ResponseContext>,
}

/// A region of memory, by the name under which its process registered it first.
#[derive(
    Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize,
)]
pub struct MemoryName {
    /// The region's slot in the process's table of regions.
    pub slot: u16,
    /// Counts the uses of that slot.
    pub generation: u32,
}

/// A range of a process's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The region that the range is in.
    pub memory: MemoryName,
    /// Offset of its first byte in the region.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

/// A posted send, write or read.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SendContext {
    /// The process's name of the descriptor.
    pub cookie: u64,
    /// The operation of the descriptor.
    pub operation: Operation,
    /// Its memory, in order.
    pub pieces: Vec<Piece>,
    /// Bytes of all pieces.
    pub length: u32,
    /// Immediate data that is sent with it.
    pub immediate: Option<u32>,
    /// The other process's memory, for a write or a read.
    pub remote: Piece,
    /// True if the descriptor starts only once all reads posted before it have completed.
    pub fence: bool,
    /// Bytes cut into frames; for a read, bytes received.
    pub moved: u32,
    /// Its result, if it is done and only waits for those before it.
    pub done: Option<Result<(), DescriptorError>>,
}

/// A posted receive descriptor.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ReceiveContext {
    /// The process's name of the descriptor.
    pub cookie: u64,
    /// Its memory, in order.
    pub pieces: Vec<Piece>,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum FlightKind {
    /// Part of a message.
    Send,
    /// Part of a write.
    Write,
    /// A request to read memory of the other end.
    ReadRequest,
    /// Part of memory that the other end reads.
    ReadResponse,
}

/// A frame that was sent and is not acknowledged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FlightContext {
    /// The kind of the frame.
    pub kind: FlightKind,
    /// True if the frame is the first of its message.
    pub first: bool,
    /// True if the frame is the last of its message.
    pub last: bool,
    /// True if `value` is immediate data.
    pub immediate: bool,
    /// For a write or a read request: the other process's memory. For a send, `generation` holds the bytes of
    /// the whole message.
    pub remote: MemoryName,
    /// Offset of the frame's first byte within the message, or within that memory.
    pub offset: u32,
    /// Immediate data, or the bytes that a read request requests.
    pub value: u32,
    /// The memory of its data.
    pub source: Option<Piece>,
    /// True if a posted descriptor completes with the frame; false for the request of a read that has completed.
    pub ends: bool,
}

/// Memory of this end that the other end reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ResponseContext {
    /// The memory that the other end reads.
    pub piece: Piece,
    /// Bytes of that memory that were cut into frames.
    pub sent: u32,
}

impl<P> PortContext<P> {
    /// Replaces the names of the other ends.
    ///
    /// # Errors
    /// The first error of `name`, which receives the process's name of the interface, and its other end.
    pub fn with_peers<Q, E>(
        self,
        mut name: impl FnMut(u16, P) -> Result<Q, E>,
    ) -> Result<PortContext<Q>, E> {
        let vis = self.vis.into_iter().map(|vi| {
            let link = match vi.link {
                None => None,
                Some(link) => Some(link.with_peer(|peer| name(vi.name, peer))?),
            };
            Ok(ViContext {
                name: vi.name,
                attributes: vi.attributes,
                state: vi.state,
                link,
                sends: vi.sends,
                cut: vi.cut,
                acknowledged: vi.acknowledged,
                withdrawn: vi.withdrawn,
                gate: vi.gate,
                receives: vi.receives,
            })
        });
        Ok(PortContext { vis: vis.collect::<Result<_, E>>()?, errors: self.errors })
    }

    /// Returns the interface of that name.
    #[must_use]
    pub fn vi(&self, name: u16) -> Option<&ViContext<P>> {
        let at = self.vis.binary_search_by_key(&name, |vi| vi.name).ok()?;
        self.vis.get(at)
    }

    /// Iterates over the cookies of all descriptors.
    pub fn cookies(&self) -> impl Iterator<Item = u64> {
        self.vis.iter().flat_map(|vi| {
            let sends = vi.sends.iter().map(|work| work.cookie);
            sends.chain(vi.receives.iter().map(|work| work.cookie))
        })
    }

    /// Iterates over every range of memory that the context names, with the interface's name.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u16, Piece)> {
        self.vis.iter().flat_map(|vi| vi.pieces().map(move |piece| (vi.name, piece)))
    }
}

impl<P> ViContext<P> {
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let sends = self.sends.iter().flat_map(|work| work.pieces.iter().copied());
        let receives = self.receives.iter().flat_map(|work| work.pieces.iter().copied());
        let link = self.link.iter().flat_map(|link| {
            let flights = link.flights.iter().filter_map(|flight| flight.source);
            flights.chain(link.responses.iter().map(|response| response.piece))
        });
        sends.chain(receives).chain(link).filter(|piece| piece.length > 0)
    }
}

impl<P> LinkContext<P> {
    fn with_peer<Q, E>(self, name: impl FnOnce(P) -> Result<Q, E>) -> Result<LinkContext<Q>, E> {
        Ok(LinkContext {
            peer: name(self.peer)?,
            remote: self.remote,
            base: self.base,
            flights: self.flights,
            expected: self.expected,
            arriving: self.arriving,
            responses: self.responses,
        })
    }

    /// Returns the number of the next new frame.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.base.wrapping_add(self.flights.len() as u32)
    }
}

impl Piece {
    /// Returns the reference that `owner`'s NIC uses, if it knows the memory by this name.
    pub(crate) const fn at(self, owner: PortId) -> RegionRef {
        RegionRef {
            port: owner,
            slot: self.memory.slot,
            generation: self.memory.generation,
            offset: self.offset,
            length: self.length,
        }
    }
}

impl From<RegionRef> for Piece {
    fn from(region: RegionRef) -> Self {
        Self { memory: region.into(), offset: region.offset, length: region.length }
    }
}

impl From<RegionRef> for MemoryName {
    fn from(region: RegionRef) -> Self {
        Self { slot: region.slot, generation: region.generation }
    }
}
