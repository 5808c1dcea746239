//! Commands from hosts to the extension, with their operands.

use midplane_simhw::id::ExtensionId;
use serde::{Deserialize, Serialize};

use super::geometry::Geometry;
use crate::names::{ChannelAddress, ChannelId, JobId, Rank};

/// The extension's number: 19.
pub const GANG: ExtensionId = ExtensionId(19);

/// Opens a context. The region contains an [`OpenRequest`]. Completes with the context's handle.
pub(crate) const OPEN: u8 = 1;
/// Binds the port to a context, as the port of the context's process: handle, key.
pub(crate) const ATTACH: u8 = 2;
/// Notifies the NIC that the process has sent or consumed a message: handle. Completes with the counts of freed and
/// received messages.
pub(crate) const NOTIFY: u8 = 3;
/// Completes when the counts of freed or received messages exceed the operands: handle, freed, received. Freed
/// messages count only with [`WANTS_ROOM`].
pub(crate) const WAIT: u8 = 4;
/// Stops sending and accepting messages: handle. Completes when the context is steady.
pub(crate) const STOP: u8 = 5;
/// Writes the NIC's part of a context into the region: handle, flags.
pub(crate) const SAVE: u8 = 6;
/// Flag of [`SAVE`]: the NIC forgets the context afterwards.
pub(crate) const SAVE_FORGETS: u64 = 1;
/// Flag of [`SAVE`]: writes nothing; the completion only reports the length.
pub(crate) const SAVE_MEASURES: u64 = 2;
/// Reads the NIC's part of a context from the region: handle. The FIFOs' memory must be restored before.
pub(crate) const RESTORE: u8 = 7;
/// Starts a context in an epoch: handle, epoch.
pub(crate) const START: u8 = 8;
/// Closes a context: handle.
pub(crate) const CLOSE: u8 = 9;

/// Stops all work of the NIC for a port: port. Only the port suspender's port may send this.
pub(crate) const STOP_PORT: u8 = 10;
/// Resumes a stopped port: port. Only the port suspender's port may send this.
pub(crate) const RESUME_PORT: u8 = 11;

/// Watches a stopped port for data: port, tag. Only the port suspender's port may send this.
pub(crate) const WATCH_PORT: u8 = 12;
/// Completes once data has arrived for a watched port, with the port's tag. Only the arrival watcher's port may send
/// this.
pub(crate) const AWAIT_ARRIVAL: u8 = 13;

/// Flag of [`WAIT`]: also complete when messages have been freed.
pub(crate) const WANTS_ROOM: u16 = 1;

/// Operands of [`OPEN`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenRequest {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) channel: ChannelId,
    /// Node and channel of each rank.
    pub(crate) places: Vec<ChannelAddress>,
    pub(crate) geometry: Geometry,
    /// The FIFOs' memory, in the form of [`RegionRef::to_words`](midplane_simhw::region::RegionRef::to_words).
    pub(crate) memory: [u64; 2],
    /// The key that [`ATTACH`] must have.
    pub(crate) key: u64,
}

/// The NIC's part of a context: all its state outside the FIFOs' memory.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicState {
    pub(crate) rank: Rank,
    /// Number of messages ever put into the send FIFO, and number of the oldest message that still occupies it.
    pub(crate) sent: u64,
    pub(crate) freed: u64,
    /// Number of messages ever received.
    pub(crate) received: u64,
    /// Position of the next byte in the receive FIFO.
    pub(crate) receive_tail: u64,
    /// State with each peer, and the FIFO numbers of the messages that the peer has not accepted, in order.
    pub(crate) peers: Vec<(PeerState, Vec<u64>)>,
}

/// A rank's protocol state with one peer. Sequence numbers wrap modulo 2^32.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PeerState {
    /// The peer's rank.
    pub rank: Rank,
    /// Sequence number of the first message to the peer that it has not accepted.
    pub acked: u32,
    /// Sequence number of the next message to the peer.
    pub next: u32,
    /// Sequence number of the next message from the peer.
    pub expected: u32,
    /// Number of consecutive refusals of the first of these messages.
    pub refusals: u32,
}
