//! Knowing when and how fast to send: Warp congestion control, conditional send, Mermera's memory,
//! asynchronous iterations.
//!
//! Everything here is a state machine that is handed the time; the extension for `midplane-nicvm`
//! is one of them. Nothing reads a clock or does I/O.
//!
//! - [`control`]: start here: the rate law to use; [`law`] has the paper's own, for study
//! - [`firmware`]: the extension: messages that leave at the rate that the law allows
//! - [`gate`], [`slots`]: whether to send at all, and how the last value arrives all the same
//! - [`memory`]: shared memory whose writes are as coherent as each needs to be
//! - [`iterate`]: fixed points by asynchronous iteration, and when one is found
//! - [`stamp`], [`estimate`], [`feedback`]: what a law is fed with, and how it gets there
//! - [`model`]: senders and a queue, fluid and in packets, to try a law on
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
