//! Parallel jobs that take turns without losing a message: channels that can be preempted.
//!
//! - [`channel`]: start here: a process's end of a channel, as PM had them
//! - [`controller`]: a daemon's hold on a channel: opens, stops, saves, restores, starts
//! - [`context`]: everything that the network knows of one job, saved
//! - [`network`]: all channels of a job, preempted together
//! - [`carrier`]: channels under the messages of `midplane-via`
//! - [`nas`]: three of the NAS Parallel Benchmarks over those
//! - [`detect`], [`monitor`], [`roots`]: what a cut says: terminated, deadlocked, referred to; and
//!   monitors that stop nobody
//! - [`checkpoint`]: cuts and processes' states on disk
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`
//! - [`agenda`]: gang scheduling's mind; [`scheduler`], [`daemon`], [`tree`]: a tree of daemons that
//!   carries it out, in virtual time
//! - [`schedule`]: who runs next, as policies
//! - `live` (feature `live`, Linux): the same for real processes, by real daemons
//! - [`warden`]: stops what a process has on its NIC beside channels
//! - [`interfaces`]: all Virtual Interfaces of a job, preempted together, saved, and put back anywhere
//! - [`process`]: tasks that can be stopped, for jobs in virtual time
//! - [`wait`]: what a process waits for; [`names`]: jobs, ranks, channels, epochs
#![forbid(unsafe_code)]

pub mod agenda;
pub mod carrier;
pub mod channel;
pub mod checkpoint;
pub mod context;
pub mod controller;
pub mod daemon;
pub mod detect;
#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod firmware;
pub mod interfaces;
#[cfg(all(feature = "live", target_os = "linux"))]
pub mod live;
pub mod monitor;
pub mod names;
pub mod nas;
pub mod network;
pub mod process;
pub mod roots;
pub mod schedule;
pub mod scheduler;
pub mod tree;
pub mod wait;
pub mod warden;

pub use channel::command::GANG;
pub use channel::config::{Flow, GangConfig, GangCounters};
