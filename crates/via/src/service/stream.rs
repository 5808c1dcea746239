//! A connection as a stream of bytes: tokio's `AsyncRead` and `AsyncWrite`.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::messages::{DeliveryError, Receiver, Sender};
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::Failure;
use crate::message::transport::Transport;

/// Most bytes of one message: a longer write takes several.
const MOST: usize = 64 * 1024;

/// Default number of streams of one peer that were dropped before the peer ended them and whose bytes are still
/// received.
pub const DEFAULT_DROPPED: usize = 64;

/// Receivers that were dropped before their stream ended: what still arrives for them is discarded.
#[derive(Debug)]
pub(super) struct Abandoned<P: Transport> {
    /// For each process, the oldest first.
    receivers: Mutex<Vec<Receiver<P>>>,
    /// Most receivers of one process.
    most: usize,
}

impl<P: Transport> Abandoned<P> {
    pub(super) const fn new(most: usize) -> Self {
        Self { receivers: Mutex::new(Vec::new()), most }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Receiver<P>>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a receiver. Beyond the bound, gives up the oldest of the same process: what arrives for that one
    /// stays in the process's window.
    fn insert(&self, receiver: Receiver<P>) {
        let peer = receiver.peer();
        let mut receivers = self.lock();
        receivers.push(receiver);
        let is_its = |one: &Receiver<P>| one.peer() == peer;
        let surplus = receivers.iter().filter(|one| is_its(one)).count() > self.most;
        let oldest = receivers.iter().position(is_its).filter(|_| surplus);
        let given_up = oldest.map(|at| receivers.remove(at));
        // Not under the lock, as its drop may wake tasks.
        drop(receivers);
        drop(given_up);
    }

    /// Discards what has arrived. Holds no lock meanwhile: a receiver that ends may wake tasks that drop
    /// streams.
    pub(super) fn discard(&self) {
        let mut receivers = std::mem::take(&mut *self.lock());
        if !receivers.is_empty() {
            receivers.retain_mut(|one| !one.discard());
            receivers.drain(..).for_each(|one| self.insert(one));
        }
    }
}

/// A stream of bytes to and from another process, made by [`Streams`](super::Streams).
///
/// A write is one message, or several of 64 KiB. It is ready once the messages were queued; it waits while a
/// [`Sender`]'s depth of them are under way. `flush` waits until all were sent. `shutdown`, or dropping the
/// stream, ends the peer's reads behind everything that was written.
///
/// Bytes that arrive for a dropped stream are discarded whenever another stream of the same
/// [`Streams`](super::Streams) is read or accepted; their writer is not notified. This applies to a
/// [bounded](super::Streams::dropped) number of streams of one peer.
///
/// # Cancel safety
/// That of tokio's traits: a read or write that is dropped has read or written nothing.
#[derive(Debug)]
pub struct ByteStream<P: Transport> {
    peer: Rank,
    sender: Sender<P>,
    /// `Some` until the stream is dropped.
    receiver: Option<Receiver<P>>,
    rest: Bytes,
    abandoned: Arc<Abandoned<P>>,
}

impl<P: Transport> ByteStream<P> {
    pub(super) const fn new(
        peer: Rank,
        sender: Sender<P>,
        receiver: Receiver<P>,
        abandoned: Arc<Abandoned<P>>,
    ) -> Self {
        Self { peer, sender, receiver: Some(receiver), rest: Bytes::new(), abandoned }
    }

    /// Returns the process at the other end.
    #[must_use]
    pub const fn peer(&self) -> Rank {
        self.peer
    }
}

impl<P: Transport> Drop for ByteStream<P> {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take().filter(|receiver| !receiver.is_ended()) {
            self.abandoned.insert(receiver);
        }
    }
}

/// Converts an error to the kind that a TCP stream would return.
fn failed(error: DeliveryError) -> io::Error {
    let kind = match error {
        DeliveryError::Message(MessageError::Failed(
            Failure::PeerLost(_) | Failure::PeerRestarted(_),
        )) => io::ErrorKind::ConnectionReset,
        DeliveryError::Closed => io::ErrorKind::BrokenPipe,
        DeliveryError::Malformed => io::ErrorKind::InvalidData,
        DeliveryError::Message(_) => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl<P: Transport> AsyncRead for ByteStream<P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.abandoned.discard();
        while this.rest.is_empty() {
            let Some(receiver) = &mut this.receiver else { return Poll::Ready(Ok(())) };
            match ready!(receiver.poll_receive(context)).map_err(failed)? {
                Some(bytes) => this.rest = bytes,
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = this.rest.len().min(buffer.remaining());
        buffer.put_slice(&this.rest[..count]);
        this.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<P: Transport> AsyncWrite for ByteStream<P> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sender = &mut self.get_mut().sender;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(sender.poll_reserve(context)).map_err(failed)?;
        let bytes = &bytes[..bytes.len().min(MOST)];
        sender.send_now(bytes).map_err(failed)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().sender.poll_settle(context, 0).map_err(failed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().sender.poll_end(context).map_err(failed)
    }
}
