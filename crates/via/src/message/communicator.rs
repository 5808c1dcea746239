//! Messages as futures, for tasks of any runtime: ranks, modes, probes, persistent requests.
//!
//! The tasks of a process share its [`Process`] behind a lock; whichever of them is polled moves all
//! requests forward, and one that waits is always armed to be woken by the carrier. Nothing is
//! spawned and no clock is read, so that the same code runs on tokio, in virtual time, or on a
//! thread that [blocks](Communicator::block_on).

mod making;
mod pending;
mod persistent;
mod probing;
mod waiters;

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;

use super::bell::Deferred;
use super::collective::Nics;
use super::envelope::{Context, LEFT, Tag};
use super::explain::Explanation;
use super::group::{Rank, Scope};
use super::process::{MessageError, Parker, Process};
use super::progression::{Progression, Wait};
use super::request::{Failure, Load, Mode, Outcome, Request};
use waiters::Waiters;

pub use pending::{Pending, wait_all, wait_any, wait_some};
pub use persistent::Persistent;
#[cfg(feature = "service")]
pub(crate) use probing::Place;
pub use probing::{Message, Probed};

/// A message that was received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Received {
    /// Who sent it; [`Rank::NULL`] for nobody.
    pub source: Rank,
    /// Its tag.
    pub tag: Tag,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What the tasks of a process share.
#[derive(Debug)]
struct Desk<P> {
    process: Process<P>,
    waiters: Waiters,
    /// Requests that ended within the poll that asked for them, since one did not.
    turns: u32,
    /// The way to the NICs' collective operations, if a communicator has it.
    nics: Weak<Nics>,
}

impl<P: Progression> Desk<P> {
    /// Moves things forward until `request` is done, or nothing is left to do but to wait; `waker` is
    /// then armed. Whoever is done need not look for more: it leaves, and another one leads.
    fn drive(&mut self, waker: &Waker, place: &mut Option<usize>, request: Option<Request>) {
        let place = self.waiters.enter(place, waker);
        let Self { process, waiters, .. } = self;
        advance(process.lower_mut(), waiters.lead(place), request);
        self.tell_probes();
    }

    /// The same for one that may be kept without being polled: whoever else waits is woken as well.
    fn drive_kept(&mut self, waker: &Waker, place: &mut Option<usize>, request: Option<Request>) {
        let place = self.waiters.enter(place, waker);
        let Self { process, waiters, .. } = self;
        advance(process.lower_mut(), waiters.lead_kept(place), request);
        self.tell_probes();
    }

    /// Moves things forward as far as they go now.
    fn glance(&mut self) {
        self.process.lower_mut().advance(Wait::Not);
        self.tell_probes();
    }

    fn moves(&mut self) -> u32 {
        self.process.lower_mut().requests().moves()
    }

    /// Wakes those who watch, if something has moved.
    fn tell_probes(&mut self) {
        let moves = self.moves();
        self.waiters.tell_probes(moves);
    }
}

fn advance(lower: &mut impl Progression, waker: &Waker, request: Option<Request>) {
    while lower.advance(Wait::Wake(waker)) > 0 {
        if request.is_some_and(|request| lower.requests().peek(request).is_some()) {
            break;
        }
    }
}

/// What the tasks of a process share, locked. Wakers that are to be woken or dropped meanwhile are so once it
/// is unlocked.
struct Locked<'a, P: Progression> {
    /// There until this is dropped.
    desk: Option<MutexGuard<'a, Desk<P>>>,
}

impl<P: Progression> Deref for Locked<'_, P> {
    type Target = Desk<P>;

    #[inline]
    fn deref(&self) -> &Desk<P> {
        self.desk.as_ref().expect("it is not dropped")
    }
}

impl<P: Progression> DerefMut for Locked<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Desk<P> {
        self.desk.as_mut().expect("it is not dropped")
    }
}

impl<P: Progression> Drop for Locked<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut desk) = self.desk.take() else { return };
        let rung = desk.waiters.bell().release().then(|| Arc::clone(desk.waiters.bell()));
        let of_waiters = desk.waiters.deferred.take();
        let of_requests = desk.process.lower_mut().requests().deferred.take();
        drop(desk);
        [of_waiters, of_requests].into_iter().flatten().for_each(Deferred::run);
        if let Some(bell) = rung {
            bell.ring();
        }
    }
}

/// A group of processes whose messages no other communicator sees. Clones are the same one.
///
/// # Cancel safety
/// A send's future that is dropped before it was polled has sent nothing; later, the message goes
/// its way. A receive's future that is dropped has received nothing: a message that it had met
/// stands in the queue again, where it stood, unless it was truncated.
pub struct Communicator<P> {
    desk: Arc<Mutex<Desk<P>>>,
    scope: Scope,
    /// Number of the next collective operation.
    pub(super) turn: Arc<AtomicU32>,
    pub(super) abandoned: Arc<AtomicBool>,
    /// How often a process had been lost when this was made: what its members' collective operations need of one
    /// that was lost later will never come.
    losses: u32,
    /// What its collective operations are carried out by, where it is not hosts alone.
    pub(super) nics: Option<Arc<Nics>>,
}

