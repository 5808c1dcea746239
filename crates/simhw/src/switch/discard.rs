//! What a full switch port drops: tail drop, partial and early packet discard.
//!
//! Early packet discard is Romanow and Floyd's ("Dynamics of TCP traffic over ATM networks", 1995):
//! a frame is refused at its first piece, whole, so that a congested line carries no corpses.

use std::fmt;

use crate::drops::DropCause;
use crate::switch::Piece;

/// How full a port's buffer is, in the buffer's unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Occupancy {
    /// In the buffer, with what is being sent.
    pub used: u32,
    /// What it holds.
    pub capacity: u32,
}

impl Occupancy {
    const fn fits(self, cost: u32) -> bool {
        self.used.saturating_add(cost) <= self.capacity
    }
}

/// Which pieces a port refuses.
pub trait Discard: fmt::Debug + Send {
    /// Whether a piece that costs `cost` is taken in. A rule must refuse what does not fit.
    ///
    /// # Errors
    /// The cause for which it is dropped.
    fn admit(&mut self, piece: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause>;

    /// No more pieces of `frame` come; a rule that remembers frames forgets this one.
    fn forget(&mut self, frame: u32) {
        let _ = frame;
    }
}

/// A shipped rule, by name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum DiscardPolicy {
    /// What does not fit is dropped.
    #[default]
    Tail,
    /// ... and the rest of its frame with it.
    Partial,
    /// Frames are refused whole while the buffer is fuller than this many thousandths.
    Early {
        /// Thousandths of the capacity.
        threshold: u16,
    },
    /// Nothing is dropped: what does not fit stays on its link, which stands still with all behind it, as a
    /// Myrinet's do, and so does the link to a NIC that has no room or whose firmware
    /// [leaves](crate::hardware::Hardware::leave) a frame there. In `sim` only, and copies of frames to
    /// everybody are dropped all the same; a switch in real time has no link to hold, and drops what does not
    /// fit.
    HoldUp,
}

impl DiscardPolicy {
    /// Early discard from four fifths on, a common setting of ATM switches.
    pub const EARLY: Self = Self::Early { threshold: 800 };

    /// The rule, ready to be used by one port.
    #[must_use]
    pub fn build(self) -> Box<dyn Discard> {
        match self {
            Self::Tail | Self::HoldUp => Box::new(TailDrop),
            Self::Partial => Box::<PartialPacketDiscard>::default(),
            Self::Early { threshold } => Box::new(EarlyPacketDiscard::new(threshold)),
        }
    }
}

/// Drops what does not fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct TailDrop;

impl Discard for TailDrop {
    fn admit(&mut self, _: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause> {
        if at.fits(cost) { Ok(()) } else { Err(DropCause::BufferFull) }
    }
}

/// Most frames that a rule remembers at once; past that it forgets the oldest. A port that is told of
/// frames that end elsewhere ([`Discard::forget`]) remembers at most one of each sender.
const MOST_REMEMBERED: usize = 1024;

/// Some of the frames that are passing.
#[derive(Debug, Default)]
struct Frames(Vec<u32>);

impl Frames {
    /// Remembers the piece's frame, if more of it is to come.
    fn remember(&mut self, piece: &Piece) {
        if piece.last {
            return;
        }
        if self.0.len() == MOST_REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(piece.frame);
    }

    /// Whether the piece's frame is remembered; it is forgotten with its last piece.
    fn recall(&mut self, piece: &Piece) -> bool {
        let known = self.0.contains(&piece.frame);
        if known && piece.last {
            self.forget(piece.frame);
        }
        known
    }

    fn forget(&mut self, frame: u32) {
        self.0.retain(|known| *known != frame);
    }
}

/// Drops what does not fit, and the rest of its frame but for the last piece, so that the receiver
/// can tell where the next frame begins.
#[derive(Debug, Default)]
pub struct PartialPacketDiscard {
    /// Frames of which a piece was dropped and the last has not passed.
    broken: Frames,
}

impl Discard for PartialPacketDiscard {
    fn admit(&mut self, piece: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause> {
        let broken = self.broken.recall(piece);
        if broken && !piece.last {
            return Err(DropCause::PartialDiscard);
        }
        if at.fits(cost) {
            return Ok(());
        }
        self.broken.remember(piece);
        Err(DropCause::BufferFull)
    }

    fn forget(&mut self, frame: u32) {
        self.broken.forget(frame);
    }
}

/// Refuses whole frames, at their first piece, while the buffer is fuller than a threshold. What
/// was let in and then does not fit is discarded in part.
#[derive(Debug)]
pub struct EarlyPacketDiscard {
    threshold: u16,
    /// Frames that were refused whole and whose last piece has not come.
    refused: Frames,
    admitted: PartialPacketDiscard,
}

impl EarlyPacketDiscard {
    /// Refuses from `threshold` thousandths of the capacity on.
    #[must_use]
    pub fn new(threshold: u16) -> Self {
        let (refused, admitted) = Default::default();
        Self { threshold, refused, admitted }
    }
}

impl Discard for EarlyPacketDiscard {
    fn admit(&mut self, piece: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause> {
        if self.refused.recall(piece) {
            return Err(DropCause::EarlyDiscard);
        }
        if piece.index > 0 {
            return self.admitted.admit(piece, cost, at);
        }
        let limit = u64::from(at.capacity) * u64::from(self.threshold) / 1000;
        let cause = if u64::from(at.used) >= limit && at.used > 0 {
            DropCause::EarlyDiscard
        } else if at.fits(cost) {
            return Ok(());
        } else {
            DropCause::BufferFull
        };
        self.refused.remember(piece);
        Err(cause)
    }

    fn forget(&mut self, frame: u32) {
        self.refused.forget(frame);
        self.admitted.forget(frame);
    }
}
