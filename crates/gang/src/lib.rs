//! Channels and gang scheduling for parallel jobs: a job is preempted without losing a message.
//!
//! - [`channel`]: start here: a process's end of a channel, as in PM
//! - [`controller`]: the daemon's end: opens, stops, saves, restores and starts a channel's contexts
//! - [`context`]: the saved state of a job's channels
//! - [`carrier`]: carries the messages of `midplane-via` over channels
//! - [`detect`]: termination and deadlocks, detected in a cut
//! - [`checkpoint`]: a job's cut and its processes' states on disk
//! - [`firmware`]: the NIC's side, an extension of `midplane-nicvm`
//! - [`scheduler`], [`daemon`]: gang scheduling by a tree of daemons in virtual time
//! - [`scheduler_core`]: configuration of a gang scheduler; [`schedule`]: policies: which jobs run in the next slice
//! - `live` (feature `live`, Linux): gang scheduling of real processes by real daemons
//! - [`port_suspender`]: suspends a process's port on its NIC, that is, all communication other than channels
//! - [`process`]: tasks that can be suspended, for jobs in virtual time
//! - [`wait`]: wait states that processes publish; [`names`]: jobs, ranks, channels, epochs
#![forbid(unsafe_code)]

pub mod carrier;
pub mod channel;
pub mod checkpoint;
pub mod context;
mod contexts;
pub mod controller;
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
pub mod port_suspender;
pub mod process;
pub mod schedule;
pub mod scheduler;
pub mod scheduler_core;
mod steps;
pub mod tree;
pub mod wait;

pub use channel::command::GANG;
pub use channel::config::{GangConfig, GangCounters};
