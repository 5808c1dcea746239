//! Streams to Midplane's services, for C programs: the functions of `include/midplane.h`.
//!
//! - `bridge`: the node of this process and its streams, by number
//! - `ffi`: the functions that C calls
//!
//! `unsafe` code is in `ffi` only. Linux only.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod bridge;
mod ffi;
