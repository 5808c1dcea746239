//! Senders that share one queue, to try a law on: as a fluid, and in packets.
//!
//! The fluid has no noise and shows what a law does; the packets have all that a network has.
//! Both drive the same [`Controller`](crate::control::Controller) with the same feedback.

mod fluid;
mod packets;

pub use fluid::{Fluid, FluidSender};
pub use packets::{Faults, PacketSender, Packets, PacketsConfig};

/// Jain's index of fairness: 1 where all are equal, 1 / n where one has everything.
///
/// Jain, Chiu and Hawe 1984.
#[must_use]
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (rates.len() as f64 * squares) }
}
