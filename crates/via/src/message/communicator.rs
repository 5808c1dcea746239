//! Messages as futures, for tasks of any runtime: ranks, modes, probes, persistent requests.
//!
//! The tasks of a process share its [`Process`] behind a lock. A poll of any task advances all requests; the carrier
//! always holds the waker of one waiting task. Nothing is spawned and no clock is read, so the same code runs on
//! tokio, in virtual time, or on a thread that [blocks](Communicator::block_on).

mod making;
mod members;
mod pending;
mod persistent;
mod probing;
mod recovery;
mod registered;
mod waiters;

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;

use super::bell::Deferred;
use super::collective::Nics;
use super::engine::Engine;
use super::envelope::Tag;
use super::explain::Explanation;
use super::group::{CommHandle, Rank};
use super::process::{MessageError, Parker, Process};
use super::request::{Failure, Load, Mode, Outcome, Request};
use super::transport::{InitError, StartError};
use waiters::Waiters;

pub(super) use pending::ReceiveInto;
pub use pending::{Pending, wait_all, wait_any, wait_some};
pub use persistent::Persistent;
pub use probing::{Message, Probed};

/// A message that was received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Received {
    /// The sender's rank; [`Rank::NULL`] for a receive from that rank.
    pub source: Rank,
    /// The message's tag.
    pub tag: Tag,
    /// The message's bytes.
    pub bytes: Vec<u8>,
}

/// The state that all communicators of a process share.
#[derive(Debug)]
struct Shared {
    process: Process,
    waiters: Waiters,
    /// Number of consecutive requests and probes that completed within their own poll.
    turns: u32,
    /// The NICs' collective operations, if a communicator uses them.
    nics: Weak<Nics>,
}

/// The locked shared state. Wakes and drops of wakers are deferred until after the unlock. If packets wait of which the
/// carrier wakes no task, the unlock wakes the leader.
struct Locked<'a> {
    /// `Some` until this is dropped.
    shared: Option<MutexGuard<'a, Shared>>,
}

impl Deref for Locked<'_> {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        self.shared.as_ref().expect("the guard is taken only on drop")
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shared {
        self.shared.as_mut().expect("the guard is taken only on drop")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut shared) = self.shared.take() else { return };
        if shared.process.engine_mut().take_unattended() {
            shared.waiters.wake_leader();
        }
        let rung = shared.waiters.bell().release().then(|| Arc::clone(shared.waiters.bell()));
        let of_waiters = shared.waiters.deferred.take();
        let of_requests = shared.process.engine_mut().requests().deferred.take();
        drop(shared);
        [of_waiters, of_requests].into_iter().flatten().for_each(Deferred::run);
        if let Some(bell) = rung {
            bell.ring();
        }
    }
}

/// A group of processes whose messages no other communicator sees. Clones share one communicator.
///
/// # Cancel safety
/// If a send's future is dropped before its first poll, nothing is sent; if it is dropped later, the message is
/// still sent. A dropped receive has received nothing: a message that it had matched returns to its place in
/// the queue, unless it was truncated.
pub struct Communicator {
    shared: Arc<Mutex<Shared>>,
    scope: CommHandle,
    /// Number of the next collective operation.
    pub(super) turn: Arc<AtomicU32>,
    pub(super) abandoned: Arc<AtomicBool>,
    /// Number of the next agreement.
    recoveries: Arc<AtomicU32>,
    /// True once this process has notified the others that the communicator is revoked.
    revoked: Arc<AtomicBool>,
    /// Number of process losses when this communicator was made. A collective operation that needs a process lost
    /// later fails.
    losses: u32,
    /// The NICs that carry out collective operations; `None` if the hosts do.
    pub(super) nics: Option<Arc<Nics>>,
}

