//! Channels and gang scheduling for parallel jobs: a job is preempted without losing a message.
//!
//! - [`channel`]: start here: a process's end of a channel, as in PM
//! - [`controller`]: the daemon's end: opens, stops, saves, restores and starts a channel's contexts
//! - [`context`]: the saved state of a job's channels
//! - [`carrier`]: carries the messages of `midplane-via` over channels
//! - [`detect`]: termination and deadlocks, detected in a cut
//! - [`firmware`]: the NIC's side, an extension of `midplane-nicvm`
//! - `live` (feature `live`, Linux): what a real process uses in a job that `midplane gang` runs
//! - [`wait`]: wait states that processes publish; [`names`]: jobs, ranks, channels, epochs
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod channel;
#[doc(hidden)]
pub mod checkpoint;
pub mod context;
mod contexts;
pub mod controller;
#[doc(hidden)]
pub mod daemon;
pub mod detect;
#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod firmware;
#[cfg(all(feature = "live", target_os = "linux"))]
pub mod live;
pub mod names;
#[cfg_attr(
    not(all(feature = "live", target_os = "linux")),
    allow(dead_code, unreachable_pub, reason = "only real daemons have checkpoints and terminals")
)]
mod node_core;
#[doc(hidden)]
pub mod port_suspender;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod scheduler;
#[doc(hidden)]
pub mod scheduler_core;
mod steps;
#[doc(hidden)]
pub mod tree;
pub mod wait;

pub use channel::command::GANG;
pub use channel::config::{GangConfig, GangCounters};
