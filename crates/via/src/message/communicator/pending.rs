//! The future of a request, and functions that wait for any, some or all of several requests.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Communicator, Received, Shared, lock};
use crate::message::engine::Target;
use crate::message::process::MessageError;
use crate::message::request::{Failure, Outcome, Request};

/// The future of a request's message. A send's message has no bytes.
///
/// # Panics
/// If polled again after it was ready.
///
/// # Cancel safety
/// If dropped, a send continues. A receive is withdrawn; a message that it has matched returns to its place in
/// the queue, unless it was truncated.
#[must_use = "a dropped receive receives nothing"]
pub struct Pending {
    communicator: Communicator,
    request: Option<Request>,
    place: Option<usize>,
    undo: bool,
    /// True if the owner may keep this future without polling it.
    kept: bool,
    /// The count of moves when this future last yielded. If it is unchanged, the next poll waits.
    seen: Option<u32>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Pending {
    pub(super) const fn new(communicator: Communicator, request: Request, undo: bool) -> Self {
        Self { communicator, request: Some(request), place: None, undo, kept: false, seen: None }
    }

    /// Declares that the owner may keep this future without polling it, as a stream does between two messages. Other
    /// waiters then do not depend on it: if it was polled last, every arrival wakes all of them.
    #[must_use = "a dropped receive receives nothing"]
    #[doc(hidden)]
    pub fn kept(mut self) -> Self {
        self.kept = true;
        if self.place.is_some() {
            self.communicator.lock().waiters.leave(&mut self.place);
        }
        self
    }

    /// Returns the request, as [`Process`](crate::message::process::Process) names it; `None` once the outcome
    /// was taken.
    #[must_use]
    #[doc(hidden)]
    pub const fn request(&self) -> Option<Request> {
        self.request
    }

    /// Advances requests, then takes the outcome, if the request is done.
    pub fn test(&mut self) -> Option<Result<Received, MessageError>> {
        let request = self.request?;
        let owner = Arc::clone(&self.communicator.shared);
        let mut shared = lock(&owner);
        shared.poll_once(&mut Target::default());
        let outcome = self.take(&mut shared, request)?;
        drop(shared);
        Some(self.result(outcome))
    }

    /// Returns whether the request is done; the outcome is not taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let Some(request) = self.request else { return true };
        self.communicator.with(|process| process.status(request).is_some())
    }

    /// Requests cancellation. Await the future all the same: it ends with [`Failure::Cancelled`], or normally
    /// if the request could no longer be cancelled.
    pub fn cancel(&self) {
        if let Some(request) = self.request {
            self.communicator.with(|process| process.cancel(request));
        }
    }

    /// Discards the outcome; a request in progress continues (`MPI_Request_free`).
    pub fn free(mut self) {
        if let Some(request) = self.request.take() {
            self.communicator.with(|process| process.free(request));
        }
    }

    /// Waits for the outcome. Returns bytes even if the receive failed: the beginning of a message that was too long.
    ///
    /// # Cancel safety
    /// The same as for [`Pending`].
    pub async fn outcome(mut self) -> (Received, Result<(), Failure>) {
        let outcome = poll_fn(|context| self.poll_outcome(context, None)).await;
        let result = outcome.result.map_err(|failure| self.communicator.noted(failure));
        (self.communicator.received(outcome), result)
    }

    /// Waits for the outcome.
    pub(super) async fn finished(mut self) -> Outcome {
        poll_fn(|context| self.poll_outcome(context, None)).await
    }

    /// Takes the outcome; bytes that are not in `memory` yet are copied there first.
    fn take_into(
        &mut self,
        shared: &mut Shared,
        request: Request,
        memory: Option<&mut [u8]>,
    ) -> Option<Outcome> {
        if let Some(memory) = memory {
            shared.process.engine_mut().requests().deliver_rest(request, memory);
        }
        self.take(shared, request)
    }

    fn take(&mut self, shared: &mut Shared, request: Request) -> Option<Outcome> {
        let outcome = shared.process.take(request)?;
        self.request = None;
        shared.waiters.leave(&mut self.place);
        Some(outcome)
    }

    fn poll_outcome(&mut self, context: &Context<'_>, memory: Option<&mut [u8]>) -> Poll<Outcome> {
        let mut again = false;
        let polled = self.poll_locked(context, memory, &mut again);
        if again {
            context.waker().wake_by_ref();
        }
        polled
    }

