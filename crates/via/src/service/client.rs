//! Requests to a server, as a `tower::Service`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use super::frame;
use super::messages::{DEFAULT_DEPTH, DEFAULT_MAX_MESSAGE};
use super::server::REQUEST;
use crate::message::communicator::{Communicator, Pending, Registration};
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Load, Mode};
use crate::message::transport::Transport;

/// Why a request got no answer.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum CallError {
    /// The message layer failed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The service returned an error; this is its text.
    #[error("the service failed: {0}")]
    Service(String),
    /// The request is longer than this client may send.
    #[error("a request has at most {most} bytes, not {length}: see `Client::max_message`")]
    TooLong {
        /// Bytes of the request.
        length: usize,
        /// Most bytes of a request.
        most: usize,
    },
    /// The received message is no answer.
    #[error("the received message is no answer of a server: something else uses its communicator")]
    Malformed,
}

type Turn = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Sends requests to one [`Server`](super::Server). Clones share one limit of requests under way, and each
/// reserves its own slot.
///
/// If [`depth`](Self::depth) requests are under way, `poll_ready` and [`reserve`](Self::reserve) wait. A
/// process may have one client, with its clones, on a communicator.
pub struct Client<P: Transport> {
    communicator: Communicator<P>,
    server: Rank,
    room: Arc<Semaphore>,
    longest: usize,
    next: Arc<AtomicU32>,
    permit: Option<OwnedSemaphorePermit>,
    turn: Option<Turn>,
    /// Registered while it waits for a slot: it then receives the answers to calls that were dropped.
    place: Option<Registration<P>>,
}

impl<P: Transport> Clone for Client<P> {
    fn clone(&self) -> Self {
        Self {
            communicator: self.communicator.clone(),
            server: self.server,
            room: Arc::clone(&self.room),
            longest: self.longest,
            next: Arc::clone(&self.next),
            permit: None,
            turn: None,
            place: None,
        }
    }
}

impl<P: Transport> fmt::Debug for Client<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = self.room.available_permits();
        f.debug_struct("Client").field("server", &self.server).field("room", &room).finish()
    }
}

impl<P: Transport> Client<P> {
    /// Makes a client of the server at rank `server`, over the communicator that both use for nothing else.
    #[must_use]
    pub fn new(communicator: Communicator<P>, server: Rank) -> Self {
        let room = Arc::new(Semaphore::new(DEFAULT_DEPTH));
        let (longest, next) = (DEFAULT_MAX_MESSAGE, Arc::default());
        Self { communicator, server, room, longest, next, permit: None, turn: None, place: None }
    }

    /// Sets how many requests may be under way, at least 1; also for clones made later. Default:
    /// [`DEFAULT_DEPTH`].
    #[must_use]
    pub fn depth(mut self, requests: usize) -> Self {
        self.room = Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// Sets the most bytes of a request and of an answer: a longer one is an error. With
    /// [`depth`](Self::depth), this bounds the memory that a server can make this process use. Default:
    /// [`DEFAULT_MAX_MESSAGE`].
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Returns how many requests could start now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room.available_permits()
    }

    /// Waits until a request may start, and reserves its slot for the next [`call`](Service::call).
    ///
    /// # Cancel safety
    /// If dropped, no slot was reserved; this client keeps its place in the queue.
    pub async fn reserve(&mut self) {
        std::future::poll_fn(|context| self.poll_reserve(context)).await;
    }

    fn poll_reserve(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.permit.is_some() {
            return Poll::Ready(());
        }
        if self.turn.is_none()
            && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
        {
            self.permit = Some(permit);
            return Poll::Ready(());
        }
        let room = &self.room;
        let turn = self.turn.get_or_insert_with(|| Box::pin(Arc::clone(room).acquire_owned()));
        let Poll::Ready(permit) = turn.as_mut().poll(context) else {
            let place = self.place.get_or_insert_with(|| Registration::new(&self.communicator));
            place.drive(context.waker());
            return Poll::Pending;
        };
        let permit = permit.expect("the semaphore is never closed");
        (self.turn, self.place) = (None, None);
        self.permit = Some(permit);
        Poll::Ready(())
    }
}

impl<P: Transport> Service<Bytes> for Client<P> {
    type Response = Bytes;
    type Error = CallError;
    type Future = Call<P>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.poll_reserve(context).map(Ok)
    }

    /// Sends a request.
    ///
    /// # Panics
    /// If the client was not ready.
    fn call(&mut self, request: Bytes) -> Call<P> {
        let permit = self.permit.take().expect("call follows poll_ready");
        // The high bit keeps them apart from the tag of requests; they repeat after 2^31 requests.
        let tag = self.next.fetch_add(1, Ordering::Relaxed) & 0x7FFF_FFFF | 0x8000_0000;
        let started = self.start(&request, tag);
        Call { state: Some(started.unwrap_or_else(State::Failed)), permit: Some(permit) }
    }
}

impl<P: Transport> Client<P> {
    fn start(&self, request: &[u8], tag: u32) -> Result<State<P>, CallError> {
        let (length, most) = (request.len(), self.longest);
        if length > most {
            return Err(CallError::TooLong { length, most });
        }
        let (all, message) = (&self.communicator, frame::request(request, tag));
        let room = Load::Room { room: most.saturating_add(1), storage: Vec::new() };
        let answer = all.ireceive_into(self.server, Tag(tag), room)?;
        let sent = all.isend(Mode::Standard, self.server, REQUEST, message)?;
        Ok(State::Asked { sent: Some(sent), answer })
    }
}

#[derive(Debug)]
enum State<P: Transport> {
    Failed(CallError),
    Asked { sent: Option<Pending<P>>, answer: Pending<P> },
}

/// The future of an answer.
///
/// # Panics
/// If polled again after it was ready.
///
/// # Cancel safety
/// If dropped, the request may still be handled. Its slot is free once the request was sent and the answer has
/// arrived, which is discarded. So a server that does not answer occupies no more of this process than the
/// client's [`depth`](Client::depth). Any waiting client of the process receives such answers.
#[derive(Debug)]
#[must_use = "the answer is returned only when awaited"]
pub struct Call<P: Transport> {
    state: Option<State<P>>,
    /// `Some` until it is dropped.
    permit: Option<OwnedSemaphorePermit>,
}

impl<P: Transport> Call<P> {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, CallError>> {
        let (sent, answer) = match self.state.as_mut().expect("polled after it was ready") {
            State::Failed(error) => return Poll::Ready(Err(error.clone())),
            State::Asked { sent, answer } => (sent, answer),
        };
        if let Some(sending) = sent
            && let Poll::Ready(done) = Pin::new(sending).poll(context)
        {
            *sent = None;
            done?;
        }
        let received = ready!(Pin::new(answer).poll(context))?;
        Poll::Ready(match frame::parse_answer(received.bytes) {
            Ok(answer) => answer.map_err(CallError::Service),
            Err(frame::Malformed) => Err(CallError::Malformed),
        })
    }
}

impl<P: Transport> Future for Call<P> {
    type Output = Result<Bytes, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let answer = ready!(this.poll_answer(context));
        // The answer was taken, or will never arrive.
        this.state = None;
        Poll::Ready(answer)
    }
}

impl<P: Transport> Drop for Call<P> {
    fn drop(&mut self) {
        if let Some(State::Asked { sent, answer }) = self.state.take() {
            let permit = Arc::new(self.permit.take());
            if let Some(sent) = sent {
                sent.free_with(Arc::clone(&permit) as _);
            }
            // The receive stays posted, so that the answer has a receive to match.
            answer.free_with(permit);
        }
    }
}
