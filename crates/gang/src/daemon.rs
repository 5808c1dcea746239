//! A daemon a host: carries out what the root of the tree orders, and reports when its part of the
//! tree has. It talks on a channel of its own, which no user's job can stop.

mod ahead;
mod core;
mod hands;
mod line;
mod order;
mod relay;
mod slot;

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
use crate::process::Reins;

use self::core::Core;
use slot::Owner;

pub use order::{Action, Launch, Order, Outcome};
pub use relay::Relay;

/// How contexts are switched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All contexts share a channel's FIFOs; what is in them is copied out and in, as in the paper.
    Copy,
    /// Every context keeps its own; the NIC is told which of them is active.
    Resident,
}

/// What a daemon's work takes on its host, in virtual time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Stopping a process, and seeing that it has: a signal there, a change of state back.
    pub stop: Duration,
    /// Letting a process go on.
    pub resume: Duration,
    /// Saving a context without its messages, and restoring one.
    pub save: Duration,
    /// Restoring a context without its messages.
    pub restore: Duration,
    /// Picoseconds to read a byte of a FIFO, and to write one.
    pub read_ps: u32,
    /// Picoseconds to write a byte of a FIFO.
    pub write_ps: u32,
}

impl Costs {
    /// The paper's cluster (Tables 2 and 3, section 5).
    ///
    /// Read: saving and restoring empty buffers, 0.62 and 0.18 ms; about 40 us for switching a
    /// process, half of it for each of the two. Fitted to the other rows of Table 3: the bytes, as
    /// [`Machine::PM_MYRINET`](midplane_simhw::profile::Machine::PM_MYRINET) has them.
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

    /// What saving a context takes that holds so many bytes.
    #[must_use]
    pub const fn of_save(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.read_ps as u64 / 1000;
        Duration::from_nanos(self.save.as_nanos() as u64 + nanos)
    }

    /// What restoring a context takes that holds so many bytes.
    #[must_use]
    pub const fn of_restore(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.write_ps as u64 / 1000;
        Duration::from_nanos(self.restore.as_nanos() as u64 + nanos)
    }
}

/// What all daemons of a cluster have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DaemonConfig {
    /// The cluster's nodes, from 0.
    pub nodes: u16,
    /// Children of a daemon.
    pub arity: u16,
    /// How contexts are switched.
    pub mode: Mode,
    /// The FIFOs of users' channels.
    pub geometry: Geometry,
    /// Users' channels of a node: ranks of one job that it may have.
    pub channels: u16,
    /// What it all takes, in virtual time.
    pub costs: Costs,
}

/// Starts a rank's process: what it runs until it ends.
pub type Start<H> = Arc<
    dyn Fn(H, Launch, Descriptor, Reins) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync,
>;

/// Why a daemon stopped.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DaemonError {
    /// A context could not be opened, switched or closed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemons' channel is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The daemons' channel was not there.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An order does not fit a message of the daemons.
    #[error("the order does not fit: {0}")]
    Order(SendError),
    /// A daemon was dropped, or has failed: those of the whole cluster end, and what they have started.
    #[error("the daemon of node {node} is gone, and all daemons end with it; start them again")]
    Gone {
        /// The node of the daemon.
        node: NodeId,
    },
}

/// One host's daemon. When it is dropped before it has quit, it ends what it has started, and all daemons of the
/// cluster end with [`DaemonError::Gone`].
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
    /// Opens a daemon's channel, and takes hold of those for users' jobs. It has a task of its own on `host`, which goes
    /// on with what dropped calls have begun.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// Dropped, its channels are closed; the other daemons wait until it is opened again.
    pub async fn open(host: H, config: DaemonConfig, start: Start<H>) -> Result<Self, DaemonError> {
        let core = Core::open(host.clone(), config, start).await?;
        let owner = Owner::new(&host, core);
        Ok(Self { host, owner })
    }

    /// Carries out what it is told, until it is told to quit.
    ///
    /// # Errors
    /// [`DaemonError`]; [`DaemonError::Gone`] once any daemon of the cluster has ended otherwise.
    ///
    /// # Cancel safety
    /// Dropped, the daemon is gone: the calls of all others end with [`DaemonError::Gone`].
    pub async fn serve(mut self) -> Result<(), DaemonError> {
        self.owner.run(|core| Box::pin(core.serve())).await.map(|_| ())
    }

    /// Orders everybody to do something, and waits until all have: for the root.
    ///
    /// # Errors
    /// [`DaemonError`]; [`DaemonError::Gone`] once any daemon of the cluster has ended, and at each further call.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the order is carried out all the same. The next one waits for that.
    pub async fn order(&mut self, action: Action) -> Result<Outcome, DaemonError> {
        self.owner.run(|core| Box::pin(core.order(action))).await
    }

    /// Waits for an order whose call was dropped, and returns its result; `None` if there was no such order.
    pub(crate) async fn dropped_order(&mut self) -> Option<Result<Outcome, DaemonError>> {
        self.owner.dropped().await
    }

    /// This daemon's host.
    #[must_use]
    pub const fn host(&self) -> &H {
        &self.host
    }
}
