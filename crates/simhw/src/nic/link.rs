//! Abstracts the differences between live fabrics: how frames are sent, and in which memory they arrive.

use super::hardware::Nic;
use crate::frame::Header;
use crate::hardware::{Source, TransmitRefused};
use crate::id::NodeId;
use crate::segment::View;
use crate::time::{Instant, LineRate};

/// The sending half of a NIC's connection to its fabric. NICs are generic over it: no call is virtual.
///
/// A receiving half hands frames to [`Engine::deliver`](super::Engine::deliver).
pub(crate) trait Link: Sized {
    /// True if an application of this process takes the NIC's lock between setting its park flag and its last poll.
    const PARKING_LOCKS: bool = false;

    /// Returns the most bytes that one frame to `to` carries and still crosses its path as one packet.
    fn mtu_to(&self, mtu: usize, _to: NodeId) -> usize {
        mtu
    }

    /// Returns the rate of the NIC's line.
    fn line_rate(&self) -> LineRate;

    /// Returns the bytes that a frame with `payload` bytes takes on the wire.
    fn wire_bytes(&self, payload: usize) -> u32;

    /// Returns by how many nanoseconds queued frames leave later than `transmit` returned.
    fn line_lag(&self, _now: Instant) -> u64 {
        0
    }

    /// Stages a frame that is not for this node; returns when it leaves.
    ///
    /// # Errors
    /// [`TransmitRefused`]; nothing is then staged.
    fn transmit(
        nic: &mut Nic<Self>,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused>;

    /// Begins a commit, before its writes: reads the registered memory that staged frames are sent from.
    fn gather(_nic: &mut Nic<Self>) {}

    /// Puts the staged frames into effect, after the writes of the commit and before its completions.
    fn publish(_nic: &mut Nic<Self>) {}

    /// Handles the link's own timeouts, before the alarms of the firmware.
    fn handle_timeout(_nic: &mut Nic<Self>) {}

    /// Discards the staged frames.
    fn abort(&mut self);

    /// Returns the memory of the frame that is being handled: writes from it need no copy until the commit.
    fn current(&self) -> Option<View<'_>>;

    /// Ends the handling of the current frame.
    fn end_frame(&mut self);

    /// Returns whether a peer to which a frame was sent may have to be woken.
    fn owes_wake(&self) -> bool {
        false
    }

    /// Wakes the parked peers to which frames were sent.
    fn wake(&mut self) {}
}
