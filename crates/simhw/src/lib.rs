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
//! - `nicd`: a NIC in a daemon, with ports in other processes (Linux)
//! - [`seal`]: frames that only holders of a key can read, make or change
//! - [`udp`]: the fabric of real sockets, and the switch in software
//! - [`launch`]: this process's rank, and the addresses of its peers
//! - [`time`], [`rng`], [`id`]: time, random numbers and identifiers
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
//!
//! # Example
//!
//! Two NICs and a switch. The port to node 1 is slower than node 0 sends, and links lose one frame in a hundred. The
//! firmware sends the memory that each command names, and counts received frames.
//!
//! ```
//! use std::time::Duration;
//!
//! use midplane_simhw::drops::{DropCause, Drops};
//! use midplane_simhw::hardware::{Firmware, Hardware, Source};
//! use midplane_simhw::id::{NodeId, PortId};
//! use midplane_simhw::port::{Command, Completion, Status};
//! use midplane_simhw::switch::{Buffer, SwitchProfile};
//! use midplane_simhw::{fault::Faults, frame::Frame, frame::Header, host::Host, link::LinkProfile};
//! use midplane_simhw::{profile::NicProfile, sim::World, time::LineRate, topology::Topology};
//!
//! #[derive(Default)]
//! struct Counting {
//!     received: u64,
//! }
//!
//! impl Firmware for Counting {
//!     fn on_doorbell(&mut self, nic: &mut impl Hardware, port: PortId) {
//!         while let Some(command) = nic.next_command(port) {
//!             let header = Header {
//!                 source: nic.node(),
//!                 destination: command.node,
//!                 incarnation: nic.incarnation(),
//!                 length: command.region.length as u16,
//!                 ..Header::default()
//!             };
//!             let sent = nic.transmit(&header, Source::Region(command.region));
//!             let status = if sent.is_ok() { Status::Done } else { Status::Refused };
//!             nic.complete(port, &Completion::of(&command, status));
//!         }
//!         nic.commit(); // without it, nothing is sent or completed
//!     }
//!     fn on_frame(&mut self, _: &mut impl Hardware, _: Frame<'_>) {
//!         self.received += 1;
//!     }
//! }
//!
//! fn run(seed: u64) -> (u64, Drops, u64) {
//!     let mut topology = Topology::new();
//!     let switch = topology.add_switch(SwitchProfile::new(Buffer::Bytes(8 << 10)));
//!     let fast = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_micros(1));
//!     let slow = LinkProfile::ethernet(LineRate::mbps(500), Duration::from_micros(1));
//!     let sender = topology.add_host(switch, fast);
//!     let receiver = topology.add_asymmetric_host(switch, fast, slow);
//!     let mut world = World::new(&topology, NicProfile::FREE, seed, |_, _| Counting::default());
//!     world.set_faults(Faults { loss: 0.01, ..Faults::NONE });
//!     let host = world.host(sender);
//!     world.spawn(sender, async move {
//!         let mut port = host.open_port().expect("the NIC has ports");
//!         let memory = port.register(1_000).expect("the NIC has memory");
//!         for _ in 0..200 {
//!             let command = Command { node: receiver, region: memory.whole(), ..Command::default() };
//!             port.submit(&command).expect("there is room");
//!             assert_eq!(port.completion().await.expect("the NIC is up").status, Status::Done);
//!             host.sleep_until(host.now() + Duration::from_micros(10)).await;
//!         }
//!     });
//!     world.run();
//!     (world.firmware(receiver).received, world.traffic().drops, world.digest())
//! }
//!
//! let (received, drops, digest) = run(7);
//! for (cause, count) in drops.iter() {
//!     println!("{count} frames dropped: {cause}");
//! }
//! assert!(drops.of(DropCause::BufferFull) > 0 && drops.of(DropCause::LinkLoss) > 0);
//! assert_eq!(received + drops.total(), 200);
//! assert_eq!(run(7).2, digest, "the same seed, the same run");
//! ```
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod acceptor;
mod deferred;
pub mod drops;
pub mod fault;
pub mod frame;
pub mod hardware;
pub mod host;
pub mod id;
pub mod launch;
pub mod link;
#[cfg(target_os = "linux")]
mod listener;
mod live;
#[doc(hidden)]
pub mod lock;
pub mod medium;
pub mod nic;
#[cfg(target_os = "linux")]
pub mod nicd;
#[cfg(all(unix, not(target_os = "linux")))]
#[doc(hidden)]
pub mod no_shm;
#[cfg(target_os = "linux")]
mod passing;
#[doc(hidden)]
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
#[cfg(target_os = "linux")]
pub mod shm;
pub mod sim;
pub mod switch;
mod sync;
pub mod time;
pub mod topology;
pub mod trace;
pub mod udp;
#[cfg(target_os = "linux")]
mod wakes;
pub mod wire;

#[cfg(all(unix, not(target_os = "linux")))]
#[doc(hidden)]
pub use no_shm as shm;
