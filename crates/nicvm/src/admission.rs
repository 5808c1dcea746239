//! Which frames may leave now.

use std::collections::BTreeMap;

use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

/// Flag of a data frame that is under flow control: the gate decides about it.
pub const CONTROLLED: u8 = 0x80;

/// What an admission says of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It may leave.
    Now,
    /// Ask again then.
    At(Instant),
    /// It waits until the admission has been steered, or has told of something sent.
    Hold,
}

impl Verdict {
    /// What two say together: a frame leaves when neither objects.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Hold, _) | (_, Self::Hold) => Self::Hold,
            (Self::At(a), Self::At(b)) => Self::At(a.max(b)),
            (Self::At(at), Self::Now) | (Self::Now, Self::At(at)) => Self::At(at),
            (Self::Now, Self::Now) => Self::Now,
        }
    }
}

/// What an extension tells its admission; what it means is between the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Steering {
    /// The node that it is about.
    pub destination: NodeId,
    /// A rate, an allowance, a weight.
    pub values: [u64; 2],
}

/// Decides which data frames may leave now. The unit's one transmit scheduler asks all that
/// extensions have installed; a frame leaves when none objects. Control messages, which the unit
/// sends itself, are not asked about: they are few, small, and what decisions travel by.
pub trait Admission: Send {
    /// Whether a frame may leave. Asked as often as the scheduler likes, before the frame is sent or
    /// without its ever being: what is used up is counted by [`Admission::on_sent`].
    fn admit(&self, now: Instant, header: &Header) -> Verdict;

    /// A frame that was admitted has been handed to the line, which it leaves at `leaves`.
    fn on_sent(&mut self, now: Instant, header: &Header, leaves: Instant);

    /// Its extension steers it ([`Context::steer`](crate::context::Context::steer)). All that was
    /// held is asked about again afterwards.
    fn steer(&mut self, now: Instant, steering: Steering);
}

/// What the gate lets through to one destination.
#[derive(Debug, Default)]
struct Passage {
    /// Bytes of frames, with their headers, that may still leave.
    allowance: u64,
    /// Whether who steers the gate knows that something is held.
    told: bool,
    /// When the first and the last bit leave of what was let through since it was last used up.
    on_line: Option<(Instant, Instant)>,
}

/// Holds frames under flow control until an extension lets them through, by destination.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    passages: BTreeMap<NodeId, Passage>,
}

impl Gate {
    /// Lets `bytes` of frames through to `destination`, headers included, instead of what was
    /// allowed before; 0 closes the gate.
    pub(crate) fn allow(&mut self, destination: NodeId, bytes: u64) {
        self.passages.entry(destination).or_default().allowance = bytes;
    }

    /// What may still leave to `destination`, in bytes of frames.
    pub(crate) fn allowance(&self, destination: NodeId) -> u64 {
        self.passages.get(&destination).map_or(0, |passage| passage.allowance)
    }

    /// Whether a frame may leave.
    pub(crate) fn admits(&self, header: &Header) -> bool {
        header.flags & CONTROLLED == 0 || self.allowance(header.destination) >= frame_cost(header)
    }

    /// A frame has been handed to the line.
    pub(crate) fn on_frame(&mut self, header: &Header, begins: Instant, leaves: Instant) {
        if header.flags & CONTROLLED == 0 {
            return;
        }
        let passage = self.passages.entry(header.destination).or_default();
        passage.allowance = passage.allowance.saturating_sub(frame_cost(header));
        let first = passage.on_line.map_or(begins, |(first, _)| first);
        passage.on_line = Some((first, leaves));
    }

    /// Something is held; whether that is news to who steers the gate.
    pub(crate) fn tell_held(&mut self, destination: NodeId) -> bool {
        let passage = self.passages.entry(destination).or_default();
        !std::mem::replace(&mut passage.told, true)
    }

    /// Nothing is held any more: what is next is news.
    pub(crate) fn forget_held(&mut self, destination: NodeId) {
        self.passages.entry(destination).or_default().told = false;
    }

    /// What was let through is used up: when it was on the line, if any of it was.
    pub(crate) fn drain(&mut self, destination: NodeId) -> Option<(Instant, Instant)> {
        let passage = self.passages.entry(destination).or_default();
        passage.told = false;
        passage.on_line.take()
    }
}

const fn frame_cost(header: &Header) -> u64 {
    HEADER_BYTES as u64 + header.length as u64
}
