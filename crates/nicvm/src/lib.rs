//! The firmware that hosts event-handler extensions: the Distributed Virtual Communication Machine (DVCM).
//!
//! Every module is a state machine that a NIC's coprocessor runs: no I/O, no clock, no task. One [`Unit`](unit::Unit)
//! runs on each NIC and provides its extensions with timers, memory and messages. Unreliable messages and sender
//! coordination are extensions that ship with this crate. Extensions are written once and run on every fabric of
//! `midplane-simhw`.
//!
//! - [`mod@unit`], [`extension`], [`context`]: start here: the execution unit, and how to extend it
//! - [`control`]: reliable control messages between units
//! - [`install`]: extensions installed across a cluster while it runs
//! - [`memory`], [`capability`]: memory that nodes read and write remotely, and the revocable rights to it
//! - [`collective`]: barrier, broadcast, reduce, all-reduce and all-gather between NICs
//! - [`coordination`]: many senders take turns on a link
//! - [`messages`]: the default service, unreliable messages between ports
//! - [`transmit`]: the transmit queue
//! - `sandbox` (feature `wasm`): untrusted extensions, as WebAssembly modules
//! - [`program`]: sequences of commands, built once and triggered many times
//! - [`timeout`]: the two timeout services
//! - [`heap`]: an extension's own memory, bounded
//! - [`thread`]: an `async fn` as an extension
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod admission;
#[doc(hidden)]
pub mod backlog;
pub mod capability;
pub mod collective;
pub mod context;
pub mod control;
pub mod coordination;
#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod extension;
pub mod heap;
pub mod install;
pub mod memory;
pub mod messages;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
#[allow(dead_code, unreachable_pub, reason = "public with the feature `planted`")]
mod planted;
pub mod program;
mod reassembly;
#[cfg(feature = "wasm")]
pub mod sandbox;
pub mod thread;
pub mod timeout;
pub mod transmit;
pub mod unit;
