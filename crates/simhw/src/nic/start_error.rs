//! The reason why a NIC or a switch did not start.

use std::net::SocketAddr;

use thiserror::Error;

use crate::id::NodeId;
use crate::seal::SealConfigError;

/// The reason why a NIC or a switch did not start.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StartError {
    /// The rank is not below the number of nodes.
    #[error("rank {node} is outside a fabric of {nodes} nodes; ranks count from 0")]
    Rank {
        /// Rank of the node.
        node: NodeId,
        /// Number of nodes of the fabric.
        nodes: usize,
    },
    /// A number of the configuration is out of range.
    #[error("{what} is {value}; it must be {min} to {max}")]
    OutOfRange {
        /// Description of the number, for the message.
        what: &'static str,
        /// The number in the configuration.
        value: usize,
        /// Least value in range.
        min: usize,
        /// Greatest value in range.
        max: usize,
    },
    /// Another process runs as that node on this host.
    #[error("node {node} of fabric {name:?} runs already; stop it or choose another name")]
    Occupied {
        /// Rank of the node.
        node: NodeId,
        /// Name of the fabric.
        name: String,
    },
    /// Two nodes have the same address.
    #[error("two peers have the address {0}; give each its own port")]
    Duplicate(SocketAddr),
    /// A socket of one address family cannot reach a peer of the other.
    #[error("{peer} cannot be reached from {bind}: use IPv4 addresses only, or IPv6 only")]
    Family {
        /// The own address of the socket.
        bind: SocketAddr,
        /// A peer of the other family.
        peer: SocketAddr,
    },
    /// The keys cannot be used together.
    #[error(transparent)]
    Keys(#[from] SealConfigError),
    /// Another process has bound the port.
    #[error("{0} is in use; stop the other process or choose another port")]
    PortInUse(SocketAddr),
    /// The address does not belong to this host.
    #[error("{0} is no address of this host; check the rank, or bind another address")]
    NotLocal(SocketAddr),
    /// The system reserves the port.
    #[error("this user may not bind {0}; choose a port above 1023")]
    Denied(SocketAddr),
    /// The caller is outside of a tokio runtime.
    #[error("no tokio runtime here; call it from a task, or inside Runtime::enter")]
    NoRuntime,
    /// Another call of the operating system failed.
    #[error("the system refused a socket, an event or a thread: {0}")]
    System(std::io::ErrorKind),
}

impl StartError {
    /// Checks that a number of the configuration is within its range.
    pub(crate) fn check(
        what: &'static str,
        value: usize,
        (min, max): (usize, usize),
    ) -> Result<(), Self> {
        match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(Self::OutOfRange { what, value, min, max }),
        }
    }

    /// Returns the reason for which `address` was not bound.
    #[must_use]
    #[doc(hidden)]
    pub fn of_address(address: SocketAddr, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::AddrInUse => Self::PortInUse(address),
            ErrorKind::AddrNotAvailable => Self::NotLocal(address),
            ErrorKind::PermissionDenied => Self::Denied(address),
            kind => Self::System(kind),
        }
    }
}
