//! The hardware: coprocessor NICs, links and switches, in virtual time and over real sockets.
//!
//! Protocols are not here: they are firmware, in the crates above. Firmware implements
//! [`Firmware`](hardware::Firmware) and uses its NIC through [`Hardware`](hardware::Hardware). Applications run
//! on a [`Host`](host::Host) and use their NIC through a [`Port`](port::Port).
//!
//! - [`hardware`], [`host`], [`port`]: start here: the interfaces of firmware and applications
//! - [`sim`]: the fabric in virtual time; [`topology`] and [`profile`] describe it, [`fault`] injects faults
//! - `services`: whole services on tokio, on the hosts of that fabric (feature `services`)
//! - [`frame`], [`wire`], [`region`]: headers, typed messages, registered memory
//! - [`link`], [`switch`], [`medium`], [`drops`]: the wires, the models of what joins them, and the causes of
//!   lost frames
//! - `shm`: the fabric of shared memory, between processes of one host (Linux)
//! - [`peer_rings`]: rings between processes, by which they may bypass their NICs
//! - `nicd`: a NIC in a daemon, with ports in other processes (Linux)
//! - [`seal`]: frames that only holders of a key can read, make or change
//! - [`udp`]: the fabric of real sockets, and the switch in software
//! - [`launch`]: this process's rank, and the addresses of its peers
//! - [`time`], [`rng`], [`id`]: time, random numbers and identifiers
#![deny(unsafe_code)]

#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod acceptor;
#[cfg(all(test, midplane_loom))]
#[path = "shm/byte_ring.rs"]
pub mod byte_ring;
mod deferred;
pub mod drops;
pub mod fault;
pub mod frame;
pub mod hardware;
pub mod host;
pub mod id;
#[cfg(all(test, midplane_loom))]
#[path = "shm/lane.rs"]
mod lane;
pub mod launch;
pub mod link;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod listener;
mod live;
pub mod medium;
#[cfg(all(test, midplane_loom))]
mod models;
pub mod nic;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub mod nicd;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod passing;
pub mod peer_rings;
pub mod port;
pub mod profile;
pub mod region;
mod ring;
pub mod rng;
pub mod seal;
mod segment;
#[cfg(feature = "services")]
pub mod services;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub mod shm;
pub mod sim;
pub mod switch;
mod sync;
pub mod time;
pub mod topology;
pub mod trace;
pub mod udp;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod wakes;
pub mod wire;
