//! Tests the fabric of shared memory between processes, some of which are killed.
#![cfg(target_os = "linux")]

mod death;
mod faults;
pub(crate) mod firmware;
