//! Models of senders that share one queue, to test a law: as a fluid and in packets.
//!
//! The fluid model has no noise and shows the law alone. The packet model has loss, reordering,
//! duplicates and noise. Both drive the same [`Controller`](crate::control::Controller) with the
//! same feedback.

mod fluid;
mod packets;

pub use fluid::{Fluid, FluidSender};
pub use packets::{Faults, PacketSender, Packets, PacketsConfig};

/// Returns Jain's fairness index: 1 if all rates are equal, 1 / n if one sender has everything.
///
/// Jain, Chiu and Hawe 1984.
#[must_use]
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (rates.len() as f64 * squares) }
}
