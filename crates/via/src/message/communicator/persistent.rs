//! Requests that are built once and started repeatedly.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::probing::Registration;
use super::{Communicator, Received, lock};
use crate::message::engine::Target;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Failure, Load, Mode, Request, State};

/// A send or a receive that can be started repeatedly. If dropped while in progress, it ends as a
/// [`Pending`](super::Pending) does.
#[derive(Debug)]
pub struct Persistent {
    communicator: Communicator,
    request: Request,
    undo: bool,
}

impl Communicator {
    /// Builds a send that can be started repeatedly.
    ///
    /// # Errors
    /// Those of [`Process::send_init`](crate::message::process::Process::send_init).
    pub fn send_init(&self, mode: Mode, to: Rank, tag: Tag) -> Result<Persistent, MessageError> {
        let request = self.with(|process| process.send_init(&self.scope, mode, to, tag))?;
        Ok(Persistent { communicator: self.clone(), request, undo: false })
    }

    /// Builds a receive that can be started repeatedly.
    ///
    /// # Errors
    /// Those of [`Process::receive_init`](crate::message::process::Process::receive_init).
    pub fn receive_init(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<Persistent, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let request = self.with(|process| process.receive_init(&self.scope, source, tag))?;
        Ok(Persistent { communicator: self.clone(), request, undo: true })
    }
}

impl Persistent {
    /// Starts the request: a send with its message, a receive with room.
    ///
    /// # Errors
    /// [`MessageError::Start`] while the request is in progress, or if its outcome was not taken.
    pub fn start(&mut self, load: Load<'_>) -> Result<(), MessageError> {
        self.communicator.with(|process| process.start(self.request, load))
    }

    /// Starts several requests, in this order.
    ///
    /// # Errors
    /// [`MessageError::Start`] for the first request that is in progress, or whose outcome was not taken; the requests
    /// before it were started.
    pub fn start_all<'a>(
        requests: impl IntoIterator<Item = (&'a mut Self, Load<'a>)>,
    ) -> Result<(), MessageError> {
        requests.into_iter().try_for_each(|(request, load)| request.start(load))
    }

    /// Returns whether the request was started and its outcome was not taken.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let state = self.communicator.with(|p| p.engine_mut().requests().state(self.request));
        !matches!(state, None | Some(State::Built))
    }

    /// Requests cancellation of the started operation. Wait for the outcome all the same.
    pub fn cancel(&self) {
        self.communicator.with(|process| process.cancel(self.request));
    }

    /// Waits for the outcome; `None` if the request was not started. It can then be started again.
    ///
    /// # Cancel safety
    /// If dropped, no outcome was taken.
    pub async fn wait(&mut self) -> Option<(Received, Result<(), Failure>)> {
        let mut registration = Registration::new(&self.communicator);
        poll_fn(|context| {
            let place = &mut registration.place;
            let owner = Arc::clone(&self.communicator.shared);
            let mut shared = lock(&owner);
            let state = shared.process.engine_mut().requests().state(self.request);
            if matches!(state, None | Some(State::Built)) {
                return Poll::Ready(None);
            }
            if shared.must_yield() {
                drop(shared);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            shared.process.engine_mut().requests().wake_when_done(self.request, context.waker());
            if state != Some(State::Done) {
                let target = &mut Target::new(self.request, None);
                shared.drive(context.waker(), place, false, target);
            }
            let Some(outcome) = shared.process.engine_mut().requests().take(self.request) else {
                shared.turns = 0;
                return Poll::Pending;
            };
            shared.turns += 1;
            shared.waiters.leave(place);
            drop(shared);
            let result = outcome.result.map_err(|failure| self.communicator.noted(failure));
            Poll::Ready(Some((self.communicator.received(outcome), result)))
        })
        .await
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        let mut shared = self.communicator.lock();
        shared.process.engine_mut().destroy(self.request, self.undo);
        shared.wake_probes();
    }
}
