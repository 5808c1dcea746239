//! One process's messages, polled: modes, probes, waiting and testing, the attached buffer.
//!
//! This is the layer for who polls: nothing is locked and nothing is shared. Around it,
//! [`Communicator`](super::communicator::Communicator) offers the same as futures.

mod blocking;
mod testing;

use std::sync::Arc;

use bytes::Bytes;
use midplane_simhw::port::Status;
use thiserror::Error;

use super::envelope::{Context, Peer, Tag};
use super::explain::Explanation;
use super::group::{Group, NoSuchRank, Rank, Scope};
use super::matching::{Key, Pattern};
use super::progression::{
    Abilities, BuildError, Claim, InitError, Probe, Progression, StartError, Wait,
};
use super::request::{Failure, Load, Mode, NOBODY, Operation, Outcome, Request, State};

pub use blocking::{DEFAULT_SPINS, Parker};
pub use testing::Found;

/// Why something about messages did not work.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum MessageError {
    /// It was carried out and failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It was not built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It was not started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no such rank.
    #[error(transparent)]
    Rank(#[from] NoSuchRank),
    /// The attached buffer is too small, or full; attach more, or wait.
    #[error(
        "a buffered send of {needed} bytes: {free} of the {attached} attached are free; attach more"
    )]
    Buffer {
        /// Bytes of the message.
        needed: usize,
        /// Bytes that no send holds.
        free: usize,
        /// Bytes attached.
        attached: usize,
    },
    /// A typed message was not encoded, or its bytes are no such message.
    #[error(transparent)]
    Codec(#[from] midplane_simhw::wire::WireError),
    /// The bytes of a message are no whole number of values.
    #[error("{bytes} bytes are no whole number of values of {each} bytes")]
    Uneven {
        /// Bytes that came.
        bytes: usize,
        /// Bytes of a value.
        each: usize,
    },
    /// Blocks of a collective operation are not as many as there are processes, or not as long as
    /// the others'.
    #[error("{what}: {expected} expected, {found} found")]
    Shape {
        /// What does not fit.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A collective operation on this communicator was dropped before it ended: its processes no
    /// longer agree where they are. Duplicate another communicator.
    #[error(
        "a collective operation on this communicator was dropped before it ended; go on with another one"
    )]
    Abandoned,
    /// A process's NIC does not carry collective operations out: the extension is not installed there or
    /// has stopped, its group is not these processes' nodes ([`Status::Invalid`]), or another communicator
    /// holds it ([`Status::Refused`]).
    #[error(
        "the NIC of rank {rank} carries out no collective operations of this group: {status:?}"
    )]
    Nics {
        /// Whose NIC.
        rank: Rank,
        /// How it has ended the command.
        status: Status,
    },
    /// All numbers for communicators are used up.
    #[error("there are no numbers left for communicators")]
    NoContext,
}

/// Room that a buffered send takes beside its bytes.
pub const BUFFER_OVERHEAD: usize = 64;

/// One process's messages over a lower layer.
#[derive(Debug)]
pub struct Process<P> {
    lower: P,
    abilities: Abilities,
    /// Bytes of the attached buffer.
    buffer: usize,
    pub(super) next_number: u32,
}

impl<P: Progression> Process<P> {
    /// Brings the lower layer up, with `processes` processes in the world, from 0.
    ///
    /// # Errors
    /// Those of the lower layer.
    pub fn new(mut lower: P, processes: u32) -> Result<(Self, Scope), InitError> {
        let abilities = lower.init()?;
        let world: Vec<_> = (0..processes).map(Peer).collect();
        lower.addprocs(&world)?;
        let group = Arc::new(Group::new(world));
        let own = abilities.own;
        let scope = Scope::new(group, own, 0).ok_or(InitError::Unknown(own))?;
        Ok((Self { lower, abilities, buffer: 0, next_number: 1 }, scope))
    }

