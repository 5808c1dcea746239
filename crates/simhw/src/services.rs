//! Whole services on tokio, on the hosts of a simulated cluster, in virtual time.
//!
//! Each host has a tokio runtime of its own, on one thread with a paused clock. A task of the [`World`] polls
//! that runtime when a datagram arrives, a timer of tokio may be due, or an exact timer is due. The clock
//! moves in nanoseconds. As on real hosts, tokio's timers fire at whole milliseconds since the runtime started.
//!
//! The code of a host is any code on tokio that does not use `tokio::net`, `tokio::fs` or the pool of blocking
//! threads. It uses [`UdpSocket`], [`TcpListener`] and [`TcpStream`].
//!
//! `midplane::Sim` does all of this for services that use nodes, with faults by the names of hosts. Without it:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use midplane_simhw::id::NodeId;
//! use midplane_simhw::link::LinkProfile;
//! use midplane_simhw::services::{
//!     DATAGRAM_FRAMING, DatagramNic, Hosts, MAX_DATAGRAM, TcpListener, TcpStream, run,
//! };
//! use midplane_simhw::switch::{Buffer, SwitchProfile};
//! use midplane_simhw::time::{Instant, LineRate};
//! use midplane_simhw::{profile::NicProfile, sim::World, topology::Topology};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let hosts = Hosts::new(vec!["server".to_owned(), "client".to_owned()]);
//! let (rate, propagation) = (LineRate::mbps(1_000), Duration::from_micros(10));
//! let link = LinkProfile { rate, propagation, framing: DATAGRAM_FRAMING };
//! let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
//! let names = Arc::clone(&hosts);
//! let nic = move |_, _| DatagramNic::new(Arc::clone(&names));
//! let mut world = World::new(&topology, NicProfile::FREE, 1, nic);
//!
//! let (server, client) = (world.host(NodeId(0)), world.host(NodeId(1)));
//! let listen = || -> midplane_simhw::services::Main {
//!     Box::pin(async {
//!         let (mut stream, _) = TcpListener::bind("0.0.0.0:80").await?.accept().await?;
//!         Ok(stream.write_all(b"hello").await?)
//!     })
//! };
//! let connect = || -> midplane_simhw::services::Main {
//!     Box::pin(async {
//!         let mut text = String::new();
//!         TcpStream::connect("server:80").await?.read_to_string(&mut text).await?;
//!         assert_eq!(text, "hello");
//!         Ok(())
//!     })
//! };
//! let (ended, ends) = std::sync::mpsc::channel();
//! world.spawn(NodeId(0), run(server, Arc::clone(&hosts), MAX_DATAGRAM, listen, |_| {}));
//! world.spawn(NodeId(1), run(client, hosts, MAX_DATAGRAM, connect, move |end| {
//!     ended.send(end).expect("the test waits");
//! }));
//! world.run_until(Instant::ZERO + Duration::from_secs(1));
//! ends.try_recv().expect("the client has ended").expect("it has succeeded");
//! ```
//!
//! [`World`]: crate::sim::World

mod address;
mod alarm;
#[cfg(feature = "axum")]
mod axum;
mod firmware;
mod fragments;
mod host;
mod kernel;
mod label;
mod nic;
mod outbox;
#[cfg(feature = "quinn")]
mod quinn;
mod runtime;
mod spans;
mod tcp;
mod udp;
mod watchdog;

#[cfg(feature = "axum")]
pub use self::axum::PeerAddress;
#[cfg(feature = "quinn")]
pub use self::quinn::QuinnRuntime;
pub use address::ToAddress;
pub use alarm::Alarm;
pub use firmware::DatagramNic;
pub use host::{BoxError, HostError, Main, run};
pub use kernel::{Hosts, VirtualHost};
pub use nic::{DATAGRAM_FRAMING, MAX_DATAGRAM};
pub use runtime::without_panic_messages;
pub use spans::Spans;
pub use tcp::{BACKLOG, TCP_BUFFER_BYTES, TcpListener, TcpStream};
pub use udp::{Arrival, Datagram, RECEIVE_BYTES, UdpSocket};

#[cfg(test)]
mod tests;
