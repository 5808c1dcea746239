//! Peers that send anything: frames to a Virtual Interface, packets to the message layer.
#![allow(dead_code, reason = "each test and each fuzz target uses only a part")]

pub(crate) mod memory_nic;
pub(crate) mod packets;
pub(crate) mod session;
