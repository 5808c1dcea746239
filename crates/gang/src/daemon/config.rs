//! Configuration, errors and events of daemons in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use midplane_simhw::id::NodeId;
use thiserror::Error;

use crate::channel::geometry::Geometry;
use crate::channel::{AttachError, Closed, Descriptor};
use crate::contexts::{Costs, Mode};
use crate::controller::ControlError;
use crate::names::JobId;
use crate::node_core::Input;
use crate::node_core::message::Program;
use crate::node_core::order;
use crate::process::SuspendHandle;
use crate::schedule::Request;
use crate::steps::Queue;

/// Configuration that all daemons of a cluster share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DaemonConfig {
    /// Number of nodes, numbered from 0.
    pub nodes: u16,
    /// Most children of a daemon in the tree.
    pub arity: u16,
    /// Method of switching contexts.
    pub mode: Mode,
    /// Sizes of the FIFOs of users' channels.
    pub geometry: Geometry,
    /// Number of users' channels per node: the most ranks of one job on a node.
    pub channels: u16,
    /// Durations of operations, in virtual time.
    pub costs: Costs,
    /// True if ranks of one node have rings between them, which bypass the NIC. PM has none.
    pub local_rings: bool,
}

/// A job whose ranks are started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Launch {
    /// The job's number.
    pub job: JobId,
    /// Number of the job's ranks.
    pub ranks: u16,
    /// The number of the program, as submitted.
    pub program: u32,
}

impl Launch {
    /// Returns the program of a submission for the node core.
    pub(crate) fn program(number: u32) -> Program {
        let command = vec![number.to_string().into_bytes()];
        Program { command, woken: true, ..Program::default() }
    }

    pub(super) fn of(launch: &order::Launch) -> Self {
        let program = launch.program.shown().parse().unwrap_or_default();
        Self { job: launch.job, ranks: launch.ranks, program }
    }
}

/// Starts a rank's process: returns the process's future.
pub type Start<H> = Arc<
    dyn Fn(H, Launch, Descriptor, SuspendHandle) -> Pin<Box<dyn Future<Output = ()> + Send>>
        + Send
        + Sync,
>;

/// Errors of a [`Daemon`](crate::daemon::Daemon).
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
    /// A message exceeds the longest message of the daemons' channel.
    #[error("a message to another daemon is too long: run fewer jobs at once")]
    TooLong,
    /// The parent was dropped or has failed. This daemon has ended all processes that it had started.
    #[error("the daemon of node {node} is gone, and those below it end; start them again")]
    Gone {
        /// The parent's node.
        node: NodeId,
    },
}

/// A job to be submitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Submission {
    /// Number of nodes, and priority.
    pub request: Request,
    /// Number of ranks, which are assigned to the nodes in turn.
    pub ranks: u16,
    /// The number of the program, which [`Start`](crate::daemon::Start) receives.
    pub program: u32,
}

/// An event of a node, or of a client of its scheduler.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    Core(Input),
    /// A job is submitted.
    Submit(Submission),
}

/// The events of a daemon.
pub(crate) type Inbox = Queue<NodeEvent>;
