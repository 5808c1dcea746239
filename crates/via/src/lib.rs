//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! - [`firmware`]: the NIC's half, an extension of `midplane-nicvm`: interfaces, connections,
//!   reliability
//! - [`nic`]: the host's half: opens a NIC, makes interfaces, connects them, posts descriptors
//! - [`descriptor`], [`memory`]: what is posted
//! - [`attributes`], [`outcome`]: what interfaces are made with, and how descriptors end
#![forbid(unsafe_code)]

pub mod attributes;
mod command;
pub mod descriptor;
pub mod firmware;
pub mod memory;
pub mod nic;
pub mod outcome;

pub use command::VIA;
