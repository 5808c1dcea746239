//! Serves a `tower::Service` to the other processes of a communicator.

use std::fmt::Display;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use tower_service::Service;

use super::frame;
use super::lane::DEFAULT_MAX_MESSAGE;
use crate::message::communicator::{Communicator, Pending, Received};
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::progression::Progression;
use crate::message::request::{Failure, Load};

/// The tag of all requests.
pub(super) const REQUEST: Tag = Tag(0);

/// Requests that a server handles at once: enough to keep a service busy that waits for others.
pub const DEFAULT_HANDLED: usize = 64;

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Requests that were handed to the service.
    pub requests: u64,
    /// Messages that were no requests, or longer ones than the server takes, and were passed over.
    pub malformed: u64,
}

/// Serves whoever asks over a communicator.
///
/// Requests are handled at once, [`depth`](Self::depth) of them at most; a request counts until its
/// answer has left. While there are so many, and while the service is not ready, further ones stay
/// with those who ask, as far as they have no place in this process's window for unexpected messages.
#[derive(Debug)]
pub struct Server<P: Progression> {
    communicator: Communicator<P>,
    depth: usize,
    longest: usize,
}

impl<P: Progression> Server<P> {
    /// A server over a communicator that is its own in this process.
    #[must_use]
    pub const fn new(communicator: Communicator<P>) -> Self {
        Self { communicator, depth: DEFAULT_HANDLED, longest: DEFAULT_MAX_MESSAGE }
    }

    /// Requests that are handled at once, at least 1. Default: [`DEFAULT_HANDLED`].
    #[must_use]
    pub fn depth(mut self, requests: usize) -> Self {
        self.depth = requests.max(1);
        self
    }

    /// Most bytes of a request: a longer one is counted as malformed and not answered. With
    /// [`depth`](Self::depth) this bounds what clients can make this process keep. Default:
    /// [`DEFAULT_MAX_MESSAGE`].
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Serves until the service or the message layer fails.
    ///
    /// # Errors
    /// [`MessageError`] once the message layer is down. An error of the service's `poll_ready` ends
    /// it as if it had been told to stop; errors of its answers go to those who asked.
    ///
    /// # Cancel safety
    /// Dropped, requests that are being handled are dropped and never answered; no other is taken.
    pub async fn serve<S>(self, service: S) -> Result<Counters, MessageError>
    where
        S: Service<Bytes, Response = Bytes, Error: Display>,
    {
        self.serve_until(service, pending()).await
    }

    /// The same, until `stop` is ready; what is being handled then is answered.
    ///
    /// # Errors
    /// Those of [`serve`](Self::serve).
    ///
    /// # Cancel safety
    /// Dropped, requests that are being handled are dropped and never answered; no other is taken.
    pub async fn serve_until<S>(
        self,
        mut service: S,
        stop: impl Future<Output = ()>,
    ) -> Result<Counters, MessageError>
    where
        S: Service<Bytes, Response = Bytes, Error: Display>,
    {
        let mut stop = pin!(stop);
        let mut stopped = false;
        let mut counters = Counters::default();
        let Self { ref communicator, depth, longest } = self;
        let mut desk = Desk { communicator, depth, longest, receive: None };
        let mut handled = FuturesUnordered::new();
        while let Some(received) = poll_fn(|context| {
            stopped = stopped || stop.as_mut().poll(context).is_ready();
            desk.poll_request(context, &mut service, Pin::new(&mut handled), stopped)
        })
        .await
        {
            let from = match received {
                Err(MessageError::Failed(Failure::Truncated { .. })) => {
                    counters.malformed += 1;
                    continue;
                }
                received => received?,
            };
            let Ok((request, tag)) = frame::parse_request(from.bytes) else {
                counters.malformed += 1;
                continue;
            };
            counters.requests += 1;
            let answer = service.call(request);
            handled.push(self.handle(from.source, Tag(tag), answer));
        }
        Ok(counters)
    }

    /// Waits for an answer, and until it has left.
    async fn handle<E: Display>(
        &self,
        to: Rank,
        tag: Tag,
        answer: impl Future<Output = Result<Bytes, E>>,
    ) {
        let message = match answer.await {
            Ok(bytes) => frame::answer(Ok(&bytes)),
            Err(error) => frame::answer(Err(&error.to_string())),
        };
        // Whoever has asked and is gone needs no answer.
        let _ = self.communicator.send(to, tag, message).await;
    }
}

/// What a server waits with.
struct Desk<'a, P: Progression> {
    communicator: &'a Communicator<P>,
    depth: usize,
    longest: usize,
    receive: Option<Pending<P>>,
}

impl<P: Progression> Desk<'_, P> {
    /// The next request, once the service takes it; `None` when it is over.
    fn poll_request<S: Service<Bytes>>(
        &mut self,
        context: &mut Context<'_>,
        service: &mut S,
        mut handled: Pin<&mut FuturesUnordered<impl Future<Output = ()>>>,
        mut stopped: bool,
    ) -> Poll<Option<Result<Received, MessageError>>> {
        while let Poll::Ready(Some(())) = handled.as_mut().poll_next(context) {}
        if !stopped && handled.len() >= self.depth {
            return Poll::Pending;
        }
        if !stopped {
            stopped = ready!(service.poll_ready(context)).is_err();
        }
        if stopped {
            // What it has met goes back.
            self.receive = None;
            return if handled.is_empty() { Poll::Ready(None) } else { Poll::Pending };
        }
        loop {
            match ready!(self.poll_receive(context)) {
                // Whoever it was, the others go on asking.
                Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {}
                received => return Poll::Ready(Some(received)),
            }
        }
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Received, MessageError>> {
        let mut receive = match self.receive.take() {
            Some(receive) => receive,
            None => {
                let room = self.longest.saturating_add(frame::TAG_BYTES);
                let room = Load::Room { room, storage: Vec::new() };
                self.communicator.ireceive_into(None, REQUEST, room)?.kept()
            }
        };
        let received = Pin::new(&mut receive).poll(context);
        if received.is_pending() {
            self.receive = Some(receive);
        }
        received
    }
}
