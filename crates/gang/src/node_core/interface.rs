//! Events that a shell hands to its node core, and the work and the messages that the core hands to the shell.

use super::election::Ballot;
use super::job_manager::{Collect, Read, Write};
use super::message::{ClientId, Down, Pairs, Program, RankEvent, Reply, Request, Up, Word};
use super::step::{Step, StepOutcome};
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
    /// A daemon that is `host` has opened a connection: it wants to be a child.
    Child { host: u16, connection: u64 },
    /// A child has sent a message over this connection.
    Up(u64, Up),
    /// A connection has ended.
    Disconnected(Peer),
    /// Another host's daemon has sent a ballot.
    Ballot(u16, Ballot),
    /// A step is complete: [`Effect::Step`].
    StepDone(u64, Result<StepOutcome, String>),
    /// A rank on this node has changed.
    Rank(JobId, u16, RankEvent),
    /// Data has arrived on this node's NIC for a suspended job.
    Arrived(JobId),
    /// A front end has sent a request. [`Request::Feed`] and [`Request::Leave`] are the shell's own.
    Request(Caller, Request),
    /// A front end's connection has ended.
    ClientGone(ClientId),
    /// A front end's connection has ended that another daemon has carried. The front end may be back.
    ClientLost(ClientId),
    /// The output of a job's ranks on a host has been received completely, on the root.
    StreamsDone(u16, JobId),
    /// Input has arrived for a job, on the root.
    Fed(JobId),
    /// A checkpoint is written, or can't be: the bytes of images in it.
    Written(JobId, Result<u64, String>),
    /// A host has dumped its ranks of a job: [`Effect::Collect`].
    Dumped(u16, JobId),
    /// A checkpoint is read for a front end, or can't be.
    Read(Box<Read>),
    /// A client of this process submits a job, on the root. In virtual time all jobs are those of one user.
    Submit(ClientId, (schedule::Request, u16), Program),
    /// All daemons are to end, on the root.
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

/// A message for another daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Transmit {
    /// To the parent.
    Up(Up),
    /// To the child of this connection.
    Down(u64, Down),
    /// To the daemon of a host, connected or not. It may be lost.
    Ballot(u16, Ballot),
}

/// Work for the shell.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Carries a step out. [`Input::StepDone`] follows, with its number.
    Step(u64, Step),
    /// Sends a reply to a front end.
    Reply(ClientId, Reply),
    /// Sends a word to the ranks of a job that are here.
    Say(JobId, Word),
    /// Lets the ranks of a job that are here leave the PMI barrier, with what all ranks have put.
    BarrierOut(JobId, Pairs),
    /// Signals the ranks of a job that are here.
    Signal(JobId, i32),
    /// Sets the terminal size of a job whose rank 0 is here.
    Resize(JobId, (u16, u16)),
    /// Writes a checkpoint with the rights of the requesting user. [`Input::Written`] follows.
    Write(Write),
    /// Reads a checkpoint of at most `most` bytes with the caller's rights. [`Input::Read`] follows.
    Read { caller: Caller, folder: Vec<u8>, weight: u8, most: u64 },
    /// Takes the images that hosts send. [`Input::Dumped`] follows for each host as its images begin to arrive, and
    /// [`Input::Written`]. [`NodeCore::collects`](super::NodeCore::collects) says how long.
    Collect(Collect),
    /// Sends the images of a folder to the hosts of a job that ask for them, as long as there is the job.
    Serve(JobId, Vec<u8>),
    /// Closes a connection, once all messages to it are sent.
    Disconnect(Peer),
    /// A daemon claims to be this host, which is connected. Its connection is closed.
    Refused(u16),
    /// Dials these daemons in turn, until one admits this one. None: stops dialling.
    Seek(Vec<u16>),
    /// The root is this host now, or it is not known.
    Root(Option<u16>),
    /// This daemon is the root no longer: its front ends are disconnected.
    Deposed,
    /// The root has ordered all daemons to end, and this one has carried that out.
    Quit,
}