    /// What the lower layer can do.
    #[must_use]
    pub const fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// The lower layer.
    #[must_use]
    pub const fn lower(&self) -> &P {
        &self.lower
    }

    /// The lower layer, to be driven by hand.
    pub const fn lower_mut(&mut self) -> &mut P {
        &mut self.lower
    }

    /// A send that can be started again and again (`MPI_Send_init` and its kin).
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Build`].
    #[inline]
    pub fn send_init(
        &mut self,
        scope: &Scope,
        mode: Mode,
        to: Rank,
        tag: Tag,
    ) -> Result<Request, MessageError> {
        self.build_send(scope, scope.context(), mode, to, tag)
    }

    pub(super) fn build_send(
        &mut self,
        scope: &Scope,
        context: Context,
        mode: Mode,
        to: Rank,
        tag: Tag,
    ) -> Result<Request, MessageError> {
        if to == Rank::NULL {
            return Ok(self.lower.requests().insert(Operation::Nothing));
        }
        let to = scope.group().peer(to)?;
        Ok(self.lower.build(Operation::Send { mode, to, context, tag })?)
    }

    /// A receive that can be started again and again; `None` is a wildcard.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Build`].
    #[inline]
    pub fn receive_init(
        &mut self,
        scope: &Scope,
        source: Option<Rank>,
        tag: Option<Tag>,
    ) -> Result<Request, MessageError> {
        self.build_receive(scope, scope.context(), source, tag)
    }

    pub(super) fn build_receive(
        &mut self,
        scope: &Scope,
        context: Context,
        source: Option<Rank>,
        tag: Option<Tag>,
    ) -> Result<Request, MessageError> {
        if source == Some(Rank::NULL) {
            return Ok(self.lower.requests().insert(Operation::Nothing));
        }
        let source = source.map(|rank| scope.group().peer(rank)).transpose()?;
        Ok(self.lower.build(Operation::Receive(Pattern { context, source, tag }))?)
    }

    /// Starts a request that was built, or whose outcome was taken.
    ///
    /// # Errors
    /// [`MessageError::Start`]; [`MessageError::Buffer`] for a buffered send. The request can be
    /// started then.
    #[inline]
    pub fn start(&mut self, request: Request, load: Load<'_>) -> Result<(), MessageError> {
        match self.lower.requests().operation(request) {
            Some(Operation::Nothing) => {
                if self.lower.requests().state(request) != Some(State::Built) {
                    return Err(StartError::NotBuilt.into());
                }
                self.lower.requests().finish(request, 0);
                Ok(())
            }
            Some(Operation::Send { mode: Mode::Buffered, to, context, tag }) => {
                self.start_buffered(request, Route { to, context, tag }, load)
            }
            _ => Ok(self.lower.start(request, load)?),
        }
    }

    /// The message goes on as an orphan that holds its part of the buffer; the request is done.
    fn start_buffered(
        &mut self,
        request: Request,
        Route { to, context, tag }: Route,
        load: Load<'_>,
    ) -> Result<(), MessageError> {
        if self.lower.requests().state(request) != Some(State::Built) {
            return Err(StartError::NotBuilt.into());
        }
        let bytes = match load {
            Load::Copy(bytes) => Bytes::copy_from_slice(bytes),
            Load::Bytes(bytes) => bytes,
            Load::Room { .. } => return Err(StartError::WrongLoad.into()),
        };
        let length = bytes.len();
        let (needed, free) = (length + BUFFER_OVERHEAD, self.buffer_free());
        if needed > free {
            return Err(MessageError::Buffer { needed, free, attached: self.buffer });
        }
        let orphan =
            self.lower.build(Operation::Send { mode: Mode::Buffered, to, context, tag })?;
        self.lower.requests().hold_attached(orphan, needed);
        if let Err(error) = self.lower.start(orphan, Load::Bytes(bytes)) {
            self.lower.requests().hold_attached(orphan, 0);
            self.lower.destroy(orphan, false);
            return Err(error.into());
        }
        self.lower.destroy(orphan, false);
        self.lower.requests().finish(request, length);
        Ok(())
    }

    /// Starts a send (`MPI_Isend` and its kin).
    ///
    /// # Errors
    /// Those of [`send_init`](Self::send_init) and [`start`](Self::start).
    #[inline]
    pub fn isend(
        &mut self,
        scope: &Scope,
        mode: Mode,
        to: Rank,
        tag: Tag,
        load: Load<'_>,
    ) -> Result<Request, MessageError> {
        let request = self.send_init(scope, mode, to, tag)?;
        self.start_or_free(request, load)
    }

    /// Starts a receive.
    ///
    /// # Errors
    /// Those of [`receive_init`](Self::receive_init) and [`start`](Self::start).
    #[inline]
    pub fn ireceive(
        &mut self,
        scope: &Scope,
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
                self.lower.destroy(request, false);
                Err(error)
            }
        }
    }

    /// Whether a message is there, without receiving it; moves things forward first.
    ///
    /// # Errors
    /// [`MessageError::Rank`].
    pub fn iprobe(
        &mut self,
        scope: &Scope,
        source: Option<Rank>,
        tag: Option<Tag>,
        claim: Claim,
    ) -> Result<Option<Probe>, MessageError> {
        self.lower.advance(Wait::Not);
        self.probe_now(scope, source, tag, claim)
    }

    pub(super) fn probe_now(
        &mut self,
        scope: &Scope,
        source: Option<Rank>,
        tag: Option<Tag>,
        claim: Claim,
    ) -> Result<Option<Probe>, MessageError> {
        let context = scope.context();
        if source == Some(Rank::NULL) {
            let key = Key { context, source: NOBODY, tag: Tag(0) };
            let requests = self.lower.requests();
            let claimed = (claim == Claim::Take).then(|| requests.insert(Operation::Nothing));
            return Ok(Some(Probe { key, length: 0, claimed }));
        }
        let source = source.map(|rank| scope.group().peer(rank)).transpose()?;
        Ok(self.lower.iprobe(&Pattern { context, source, tag }, claim))
    }

    /// Asks for a request to be cancelled; wait for it: it either did what it was for, or ends with
    /// [`Failure::Cancelled`]. A receive is decided here and now; a send that has left, by its
    /// receiver.
    pub fn cancel(&mut self, request: Request) {
        self.lower.requests().cancel(request);
        self.lower.advance(Wait::Not);
    }

    /// Forgets a request; one that is under way goes on (`MPI_Request_free`).
    pub fn free(&mut self, request: Request) {
        self.lower.destroy(request, false);
    }

    /// Takes an outcome, if there is one, and forgets the request.
    #[inline]
    pub(super) fn take(&mut self, request: Request) -> Option<Outcome> {
        let outcome = self.lower.requests().take(request)?;
        self.lower.destroy(request, false);
        Some(outcome)
    }

    /// Gives buffered sends `bytes` more to live in. Each takes its length and [`BUFFER_OVERHEAD`].
    pub const fn attach(&mut self, bytes: usize) {
        self.buffer = self.buffer.saturating_add(bytes);
    }

    /// Takes the buffer away once no send holds any of it; `None` until then.
    pub fn detach(&mut self) -> Option<usize> {
        self.lower.advance(Wait::Not);
        (self.lower.requests().attached() == 0).then(|| std::mem::take(&mut self.buffer))
    }

    /// Bytes of the attached buffer that no send holds.
    #[must_use]
    pub fn buffer_free(&mut self) -> usize {
        self.buffer.saturating_sub(self.lower.requests().attached())
    }

    /// What waits for what.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.lower.explain()
    }
}

/// Where a buffered message goes.
#[derive(Clone, Copy)]
struct Route {
    to: Peer,
    context: Context,
    tag: Tag,
}
