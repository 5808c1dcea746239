//! The application's end of a stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connection::{Connection, Wakes, register};
use super::frame::Kind;
use super::{ANSWERED, Leaving, MOST, Shared, State};
use crate::order::WINDOW;

/// A byte stream. Dropping it before both sides have ended makes it fail for the peer.
#[derive(Debug)]
pub struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
}

impl Stream {
    pub(super) const fn new(shared: Arc<Shared>, id: u64) -> Self {
        Self { shared, id }
    }
}

impl State {
    /// Returns a stream's connection, and the list of wakers to wake later.
    fn connection(&mut self, id: u64) -> io::Result<(&mut Connection, &mut Wakes)> {
        let connection = self.connections.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        Ok((connection, &mut self.wakes))
    }

    /// Sends the next frame of a stream; `false` if there is no space for it.
    fn send_next(&mut self, id: u64, kind: Kind, value: u64, bytes: &[u8]) -> io::Result<bool> {
        let (connection, _) = self.connection(id)?;
        let (peer, frame) = (connection.peer, connection.frame(kind, value));
        let Some(frame) = frame else { return Ok(false) };
        // The receiver fails a stream if more frames than this overtake one.
        if self.endpoint.span(peer) >= WINDOW {
            return Ok(false);
        }
        let sent = self.send(peer, frame, bytes);
        let (connection, wakes) = self.connection(id)?;
        match sent {
            Ok(()) => connection.on_sent(bytes.len()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => {
                connection.fail(io::ErrorKind::ConnectionReset, wakes);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Lets the peer of a stream that is dropped know that this process is alive, until the last frames have arrived.
    fn leave(&mut self, id: u64) {
        let Ok((connection, _)) = self.connection(id) else { return };
        let (peer, answer) = (connection.peer, connection.frame(Kind::Alive, 0));
        if let Some(answer) = answer
            && self.leaving.len() < MOST
        {
            let until = Instant::now() + ANSWERED;
            self.leaving.insert(id, Leaving { peer, answer, until });
        }
    }

    /// Returns the credit that a stream owes its peer, if there is space; otherwise the receiving task retries.
    pub(super) fn return_credit(&mut self, id: u64) {
        let Ok((connection, _)) = self.connection(id) else { return };
        let owed = connection.owed;
        if connection.owes_credit()
            && let Ok(true) = self.send_next(id, Kind::Credit, owed as u64, &[])
            && let Ok((connection, _)) = self.connection(id)
        {
            connection.owed = 0;
        }
    }

    fn poll_read(
        &mut self,
        id: u64,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let (connection, _) = self.connection(id)?;
        let readable = connection.readable();
        let count = readable.len().min(buffer.remaining());
        buffer.put_slice(&readable[..count]);
        connection.consume(count);
        self.return_credit(id);
        let (connection, wakes) = self.connection(id)?;
        match connection.failed {
            _ if count > 0 || connection.is_ended => Poll::Ready(Ok(())),
            Some(why) => Poll::Ready(Err(why.into())),
            None => {
                register(&mut connection.reader, context.waker(), wakes);
                Poll::Pending
            }
        }
    }

    fn poll_write(
        &mut self,
        id: u64,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (connection, _) = self.connection(id)?;
        if let Some(why) = connection.failed {
            return Poll::Ready(Err(why.into()));
        }
        if connection.is_finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(connection.room());
        if bytes.is_empty() || (count > 0 && self.send_next(id, Kind::Data, 0, &bytes[..count])?) {
            return Poll::Ready(Ok(count));
        }
        let (connection, wakes) = self.connection(id)?;
        register(&mut connection.writer, context.waker(), wakes);
        Poll::Pending
    }

    fn poll_finish(&mut self, id: u64, context: &Context<'_>) -> Poll<io::Result<()>> {
        let (connection, _) = self.connection(id)?;
        if connection.is_finished {
            return Poll::Ready(Ok(()));
        }
        if let Some(why) = connection.failed {
            return Poll::Ready(Err(why.into()));
        }
        let is_sent = self.send_next(id, Kind::End, 0, &[])?;
        let (connection, wakes) = self.connection(id)?;
        connection.is_finished = is_sent;
        if is_sent {
            return Poll::Ready(Ok(()));
        }
        register(&mut connection.writer, context.waker(), wakes);
        Poll::Pending
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shared.with(|state| state.poll_read(self.id, context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.with(|state| state.poll_write(self.id, context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.with(|state| state.poll_finish(self.id, context))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let removed = self.shared.with(|state| {
            let (connection, _) = state.connection(self.id).ok()?;
            let is_whole = connection.is_ended && connection.is_finished;
            // If there is no space for a reset, the peer detects the silence.
            if is_whole || state.send_next(self.id, Kind::Reset, 0, &[]).is_ok_and(|sent| sent) {
                state.leave(self.id);
            }
            state.wake_driver();
            state.connections.remove(&self.id)
        });
        // The wakers in it are dropped without the lock.
        drop(removed);
    }
}
