//! Reliable byte pipes between processes, over UDP datagrams.
//!
//! - [`pipe`]: one connection: ordered bytes both ways, with congestion control; no I/O and no clock
//! - [`endpoint`]: all connections of one socket: dials, accepts, tells datagrams apart; no I/O and no clock
//! - [`socket`]: moves an endpoint's datagrams through a socket of tokio's

pub mod endpoint;
pub mod pipe;
pub mod socket;