    /// Takes the outcome, or registers the waker; sets `again` if the task must be polled again at once.
    fn poll_locked(
        &mut self,
        context: &Context<'_>,
        mut memory: Option<&mut [u8]>,
        again: &mut bool,
    ) -> Poll<Outcome> {
        let request = self.request.expect("polled after it was ready");
        let owner = Arc::clone(&self.communicator.shared);
        let mut shared = lock(&owner);
        if let Some(outcome) = self.take_into(&mut shared, request, memory.as_deref_mut()) {
            return Poll::Ready(outcome);
        }
        shared.process.engine_mut().requests().wake_when_done(request, context.waker());
        if shared.must_yield() {
            *again = true;
            return Poll::Pending;
        }
        // Waiting may busy-poll and so block the thread's other tasks: yield to them first.
        let waits = self.seen == Some(shared.moves());
        let mut target = Target::new(request, memory.as_deref_mut());
        if waits {
            shared.drive(context.waker(), &mut self.place, self.kept, &mut target);
        } else {
            shared.poll_once(&mut target);
        }
        if let Some(outcome) = self.take_into(&mut shared, request, memory) {
            shared.turns += 1;
            return Poll::Ready(outcome);
        }
        if waits {
            shared.turns = 0;
        } else {
            self.seen = Some(shared.moves());
            *again = true;
        }
        Poll::Pending
    }

    fn result(&self, outcome: Outcome) -> Result<Received, MessageError> {
        outcome.result.map_err(|failure| self.communicator.noted(failure))?;
        Ok(self.communicator.received(outcome))
    }
}

impl Future for Pending {
    type Output = Result<Received, MessageError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(self.poll_outcome(context, None));
        Poll::Ready(self.result(outcome))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.request.is_none() && self.place.is_none() {
            return;
        }
        let mut shared = self.communicator.lock();
        if let Some(request) = self.request.take() {
            shared.process.engine_mut().destroy(request, self.undo);
        }
        shared.waiters.leave(&mut self.place);
        shared.wake_probes();
    }
}

/// A receive whose message is written to the caller's memory while that is borrowed.
pub(in crate::message) struct ReceiveInto<'a> {
    pub(in crate::message) pending: Pending,
    pub(in crate::message) memory: &'a mut [u8],
}

impl Future for ReceiveInto<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Self { pending, memory } = &mut *self;
        pending.poll_outcome(context, Some(memory))
    }
}

impl Drop for ReceiveInto<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.pending.request {
            let Self { pending, memory } = self;
            pending.communicator.with(|process| process.engine_mut().take_back(request, memory));
        }
    }
}

/// Futures that are polled together. On drop, they leave the waiting tasks, because they may be kept unpolled.
struct Together<'a>(&'a mut [Pending]);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        // The leader leaves last, so that it wakes another task.
        for is_last in [false, true] {
            for one in self.0.iter_mut().filter(|one| one.place.is_some()) {
                let mut shared = one.communicator.lock();
                if is_last || !shared.waiters.is_leader(one.place) {
                    shared.waiters.leave(&mut one.place);
                }
            }
        }
    }
}

/// Waits for any of several requests; returns its index and its result. Skips those whose outcome was taken;
/// returns `None` if all were.
///
/// # Cancel safety
/// If dropped, no outcome was taken.
pub async fn wait_any(pending: &mut [Pending]) -> Option<(usize, Result<Received, MessageError>)> {
    let together = Together(pending);
    poll_fn(|context| {
        let mut idle = true;
        for (index, one) in together.0.iter_mut().enumerate() {
            if one.request.is_none() {
                continue;
            }
            idle = false;
            if let Poll::Ready(result) = Pin::new(one).poll(context) {
                return Poll::Ready(Some((index, result)));
            }
        }
        if idle { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Waits for at least one of several requests, and takes all that are done; empty if all were taken before.
///
/// # Cancel safety
/// If dropped, no outcome was taken.
pub async fn wait_some(pending: &mut [Pending]) -> Vec<(usize, Result<Received, MessageError>)> {
    let Some(first) = wait_any(pending).await else { return Vec::new() };
    let mut done = vec![first];
    let mut idle = Context::from_waker(Waker::noop());
    for (index, one) in pending.iter_mut().enumerate() {
        if one.request.is_none() || !one.is_done() {
            continue;
        }
        if let Poll::Ready(result) = Pin::new(one).poll(&mut idle) {
            done.push((index, result));
        }
    }
    done.sort_by_key(|(index, _)| *index);
    done
}

/// Waits for all of several requests, in their order.
///
/// # Cancel safety
/// If dropped, all of them are dropped.
pub async fn wait_all(
    pending: impl IntoIterator<Item = Pending>,
) -> Vec<Result<Received, MessageError>> {
    let mut results = Vec::new();
    for one in pending {
        results.push(one.await);
    }
    results
}
