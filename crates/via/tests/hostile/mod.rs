//! Peers that send anything: frames to a Virtual Interface, packets to the message layer.
#![allow(dead_code, reason = "no test and no fuzz target uses all of it")]

pub(crate) mod memory_nic;
pub(crate) mod packets;
pub(crate) mod session;
