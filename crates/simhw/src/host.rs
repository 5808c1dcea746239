//! The interface of applications to their host: virtual time or a real runtime.

use std::future::Future;

use thiserror::Error;

use crate::id::{NodeId, PortId};
use crate::peer_rings::PeerRings;
use crate::port::{MAX_DEPTH, Port, PortOptions};
use crate::rng::Rng;
use crate::time::Instant;

/// The environment in which applications run. Application code is generic over it and written once.
pub trait Host: Clone + Send + Sync + 'static {
    /// Returns this host's node.
    fn node(&self) -> NodeId;

    /// Returns the time, comparable within one fabric.
    fn now(&self) -> Instant;

    /// Waits until `at`; completes at once if it has passed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the alarm.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send;

    /// Starts a task on this host.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Returns the random stream of this node with the name `stream`.
    fn rng(&self, stream: &str) -> Rng;

    /// Opens a port of this node's NIC with the depth and number in `options`.
    ///
    /// # Errors
    /// [`OpenError`] if the NIC cannot give such a port.
    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError>;

    /// Opens a port of this node's NIC, with any number that is free.
    ///
    /// # Errors
    /// [`OpenError`] if the NIC has stopped or has no port left.
    fn open_port(&self) -> Result<Port, OpenError> {
        self.open_port_with(PortOptions::default())
    }

    /// Opens the rings by which this process may bypass its NIC while the port's gate is open. Returns `None` if the
    /// fabric has none, or they are already open: only one port of a process can have them. Default: `None`.
    #[doc(hidden)]
    fn open_peer_rings(&self) -> Option<Box<dyn PeerRings>> {
        None
    }
}

/// The reason why a port was not opened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OpenError {
    /// The NIC has stopped.
    #[error("the NIC of node {0} has stopped; start it again, and open another port")]
    Stopped(NodeId),
    /// The NIC has no port left.
    #[error("the NIC of node {0} has no port left; drop one first")]
    Exhausted(NodeId),
    /// A port with this number is open, or was closed and the NIC has not yet handled that.
    #[error("port {0} is open already; drop it first, or ask for another number")]
    Taken(PortId),
    /// The depth is out of range.
    #[error("a port is 1 to {MAX_DEPTH} commands deep, not {0}")]
    Depth(usize),
    /// The operating system, or the process that runs the NIC, gave no shared memory or no event.
    #[error("the system refused memory or an event for a port: {0}")]
    System(std::io::ErrorKind),
}
