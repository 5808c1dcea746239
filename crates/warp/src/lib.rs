//! Decides when and how fast to send: Warp congestion control, conditional send, Mermera's shared
//! memory and asynchronous iterations.
//!
//! Each part is a state machine that takes the time as an argument. The extension for
//! `midplane-nicvm` is one of them. This crate reads no clock and does no I/O.
//!
//! - [`control`]: start here: the recommended rate law; [`midplane_warp_core`] has a program of a sender and its receiver
//! - [`firmware`]: the NIC extension: sends messages at the rate that the law allows
//! - [`gate`]: conditional send
//! - [`memory`]: shared memory with a choice of consistency for each write
//! - [`iterate`]: fixed points by asynchronous iteration, and detection of termination
//! - [`stamp`], [`estimate`], [`feedback`]: the measurements that a law needs, and their wire
//!   formats
//! - `quinn` (feature of that name): the law as the congestion controller of QUIC connections
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
#![forbid(unsafe_code)]

pub use midplane_warp_core::{control, estimate, feedback, stamp};

#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod firmware;
pub mod gate;
pub mod iterate;
mod latest;
#[cfg(feature = "unstable")]
pub mod law;
pub mod memory;
#[cfg(feature = "unstable")]
pub mod model;
#[cfg(feature = "quinn")]
pub mod quinn;