impl Clone for Communicator {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            scope: self.scope.clone(),
            turn: Arc::clone(&self.turn),
            abandoned: Arc::clone(&self.abandoned),
            recoveries: Arc::clone(&self.recoveries),
            revoked: Arc::clone(&self.revoked),
            losses: self.losses,
            nics: self.nics.clone(),
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Makes the communicator of all `processes`, which are numbered from 0.
    ///
    /// # Errors
    /// [`InitError::Unknown`] if the engine's carrier does not reach one of them.
    pub fn world(engine: Engine, processes: u32) -> Result<Self, InitError> {
        let (process, scope) = Process::new(engine, processes)?;
        let (waiters, nics) = (Waiters::default(), Weak::new());
        let shared = Shared { process, waiters, turns: 0, nics };
        Ok(Self::of(Arc::new(Mutex::new(shared)), scope, 0))
    }

    fn of(shared: Arc<Mutex<Shared>>, scope: CommHandle, losses: u32) -> Self {
        let (turn, abandoned) = (Arc::default(), Arc::default());
        let (recoveries, revoked) = (Arc::default(), Arc::default());
        Self { shared, scope, turn, abandoned, recoveries, revoked, losses, nics: None }
    }

    /// Promises that no process receives or probes on this communicator with a wildcard tag (MPI's
    /// `mpi_assert_no_any_tag`). Call it before anything is sent. Messages of different tags are then
    /// unordered, and each tag has its own limit in the receiver's window.
    pub fn assert_no_any_tag(&self) {
        let context = self.scope.context();
        self.with(|process| process.engine_mut().assert_no_any_tag(context));
    }

    /// Makes another communicator of this process, with the same count of losses: its members were members of this one.
    pub(super) fn sibling(&self, scope: CommHandle) -> Self {
        Self::of(Arc::clone(&self.shared), scope, self.losses)
    }

    /// Returns this communicator, with collective operations carried out by the NICs.
    pub(super) fn with_nics(self, nics: Nics) -> Self {
        let nics = Arc::new(nics);
        self.lock().nics = Arc::downgrade(&nics);
        Self { nics: Some(nics), ..self }
    }