impl<P> Clone for Communicator<P> {
    fn clone(&self) -> Self {
        Self {
            desk: Arc::clone(&self.desk),
            scope: self.scope.clone(),
            turn: Arc::clone(&self.turn),
            abandoned: Arc::clone(&self.abandoned),
            losses: self.losses,
            nics: self.nics.clone(),
        }
    }
}

impl<P> fmt::Debug for Communicator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl<P: Progression> Communicator<P> {
    /// All processes: what [`Process::new`] has brought up.
    #[must_use]
    pub fn world(process: Process<P>, scope: Scope) -> Self {
        let (waiters, nics) = (Waiters::default(), Weak::new());
        let desk = Desk { process, waiters, turns: 0, nics };
        Self::of(Arc::new(Mutex::new(desk)), scope, 0)
    }

    fn of(desk: Arc<Mutex<Desk<P>>>, scope: Scope, losses: u32) -> Self {
        Self { desk, scope, turn: Arc::default(), abandoned: Arc::default(), losses, nics: None }
    }

    /// Promises that no receive or probe on this communicator leaves the tag open, here or elsewhere
    /// (MPI's `mpi_assert_no_any_tag`); call it before anything is sent. Messages of different tags
    /// then have no order, and each tag has a limit of its own in the receiver's window.
    pub fn assert_no_any_tag(&self) {
        let context = self.scope.context();
        self.with(|process| process.lower_mut().assert_no_any_tag(context));
    }

    /// Another communicator of the same process, whose members have been there since this one was made.
    pub(super) fn sibling(&self, scope: Scope) -> Self {
        Self::of(Arc::clone(&self.desk), scope, self.losses)
    }

    /// This one, with a way to the NICs.
    pub(super) fn by_way_of(self, nics: Nics) -> Self {
        let nics = Arc::new(nics);
        self.lock().nics = Arc::downgrade(&nics);
        Self { nics: Some(nics), ..self }
    }

