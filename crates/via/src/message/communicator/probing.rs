//! Probes: they find messages before these are received, and can reserve a message for one receive.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use super::{Communicator, Pending, Received, Shared, lock};
use crate::message::engine::Target;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::{MessageError, Process};
use crate::message::request::{Failure, Load, Request};
use crate::message::transport::{Claim, Probe, Wait};

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Probed {
    /// The sender's rank.
    pub source: Rank,
    /// The message's tag.
    pub tag: Tag,
    /// The message's length in bytes.
    pub length: usize,
}

/// A message that a matched probe took out of the queue: no other receive can match it. If dropped, the message
/// returns to its place in the queue.
#[derive(Debug)]
pub struct Message {
    communicator: Communicator,
    request: Option<Request>,
    probed: Probed,
}

impl Message {
    /// Returns the message's source, tag and length.
    #[must_use]
    pub const fn probed(&self) -> Probed {
        self.probed
    }

    /// Starts to receive the message into `room` (`MPI_Imrecv`).
    ///
    /// # Errors
    /// [`MessageError::Start`] if the sender exited before the message's bytes arrived.
    pub fn ireceive(mut self, room: Load<'_>) -> Result<Pending, MessageError> {
        let request = self.request.take().expect("the request is taken only here");
        self.communicator.with(|process| process.start_or_free(request, room))?;
        Ok(Pending::new(self.communicator.clone(), request, true))
    }

    /// Receives the message (`MPI_Mrecv`).
    ///
    /// # Errors
    /// Those of [`ireceive`](Self::ireceive), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// If dropped, the message returns to its place in the queue.
    pub async fn receive(self) -> Result<Received, MessageError> {
        self.ireceive(Load::anything())?.await
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.communicator.with(|process| process.free(request));
        }
    }
}

impl Communicator {
    /// Returns the first message that matches, if one has arrived; it stays in the queue.
    ///
    /// # Errors
    /// Those of [`Process::iprobe`].
    pub fn iprobe(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Option<Probed>, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let found = self.with(|p| p.iprobe(&self.scope, source, tag, Claim::Leave));
        Ok(self.noted_result(found)?.map(|probe| self.probed(probe)))
    }

    /// Takes a message out of the queue, if one is there (`MPI_Improbe`).
    ///
    /// # Errors
    /// Those of [`Process::iprobe`].
    pub fn improbe(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Option<Message>, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let found = self.with(|p| p.iprobe(&self.scope, source, tag, Claim::Take));
        Ok(self.noted_result(found)?.map(|probe| self.message(probe)))
    }

    /// Waits until a matching message has arrived; it stays in the queue.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, it has had no effect.
    pub async fn probe(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Probed, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let found = self.search(source, tag, Claim::Leave).await?;
        Ok(self.probed(found))
    }

    /// Waits for a message and takes it out of the queue (`MPI_Mprobe`).
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, no message was taken.
    pub async fn mprobe(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Message, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let found = self.search(source, tag, Claim::Take).await?;
        Ok(self.message(found))
    }

    async fn search(
        &self,
        source: Option<Rank>,
        tag: Option<Tag>,
        claim: Claim,
    ) -> Result<Probe, MessageError> {
        let losses = self.losses();
        let ask =
            |p: &mut Process| p.probe_now(&self.scope, source, tag, claim, losses).transpose();
        self.noted_result(self.watch(ask).await)
    }

    fn noted_result<T>(&self, result: Result<T, MessageError>) -> Result<T, MessageError> {
        result.inspect_err(|error| {
            if let MessageError::Failed(failure) = error {
                self.noted(*failure);
            }
        })
    }

    /// Calls `ask` until it returns a value: at once, then whenever a message has arrived or a request has progressed.
    pub(super) async fn watch<T>(&self, ask: impl Fn(&mut Process) -> Option<T>) -> T {
        let mut place = Registration::new(self);
        poll_fn(|context| {
            let mut shared = self.lock();
            if shared.must_yield() {
                drop(shared);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            shared.process.engine_mut().advance(Wait::Not);
            let mut answer = ask(&mut shared.process);
            if answer.is_none() {
                shared.drive(context.waker(), &mut place.place, false, &mut Target::default());
                shared.waiters.probes(place.place.expect("drive registers a waiter"));
                answer = ask(&mut shared.process);
            }
            shared.wake_probes();
            shared.turns = if answer.is_some() { shared.turns + 1 } else { 0 };
            answer.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Calls `poll` until it is ready, and advances messages meanwhile. `poll` waits for something other than messages.
    /// If `ends_if_revoked`, fails once the communicator is revoked. The task is then also woken whenever a message has
    /// arrived or a request has progressed.
    pub(in crate::message) async fn meanwhile<T>(
        &self,
        ends_if_revoked: bool,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, MessageError>>,
    ) -> Result<T, MessageError> {
        let own = self.scope.collective();
        let mut place = Registration::new(self);
        let ended = poll_fn(|context| {
            let answer = poll(context);
            if answer.is_ready() {
                return answer;
            }
            let mut shared = self.lock();
            shared.drive(context.waker(), &mut place.place, false, &mut Target::default());
            if ends_if_revoked {
                shared.waiters.probes(place.place.expect("drive registers a waiter"));
                // Under the same lock as the registration, so that no revocation is missed.
                if shared.process.engine().is_revoked(own) {
                    return Poll::Ready(Err(Failure::Revoked.into()));
                }
            }
            Poll::Pending
        })
        .await;
        self.noted_result(ended)
    }

    fn probed(&self, probe: Probe) -> Probed {
        let Probe { key, length, .. } = probe;
        Probed { source: self.scope.rank_of(key.source), tag: key.tag, length }
    }

    fn message(&self, probe: Probe) -> Message {
        Message { communicator: self.clone(), request: probe.claimed, probed: self.probed(probe) }
    }
}

/// A place among the process's waiters, released on drop.
#[derive(Debug)]
pub(super) struct Registration {
    shared: Arc<Mutex<Shared>>,
    pub(super) place: Option<usize>,
}

impl Registration {
    pub(super) fn new(communicator: &Communicator) -> Self {
        Self { shared: Arc::clone(&communicator.shared), place: None }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.place.is_some() {
            lock(&self.shared).waiters.leave(&mut self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use super::*;
    use crate::message::engine::{Config, Engine};
    use crate::message::memory::{MemoryConfig, network};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn world() -> Communicator {
        let carrier = network(1, MemoryConfig::default()).remove(0);
        Communicator::world(Engine::new(carrier, Config::default()), 1).unwrap()
    }

    /// Handles a revocation as another thread may: after the operation was polled, before its task is registered.
    #[test]
    fn a_revocation_during_an_operations_first_poll_ends_it() {
        let world = world();
        let operation = world.meanwhile::<()>(true, |_| {
            world.revoke();
            Poll::Pending
        });
        let ended = pin!(operation).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ended, Poll::Ready(Err(MessageError::Failed(Failure::Revoked))));
    }

    #[test]
    fn messages_wake_only_operations_that_a_revocation_ends() {
        for ends_if_revoked in [false, true] {
            let world = world();
            let wakes = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let mut operation = pin!(world.meanwhile::<()>(ends_if_revoked, |_| Poll::Pending));
            assert!(operation.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            // The task that the carrier wakes.
            let mut leader = pin!(world.meanwhile::<()>(false, |_| Poll::Pending));
            assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            wakes.0.store(0, Ordering::Relaxed);
            world.with(|process| process.engine_mut().requests().note_move());
            assert_eq!(wakes.0.load(Ordering::Relaxed) > 0, ends_if_revoked);
        }
    }
}
