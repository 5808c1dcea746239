//! What a process has on its Virtual Interfaces, as data: saved while the process stands still, kept
//! anywhere, and put back on the same NIC or another.
//!
//! No node, no port and no number of a NIC stands in it. Interfaces are called what their process calls
//! them, memory by the name under which the process registered it first, the other end of a connection
//! by its process's rank. Bytes of memory are not in it: they are the process's own.

mod check;

use midplane_simhw::id::PortId;
use midplane_simhw::region::RegionRef;
use serde::{Deserialize, Serialize};

use crate::attributes::{ViAttributes, ViState};
use crate::outcome::{AsyncError, DescriptorError, Operation};

pub use check::{Violation, Wrong, check_cut};

/// All interfaces of one process. `P` says what names the other end of a connection.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PortContext<P = FarEnd> {
    /// Its interfaces, by name.
    pub vis: Vec<ViContext<P>>,
    /// What happened to them that the process has not been told, oldest first: name and error.
    pub errors: Vec<(u16, AsyncError)>,
}

/// Another process's interface.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct FarEnd {
    /// The process's rank in its job.
    pub rank: u16,
    /// What that process calls the interface.
    pub vi: u16,
}

/// One interface.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ViContext<P = FarEnd> {
    /// What its process calls it.
    pub name: u16,
    /// What it was made with.
    pub attributes: ViAttributes,
    /// Its state; never [`ViState::ConnectPending`].
    pub state: ViState,
    /// Its connection, if it is connected.
    pub link: Option<LinkContext<P>>,
    /// Sends, writes and reads that have not come back, oldest first.
    pub sends: Vec<SendContext>,
    /// The first of them that is not cut into frames whole, and the first whose last frame is not
    /// acknowledged.
    pub cut: u32,
    /// See [`cut`](Self::cut).
    pub acknowledged: u32,
    /// Of an unreliable interface: how many of them are as good as lost on the way, and done.
    pub withdrawn: u32,
    /// Receives that have not come back, oldest first.
    pub receives: Vec<ReceiveContext>,
}

/// One end of a connection. Frames are numbered modulo 2^32.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct LinkContext<P = FarEnd> {
    /// The other end.
    pub peer: P,
    /// What the other end's interface was made with.
    pub remote: ViAttributes,
    /// The number of the first frame that this end has sent and that is not acknowledged.
    pub base: u32,
    /// Those frames, oldest first.
    pub flights: Vec<FlightContext>,
    /// The number of the next frame that this end takes.
    pub expected: u32,
    /// Bytes of a message that has arrived in part.
    pub arriving: Option<u32>,
    /// What the other end reads of this one's memory and was not sent whole, oldest first.
    pub responses: Vec<ResponseContext>,
}

/// Memory as its process calls it: the name that it was registered under first, wherever that was.
#[derive(
    Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize,
)]
pub struct MemoryName {
    /// Which of the process's regions.
    pub slot: u16,
    /// Which use of that.
    pub generation: u32,
}

/// A range of a process's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The memory.
    pub memory: MemoryName,
    /// Its first byte.
    pub offset: u32,
    /// Its bytes.
    pub length: u32,
}

/// A posted send, write or read.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SendContext {
    /// By which its process knows it.
    pub cookie: u64,
    /// What it does.
    pub operation: Operation,
    /// Its memory, in order.
    pub pieces: Vec<Piece>,
    /// Bytes of that.
    pub length: u32,
    /// What goes with it.
    pub immediate: Option<u32>,
    /// Of a write or a read: the other process's memory.
    pub remote: Piece,
    /// Waits for all reads before it.
    pub fence: bool,
    /// Bytes that were cut into frames; of a read, bytes that have come.
    pub moved: u32,
    /// How it has ended, if it only waits for those before it.
    pub done: Option<Result<(), DescriptorError>>,
}

/// A posted receive.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ReceiveContext {
    /// By which its process knows it.
    pub cookie: u64,
    /// Its memory, in order.
    pub pieces: Vec<Piece>,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum FlightKind {
    /// A part of a message.
    Send,
    /// A part of a write.
    Write,
    /// Asks for memory of the other end.
    ReadRequest,
    /// A part of what the other end has asked for.
    ReadResponse,
}

/// A frame that was sent and is not acknowledged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FlightContext {
    /// What it is.
    pub kind: FlightKind,
    /// Whether it is the first of its message.
    pub first: bool,
    /// Whether it is the last of it.
    pub last: bool,
    /// Whether `value` is immediate data.
    pub immediate: bool,
    /// Of a write or a request: the other process's memory. Of a send, the generation is the bytes of the
    /// whole message.
    pub remote: MemoryName,
    /// Its first byte within the message, or within that memory.
    pub offset: u32,
    /// Immediate data, or the bytes that a request asks for.
    pub value: u32,
    /// Its bytes.
    pub source: Option<Piece>,
    /// Whether a posted descriptor ends with it.
    pub ends: bool,
}

/// Memory that the other end reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ResponseContext {
    /// What it has asked for.
    pub piece: Piece,
    /// Bytes of it that were cut into frames.
    pub sent: u32,
}

impl<P> PortContext<P> {
    /// The same with other names of the other ends.
    ///
    /// # Errors
    /// The first of `name`, which is handed what the process calls the interface, and its other end.
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
                receives: vi.receives,
            })
        });
        Ok(PortContext { vis: vis.collect::<Result<_, E>>()?, errors: self.errors })
    }

    /// The interface of that name.
    #[must_use]
    pub fn vi(&self, name: u16) -> Option<&ViContext<P>> {
        let at = self.vis.binary_search_by_key(&name, |vi| vi.name).ok()?;
        self.vis.get(at)
    }

    /// The cookies of all descriptors.
    pub fn cookies(&self) -> impl Iterator<Item = u64> {
        self.vis.iter().flat_map(|vi| {
            let sends = vi.sends.iter().map(|work| work.cookie);
            sends.chain(vi.receives.iter().map(|work| work.cookie))
        })
    }

    /// Every range of memory that anything in it names, with the interface's name.
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

    /// The number of the next new frame.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.base.wrapping_add(self.flights.len() as u32)
    }
}

impl Piece {
    /// As `owner`'s NIC knows it, if it knows the memory by this name.
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
