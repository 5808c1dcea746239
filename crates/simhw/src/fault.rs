//! What goes wrong, on purpose.
//!
//! [`Faults`] are drawn anew for each frame, on every link, for as long as they are set. An
//! [`Incident`] is one [`Fault`] at one place, from one instant on and for a while: a script of them
//! is written by hand, or drawn from a seed by [`Chaos`]. [`FaultCounts`] tell how often each kind
//! has had an effect.

mod chaos;
mod incident;

use std::time::Duration;

pub use chaos::Chaos;
pub use incident::{Fault, FaultCounts, FaultKind, Incident};

/// Faults of the links out of the NICs, drawn anew for each frame. Probabilities are fractions from
/// 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A frame is lost.
    pub loss: f64,
    /// A frame arrives twice.
    pub duplicate: f64,
    /// A frame is damaged, which the receiver's checksum tells.
    pub corrupt: f64,
    /// A frame is delayed by up to [`Faults::delay`], and may be overtaken.
    pub reorder: f64,
    /// Most that a frame is delayed by.
    pub delay: Duration,
    /// Most that each piece is late at the end of its NIC's link, in order. Without any, senders
    /// whose clocks are exact keep in step, and one of them wins every free place of a full buffer;
    /// no real ones do. A piece's own time on the line is a lifelike value.
    pub jitter: Duration,
}

impl Faults {
    /// A network without faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        corrupt: 0.0,
        reorder: 0.0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}
