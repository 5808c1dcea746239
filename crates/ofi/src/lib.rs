//! libfabric as a client: frames between processes over verbs, EFA, Slingshot, Omni-Path, tcp, shared memory and others.
//!
//! The crate builds without libfabric, and loads the system's `libfabric.so.1` (1.17 or later) when it is first needed.
//! If there is none, [`Unavailable`] says what to install. `MIDPLANE_LIBFABRIC` names another file. Linux only.
//!
//! - [`provider`]: start here: lists what libfabric offers on this host, and chooses
//! - [`endpoint`]: a reliable datagram endpoint (`FI_EP_RDM`): sends and receives frames
//! - `link`, with the feature `nic`: a NIC of `midplane-simhw`, with its whole firmware, on such an endpoint
//! - `meeting`, with the feature `nic`: the nodes of a fabric exchange the names of their endpoints
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
//!
//! Frames are neither encrypted nor authenticated: the network behind a provider is trusted, within its operator's
//! partitions. The receiver nevertheless checks the contents of each frame.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod abi;
pub mod endpoint;
mod ffi;
#[cfg(feature = "nic")]
pub mod link;
#[cfg(feature = "nic")]
pub mod meeting;
#[cfg(any(feature = "nic", feature = "streams"))]
mod order;
pub mod provider;
#[cfg(feature = "streams")]
#[doc(hidden)]
pub mod streams;
mod waiter;

pub use ffi::{CallError, Unavailable};

/// The program of the document on hardware.
#[cfg(all(doctest, feature = "nic"))]
#[doc = include_str!("../../../docs/hardware.md")]
struct Hardware;
