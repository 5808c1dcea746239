//! Virtual Interface queues, MPI-grade messages over them, and byte streams between processes.
//!
//! Everything except `session` and `wire` needs the feature `interfaces`, which is on by default.
//!
//! - [`message`]: start here: messages with MPI's matching rules, over any carrier of packets
//! - [`rdma`]: carries packets over Virtual Interfaces, as LAM over VIA does
//! - `lanes`, on Linux: carries packets between processes of one host, bypassing the NIC
//! - [`nic`]: the host's half: opens a NIC, creates interfaces, connects them, posts descriptors, and writes directly
//!   to processes of this host while the NIC keeps its gate open
//! - [`descriptor`]: requests to an interface: sends, receives, remote writes and reads, with a program of two processes;
//!   [`memory`]: registered memory
//! - [`context`]: the saved state of a process's interfaces; [`checkpointer`]: a daemon that saves interfaces,
//!   removes them from the NIC, and restores them on this host or another
//! - [`attributes`], [`outcome`]: how interfaces are configured, and how descriptors end
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`: interfaces, connections,
//!   reliability
//! - `wire`, with the feature of that name: reliable byte pipes between processes, over UDP datagrams
//! - `session`, with the feature of that name, on Unix: byte streams between processes, over shared memory (Linux),
//!   UDP and TCP; needs no NIC
#![forbid(unsafe_code)]

#[cfg(feature = "interfaces")]
pub mod attributes;
#[cfg(feature = "interfaces")]
pub mod checkpointer;
#[cfg(feature = "interfaces")]
mod command;
#[cfg(feature = "interfaces")]
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
pub mod session;
#[cfg(feature = "wire")]
pub mod wire;

#[cfg(feature = "interfaces")]
pub use command::VIA;
