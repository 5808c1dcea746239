//! What hosts ask of the extension.

use midplane_simhw::id::ExtensionId;
use serde::{Deserialize, Serialize};

use super::geometry::Geometry;
use crate::names::{ChannelId, JobId, Place, Rank};

/// The extension's number.
pub const GANG: ExtensionId = ExtensionId(19);

/// Opens a context: the region holds an [`OpenRequest`]. Completes with its handle.
pub(crate) const OPEN: u8 = 1;
/// Binds the port to a context, as its process's: handle, key.
pub(crate) const ATTACH: u8 = 2;
/// The process has sent or consumed something: handle. Completes with what is freed and what came.
pub(crate) const LOOK: u8 = 3;
/// Completes when there is more than the process has seen: handle, freed, received. With
/// [`WANTS_ROOM`], also when more is freed.
pub(crate) const WAIT: u8 = 4;
/// Transmits and takes nothing from now on; completes when the context is steady: handle.
pub(crate) const STOP: u8 = 5;
/// Writes the NIC's part of a context into the region: handle, and [`SAVE_FORGETS`] or [`SAVE_MEASURES`], or both.
pub(crate) const SAVE: u8 = 6;
/// Of [`SAVE`]: the NIC is to forget it.
pub(crate) const SAVE_FORGETS: u64 = 1;
/// Of [`SAVE`]: nothing is written, only its length is told.
pub(crate) const SAVE_MEASURES: u64 = 2;
/// Reads the NIC's part of a context out of the region; the FIFOs are in place: handle.
pub(crate) const RESTORE: u8 = 7;
/// Goes on in an epoch: handle, epoch.
pub(crate) const START: u8 = 8;
/// Ends a context: handle.
pub(crate) const CLOSE: u8 = 9;

/// The process behind a port stands still: port. Only the warden's.
pub(crate) const STOP_PORT: u8 = 10;
/// It goes on: port. Only the warden's.
pub(crate) const RESUME_PORT: u8 = 11;

/// Flag of [`WAIT`].
pub(crate) const WANTS_ROOM: u16 = 1;

/// What a context is opened with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenRequest {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) channel: ChannelId,
    /// Where each rank is.
    pub(crate) places: Vec<Place>,
    pub(crate) geometry: Geometry,
    /// The FIFOs' memory, as [`RegionRef::to_words`](midplane_simhw::region::RegionRef::to_words).
    pub(crate) memory: [u64; 2],
    /// Who knows it may attach.
    pub(crate) key: u64,
}

/// What the NIC knows of a context beside the FIFOs themselves.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicState {
    pub(crate) rank: Rank,
    /// Messages ever put into the send FIFO, and of them the first whose room is not free.
    pub(crate) sent: u64,
    pub(crate) freed: u64,
    /// Messages ever received.
    pub(crate) received: u64,
    /// Where the next byte is received.
    pub(crate) receive_tail: u64,
    pub(crate) peers: Vec<PeerNumbers>,
}

/// What the NIC knows of one peer.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerNumbers {
    pub(crate) rank: Rank,
    /// The first message to it that it has not taken.
    pub(crate) acked: u32,
    /// The next message from it.
    pub(crate) expected: u32,
    /// Times in a row that it refused the first.
    pub(crate) refusals: u32,
    /// Numbers in the send FIFO of the messages that it has not taken, in order.
    pub(crate) waiting: Vec<u64>,
}
