//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! They need the feature `interfaces`, which is on by default. The features `wire` and `session` build the byte streams of
//! `midplane::Node`, which is how programs use them.
//!
//! - [`message`]: start here: messages with MPI's matching rules, over any carrier of packets
//! - [`rdma`]: carries packets over Virtual Interfaces, as LAM over VIA does
//! - `lanes`, on Linux: carries packets between processes of one host, bypassing the NIC
//! - [`nic`]: the host's half: opens a NIC, creates interfaces, connects them, posts descriptors, and writes directly
//!   to processes of this host while the NIC keeps its gate open
//! - [`descriptor`]: requests to an interface: sends, receives, remote writes and reads, with a program of two processes;
//!   [`memory`]: registered memory
//! - [`attributes`], [`outcome`]: how interfaces are configured, and how descriptors end
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`: interfaces, connections,
//!   reliability
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
#![forbid(unsafe_code)]

#[cfg(feature = "interfaces")]
pub mod attributes;
#[cfg(feature = "interfaces")]
#[doc(hidden)]
pub mod checkpointer;
#[cfg(feature = "interfaces")]
mod command;
#[cfg(feature = "interfaces")]
#[doc(hidden)]
pub mod context;
#[cfg(feature = "interfaces")]
pub mod descriptor;
#[cfg(all(feature = "interfaces", test))]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
#[cfg(feature = "interfaces")]
pub mod firmware;
#[cfg(all(feature = "interfaces", target_os = "linux"))]
pub mod lanes;
#[cfg(feature = "interfaces")]
pub mod memory;
#[cfg(feature = "interfaces")]
pub mod message;
#[cfg(feature = "interfaces")]
pub mod nic;
#[cfg(feature = "interfaces")]
pub mod outcome;
#[cfg(feature = "interfaces")]
pub mod rdma;
#[cfg(all(feature = "session", unix))]
#[doc(hidden)]
pub mod session;
#[cfg(feature = "wire")]
#[doc(hidden)]
pub mod wire;

#[cfg(feature = "interfaces")]
pub use command::VIA;
