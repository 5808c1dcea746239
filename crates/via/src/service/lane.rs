//! Messages in one direction, from one process to another: a sink there, a stream here.

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
use crate::message::progression::Progression;
use crate::message::request::{Load, Mode};

/// Messages of a sender that may be under way: some 4 KiB of short ones, and 128 KiB of the longest
/// that leave whole.
pub const DEFAULT_DEPTH: usize = 16;

/// Most bytes of one message that is received: 16 MiB.
pub const DEFAULT_MAX_MESSAGE: usize = 16 << 20;

/// Why nothing more goes into, or comes out of, a lane.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LaneError {
    /// The message layer says no.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It was closed here.
    #[error("this end is closed: nothing more can be sent")]
    Closed,
    /// What came is no message of a lane: somebody else uses its tag.
    #[error("what came was not sent by a lane: its tag is used by something else")]
    Malformed,
}

/// Sends messages to one process, under one tag: a `Sink` of [`Bytes`].
///
/// At most [`depth`](Self::depth) messages are under way: handed over here, and not yet with the
/// receiver or in its window for messages that it does not expect. Dropped, it tells the receiver
/// that nothing more comes, behind all that was sent.
///
/// # Cancel safety
/// [`reserve`](Self::reserve), [`flush`](Self::flush) and [`close`](Self::close) take nothing when
/// they are dropped. What was handed over goes its way.
#[derive(Debug)]
pub struct Sender<P: Progression> {
    communicator: Communicator<P>,
    to: Rank,
    tag: Tag,
    depth: usize,
    leaving: VecDeque<Pending<P>>,
    failed: Option<MessageError>,
    ended: bool,
}

impl<P: Progression> Sender<P> {
    /// A lane to `to` under `tag`, which nothing else there may use.
    #[must_use]
    pub const fn new(communicator: Communicator<P>, to: Rank, tag: Tag) -> Self {
        let leaving = VecDeque::new();
        Self { communicator, to, tag, depth: DEFAULT_DEPTH, leaving, failed: None, ended: false }
    }

    /// Messages that may be under way, at least 1. Default: [`DEFAULT_DEPTH`].
    #[must_use]
    pub fn depth(mut self, messages: usize) -> Self {
        self.depth = messages.max(1);
        self
    }

    /// Messages under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.leaving.len()
    }

    /// Waits for room for one message.
    ///
    /// # Errors
    /// [`LaneError::Closed`], [`LaneError::Message`]: of a message before, too; it then stays so.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing; nor has a permit that is not used.
    pub async fn reserve(&mut self) -> Result<Permit<'_, P>, LaneError> {
        poll_fn(|context| self.poll_reserve(context)).await?;
        Ok(Permit { sender: self })
    }

    /// Waits until all that was handed over is with the receiver or in its window.
    ///
    /// # Errors
    /// [`LaneError::Message`].
    ///
    /// # Cancel safety
    /// Dropped, it goes on when it is called again.
    pub async fn flush(&mut self) -> Result<(), LaneError> {
        poll_fn(|context| self.poll_settle(context, 0)).await
    }

    /// Says that nothing more comes, and waits as [`flush`](Self::flush) does.
    ///
    /// # Errors
    /// [`LaneError::Message`].
    ///
    /// # Cancel safety
    /// Dropped, it goes on when it is called again, or when this is dropped.
    pub async fn close(&mut self) -> Result<(), LaneError> {
        poll_fn(|context| self.poll_end(context)).await
    }

    /// Ready once there is room for a message: [`Sender::send_now`] takes it then.
    pub(super) fn poll_reserve(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), LaneError>> {
        if self.ended {
            return Poll::Ready(Err(LaneError::Closed));
        }
        self.poll_settle(context, self.depth - 1)
    }

    /// Ready once at most `most` are under way.
    pub(super) fn poll_settle(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<(), LaneError>> {
        while self.failed.is_none() && self.leaving.len() > most {
            // Messages of one lane meet their receives in order: the first to be done is the first.
            let first = self.leaving.front_mut().expect("more than none");
            let done = ready!(Pin::new(first).poll(context));
            self.leaving.pop_front();
            self.failed = done.err();
        }
        Poll::Ready(self.failed.map_or(Ok(()), |error| Err(error.into())))
    }

    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LaneError>> {
        if !self.ended {
            ready!(self.poll_reserve(context))?;
            self.ended = true;
            self.start(frame::end())?;
        }
        self.poll_settle(context, 0)
    }

    pub(super) fn send_now(&mut self, bytes: &[u8]) -> Result<(), LaneError> {
        self.start(frame::item(bytes))
    }

    fn start(&mut self, message: Vec<u8>) -> Result<(), LaneError> {
        let sent = self.communicator.isend(Mode::Standard, self.to, self.tag, message);
        self.leaving.push_back(sent?.kept());
        Ok(())
    }
}

