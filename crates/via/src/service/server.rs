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
use super::messages::DEFAULT_MAX_MESSAGE;
use crate::message::communicator::{Communicator, Pending, Received};
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Failure, Load};
use crate::message::transport::Transport;

/// The tag of all requests.
pub(super) const REQUEST: Tag = Tag(0);

/// Default number of requests that a server handles at once: enough to keep a service busy that waits for other
/// services.
pub const DEFAULT_HANDLED: usize = 64;

/// Counts of what a server has done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Requests passed to the service.
    pub requests: u64,
    /// Messages that were skipped: they were no requests, or longer than the server accepts.
    pub malformed: u64,
}

/// Serves the clients of a communicator.
///
/// Handles up to [`depth`](Self::depth) requests at once; a request counts until its answer was sent. While
/// there are that many, or the service is not ready, further requests wait in this process's window for
/// unexpected messages, and beyond that with their clients.
#[derive(Debug)]
pub struct Server<P: Transport> {
    communicator: Communicator<P>,
    depth: usize,
    longest: usize,
}

impl<P: Transport> Server<P> {
    /// Makes a server over a communicator that nothing else in this process uses.
    #[must_use]
    pub const fn new(communicator: Communicator<P>) -> Self {
        Self { communicator, depth: DEFAULT_HANDLED, longest: DEFAULT_MAX_MESSAGE }
    }

    /// Sets how many requests are handled at once, at least 1. Default: [`DEFAULT_HANDLED`].
    #[must_use]
    pub fn depth(mut self, requests: usize) -> Self {
        self.depth = requests.max(1);
        self
    }

    /// Sets the most bytes of a request: a longer one counts as malformed and is not answered. With
    /// [`depth`](Self::depth), this bounds the memory that clients can make this process use. Default:
    /// [`DEFAULT_MAX_MESSAGE`].
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Serves until the service or the message layer fails.
    ///
    /// # Errors
    /// [`MessageError`] once the message layer is down. If the service's `poll_ready` fails, the server stops
    /// as if by `stop`; errors of its answers are sent to the clients.
    ///
    /// # Cancel safety
    /// If dropped, requests that are being handled are dropped and never answered; no other is taken.
    pub async fn serve<S>(self, service: S) -> Result<Counters, MessageError>
    where
        S: Service<Bytes, Response = Bytes, Error: Display>,
    {
        self.serve_until(service, pending()).await
    }

    /// Serves until `stop` is ready; requests that are being handled then are still answered.
    ///
    /// # Errors
    /// Those of [`serve`](Self::serve).
    ///
    /// # Cancel safety
    /// If dropped, requests that are being handled are dropped and never answered; no other is taken.
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
        let mut receiving = Receiving { communicator, depth, longest, receive: None };
        let mut handled = FuturesUnordered::new();
        while let Some(received) = poll_fn(|context| {
            stopped = stopped || stop.as_mut().poll(context).is_ready();
            receiving.poll_request(context, &mut service, Pin::new(&mut handled), stopped)
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

    /// Waits for an answer, then sends it.
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
        // A client that is gone needs no answer.
        let _ = self.communicator.send(to, tag, message).await;
    }
}

/// The receiving half of a server.
struct Receiving<'a, P: Transport> {
    communicator: &'a Communicator<P>,
    depth: usize,
    longest: usize,
    receive: Option<Pending<P>>,
}

impl<P: Transport> Receiving<'_, P> {
    /// Receives the next request once the service is ready; `None` once all is answered after a stop.
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
            // A message that it has matched returns to the queue.
            self.receive = None;
            return if handled.is_empty() { Poll::Ready(None) } else { Poll::Pending };
        }
        loop {
            match ready!(self.poll_receive(context)) {
                // One client was lost; the others may still send requests.
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
