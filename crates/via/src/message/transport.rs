//! Types of the entry points of an [`Engine`](super::engine::Engine): arguments, results and errors.

use std::task::Waker;

use thiserror::Error;

use super::envelope::{Context, Peer, Tag};
use super::matching::Key;
use super::request::{Outcome, Request};

/// The abilities of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct TransportCaps {
    /// The number of this process.
    pub own: Peer,
    /// Highest tag of a message.
    pub max_tag: Tag,
    /// Highest context of a message.
    pub max_context: Context,
    /// Most bytes of one message.
    pub max_length: usize,
}

/// Decides whether a call of `advance` may arm a waker to wait.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Wait<'a> {
    /// Makes the progress that is possible now.
    Not,
    /// Makes the progress that is possible now. If no request completed, arms this waker, which is woken when more is
    /// possible; a caller that may block parks until then.
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
    /// The message's source, tag and context.
    pub key: Key,
    /// The message's length in bytes.
    pub length: usize,
    /// With [`Claim::Take`], the request that receives the message. Start it with room, or destroy it: the
    /// message then returns to its place in the queue.
    pub claimed: Option<Request>,
}

/// The result of a receive attempted without a request.
#[derive(Debug)]
#[doc(hidden)]
pub enum TryReceive {
    /// The message was received.
    Here(Outcome),
    /// No message has arrived; try again.
    NotYet,
    /// Not possible without a request: other receives or messages come first, or the message takes more than
    /// one packet. Build a receive instead.
    Refused,
}

/// Why an engine was not initialised, or did not add a process.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InitError {
    /// The engine was initialised before.
    #[error("the engine is initialised already")]
    Twice,
    /// `init` was not called.
    #[error("the engine is not initialised; call init first")]
    NotInitialised,
    /// The fabric has no such process.
    #[error("there is no process {0} on this fabric")]
    Unknown(Peer),
}

/// Why a request was not built.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum BuildError {
    /// The process was not added to the engine.
    #[error("process {0} was not added")]
    Unknown(Peer),
    /// The engine is finalised, or was never initialised.
    #[error("the engine is not running")]
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
    /// The engine is finalised.
    #[error("the engine is not running")]
    NotRunning,
}
