//! The interface between the layers: the eight functions of LAM's request progression interface.
//!
//! LAM/MPI puts everything that depends on the transport behind eight entry points (the LAM over VIA paper,
//! section 3; Burns, "LAM 6.0 portability", 1996). Here they are a trait. LAM's layers share state in the
//! request's structure; here they share it in [`Requests`].

use std::task::{Poll, Waker};

use thiserror::Error;

use super::envelope::{Context, Peer, Tag};
use super::matching::{Key, Pattern};
use super::request::{Load, Operation, Outcome, Request, Requests};

/// The abilities of a lower layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransportCaps {
    /// The number of this process.
    pub own: Peer,
    /// Highest tag.
    pub max_tag: Tag,
    /// Highest context.
    pub max_context: Context,
    /// Most bytes of one message.
    pub max_length: usize,
}

/// Permits an `advance` to wait, or not.
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// Do what can be done now.
    Not,
    /// Do what can be done now; if no request completed, have this waker woken when there is more to do. A
    /// caller that may block parks until then.
    Wake(&'a Waker),
}

/// Decides whether a probed message leaves the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Claim {
    /// It stays: the next receive that matches gets it.
    Leave,
    /// It leaves the queue: only the request made for it can receive it (a matched probe).
    Take,
}

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Probe {
    /// Its source, tag and context.
    pub key: Key,
    /// Its length in bytes.
    pub length: usize,
    /// With [`Claim::Take`], the request that receives the message. Start it with room, or destroy it: the
    /// message then returns to its place in the queue.
    pub claimed: Option<Request>,
}

/// The result of a receive attempted without a request.
#[derive(Debug)]
pub enum TryReceive {
    /// The message was received.
    Here(Outcome),
    /// No message has arrived; try again.
    NotYet,
    /// Not possible without a request: other receives or messages come first, or the message takes more than
    /// one packet. Build a receive.
    Refused,
}

/// Why a lower layer was not initialised, or did not add a process.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InitError {
    /// It was initialised before.
    #[error("the lower layer is initialised already")]
    Twice,
    /// `init` was not called.
    #[error("the lower layer is not initialised; call init first")]
    NotInitialised,
    /// The fabric has no such process.
    #[error("there is no process {0} on this fabric")]
    Unknown(Peer),
}

/// Why a request was not built.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum BuildError {
    /// The process was not added.
    #[error("process {0} was not added")]
    Unknown(Peer),
    /// The lower layer is finalised, or was never initialised.
    #[error("the lower layer is not running")]
    NotRunning,
}

/// Why a request was not started; its state is unchanged.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StartError {
    /// The request is under way, its outcome was not taken, or it was removed.
    #[error("the request is under way, or its outcome was not taken; wait for it first")]
    NotBuilt,
    /// A send needs a message, a receive needs room.
    #[error("a send must be started with a message, a receive with room")]
    WrongLoad,
    /// The message is too long for this layer.
    #[error("a message has at most {most} bytes, not {length}")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Most bytes that this layer takes.
        most: usize,
    },
    /// The lower layer is finalised.
    #[error("the lower layer is not running")]
    NotRunning,
}

/// Moves requests forward: the layer below the messages. It is polled, and owned by one thread at a time.
///
/// Messages of one process to another with the same context match receives in the order in which they were
/// started. Receives that match the same message get it in the order in which they were started. A matched pair
/// completes as long as both processes keep calling [`advance`](Self::advance); requests move only within it
/// and [`start`](Self::start).
pub trait Transport {
    /// Initialises the layer; call it once, before anything else.
    ///
    /// # Errors
    /// [`InitError`].
    fn init(&mut self) -> Result<TransportCaps, InitError>;

    /// Adds processes, with which messages can then be exchanged. Skips those that were added before.
    ///
    /// # Errors
    /// [`InitError`]; the processes before the one that failed were added.
    fn add_processes(&mut self, peers: &[Peer]) -> Result<(), InitError>;

    /// Builds the persistent part of a request.
    ///
    /// # Errors
    /// [`BuildError`].
    fn build(&mut self, operation: Operation) -> Result<Request, BuildError>;

    /// Starts one communication of a request. It may be done when this returns.
    ///
    /// # Errors
    /// [`StartError`]; the load is dropped.
    fn start(&mut self, request: Request, load: Load<'_>) -> Result<(), StartError>;

    /// Undoes a build. A send that is under way continues without an owner. A receive under way does too, and
    /// its message is lost, unless `undo`: then the receive is withdrawn, or the message that it matched
    /// returns to its place in the queue (a truncated one is lost). A claimed message that was not received
    /// returns to the queue in either case.
    fn destroy(&mut self, request: Request, undo: bool);

    /// Shuts the layer down: ready once all of this process's packets have left; call
    /// [`advance`](Self::advance) until then. Requests that are not done fail then.
    fn finalize(&mut self) -> Poll<()>;

    /// Sends without a request: in standard or ready mode, a message that leaves at once and needs no answer.
    /// Returns `None`, without any effect, if that is not possible.
    ///
    /// This and [`receive_now`](Self::receive_now) are the shortcuts for blocking callers that LAM's later
    /// interface calls fast send and fast receive.
    fn send_now(&mut self, _operation: Operation, _bytes: &[u8]) -> Option<Outcome> {
        None
    }

    /// Receives without a request: polls once, and puts at most `room` bytes of a matching message straight
    /// into `storage`. This works only if no other receive and no unexpected message waits. Other packets that
    /// arrive are handled as usual.
    fn receive_now(&mut self, _: &Pattern, _room: usize, _storage: &mut Vec<u8>) -> TryReceive {
        TryReceive::Refused
    }

    /// Returns a message that matches the pattern, if one has arrived; does not advance.
    fn iprobe(&mut self, pattern: &Pattern, claim: Claim) -> Option<Probe>;

    /// Moves requests forward; returns how many completed since the last call that returned them.
    fn advance(&mut self, wait: Wait<'_>) -> usize;

    /// Returns the table of requests.
    fn requests(&mut self) -> &mut Requests;

    /// Returns how many times a process was lost so far.
    fn losses(&self) -> u32 {
        0
    }

    /// Returns whether a process was lost after the first `losses` losses, and has been replaced since.
    fn has_returned(&self, _peer: Peer, _losses: u32) -> bool {
        false
    }

    /// Returns whether another process left a collective operation of this context before its end.
    fn was_left(&self, _context: Context) -> bool {
        false
    }

    /// Promises that no receive or probe of this context leaves the tag open, here or at the processes that
    /// this one sends to. Messages of different tags then have no order, and unreceived messages of one tag do
    /// not hold back other tags.
    fn assert_no_any_tag(&mut self, _context: Context) {}

    /// Reports what each request waits for.
    fn explain(&self) -> super::explain::Explanation;
}
