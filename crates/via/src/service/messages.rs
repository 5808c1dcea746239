//! Messages in one direction between two processes: a `Sink` at the sender, a `Stream` at the receiver.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use thiserror::Error;

use super::frame;
use crate::message::communicator::{Communicator, Pending};
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Load, Mode};
use crate::message::transport::Transport;

/// Default number of a sender's messages that may be under way: some 4 KiB of short ones, or 128 KiB of the
/// longest eager ones.
pub const DEFAULT_DEPTH: usize = 16;

/// Default limit of a received message: 16 MiB.
pub const DEFAULT_MAX_MESSAGE: usize = 16 << 20;

/// Why a message was not sent or received.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The message layer failed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// This end was closed.
    #[error("this end is closed: nothing more can be sent")]
    Closed,
    /// The received message is none of a [`Sender`]: something else uses its tag.
    #[error("the received message was not sent by a `Sender`: something else uses its tag")]
    Malformed,
}

/// Sends messages to one process, under one tag: a `Sink` of [`Bytes`].
///
/// At most [`depth`](Self::depth) messages are under way: accepted here, and neither received nor stored in the
/// receiver's window for unexpected messages. When it is dropped, the receiver's stream ends behind everything
/// that was sent.
///
/// # Cancel safety
/// If [`reserve`](Self::reserve), [`flush`](Self::flush) or [`close`](Self::close) is dropped, no message is
/// lost. Messages that were accepted are still sent.
#[derive(Debug)]
pub struct Sender<P: Transport> {
    communicator: Communicator<P>,
    to: Rank,
    tag: Tag,
    depth: usize,
    leaving: VecDeque<Pending<P>>,
    failed: Option<MessageError>,
    ended: bool,
}

impl<P: Transport> Sender<P> {
    /// Makes a sender to `to` under `tag`, which nothing else there may use.
    #[must_use]
    pub const fn new(communicator: Communicator<P>, to: Rank, tag: Tag) -> Self {
        let leaving = VecDeque::new();
        Self { communicator, to, tag, depth: DEFAULT_DEPTH, leaving, failed: None, ended: false }
    }

    /// Sets how many messages may be under way, at least 1. Default: [`DEFAULT_DEPTH`].
    #[must_use]
    pub fn depth(mut self, messages: usize) -> Self {
        self.depth = messages.max(1);
        self
    }

    /// Returns the number of messages under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.leaving.len()
    }

    /// Waits for room for one message.
    ///
    /// # Errors
    /// [`DeliveryError::Closed`]; [`DeliveryError::Message`], also for an earlier message: every later call then
    /// returns it too.
    ///
    /// # Cancel safety
    /// If dropped, no room was taken; nor by a permit that is not used.
    pub async fn reserve(&mut self) -> Result<Permit<'_, P>, DeliveryError> {
        poll_fn(|context| self.poll_reserve(context)).await?;
        Ok(Permit { sender: self })
    }

    /// Waits until every accepted message was received or is in the receiver's window.
    ///
    /// # Errors
    /// [`DeliveryError::Message`].
    ///
    /// # Cancel safety
    /// If dropped, the next call continues the wait.
    pub async fn flush(&mut self) -> Result<(), DeliveryError> {
        poll_fn(|context| self.poll_settle(context, 0)).await
    }

    /// Ends the receiver's stream, and waits as [`flush`](Self::flush) does.
    ///
    /// # Errors
    /// [`DeliveryError::Message`].
    ///
    /// # Cancel safety
    /// If dropped, the next call, or dropping this sender, completes it.
    pub async fn close(&mut self) -> Result<(), DeliveryError> {
        poll_fn(|context| self.poll_end(context)).await
    }

    /// Ready once there is room for a message, which [`Sender::send_now`] then takes.
    pub(super) fn poll_reserve(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeliveryError>> {
        if self.ended {
            return Poll::Ready(Err(DeliveryError::Closed));
        }
        self.poll_settle(context, self.depth - 1)
    }

    /// Ready once at most `most` messages are under way.
    pub(super) fn poll_settle(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<(), DeliveryError>> {
        while self.failed.is_none() && self.leaving.len() > most {
            // Messages of one sender match in order, so the oldest completes first.
            let first = self.leaving.front_mut().expect("the queue is longer than `most`");
            let done = ready!(Pin::new(first).poll(context));
            self.leaving.pop_front();
            self.failed = done.err();
        }
        Poll::Ready(self.failed.map_or(Ok(()), |error| Err(error.into())))
    }

    pub(super) fn poll_end(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeliveryError>> {
        if !self.ended {
            ready!(self.poll_reserve(context))?;
            self.ended = true;
            self.start(frame::end())?;
        }
        self.poll_settle(context, 0)
    }

    pub(super) fn send_now(&mut self, bytes: &[u8]) -> Result<(), DeliveryError> {
        self.start(frame::item(bytes))
    }

    fn start(&mut self, message: Vec<u8>) -> Result<(), DeliveryError> {
        let sent = self.communicator.isend(Mode::Standard, self.to, self.tag, message);
        self.leaving.push_back(sent?.kept());
        Ok(())
    }
}

impl<P: Transport> Drop for Sender<P> {
    fn drop(&mut self) {
        if !self.ended {
            // If the receiver is gone, it needs no end.
            let _ = self.start(frame::end());
        }
    }
}

/// Room for one message of a [`Sender`].
#[derive(Debug)]
#[must_use = "nothing is sent until `send` is called"]
pub struct Permit<'a, P: Transport> {
    sender: &'a mut Sender<P>,
}

impl<P: Transport> Permit<'_, P> {
    /// Sends a message; its bytes are copied.
    ///
    /// # Errors
    /// [`DeliveryError::Message`] if it is longer than the lower layer takes, or the lower layer is down.
    pub fn send(self, bytes: &[u8]) -> Result<(), DeliveryError> {
        self.sender.send_now(bytes)
    }
}

