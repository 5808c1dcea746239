//! Which frames may leave now.

use std::collections::BTreeMap;

use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

/// Flag of a data frame that is under flow control: the gate decides about it.
pub const CONTROLLED: u8 = 1;

/// What an admission says of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It may leave.
    Now,
    /// Ask again then.
    At(Instant),
    /// It waits until somebody changes the admission's mind.
    Hold,
}

/// Decides which frames may leave now. The unit's one transmit scheduler asks all that are
/// installed; a frame leaves when none objects.
pub trait Admission: Send {
    /// Whether a frame may leave.
    fn admit(&mut self, now: Instant, header: &Header) -> Verdict;

    /// A frame that was admitted has been handed to the line, which it leaves at `leaves`.
    fn on_sent(&mut self, now: Instant, header: &Header, leaves: Instant);
}

/// Holds frames under flow control until an extension lets them through, by destination.
#[derive(Debug, Default)]
pub struct Gate {
    /// Bytes of frames, with their headers, that may still leave.
    allowance: BTreeMap<NodeId, u64>,
}

impl Gate {
    /// Lets `bytes` of frames through to `destination`, headers included, instead of what was
    /// allowed before; 0 closes the gate.
    pub fn allow(&mut self, destination: NodeId, bytes: u64) {
        if bytes == 0 {
            self.allowance.remove(&destination);
        } else {
            self.allowance.insert(destination, bytes);
        }
    }

    /// What may still leave to `destination`, in bytes of frames.
    #[must_use]
    pub fn allowance(&self, destination: NodeId) -> u64 {
        self.allowance.get(&destination).copied().unwrap_or(0)
    }
}

const fn frame_cost(header: &Header) -> u64 {
    HEADER_BYTES as u64 + header.length as u64
}

impl Admission for Gate {
    fn admit(&mut self, _: Instant, header: &Header) -> Verdict {
        let free = header.flags & CONTROLLED == 0;
        if free || self.allowance(header.destination) >= frame_cost(header) {
            Verdict::Now
        } else {
            Verdict::Hold
        }
    }

    fn on_sent(&mut self, _: Instant, header: &Header, _: Instant) {
        if header.flags & CONTROLLED != 0 {
            let left = self.allowance(header.destination).saturating_sub(frame_cost(header));
            self.allow(header.destination, left);
        }
    }
}
