//! Events that a daemon's tasks send to its event loop.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::link::{Frame, Link};
use super::processes::RestoreEnd;
use super::refusals::Refusal;
use super::rights::Rights;
use crate::channel::Ticket;
use crate::checkpoint::Part;
use crate::names::{Epoch, JobId};
use crate::node_core::Input;
use crate::node_core::message::{ClientId, Down, Purpose, Request, Up};
use crate::node_core::user::{Caller, User};

/// Resources by which a process attaches to its channel.
#[derive(Debug)]
pub(super) struct Pass {
    /// The channel's ticket.
    pub(super) ticket: Ticket,
    /// File descriptors of the ticket's shared memory.
    pub(super) files: Vec<Arc<OwnedFd>>,
    /// File descriptors of the ticket's events.
    pub(super) events: Vec<Arc<OwnedFd>>,
}

/// Events of a daemon.
pub(super) enum Event {
    /// An event for the node core.
    Core(Input),
    /// The connection to the parent is open.
    Parent(mpsc::UnboundedSender<Up>),
    /// A daemon that says it is `host` asks to be a child.
    Child { host: u16, connection: u64, to: mpsc::UnboundedSender<Down> },
    /// A child's connection has ended.
    ChildLost(u64),
    /// A daemon was refused.
    Refused(Refusal),
    /// A host has opened the connection for a job's streams or images.
    Link(u16, Purpose, Box<Link>),
    /// A client has sent a request. The first sender is for replies; the second is dropped once the request is handled.
    Request(Caller, Request, mpsc::Sender<Frame>, oneshot::Sender<()>),
    /// Result of testing whether a caller's checkpoint can be written. Writing it may still fail.
    Checked(Caller, Result<Request, String>),
    /// A client of a user asks to feed a job.
    Feed(User, JobId, oneshot::Sender<mpsc::Sender<Frame>>),
    /// A connection that fed a job's standard input has ended, but the input has not.
    Unfed(JobId, mpsc::Sender<Frame>),
    /// A client's connection has ended. The client may connect again if another daemon has relayed the connection, and
    /// the client has not left.
    ClientGone { client: ClientId, may_return: bool },
    /// The rights of a job's user, for the step of this number, which starts the job's ranks.
    Rights(u64, Result<Rights, String>),
    /// The channels of a job's ranks are open.
    Opened(JobId, Vec<(u16, Pass)>),
    /// A host has dumped its ranks of a job in an epoch.
    Dumped(u16, JobId, Epoch),
    /// The images of a host's ranks of a job have arrived, or the reason why they can't.
    Collected((u16, JobId, Epoch), Result<Vec<Part>, String>),
    /// CRIU has finished with this host's ranks of a job.
    DumpEnded(JobId),
    /// CRIU has restored a rank on this host, or has failed.
    Restored(RestoreEnd),
}
