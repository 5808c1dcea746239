//! A NIC in one process whose ports are in others, on one host; Linux only.
//!
//! The rings and the registered memory of such a port lie in segments that both processes map; its
//! commands, completions and bytes take no system call while both sides look. The process of the
//! NIC, a daemon mostly, [serves](PortServer) ports from any live fabric; whoever wants one is its
//! [`Client`], and has with that a [`Host`](crate::host::Host) as good as the NIC's own. So a
//! process may be stopped at any instruction while its NIC goes on: what arrives for it is taken in,
//! acknowledged and kept.
//!
//! - A client that ends, however it ends, closes its port: what it had posted whole is still carried
//!   out, what it had half written is never seen, and its memory is the system's again.
//! - A daemon that ends closes the ports of its clients: they are told, and nothing completes any
//!   more.
//! - Neither side believes the other: whatever a client writes into its rings, no port but its own
//!   is touched. Clients are processes of the daemon's user, and of those that it admits (peer
//!   credentials); nothing here has a name in the file system.
//! - Neither side waits for the other: each port has a channel of its own for wake-ups, on which no call blocks. What
//!   a client is lent in all its ports is [bounded](ServerConfig::loan), and so are [its ports](ServerConfig::connections).

mod client;
mod holders;
mod request;
mod server;

use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::port::{Grant, PortOptions};

pub use crate::acceptor::Admitted;
pub use client::{Client, ClientConfig, ConnectError};
pub use holders::PortHolders;
pub use server::{DEFAULT_CONNECTIONS, DEFAULT_LOAN, PortServer, ServeError, ServerConfig};

/// A NIC, to who serves its ports.
pub(crate) trait Source: std::fmt::Debug + Send + Sync {
    fn node(&self) -> NodeId;

    /// Opens a port for another process.
    fn grant(&self, options: PortOptions) -> Result<Grant, OpenError>;

    /// The port was rung.
    fn ring(&self, port: PortId);

    /// There is time: a NIC that its process runs takes a turn. Whether there was anything.
    fn poll(&self) -> bool {
        false
    }

    /// There is no more time: the NIC is to be woken by its peers.
    fn rest(&self) {}
}

#[cfg(test)]
pub(crate) mod tests;
