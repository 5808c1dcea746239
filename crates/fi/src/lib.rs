//! A libfabric provider over Midplane's fabric: unmodified MPI programs run on it.
//!
//! The library is a plug-in of libfabric, loaded at run time; it needs neither libfabric nor MPI to build. Copy it to
//! `libmidplane-fi.so`, name its folder in `FI_PROVIDER_PATH`, and choose it by `FI_PROVIDER=midplane`. It offers
//! reliable datagram endpoints (`FI_EP_RDM`) with tagged and plain messages, remote reads and writes, atomic operations,
//! and counters, over rings in shared memory between the processes of one host and one user, and over UDP between hosts.
//! It has no scalable endpoints.
//!
//! - libfabric's structures and tables are those of `midplane_ofi::abi`
//! - `provider`: the entry point; `info` describes its capabilities; `objects` has the functions that callers call
//! - `domain`: a domain, behind one lock, and its thread if the caller requests one
//! - `endpoint`: a domain's endpoints, which send and receive
//! - `peer`, `record`: the stream of records to a peer, and their format
//! - `matching`: tags, sources, unexpected messages, and buffers for several messages
//! - `network`: the bridge to other hosts
//! - `atomic`: the effect of atomic operations on memory
//! - `region`, `memory`: memory of callers; `completion`: queues and counters
//! - `address`: the names of endpoints; `vector`: address vectors
//!
//! `unsafe` code is in `memory`, `info`, `objects` and `provider` only.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod address;
mod atomic;
mod completion;
mod domain;
mod endpoint;
mod info;
mod matching;
mod memory;
mod network;
mod objects;
mod peer;
mod provider;
mod record;
mod region;
#[cfg(test)]
mod tests;
mod vector;

use midplane_ofi::abi;
