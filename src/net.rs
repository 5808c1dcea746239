//! Sockets of simulated hosts, for protocols of your own in a [`Sim`](crate::Sim).
//!
//! [`TcpListener`] and [`TcpStream`] are used as tokio's are, by names of hosts or by addresses.

pub use midplane_simhw::services::{
    Arrival, BACKLOG, Datagram, TCP_BUFFER_BYTES, TcpListener, TcpStream, ToAddress, UdpSocket,
};
