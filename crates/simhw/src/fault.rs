//! Injected faults.
//!
//! [`Faults`] apply to the links that leave the NICs, and are drawn anew for each frame for as long as they are
//! set. An [`Incident`] is one [`Fault`] at one place, from one instant on and for some time. A script of
//! incidents is written by hand, or drawn from a seed by [`Chaos`]. [`FaultCounts`] counts how often each kind
//! has had an effect.

mod chaos;
mod incident;

use std::time::Duration;

pub use chaos::Chaos;
pub use incident::{Fault, FaultCounts, FaultKind, Incident};

/// Faults of the links that leave the NICs, drawn anew for each frame. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that a frame is damaged; the receiver's checksum detects it.
    pub corrupt: f64,
    /// Probability that a frame is delayed by up to [`Faults::delay`]; later frames may overtake it.
    pub reorder: f64,
    /// Longest delay of a frame.
    pub delay: Duration,
    /// Longest extra delay of each piece at the end of its NIC's link; the order is kept. At zero, senders with
    /// exact clocks stay in phase and one of them wins every free place of a full buffer, which real senders do
    /// not. The time that a piece takes on the line is a realistic value.
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
