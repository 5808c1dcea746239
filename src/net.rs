//! Sockets of simulated hosts, for protocols of your own in a [`Sim`](crate::Sim).

pub use midplane_simhw::services::{Arrival, Datagram, UdpSocket};
