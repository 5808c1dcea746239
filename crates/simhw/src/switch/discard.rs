//! Discard rules of a full switch port: tail drop, partial and early packet discard, or one of your own.
//!
//! Early packet discard follows Romanow and Floyd ("Dynamics of TCP traffic over ATM networks", 1995). It refuses
//! frames whole, at their first piece, so that a congested line carries no useless pieces.
//!
//! A rule of your own, at a port to which eight senders send at once:
//!
//! ```
//! use midplane_simhw::drops::DropCause;
//! use midplane_simhw::switch::discard::Occupancy;
//! use midplane_simhw::switch::{Buffer, Discard, DiscardPolicy, Output, Piece, SwitchProfile};
//! use midplane_simhw::time::{Instant, LineRate};
//!
//! /// Keeps half of the buffer free.
//! #[derive(Debug)]
//! struct Half;
//!
//! impl Discard for Half {
//!     fn admit(&mut self, _: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause> {
//!         if at.used + cost <= at.capacity / 2 { Ok(()) } else { Err(DropCause::EarlyDiscard) }
//!     }
//! }
//!
//! let mut profile = SwitchProfile::new(Buffer::Bytes(12_000));
//! profile.discard = DiscardPolicy::Own(|| Box::new(Half));
//! let mut port = Output::from_profile(LineRate::mbps(1_000), &profile);
//! for frame in 0..8 {
//!     let _ = port.accept(Instant::ZERO, Piece { frame, index: 0, last: true, bytes: 1_500 });
//! }
//! assert_eq!((port.peak(), port.drops().of(DropCause::EarlyDiscard)), (6_000, 4));
//! ```
//!
//! Each switch with this profile has the rule: in a [`Topology`](crate::topology::Topology), and in a
//! [`SoftSwitch`](crate::udp::SoftSwitch).

use std::fmt;

use crate::drops::DropCause;
use crate::switch::Piece;

/// The occupancy of a port's buffer, in the buffer's unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Occupancy {
    /// Occupied space, including the piece that is being sent.
    pub used: u32,
    /// Capacity of the buffer.
    pub capacity: u32,
}

impl Occupancy {
    const fn fits(self, cost: u32) -> bool {
        self.used.saturating_add(cost) <= self.capacity
    }
}

/// A rule that selects the pieces that a port refuses. A rule of your own is used as [`DiscardPolicy::Own`].
pub trait Discard: fmt::Debug + Send {
    /// Decides on a piece that takes `cost` of the buffer. A rule must refuse a piece that does not fit.
    ///
    /// # Errors
    /// The cause for which the piece is dropped.
    fn admit(&mut self, piece: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause>;

    /// Notifies the rule that no more pieces of `frame` follow, so that it can forget the frame.
    fn forget(&mut self, frame: u32) {
        let _ = frame;
    }
}

/// The discard rule of a switch's ports: one of this module, or one of your own.
#[derive(Clone, Copy, Debug, Default, Eq)]
#[non_exhaustive]
pub enum DiscardPolicy {
    /// Drops a piece that does not fit.
    #[default]
    Tail,
    /// Drops a piece that does not fit, and the rest of its frame.
    Partial,
    /// Refuses whole frames while the buffer is fuller than a threshold.
    Early {
        /// Thousandths of the capacity.
        threshold: u16,
    },
    /// Drops nothing (back-pressure): a piece that does not fit stays on its link, which stalls with all pieces
    /// behind it, as in Myrinet. The link to a NIC stalls as well, if the NIC has no space or its firmware
    /// [leaves](crate::hardware::Hardware::leave) a frame there. Only `sim` supports it, and copies of
    /// broadcast frames are dropped nevertheless. A switch in real time cannot stall a link, and drops pieces
    /// that do not fit.
    BackPressure,
    /// Follows a rule of your own. The function makes the rule of each port.
    Own(fn() -> Box<dyn Discard>),
}

impl DiscardPolicy {
    /// Early discard from four fifths of the capacity, a common setting of ATM switches.
    pub const EARLY: Self = Self::Early { threshold: 800 };

    /// Creates the rule for one port.
    #[must_use]
    #[doc(hidden)]
    pub fn build(self) -> Box<dyn Discard> {
        match self {
            Self::Tail | Self::BackPressure => Box::new(TailDrop),
            Self::Partial => Box::<PartialPacketDiscard>::default(),
            Self::Early { threshold } => Box::new(EarlyPacketDiscard::new(threshold)),
            Self::Own(rule) => rule(),
        }
    }
}

impl PartialEq for DiscardPolicy {
    /// Compares two policies. Rules of your own are equal if one function makes them.
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Self::Early { threshold }, Self::Early { threshold: other }) => threshold == other,
            (Self::Own(rule), Self::Own(other)) => std::ptr::fn_addr_eq(rule, other),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Drops a piece that does not fit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TailDrop;

impl Discard for TailDrop {
    fn admit(&mut self, _: &Piece, cost: u32, at: Occupancy) -> Result<(), DropCause> {
        if at.fits(cost) { Ok(()) } else { Err(DropCause::BufferFull) }
    }
}

/// Most frames that a rule remembers; beyond that it forgets the oldest. A port that is notified of frames that
/// end elsewhere ([`Discard::forget`]) remembers at most one per sender.
const MAX_REMEMBERED: usize = 1024;

/// A set of passing frames.
#[derive(Debug, Default)]
struct Frames(Vec<u32>);

impl Frames {
    /// Adds the piece's frame, if more of it follows.
    fn remember(&mut self, piece: &Piece) {
        if piece.last {
            return;
        }
        if self.0.len() == MAX_REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(piece.frame);
    }

    /// Returns whether the piece's frame is in the set; its last piece removes it.
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

/// Drops a piece that does not fit, and the rest of its frame except the last piece, by which the receiver
/// recognizes where the next frame begins.
#[derive(Debug, Default)]
pub(crate) struct PartialPacketDiscard {
    /// Frames that have lost a piece and whose last piece has not passed.
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

/// Refuses whole frames, at their first piece, while the buffer is fuller than a threshold. If a later piece of
/// an admitted frame does not fit, the frame is discarded in part.
#[derive(Debug)]
pub(crate) struct EarlyPacketDiscard {
    threshold: u16,
    /// Frames that were refused and whose last piece has not arrived.
    refused: Frames,
    admitted: PartialPacketDiscard,
}

impl EarlyPacketDiscard {
    /// Creates a rule that refuses frames from `threshold` thousandths of the capacity on.
    #[must_use]
    pub(crate) fn new(threshold: u16) -> Self {
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
