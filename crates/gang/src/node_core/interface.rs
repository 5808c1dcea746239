//! Events that a shell passes to its node core, and the effects and messages that the core returns.

use midplane_simhw::time::Instant;

use super::election::Ballot;
use super::job_manager::{Collect, Read, Write};
use super::message::{ClientId, Down, Pairs, Program, RankEvent, Reply, Request, Up, Word};
use super::order::{Step, StepOutcome};
use super::user::Caller;
use crate::names::JobId;
use crate::schedule;

/// An event of a node.
#[derive(Debug)]
pub(crate) enum Input {
    /// The connection to the parent is open.
    Parent,
    /// The parent has sent a message.
    Down(Down),
    /// A daemon that says it is `host` has opened a connection, to become a child.
    Child { host: u16, connection: u64 },
    /// A child has sent a message over this connection.
    Up(u64, Up),
    /// A connection has ended.
    Disconnected(Peer),
    /// Another host's daemon has sent a ballot.
    Ballot(u16, Ballot),
    /// A step of an [`Effect::Step`] is complete, or has failed.
    StepDone(u64, Result<StepOutcome, String>),
    /// The state of a rank on this node has changed.
    Rank(JobId, u16, RankEvent),
    /// Data has arrived on this node's NIC for a suspended job.
    Arrived(JobId),
    /// A client has sent a request. The shell handles [`Request::Feed`] and [`Request::Leave`] itself.
    Request(Caller, Request),
    /// A client's connection has ended. If another daemon relayed it, the client may connect again, unless it has left.
    ClientGone { client: ClientId, may_return: bool },
    /// The output of a job's ranks on a host has been received completely, on the root.
    StreamsDone(u16, JobId),
    /// A job's client kept output waiting until this time, on the root.
    StreamsPaused(JobId, Instant),
    /// Input has arrived for a job, on the root.
    Fed(JobId),
    /// A checkpoint for a client was written, with this many bytes of images in it; or the reason why it was not.
    Written(JobId, ClientId, Result<u64, String>),
    /// A host has dumped its ranks of a job; see [`Effect::Collect`].
    Dumped(u16, JobId),
    /// A checkpoint was read for a client, or the reason why it was not.
    Read(Box<Read>),
    /// A client in this process submits a job, on the root. In virtual time, all jobs belong to one user.
    Submit(ClientId, (schedule::Request, u16), Program),
    /// All daemons must end, on the root.
    Quit,
}

/// A connection with another daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Peer {
    /// The connection that this daemon has opened to its parent.
    Parent,
    /// A connection that a child has opened, numbered by the shell.
    Child(u64),
}

/// A message to be sent to another daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Transmit {
    /// For the parent.
    Up(Up),
    /// For the child of this connection.
    Down(u64, Down),
    /// For the daemon of a host, connected or not. It may be lost.
    Ballot(u16, Ballot),
}

/// Work that the shell must carry out.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Carries a step out, and then passes [`Input::StepDone`] with its number.
    Step(u64, Step),
    /// Sends a reply to a client.
    Reply(ClientId, Reply),
    /// Sends a word to the ranks of a job on this host.
    Say(JobId, Word),
    /// Lets the ranks of a job on this host leave the PMI barrier, with the pairs of all ranks.
    BarrierOut(JobId, Pairs),
    /// Sends a signal to the ranks of a job on this host.
    Signal(JobId, i32),
    /// Sets the terminal size of a job whose rank 0 is on this host.
    Resize(JobId, (u16, u16)),
    /// Writes a checkpoint with the rights of the requesting user, and then passes [`Input::Written`].
    Write(Write),
    /// Reads a checkpoint of at most `most` bytes with the caller's rights, and then passes [`Input::Read`].
    Read { caller: Caller, folder: Vec<u8>, weight: u8, most: u64 },
    /// Receives the images that hosts send, while [`NodeCore::collects`](super::NodeCore::collects) returns true.
    /// Passes [`Input::Dumped`] for each host whose processes are dumped, and [`Input::Written`] at the end.
    Collect(Collect),
    /// Serves the images of a folder to the hosts of a job, as long as the job exists.
    Serve(JobId, Vec<u8>),
    /// Closes a connection, once all messages for it are sent.
    Disconnect(Peer),
    /// Reports that a second daemon claims to be this host, which is connected. The second connection is closed.
    Refused(u16),
    /// Dials these daemons in turn, until one admits this one. An empty list stops the dialling.
    Seek(Vec<u16>),
    /// Records which host is the root now; `None` if unknown.
    Root(Option<u16>),
    /// Disconnects all clients, because this daemon is no longer the root.
    Deposed,
    /// Ends this daemon, as the root has ordered.
    Quit,
}
