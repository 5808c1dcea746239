//! Decides when and how fast to send: Warp congestion control, conditional send, Mermera's shared
//! memory and asynchronous iterations.
//!
//! Each part is a state machine that takes the time as an argument. The extension for
//! `midplane-nicvm` is one of them. This crate reads no clock and does no I/O.
//!
//! - [`control`]: start here: the recommended rate law; [`law`] has the paper's own, for study
//! - [`firmware`]: the NIC extension: sends messages at the rate that the law allows
//! - [`gate`], [`slots`]: conditional send, and delivery of the last value when a send is skipped
//! - [`memory`]: shared memory with a choice of consistency for each write
//! - [`iterate`]: fixed points by asynchronous iteration, and detection of termination
//! - [`stamp`], [`estimate`], [`feedback`]: the measurements that a law needs, and their wire
//!   formats
//! - [`model`]: senders that share one queue, as a fluid and in packets, to test a law
//! - `quinn` (feature of that name): the law as the congestion controller of QUIC connections
#![forbid(unsafe_code)]

pub mod control;
#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod estimate;
pub mod feedback;
pub mod firmware;
pub mod gate;
pub mod iterate;
pub mod law;
pub mod memory;
pub mod model;
#[cfg(feature = "quinn")]
pub mod quinn;
pub mod slots;
pub mod stamp;
