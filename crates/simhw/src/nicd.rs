//! A NIC in one process with ports in other processes of the same host; Linux only.
//!
//! The rings and the registered memory of such a port lie in segments that both processes map. While both sides poll,
//! its commands, completions and bytes need no system call. The NIC's process, usually a daemon,
//! [serves](PortServer) ports of any live fabric. A process that uses them is a [`Client`], and gets a
//! [`Host`](crate::host::Host) like that of the NIC's own process. A client may therefore be suspended at any
//! instruction while its NIC continues: the NIC receives, acknowledges and keeps the data for its ports.
//!
//! - A client that exits, in whatever way, closes its ports. The NIC executes the commands that were posted whole, and
//!   never sees half-written ones. The system frees the memory.
//! - A daemon that exits closes the ports of its clients: they are notified, and no further command completes.
//! - Neither side trusts the other: whatever a client writes to its rings, it affects its own ports only. Clients are
//!   processes of the daemon's user, and of the users that it admits (peer credentials). Nothing here has a name in
//!   the file system.
//! - Neither side waits for the other: each port has a channel of its own for wake-ups, on which no call blocks. The
//!   memory that a client gets for all its ports is [bounded](ServerConfig::loan), and so is the
//!   [number of its ports](ServerConfig::connections).

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
pub use server::{PortServer, ServeError, ServerConfig};

/// A NIC, as the server of its ports uses it.
pub(crate) trait Source: std::fmt::Debug + Send + Sync {
    fn node(&self) -> NodeId;

    /// Opens a port for another process.
    fn grant(&self, options: PortOptions) -> Result<Grant, OpenError>;

    /// Handles the doorbell of a port.
    fn ring(&self, port: PortId);

    /// Gives a turn to a NIC that its callers run. Returns whether there was anything to handle.
    fn poll(&self) -> bool {
        false
    }

    /// Arms the NIC's wake-up, because the caller is about to park.
    fn rest(&self) {}
}

#[cfg(test)]
pub(crate) mod tests;
