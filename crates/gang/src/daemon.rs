//! A host's daemon: carries out the orders of the tree's root, and reports once its subtree has.
//!
//! Daemons talk over a channel of their own, which no user's job can stop.

mod core;
mod early_save;
mod messenger;
mod node_agent;
mod order;
mod relay;
mod work;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::profile::HostProfile;
use thiserror::Error;

use crate::channel::geometry::Geometry;
use crate::channel::{AttachError, Closed, Descriptor, SendError};
use crate::controller::ControlError;
use crate::process::SuspendHandle;

use self::core::Core;
use work::Owner;

pub use order::{Action, Launch, Order, Outcome};
pub use relay::Relay;

/// Ways to switch contexts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All contexts of a channel share its FIFOs, whose contents are copied out and in, as in the paper.
    Copy,
    /// Each context keeps its own FIFOs; a switch only changes the NIC's active context.
    Resident,
}

/// Durations of a daemon's operations on its host, in virtual time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Time to stop a process: to signal it, and to see that it has stopped.
    pub stop: Duration,
    /// Time to resume a process.
    pub resume: Duration,
    /// Time to save a context without its messages.
    pub save: Duration,
    /// Time to restore a context without its messages.
    pub restore: Duration,
    /// Time to read a byte of a FIFO, in picoseconds.
    pub read_ps: u32,
    /// Time to write a byte of a FIFO, in picoseconds.
    pub write_ps: u32,
}

impl Costs {
    /// Costs of the paper's cluster (Tables 2 and 3, section 5).
    ///
    /// From the paper: 0.62 and 0.18 ms to save and restore empty buffers; about 40 us to switch a process, split
    /// evenly between stop and resume. Fitted to its second row: the costs per byte, as in
    /// [`Machine::PM_MYRINET`](midplane_simhw::profile::Machine::PM_MYRINET).
    #[must_use]
    pub const fn paper(host: &HostProfile) -> Self {
        Self {
            stop: Duration::from_micros(20),
            resume: Duration::from_micros(20),
            save: Duration::from_micros(620),
            restore: Duration::from_micros(180),
            read_ps: host.io_read_ps,
            write_ps: host.io_write_ps,
        }
    }

    /// Returns the time to save a context that holds `bytes` bytes of messages.
    #[must_use]
    pub const fn of_save(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.read_ps as u64 / 1000;
        Duration::from_nanos(self.save.as_nanos() as u64 + nanos)
    }

    /// Returns the time to restore a context that holds `bytes` bytes of messages.
    #[must_use]
    pub const fn of_restore(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.write_ps as u64 / 1000;
        Duration::from_nanos(self.restore.as_nanos() as u64 + nanos)
    }
}

/// Settings that all daemons of a cluster share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DaemonConfig {
    /// Number of nodes, numbered from 0.
    pub nodes: u16,
    /// Most children of a daemon in the tree.
    pub arity: u16,
    /// The way to switch contexts.
    pub mode: Mode,
    /// Sizes of the FIFOs of users' channels.
    pub geometry: Geometry,
    /// Users' channels per node: the most ranks of one job on a node.
    pub channels: u16,
    /// Durations of operations, in virtual time.
    pub costs: Costs,
}

/// Starts a rank's process: returns the future that it runs.
pub type Start<H> = Arc<
    dyn Fn(H, Launch, Descriptor, SuspendHandle) -> Pin<Box<dyn Future<Output = ()> + Send>>
        + Send
        + Sync,
>;

/// Errors of a [`Daemon`].
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DaemonError {
    /// A context could not be opened, switched or closed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemons' channel is closed.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The daemons' channel could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An order could not be sent, such as one longer than a message of the daemons' channel.
    #[error("the order could not be sent: {0}")]
    Order(SendError),
    /// A daemon was dropped or has failed. All daemons of the cluster end, and end the processes that they have
    /// started.
    #[error("the daemon of node {node} is gone, and all daemons end with it; start them again")]
    Gone {
        /// The node of the daemon.
        node: NodeId,
    },
}

/// One host's daemon.
///
/// If it is dropped before it has quit, it ends its processes, and all daemons of the cluster end with
/// [`DaemonError::Gone`].
pub struct Daemon<H: Host> {
    host: H,
    owner: Owner<H>,
}

impl<H: Host> fmt::Debug for Daemon<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("node", &self.host.node()).finish_non_exhaustive()
    }
}

impl<H: Host> Daemon<H> {
    /// Opens the daemons' channel and the controllers of the users' channels. Spawns a task on `host` that completes
    /// the work of dropped calls.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, its channels are closed; the other daemons wait until this daemon is opened again.
    pub async fn open(host: H, config: DaemonConfig, start: Start<H>) -> Result<Self, DaemonError> {
        let core = Core::open(host.clone(), config, start).await?;
        let owner = Owner::new(&host, core);
        Ok(Self { host, owner })
    }

    /// Carries out orders until the order to quit.
    ///
    /// # Errors
    /// [`DaemonError`]; [`DaemonError::Gone`] once any daemon of the cluster has ended otherwise.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the daemon: the calls of all other daemons end with [`DaemonError::Gone`].
    pub async fn serve(mut self) -> Result<(), DaemonError> {
        self.owner.run(|core| Box::pin(core.serve())).await.map(|_| ())
    }

    /// Gives an order to all daemons, and waits until all have carried it out. For the root only.
    ///
    /// # Errors
    /// [`DaemonError`]; [`DaemonError::Gone`] once any daemon of the cluster has ended, and at each further call.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the order is still carried out. The next call waits for it.
    pub async fn order(&mut self, action: Action) -> Result<Outcome, DaemonError> {
        self.owner.run(|core| Box::pin(core.order(action))).await
    }

    /// Waits for an order whose call was dropped, and returns its result; `None` if there was no such order.
    pub(crate) async fn dropped_order(&mut self) -> Option<Result<Outcome, DaemonError>> {
        self.owner.last_result().await
    }

    /// Returns this daemon's host.
    #[must_use]
    pub const fn host(&self) -> &H {
        &self.host
    }
}