    /// This process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.scope.rank()
    }

    /// Processes in the group.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.scope.size()
    }

    /// The group and its contexts.
    #[must_use]
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    fn lock(&self) -> Locked<'_, P> {
        lock(&self.desk)
    }

    /// The process behind it, for as long as `work` takes; other tasks wait meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&mut Process<P>) -> T) -> T {
        let mut desk = self.lock();
        let result = work(&mut desk.process);
        desk.tell_probes();
        result
    }

    /// Starts a send.
    ///
    /// # Errors
    /// Those of [`Process::isend`].
    pub fn isend(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<Pending<P>, MessageError> {
        let load = Load::Bytes(bytes.into());
        let request = self.with(|process| process.isend(&self.scope, mode, to, tag, load))?;
        Ok(Pending::new(self.clone(), request, false))
    }

    /// Starts a receive of a message of any length; `None` is a wildcard.
    ///
    /// # Errors
    /// Those of [`Process::ireceive`].
    pub fn ireceive(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Pending<P>, MessageError> {
        self.ireceive_into(source, tag, Load::anything())
    }

    /// Starts a receive into the room given.
    ///
    /// # Errors
    /// Those of [`Process::ireceive`].
    pub fn ireceive_into(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
        room: Load<'_>,
    ) -> Result<Pending<P>, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let request = self.with(|process| process.ireceive(&self.scope, source, tag, room))?;
        Ok(Pending::new(self.clone(), request, true))
    }

    /// Sends in standard mode.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// Dropped before its first poll, nothing is sent; later, the message goes its way.
    pub async fn send(
        &self,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<(), MessageError> {
        self.send_as(Mode::Standard, to, tag, bytes).await
    }

    /// Sends in the mode given.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// Dropped before its first poll, nothing is sent; later, the message goes its way.
    pub async fn send_as(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<(), MessageError> {
        let bytes = bytes.into();
        let sent = self.with(|process| process.send_now(&self.scope, mode, to, tag, &bytes));
        match sent {
            Some(outcome) => Ok(outcome.result?),
            None => self.isend(mode, to, tag, bytes)?.await.map(drop),
        }
    }

    /// Receives a message of any length; `None` is a wildcard.
    ///
    /// # Errors
    /// Those of [`ireceive`](Self::ireceive), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// Dropped, the receive is withdrawn; a message that it had met stands in the queue again,
    /// where it stood.
    pub async fn receive(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Received, MessageError> {
        self.ireceive(source, tag)?.await
    }

    /// Sends and receives at once, as when all processes shift something along (`MPI_Sendrecv`).
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the receive is withdrawn, and the message that is sent goes
    /// its way.
    pub async fn send_receive(
        &self,
        (to, send_tag): (Rank, Tag),
        bytes: impl Into<Bytes>,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Received, MessageError> {
        let receive = self.ireceive(source, tag)?;
        let send = self.isend(Mode::Standard, to, send_tag, bytes)?;
        let received = receive.await;
        send.await?;
        received
    }

    /// The same, and what is received takes the place of what was sent (`MPI_Sendrecv_replace`): a
    /// longer message is an error, and so is none at all from a process that is gone; `buffer`
    /// then holds what was sent, or the beginning of the longer message.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the receive is withdrawn, the message that is sent goes its
    /// way, and `buffer` is as it was.
    pub async fn send_receive_replace(
        &self,
        to: (Rank, Tag),
        buffer: &mut [u8],
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Received, MessageError> {
        let room = Load::Room { room: buffer.len(), storage: Vec::new() };
        let receive = self.ireceive_into(source, tag, room)?;
        let send = self.isend(Mode::Standard, to.0, to.1, buffer.to_vec())?;
        let (received, result) = receive.outcome().await;
        send.await?;
        buffer[..received.bytes.len()].copy_from_slice(&received.bytes);
        result.map(|()| received).map_err(MessageError::from)
    }

    /// Lends buffered sends `bytes` more; see [`Process::attach`].
    pub fn attach(&self, bytes: usize) {
        self.with(|process| process.attach(bytes));
    }

    /// Takes the attached buffer away, when no send holds any of it; returns its bytes.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn detach(&self) -> usize {
        self.watch(|process| process.detach()).await
    }

    /// What waits for what, in the whole process.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.lock().process.explain()
    }

    /// Runs a future on this thread: it polls for a while, then parks.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(future)
    }

    /// Brings the lower layer down, when everything of ours has left. All communicators of the
    /// process are then closed; call it when no process will send here any more, as after a
    /// [`barrier`](Self::barrier).
    ///
    /// # Cancel safety
    /// Dropped, it goes on when it is called again.
    pub async fn finalize(&self) {
        self.watch(|process| match process.lower_mut().finalize() {
            Poll::Ready(()) => Some(()),
            Poll::Pending => None,
        })
        .await;
        let nics = self.lock().nics.upgrade();
        if let Some(nics) = nics {
            nics.close();
        }
    }

    /// A request that was built by hand, of either context.
    pub(super) fn adopt(&self, request: Request, receive: bool) -> Pending<P> {
        Pending::new(self.clone(), request, receive)
    }

    pub(super) fn isend_in(
        &self,
        context: Context,
        to: Rank,
        tag: Tag,
        bytes: Bytes,
    ) -> Result<Pending<P>, MessageError> {
        let request = self.with(|process| {
            self.check_member(process, to)?;
            let request = process.build_send(&self.scope, context, Mode::Standard, to, tag)?;
            process.start_or_free(request, Load::Bytes(bytes))
        })?;
        Ok(self.adopt(request, false))
    }

    pub(super) fn ireceive_in(
        &self,
        context: Context,
        source: Rank,
        tag: Tag,
    ) -> Result<Pending<P>, MessageError> {
        let request = self.with(|process| {
            self.check_member(process, source)?;
            let request = process.build_receive(&self.scope, context, Some(source), Some(tag))?;
            process.start_or_free(request, Load::anything())
        })?;
        Ok(self.adopt(request, true))
    }

    /// The process in the place of a member that was lost takes no part in collective operations, and none go
    /// on that another process has left.
    fn check_member(&self, process: &Process<P>, rank: Rank) -> Result<(), MessageError> {
        let peer = self.scope.group().peer(rank)?;
        if process.lower().has_returned(peer, self.losses) {
            return Err(Failure::PeerRestarted(peer).into());
        }
        if process.lower().was_left(self.scope.collective()) {
            return Err(Failure::Abandoned.into());
        }
        Ok(())
    }

    /// Tells all others that this process has left a collective operation before it had ended.
    pub(super) fn tell_left(&self) {
        let scope = &self.scope;
        self.with(|process| {
            for to in (0..self.size()).map(Rank).filter(|to| *to != self.rank()) {
                let sent = process.build_send(scope, scope.collective(), Mode::Standard, to, LEFT);
                let sent = sent.and_then(|sent| process.start_or_free(sent, Load::Copy(&[])));
                // One that can't be told is gone.
                if let Ok(request) = sent {
                    process.free(request);
                }
            }
        });
    }

    fn received(&self, outcome: Outcome) -> Received {
        let Outcome { status, bytes, .. } = outcome;
        Received { source: self.scope.rank_of(status.source), tag: status.tag, bytes }
    }
}

/// Ours do not panic in here. A caller of [`Communicator::with`] may, between two calls: what it
/// leaves is whole.
fn lock<P: Progression>(desk: &Mutex<Desk<P>>) -> Locked<'_, P> {
    let desk = desk.lock().unwrap_or_else(PoisonError::into_inner);
    desk.waiters.bell().hold();
    Locked { desk: Some(desk) }
}

/// Runs a future on this thread: it polls for a while, then parks until it is woken.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let parker = Parker::default();
    let mut future = pin!(future);
    for _ in 0..parker.spins() {
        let mut idle = TaskContext::from_waker(Waker::noop());
        if let Poll::Ready(done) = future.as_mut().poll(&mut idle) {
            return done;
        }
        std::hint::spin_loop();
    }
    let mut context = TaskContext::from_waker(parker.waker());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        std::thread::park();
    }
}
