//! The fabric of shared memory between processes, some of which are killed. Alone in its binary, for
//! it counts what the process has mapped.
#![cfg(target_os = "linux")]

mod death;
mod faults;
pub(crate) mod firmware;
