//! One process's messages, for programs that poll: modes, probes, waiting and testing, the attached buffer.
//!
//! Nothing is locked or shared in this layer.
//! [`Communicator`](super::communicator::Communicator) wraps it and offers the same as futures.

mod blocking;
mod testing;

use std::sync::Arc;

use bytes::Bytes;
use midplane_simhw::port::Status;
use thiserror::Error;

use super::engine::Engine;
use super::envelope::{Context, Peer, Tag};
use super::explain::Explanation;
use super::group::{CommHandle, Group, NoSuchRank, Rank};
use super::matching::{Key, Pattern};
use super::request::{Failure, Load, Mode, NULL_PEER, Operation, Outcome, Request, State};
use super::transport::{BuildError, Claim, InitError, Probe, StartError, Wait};

pub use blocking::Parker;

/// Why an operation on messages failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum MessageError {
    /// The request ran and failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The request could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The request could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The group has no such rank.
    #[error(transparent)]
    Rank(#[from] NoSuchRank),
    /// The attached buffer is too small, or full; attach more, or wait.
    #[error(
        "a buffered send of {needed} bytes: {free} of the {attached} attached are free; attach more"
    )]
    Buffer {
        /// Bytes of the message.
        needed: usize,
        /// Bytes that no send occupies.
        free: usize,
        /// Bytes of the attached buffer.
        attached: usize,
    },
    /// The wire to this process has no registered memory, or none left: send the bytes instead.
    #[error(
        "no {bytes} bytes of registered memory for messages with rank {peer}: send bytes instead, which takes a copy"
    )]
    NotRegistered {
        /// The process for whose messages memory was requested.
        peer: Rank,
        /// Bytes that were requested.
        bytes: usize,
    },
    /// A typed message could not be encoded, or the received bytes are no such message.
    #[error(transparent)]
    Codec(#[from] midplane_simhw::wire::WireError),
    /// The length of a message is not a multiple of the value's size.
    #[error("{bytes} bytes are not a whole number of values of {each} bytes")]
    Uneven {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of one value.
        each: usize,
    },
    /// A collective operation got the wrong number of blocks (one per process), or blocks of the wrong length.
    #[error("{what}: {expected} expected, {found} found")]
    Shape {
        /// Says what was counted.
        what: &'static str,
        /// The count that was expected.
        expected: usize,
        /// The count that was found.
        found: usize,
    },
    /// A collective operation on this communicator was dropped before it ended, so its processes no longer
    /// agree on the next one. Continue on a duplicate made from another communicator.
    #[error(
        "a collective operation on this communicator failed, or was dropped before it ended; use another one, or `shrink`"
    )]
    Abandoned,
    /// A process's NIC refused the collective operations. The extension is not installed there or has stopped;
    /// or the NIC's group differs from these processes' nodes ([`Status::Invalid`]); or another communicator uses the
    /// group ([`Status::Refused`]).
    #[error(
        "the NIC of rank {rank} carries out no collective operations of this group: {status:?}"
    )]
    Nics {
        /// The rank whose NIC it is.
        rank: Rank,
        /// The status with which the NIC ended the command.
        status: Status,
    },
    /// All communicator numbers are used up.
    #[error("there are no numbers left for communicators")]
    NoContext,
}

/// Bytes of the attached buffer that a buffered send takes in addition to its message.
pub const BUFFER_OVERHEAD: usize = 64;

/// One process's messages over an engine.
#[derive(Debug)]
pub struct Process {
    engine: Engine,
    /// Size of the attached buffer in bytes.
    buffer: usize,
    /// The number that this process proposes for the next communicator. It proposes each number that has its remainder
    /// modulo `processes`, so no two proposals are equal.
    pub(super) next_number: u32,
    pub(super) processes: u32,
}