    /// Returns this process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.scope.rank()
    }

    /// Returns the number of processes in the group.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.scope.size()
    }

    /// Returns the group and its contexts.
    #[must_use]
    #[doc(hidden)]
    pub const fn handle(&self) -> &CommHandle {
        &self.scope
    }

    fn lock(&self) -> Locked<'_> {
        lock(&self.shared)
    }

    /// Runs `work` on the process behind this communicator; other tasks wait for the lock meanwhile.
    #[doc(hidden)]
    pub fn with<T>(&self, work: impl FnOnce(&mut Process) -> T) -> T {
        let mut shared = self.lock();
        let result = work(&mut shared.process);
        shared.wake_probes();
        result
    }

    /// Starts a send in the given mode.
    ///
    /// # Errors
    /// Those of [`Process::isend`].
    pub fn isend(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<Pending, MessageError> {
        self.isend_load(mode, to, tag, Load::Bytes(bytes.into()))
    }

    fn isend_load(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        load: Load<'_>,
    ) -> Result<Pending, MessageError> {
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
    ) -> Result<Pending, MessageError> {
        self.ireceive_into(source, tag, Load::anything())
    }

    /// Starts a receive into `room`.
    ///
    /// # Errors
    /// Those of [`Process::ireceive`].
    pub fn ireceive_into(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
        room: Load<'_>,
    ) -> Result<Pending, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let request = self.with(|process| process.ireceive(&self.scope, source, tag, room))?;
        Ok(Pending::new(self.clone(), request, true))
    }

    /// Sends `bytes` in standard mode.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent.
    pub async fn send(
        &self,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<(), MessageError> {
        self.send_as(Mode::Standard, to, tag, bytes).await
    }

    /// Sends `bytes` in the given mode.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent.
    pub async fn send_as(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: impl Into<Bytes>,
    ) -> Result<(), MessageError> {
        self.send_load(mode, to, tag, Load::Bytes(bytes.into())).await
    }

    pub(super) async fn send_load(
        &self,
        mode: Mode,
        to: Rank,
        tag: Tag,
        load: Load<'_>,
    ) -> Result<(), MessageError> {
        let bytes = match &load {
            Load::Copy(bytes) => bytes,
            Load::Bytes(bytes) => &bytes[..],
            Load::Memory(_) | Load::Room { .. } => return Err(StartError::WrongLoad.into()),
        };
        let sent = self.with(|process| process.send_now(&self.scope, mode, to, tag, bytes));
        match sent {
            Some(outcome) => Ok(outcome.result?),
            None => self.isend_load(mode, to, tag, load)?.await.map(drop),
        }
    }

    /// Receives a message of any length; `None` is a wildcard.
    ///
    /// # Errors
    /// Those of [`ireceive`](Self::ireceive), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue.
    pub async fn receive(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Received, MessageError> {
        self.ireceive(source, tag)?.await
    }

    /// Sends and receives at once, as when all processes shift data along a ring (`MPI_Sendrecv`).
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive). A failed send is reported once the receive has ended;
    /// the received message is then lost.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the receive is withdrawn; the message to send is still sent.
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

    /// Sends `buffer` and receives into it (`MPI_Sendrecv_replace`). A message longer than `buffer` is an
    /// error: `buffer` then holds its beginning. If the other process exits without sending, that is an error
    /// too: `buffer` then holds what was sent.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive). If only the send fails, `buffer` holds the
    /// received message.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the receive is withdrawn, the message to send is still sent, and
    /// `buffer` is unchanged.
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
        buffer[..received.bytes.len()].copy_from_slice(&received.bytes);
        send.await?;
        result.map(|()| received).map_err(MessageError::from)
    }

    /// Adds `bytes` to the buffer for buffered sends; see [`Process::attach`].
    pub fn attach(&self, bytes: usize) {
        self.with(|process| process.attach(bytes));
    }

    /// Waits until no send uses the attached buffer, detaches it, and returns its size in bytes.
    ///
    /// # Cancel safety
    /// If dropped, nothing was detached.
    pub async fn detach(&self) -> usize {
        self.watch(|process| process.detach()).await
    }

    /// Reports what each request of the process waits for.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.lock().process.explain()
    }

    /// Runs a future on this thread: busy-polls for a while, then parks until it is woken.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(future)
    }

    /// Shuts the engine down once every message of this process has left. All communicators of the process
    /// are then closed. Call it when no process will send to this one any more, as after a
    /// [`barrier`](Self::barrier). A message over a stream has left once the stream has taken it: before the process exits,
    /// wait for what moves the stream's bytes, such as a node's shutdown.
    ///
    /// # Cancel safety
    /// If dropped, the next call continues the shutdown.
    pub async fn finalize(&self) {
        self.watch(|process| match process.engine_mut().finalize() {
            Poll::Ready(()) => Some(()),
            Poll::Pending => None,
        })
        .await;
        let nics = self.lock().nics.upgrade();
        if let Some(nics) = nics {
            nics.close();
        }
    }

    /// Wraps a request that was built in any context of this communicator.
    pub(super) fn adopt(&self, request: Request, receive: bool) -> Pending {
        Pending::new(self.clone(), request, receive)
    }

    /// Revokes the communicator at all processes, if an operation failed because a process has revoked it. The caller
    /// holds no lock.
    pub(super) fn noted(&self, failure: Failure) -> Failure {
        if failure == Failure::Revoked {
            self.revoke();
        }
        failure
    }

    fn received(&self, outcome: Outcome) -> Received {
        let Outcome { status, bytes, .. } = outcome;
        Received { source: self.scope.rank_of(status.source), tag: status.tag, bytes }
    }
}

/// Locks the shared state. A panic in a caller's closure ([`Communicator::with`]) happens between two calls of
/// the process, so the state is consistent and poisoning is ignored.
fn lock(shared: &Mutex<Shared>) -> Locked<'_> {
    let shared = midplane_simhw::lock::lock(shared);
    shared.waiters.bell().hold();
    Locked { shared: Some(shared) }
}

/// Runs a future on this thread: busy-polls for a while, then parks until it is woken.
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
