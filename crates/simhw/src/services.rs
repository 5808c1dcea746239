//! Whole services on tokio, on the hosts of a simulated cluster, in virtual time.
//!
//! Each host has a tokio runtime of its own, on one thread with a paused clock. A task of the [`World`] polls
//! that runtime when a datagram arrives, a timer of tokio may be due, or an exact timer is due. The clock
//! moves in nanoseconds. As on real hosts, tokio's timers fire at whole milliseconds since the runtime started.
//!
//! The code of a host is any code on tokio that does not use `tokio::net`, `tokio::fs` or the pool of blocking
//! threads. It uses [`UdpSocket`], [`TcpListener`] and [`TcpStream`].
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
