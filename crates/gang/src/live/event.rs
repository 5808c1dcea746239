//! Events of a daemon, from its tasks.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::link::{Frame, Link};
use super::refusals::Refusal;
use crate::channel::Ticket;
use crate::checkpoint::Part;
use crate::names::{Epoch, JobId};
use crate::node_core::Input;
use crate::node_core::message::{ClientId, Down, Hello, Request, Up};
use crate::node_core::user::{Caller, User};

/// The means by which a process attaches to its channel.
#[derive(Debug)]
pub(super) struct Pass {
    /// The channel's ticket, as text.
    pub(super) ticket: Ticket,
    /// The memory that goes with the ticket.
    pub(super) files: Vec<Arc<OwnedFd>>,
    /// The events that go with it.
    pub(super) events: Vec<Arc<OwnedFd>>,
}

/// Events of a daemon.
pub(super) enum Event {
    /// An event for the node core.
    Core(Input),
    /// The connection to the parent is open.
    Parent(mpsc::UnboundedSender<Up>),
    /// A daemon that is `host` wants to be a child.
    Child { host: u16, connection: u64, to: mpsc::UnboundedSender<Down> },
    /// A child's connection has ended.
    ChildLost(u64),
    /// A daemon was refused.
    Refused(Refusal),
    /// A host has opened the connection for a job's streams or images.
    Link(Hello, Box<Link>),
    /// A front end has sent a request. The sender is for replies.
    Request(Caller, Request, mpsc::Sender<Frame>),
    /// A caller's checkpoint can be written, as far as is known, or not.
    Checked(Caller, Result<Request, String>),
    /// A front end of a user wants to feed a job.
    Feed(User, JobId, oneshot::Sender<mpsc::Sender<Frame>>),
    /// The end of standard input of a job has not come, but that of the connection that fed it.
    Unfed(JobId, mpsc::Sender<Frame>),
    /// A front end has left.
    ClientGone(ClientId),
    /// The connection to a front end's daemon has ended.
    ClientLost(ClientId),
    /// The channels of a job's ranks are open.
    Opened(JobId, Vec<(u16, Pass)>),
    /// A host has dumped its ranks of a job in an epoch.
    Dumped(u16, JobId, Epoch),
    /// The images of a host's ranks of a job are here, or never will be.
    Collected((u16, JobId, Epoch), Result<Vec<Part>, String>),
    /// CRIU is done with the ranks of a job here.
    DumpEnded(JobId),
}
