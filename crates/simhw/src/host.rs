//! The seam of the application: virtual time or a real runtime.

use std::future::Future;

use thiserror::Error;

use crate::id::{NodeId, PortId};
use crate::port::{MAX_DEPTH, Port, PortOptions};
use crate::rng::Rng;
use crate::time::Instant;

/// Where applications run. Application code is generic over it and written once.
pub trait Host: Clone + Send + Sync + 'static {
    /// The node that this is.
    fn node(&self) -> NodeId;

    /// The time, comparable within one fabric.
    fn now(&self) -> Instant;

    /// Waits until `at`; an instant that has passed is over at once.
    ///
    /// # Cancel safety
    /// Dropping the future forgets the alarm.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send;

    /// Starts a task.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// The random stream `stream` of this node.
    fn rng(&self, stream: &str) -> Rng;

    /// Opens a port of this node's NIC, as deep as wanted and with the number that is wanted.
    ///
    /// # Errors
    /// [`OpenError`] says what is not to be had.
    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError>;

    /// Opens a port of this node's NIC, with any number that is free.
    ///
    /// # Errors
    /// [`OpenError`] if the NIC has stopped or has no port left.
    fn open_port(&self) -> Result<Port, OpenError> {
        self.open_port_with(PortOptions::default())
    }
}

/// Why a port was not opened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OpenError {
    /// The NIC has stopped.
    #[error("the NIC of node {0} has stopped; start it again, and open another port")]
    Stopped(NodeId),
    /// The NIC has no port left.
    #[error("the NIC of node {0} has no port left; drop one first")]
    Exhausted(NodeId),
    /// The number has a port, or had one until a moment ago that the NIC has not seen go yet.
    #[error("port {0} is open already; drop it first, or ask for another number")]
    Taken(PortId),
    /// No port is that deep.
    #[error("a port is 1 to {MAX_DEPTH} commands deep, not {0}")]
    Depth(usize),
    /// The operating system gave no shared memory or no event, or the NIC's process none.
    #[error("the system refused memory or an event for a port: {0}")]
    System(std::io::ErrorKind),
}
