//! The seam between the layers: the eight functions of LAM's request progression interface.
//!
//! LAM/MPI puts everything that depends on what carries the messages behind eight entry points
//! (the LAM over VIA paper, section 3; Burns, "LAM 6.0 portability", 1996). Here they are a trait;
//! what LAM's layers share through the request's structure, they share through [`Requests`].

use std::task::{Poll, Waker};

use thiserror::Error;

use super::envelope::{Context, Peer, Tag};
use super::matching::{Key, Pattern};
use super::request::{Load, Operation, Outcome, Request, Requests};

/// What a lower layer can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abilities {
    /// The process that this is.
    pub own: Peer,
    /// Highest tag.
    pub max_tag: Tag,
    /// Highest context.
    pub max_context: Context,
    /// Most bytes of one message.
    pub max_length: usize,
}

/// How long to advance.
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// Do what can be done now.
    Not,
    /// The same; and if no request became done, wake this when there is more to do. Whoever may
    /// block parks until then.
    Wake(&'a Waker),
}

/// Whether a probed message leaves the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Claim {
    /// It stays: the next receive that asks for it gets it.
    Leave,
    /// It leaves, and only the request made for it receives it (a matched probe).
    Take,
}

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Probe {
    /// What it is matched by.
    pub key: Key,
    /// Its bytes.
    pub length: usize,
    /// With [`Claim::Take`], the request that receives it: start it with room, or destroy it, and
    /// the message goes back where it stood.
    pub claimed: Option<Request>,
}

/// What came of a receive that was tried without a request.
#[derive(Debug)]
pub enum Receipt {
    /// The message is here.
    Here(Outcome),
    /// It has not come; try again.
    NotYet,
    /// Others have a say in what comes next, or it takes more than one packet: build a receive.
    Refused,
}

/// Why a lower layer did not come up, or did not take a process in.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InitError {
    /// It was initialised before.
    #[error("the lower layer is initialised already")]
    Twice,
    /// Initialise first.
    #[error("the lower layer is not initialised; call init first")]
    NotInitialised,
    /// It does not reach such a process.
    #[error("there is no process {0} on this fabric")]
    Unknown(Peer),
}

/// Why a request was not built.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum BuildError {
    /// Add the process first.
    #[error("process {0} was not added")]
    Unknown(Peer),
    /// The lower layer is finalised, or was never initialised.
    #[error("the lower layer is not running")]
    NotRunning,
}

/// Why a request was not started; it is as it was.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StartError {
    /// It is under way, or its outcome was not taken, or it exists no longer.
    #[error("the request is not one that can be started now; wait for it first")]
    NotBuilt,
    /// Messages to send for sends, room for receives.
    #[error("a send is started with a message, a receive with room")]
    WrongLoad,
    /// The message is too long for this layer.
    #[error("a message has at most {most} bytes, not {length}")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Most that this layer takes.
        most: usize,
    },
    /// The lower layer is finalised.
    #[error("the lower layer is not running")]
    NotRunning,
}

/// What moves requests forward. Polled; owned by one thread at a time.
///
/// Messages of one process to another with the same context meet receives in the order in which
/// they were started, and receives that ask for the same message in the order in which they were
/// started. A matched pair completes as long as both processes keep calling
/// [`advance`](Self::advance); nothing moves outside it and [`start`](Self::start).
pub trait Progression {
    /// Brings the layer up; once, first.
    ///
    /// # Errors
    /// [`InitError`].
    fn init(&mut self) -> Result<Abilities, InitError>;

    /// Makes processes known; messages may then go to and come from them. Known ones are passed
    /// over.
    ///
    /// # Errors
    /// [`InitError`]; processes before the one named are known then.
    fn addprocs(&mut self, peers: &[Peer]) -> Result<(), InitError>;

    /// The persistent part of a request.
    ///
    /// # Errors
    /// [`BuildError`].
    fn build(&mut self, operation: Operation) -> Result<Request, BuildError>;

    /// The part of a request that belongs to one communication. It may be done when this returns.
    ///
    /// # Errors
    /// [`StartError`]; what was loaded is dropped.
    fn start(&mut self, request: Request, load: Load<'_>) -> Result<(), StartError>;

    /// Undoes a build. A send that is under way goes on without an owner. So does a receive, and
    /// its message is lost, unless `undo`: it is then withdrawn, or the message that it has met
    /// goes back into the queue where it stood (a truncated one is lost). A claimed message that
    /// was not received goes back in either case.
    fn destroy(&mut self, request: Request, undo: bool);

    /// Brings the layer down: ready when nothing of ours is left to leave; call
    /// [`advance`](Self::advance) until then. Requests that are not done fail then.
    fn finalize(&mut self) -> Poll<()>;

    /// A send that needs no request: in standard or ready mode, of a message that leaves at once and is
    /// not answered. `None` where it is not that, and nothing has happened then.
    ///
    /// This and [`receive_now`](Self::receive_now) are the shortcuts that LAM's later interface calls
    /// fast send and fast receive, for who blocks.
    fn send_now(&mut self, _operation: Operation, _bytes: &[u8]) -> Option<Outcome> {
        None
    }

    /// A receive that needs no request: looks once, and takes a message that the pattern asks for, at
    /// most `room` bytes of it, straight into `storage`, where no other receive and no other message
    /// waits. Whatever else has come takes its way.
    fn receive_now(&mut self, _: &Pattern, _room: usize, _storage: &mut Vec<u8>) -> Receipt {
        Receipt::Refused
    }

    /// Whether a message is there that the pattern asks for; does not advance.
    fn iprobe(&mut self, pattern: &Pattern, claim: Claim) -> Option<Probe>;

    /// Moves requests forward; says how many became done since it said so last.
    fn advance(&mut self, wait: Wait<'_>) -> usize;

    /// The requests.
    fn requests(&mut self) -> &mut Requests;

    /// How often a process was lost so far.
    fn losses(&self) -> u32 {
        0
    }

    /// Whether a process was lost since there had been so many losses, and another one is there in its place.
    fn has_returned(&self, _peer: Peer, _losses: u32) -> bool {
        false
    }

    /// Whether another process has left a collective operation of this context before it had ended.
    fn was_left(&self, _context: Context) -> bool {
        false
    }

    /// Promises that no receive or probe of this context asks for any tag, here or at the processes
    /// that this one sends to. Messages of different tags then have no order, and what waits unreceived
    /// of one tag holds back nothing of the others.
    fn assert_no_any_tag(&mut self, _context: Context) {}

    /// What waits for what.
    fn explain(&self) -> super::explain::Explanation;
}
