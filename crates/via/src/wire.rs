//! Reliable byte pipes between processes, over UDP datagrams, and over TCP where they are blocked.
//!
//! - [`pipe`]: one connection: ordered bytes both ways, with congestion control; no I/O and no clock
//! - [`endpoint`]: all connections of one socket: dials, accepts, assigns datagrams to connections; no I/O and
//!   no clock
//! - [`gossip`]: messages of no connection, in sealed pieces; no I/O and no clock
//! - [`socket`]: moves an endpoint's datagrams through a tokio socket
//! - [`tcp`]: handshakes and sealed records over TCP (Unix, with sessions)

pub(crate) mod buffer;
pub mod endpoint;
pub mod gossip;
pub mod pipe;
pub mod socket;
#[cfg(all(feature = "session", unix))]
pub mod tcp;