impl<P: Progression> Drop for Sender<P> {
    fn drop(&mut self) {
        if !self.ended {
            // Whoever is gone need not be told.
            let _ = self.start(frame::end());
        }
    }
}

/// Room for one message of a [`Sender`].
#[derive(Debug)]
#[must_use = "nothing is sent until `send` is called"]
pub struct Permit<'a, P: Progression> {
    sender: &'a mut Sender<P>,
}

impl<P: Progression> Permit<'_, P> {
    /// Hands a message over. It is copied.
    ///
    /// # Errors
    /// [`LaneError::Message`]: it is longer than the lower layer takes, or that is closed.
    pub fn send(self, bytes: &[u8]) -> Result<(), LaneError> {
        self.sender.send_now(bytes)
    }
}

impl<P: Progression> Sink<Bytes> for Sender<P> {
    type Error = LaneError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), LaneError>> {
        self.get_mut().poll_reserve(context)
    }

    fn start_send(self: Pin<&mut Self>, item: Bytes) -> Result<(), LaneError> {
        self.get_mut().send_now(&item)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), LaneError>> {
        self.get_mut().poll_settle(context, 0)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), LaneError>> {
        self.get_mut().poll_end(context)
    }
}

/// Receives the messages of one [`Sender`]: a `Stream` that ends with it.
///
/// # Cancel safety
/// [`receive`](Self::receive) that is dropped has taken nothing. Dropped itself, a message that it
/// has not handed out stands in the queue again; read to the end if the lane's window is to be free.
#[derive(Debug)]
pub struct Receiver<P: Progression> {
    communicator: Communicator<P>,
    from: Rank,
    tag: Tag,
    longest: usize,
    pending: Option<Pending<P>>,
    ended: bool,
}

impl<P: Progression> Receiver<P> {
    /// The other end of the lane from `from` under `tag`.
    #[must_use]
    pub const fn new(communicator: Communicator<P>, from: Rank, tag: Tag) -> Self {
        let longest = DEFAULT_MAX_MESSAGE;
        Self { communicator, from, tag, longest, pending: None, ended: false }
    }

    /// Most bytes of a message: a longer one is an error. This bounds what the sender can make this process
    /// keep. Default: [`DEFAULT_MAX_MESSAGE`].
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// The next message; `None` once its sender has closed.
    ///
    /// # Errors
    /// [`LaneError::Message`] or [`LaneError::Malformed`]; nothing comes after it.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, LaneError> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Whether nothing more comes.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// The process that sends.
    pub(super) const fn peer(&self) -> Rank {
        self.from
    }

    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, LaneError>> {
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

    /// Takes what has come, without being woken for more; `true` once nothing more comes.
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
        // One byte more says what it is.
        let room = Load::Room { room: self.longest.saturating_add(1), storage: Vec::new() };
        Ok(self.communicator.ireceive_into(self.from, self.tag, room)?.kept())
    }

    fn take(&mut self, message: Result<Vec<u8>, MessageError>) -> Result<Option<Bytes>, LaneError> {
        let item = match message {
            Ok(bytes) => frame::parse_item(bytes).map_err(|frame::Malformed| LaneError::Malformed),
            Err(error) => Err(error.into()),
        };
        self.ended = !matches!(item, Ok(Some(_)));
        item
    }
}

impl<P: Progression> Stream for Receiver<P> {
    type Item = Result<Bytes, LaneError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_receive(context).map(Result::transpose)
    }
}