impl Process {
    /// Initialises the engine with `processes` processes in the world, numbered from 0.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn new(mut engine: Engine, processes: u32) -> Result<(Self, CommHandle), InitError> {
        let own = engine.init()?.own;
        let world: Vec<_> = (0..processes).map(Peer).collect();
        engine.add_processes(&world)?;
        let group = Arc::new(Group::new(world));
        let scope = CommHandle::new(group, own, 0).ok_or(InitError::Unknown(own))?;
        let next_number = processes.saturating_add(own.0);
        Ok((Self { engine, buffer: 0, next_number, processes }, scope))
    }

    /// Returns the engine that moves its requests.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine, for callers that drive it directly.
    pub const fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Builds a send that can be started repeatedly (`MPI_Send_init` and its variants).
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Build`].
    #[inline]
    pub fn send_init(
        &mut self,
        scope: &CommHandle,
        mode: Mode,
        to: Rank,
        tag: Tag,
    ) -> Result<Request, MessageError> {
        self.build_send(scope, scope.context(), mode, to, tag)
    }

    pub(super) fn build_send(
        &mut self,
        scope: &CommHandle,
        context: Context,
        mode: Mode,
        to: Rank,
        tag: Tag,
    ) -> Result<Request, MessageError> {
        if to == Rank::NULL {
            return Ok(self.engine.requests().insert(Operation::Nothing));
        }
        let to = scope.group().peer(to)?;
        Ok(self.engine.build(Operation::Send { mode, to, context, tag })?)
    }

    /// Builds a receive that can be started repeatedly; `None` is a wildcard.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Build`].
    #[inline]
    pub fn receive_init(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
    ) -> Result<Request, MessageError> {
        self.build_receive(scope, scope.context(), source, tag)
    }

    pub(super) fn build_receive(
        &mut self,
        scope: &CommHandle,
        context: Context,
        source: Option<Rank>,
        tag: Option<Tag>,
    ) -> Result<Request, MessageError> {
        if source == Some(Rank::NULL) {
            return Ok(self.engine.requests().insert(Operation::Nothing));
        }
        let source = source.map(|rank| scope.group().peer(rank)).transpose()?;
        let request = self.engine.build(Operation::Receive(Pattern { context, source, tag }))?;
        if source.is_none() {
            self.engine.requests().limit(request, Arc::clone(scope.group()));
        }
        Ok(request)
    }

    /// Starts a request that was just built, or whose outcome was taken.
    ///
    /// # Errors
    /// [`MessageError::Start`]; [`MessageError::Buffer`] for a buffered send. After an error the request is
    /// still unstarted and can be started.
    #[inline]
    pub fn start(&mut self, request: Request, load: Load<'_>) -> Result<(), MessageError> {
        match self.engine.requests().operation(request) {
            Some(Operation::Nothing) => {
                if self.engine.requests().state(request) != Some(State::Built) {
                    return Err(StartError::NotBuilt.into());
                }
                self.engine.requests().finish(request, 0);
                Ok(())
            }
            Some(Operation::Send { mode: Mode::Buffered, to, context, tag }) => {
                self.start_buffered(request, Route { to, context, tag }, load)
            }
            _ => Ok(self.engine.start(request, load)?),
        }
    }

    /// Sends the message as an orphan request that occupies its part of the buffer; `request` itself is done at
    /// once.
    fn start_buffered(
        &mut self,
        request: Request,
        Route { to, context, tag }: Route,
        load: Load<'_>,
    ) -> Result<(), MessageError> {
        if self.engine.requests().state(request) != Some(State::Built) {
            return Err(StartError::NotBuilt.into());
        }
        let bytes = match load {
            Load::Copy(bytes) => Bytes::copy_from_slice(bytes),
            Load::Bytes(bytes) => bytes,
            Load::Memory(segment) => segment.to_vec().into(),
            Load::Room { .. } => return Err(StartError::WrongLoad.into()),
        };
        let length = bytes.len();
        let (needed, free) = (length + BUFFER_OVERHEAD, self.buffer_free());
        if needed > free {
            return Err(MessageError::Buffer { needed, free, attached: self.buffer });
        }
        let orphan =
            self.engine.build(Operation::Send { mode: Mode::Buffered, to, context, tag })?;
        self.engine.requests().hold_attached(orphan, needed);
        if let Err(error) = self.engine.start(orphan, Load::Bytes(bytes)) {
            self.engine.requests().hold_attached(orphan, 0);
            self.engine.destroy(orphan, false);
            return Err(error.into());
        }
        self.engine.destroy(orphan, false);
        self.engine.requests().finish(request, length);
        Ok(())
    }

    /// Starts a send (`MPI_Isend` and its variants).
    ///
    /// # Errors
    /// Those of [`send_init`](Self::send_init) and [`start`](Self::start).
    #[inline]
    pub fn isend(
        &mut self,
        scope: &CommHandle,
        mode: Mode,
        to: Rank,
        tag: Tag,
        load: Load<'_>,
    ) -> Result<Request, MessageError> {
        let request = self.send_init(scope, mode, to, tag)?;
        self.start_or_free(request, load)
    }

    /// Starts a receive (`MPI_Irecv`); `None` is a wildcard.
    ///
    /// # Errors
    /// Those of [`receive_init`](Self::receive_init) and [`start`](Self::start).
    #[inline]
    pub fn ireceive(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
        load: Load<'_>,
    ) -> Result<Request, MessageError> {
        let request = self.receive_init(scope, source, tag)?;
        self.start_or_free(request, load)
    }

    #[inline]
    pub(super) fn start_or_free(
        &mut self,
        request: Request,
        load: Load<'_>,
    ) -> Result<Request, MessageError> {
        match self.start(request, load) {
            Ok(()) => Ok(request),
            Err(error) => {
                self.engine.destroy(request, false);
                Err(error)
            }
        }
    }

    /// Advances requests, then returns the first message that matches, without receiving it.
    ///
    /// # Errors
    /// [`MessageError::Rank`]; if no message matches, [`Failure::PeerLost`] if the source is lost. On a revoked
    /// communicator, [`Failure::Revoked`].
    pub fn iprobe(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
        claim: Claim,
    ) -> Result<Option<Probe>, MessageError> {
        self.engine.advance(Wait::Not);
        let losses = self.engine.losses();
        self.probe_now(scope, source, tag, claim, losses)
    }

    /// Returns the first message that matches, for a probe that began after `losses` losses.
    pub(super) fn probe_now(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
        claim: Claim,
        losses: u32,
    ) -> Result<Option<Probe>, MessageError> {
        let context = scope.context();
        if source == Some(Rank::NULL) {
            let key = Key { context, source: NULL_PEER, tag: Tag(0) };
            let requests = self.engine.requests();
            let claimed = (claim == Claim::Take).then(|| requests.insert(Operation::Nothing));
            return Ok(Some(Probe { key, length: 0, claimed }));
        }
        let source = source.map(|rank| scope.group().peer(rank)).transpose()?;
        let pattern = Pattern { context, source, tag };
        let failure = self.engine.probe_failure(&pattern, scope.group(), losses);
        if failure == Some(Failure::Revoked) {
            return Err(Failure::Revoked.into());
        }
        match (self.engine.iprobe(&pattern, claim), failure) {
            (None, Some(failure)) => Err(failure.into()),
            (found, _) => Ok(found),
        }
    }

    /// Requests cancellation. Wait for the request all the same: it completes normally, or with
    /// [`Failure::Cancelled`]. For a receive, that is decided at once; for a send that has left, by its receiver.
    pub fn cancel(&mut self, request: Request) {
        self.engine.requests().cancel(request);
        self.engine.advance(Wait::Not);
    }

    /// Frees a request; one in progress continues (`MPI_Request_free`).
    pub fn free(&mut self, request: Request) {
        self.engine.destroy(request, false);
    }

    /// Takes an outcome, if there is one, and frees the request.
    #[inline]
    pub(super) fn take(&mut self, request: Request) -> Option<Outcome> {
        let outcome = self.engine.requests().take(request)?;
        self.engine.destroy(request, false);
        Some(outcome)
    }

    /// Adds `bytes` to the buffer for buffered sends. Each send takes its length and [`BUFFER_OVERHEAD`].
    pub const fn attach(&mut self, bytes: usize) {
        self.buffer = self.buffer.saturating_add(bytes);
    }

    /// Detaches the buffer and returns its size in bytes; `None` while a send occupies part of it.
    pub fn detach(&mut self) -> Option<usize> {
        self.engine.advance(Wait::Not);
        (self.engine.requests().attached() == 0).then(|| std::mem::take(&mut self.buffer))
    }

    /// Returns the bytes of the attached buffer that no send occupies.
    #[must_use]
    pub fn buffer_free(&mut self) -> usize {
        self.buffer.saturating_sub(self.engine.requests().attached())
    }

    /// Reports what each request waits for.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.engine.explain()
    }
}

/// The destination of a buffered message.
#[derive(Clone, Copy)]
struct Route {
    to: Peer,
    context: Context,
    tag: Tag,
}
