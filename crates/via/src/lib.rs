//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! - [`message`]: start here: messages with MPI's matching rules, over whatever carries packets
//! - [`rdma`]: carries packets over Virtual Interfaces, as LAM over VIA does
//! - `lanes`, on Linux: carries packets between the processes of one host, past the NIC
//! - [`nic`]: the host's half: opens a NIC, makes interfaces, connects them, posts descriptors
//! - [`descriptor`], [`memory`]: what is posted
//! - [`direct`]: interfaces whose data goes from process to process, past the NIC
//! - [`slots`]: messages in and out of registered slots over one connection, without matching; they come as
//!   `Bytes`, whose last drop gives the slot back
//! - [`context`]: a process's interfaces, saved; [`keeper`]: a daemon's hold on them: saves, has the NIC
//!   forget, restores here or elsewhere
//! - [`attributes`], [`outcome`]: what interfaces are made with, and how descriptors end
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`: interfaces, connections,
//!   reliability
//! - `service`, with the feature of that name: byte streams, message streams and request-reply for
//!   services that know tokio, futures and tower
//! - `wire`, with the feature of that name: reliable byte pipes between processes, over UDP datagrams
#![forbid(unsafe_code)]

pub mod attributes;
mod command;
pub mod context;
pub mod descriptor;
pub mod direct;
#[cfg(test)]
#[path = "../../../docs/wireshark/tables.rs"]
mod dissector;
pub mod firmware;
pub mod keeper;
#[cfg(target_os = "linux")]
pub mod lanes;
pub mod memory;
pub mod message;
pub mod nic;
pub mod outcome;
pub mod rdma;
#[cfg(feature = "service")]
pub mod service;
#[cfg(all(feature = "session", target_os = "linux"))]
pub mod session;
pub mod slots;
#[cfg(feature = "wire")]
pub mod wire;

pub use command::VIA;
