//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! - [`message`]: start here: messages with MPI's matching rules, over whatever carries packets
//! - [`rdma`]: carries packets over Virtual Interfaces, as LAM over VIA does
//! - [`nic`]: the host's half: opens a NIC, makes interfaces, connects them, posts descriptors
//! - [`descriptor`], [`memory`]: what is posted
//! - [`attributes`], [`outcome`]: what interfaces are made with, and how descriptors end
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`: interfaces, connections,
//!   reliability
#![forbid(unsafe_code)]

pub mod attributes;
mod command;
pub mod descriptor;
pub mod firmware;
pub mod memory;
pub mod message;
pub mod nic;
pub mod outcome;
pub mod rdma;

pub use command::VIA;
