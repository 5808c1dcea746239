//! Knowing when and how fast to send: Warp congestion control, conditional send, Mermera's memory,
//! asynchronous iterations.
//!
//! Everything here is a state machine that is handed the time; the extension for `midplane-nicvm`
//! is one of them. Nothing reads a clock or does I/O.
//!
//! - [`control`]: start here: the rate law to use; [`law`] has the paper's own, for study
//! - [`stamp`], [`estimate`], [`feedback`]: what a law is fed with, and how it gets there
//! - [`model`]: senders and a queue, fluid and in packets, to try a law on
#![forbid(unsafe_code)]

pub mod control;
pub mod estimate;
pub mod feedback;
pub mod law;
pub mod model;
pub mod stamp;