impl<P: Transport> Sink<Bytes> for Sender<P> {
    type Error = DeliveryError;

    fn poll_ready(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeliveryError>> {
        self.get_mut().poll_reserve(context)
    }

    fn start_send(self: Pin<&mut Self>, item: Bytes) -> Result<(), DeliveryError> {
        self.get_mut().send_now(&item)
    }

    fn poll_flush(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeliveryError>> {
        self.get_mut().poll_settle(context, 0)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeliveryError>> {
        self.get_mut().poll_end(context)
    }
}

/// Receives the messages of one [`Sender`]: a `Stream` that ends with it.
///
/// # Cancel safety
/// If [`receive`](Self::receive) is dropped, no message was taken. If the receiver is dropped, a message that
/// it has matched returns to the queue. Read to the end to free the sender's window.
#[derive(Debug)]
pub struct Receiver<P: Transport> {
    communicator: Communicator<P>,
    from: Rank,
    tag: Tag,
    longest: usize,
    pending: Option<Pending<P>>,
    ended: bool,
}

impl<P: Transport> Receiver<P> {
    /// Makes the receiver of what `from` sends under `tag`.
    #[must_use]
    pub const fn new(communicator: Communicator<P>, from: Rank, tag: Tag) -> Self {
        let longest = DEFAULT_MAX_MESSAGE;
        Self { communicator, from, tag, longest, pending: None, ended: false }
    }

    /// Sets the most bytes of a message: a longer one is an error. This bounds the memory that the sender can
    /// make this process use. Default: [`DEFAULT_MAX_MESSAGE`].
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Receives the next message; `None` once its sender has closed.
    ///
    /// # Errors
    /// [`DeliveryError::Message`] or [`DeliveryError::Malformed`]; the stream has ended then.
    ///
    /// # Cancel safety
    /// If dropped, no message was taken.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, DeliveryError> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Returns whether the stream has ended.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the rank of the sender.
    pub(super) const fn peer(&self) -> Rank {
        self.from
    }

    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, DeliveryError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        let mut pending = self.next_pending()?;
        let Poll::Ready(received) = Pin::new(&mut pending).poll(context) else {
            self.pending = Some(pending);
            return Poll::Pending;
        };
        Poll::Ready(self.take(received.map(|received| received.bytes)))
    }

    /// Takes messages that have arrived, without registering a waker; returns `true` once the stream has ended.
    pub(super) fn discard(&mut self) -> bool {
        while !self.ended {
            let Ok(mut pending) = self.next_pending() else { return true };
            let Some(received) = pending.test() else {
                self.pending = Some(pending);
                return false;
            };
            let _ = self.take(received.map(|received| received.bytes));
        }
        true
    }

    fn next_pending(&mut self) -> Result<Pending<P>, MessageError> {
        if let Some(pending) = self.pending.take() {
            return Ok(pending);
        }
        // One more byte, for the trailer.
        let room = Load::Room { room: self.longest.saturating_add(1), storage: Vec::new() };
        Ok(self.communicator.ireceive_into(self.from, self.tag, room)?.kept())
    }

    fn take(
        &mut self,
        message: Result<Vec<u8>, MessageError>,
    ) -> Result<Option<Bytes>, DeliveryError> {
        let item = match message {
            Ok(bytes) => {
                frame::parse_item(bytes).map_err(|frame::Malformed| DeliveryError::Malformed)
            }
            Err(error) => Err(error.into()),
        };
        self.ended = !matches!(item, Ok(Some(_)));
        item
    }
}

impl<P: Transport> Stream for Receiver<P> {
    type Item = Result<Bytes, DeliveryError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_receive(context).map(Result::transpose)
    }
}
