//! A stream of bytes between two processes: tokio's `AsyncRead` and `AsyncWrite`.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::Session;
use super::core::{Core, Direct, Ended};
use super::frame::Reason;
use crate::wire::buffer;

/// A stream of bytes to and from another process.
///
/// A write completes once its bytes are on the wire. It waits while the reader is a window behind, and while the wire
/// has no room. `shutdown` lets the peer's reads end after all written bytes. Dropping the stream does the same, and
/// discards bytes that still arrive: the peer's writes then fail with `BrokenPipe`. If the other process exits, reads
/// and writes fail with `ConnectionReset`.
///
/// Like those of tokio's sockets, reads and writes use the task's budget: a task that never has to wait yields
/// to others.
///
/// # Cancel safety
/// That of tokio's traits: a read or a write that is dropped has read or written nothing.
#[derive(Debug)]
pub struct Stream {
    session: Arc<Session>,
    number: u32,
    watch: Option<Box<dyn Watch>>,
}

/// Observes a stream, and is dropped with it.
pub trait Watch: fmt::Debug + Send + Sync {
    /// Called with the number of bytes written.
    fn on_sent(&self, bytes: usize);
    /// Called with the number of bytes read.
    fn on_received(&self, bytes: usize);
}

impl Stream {
    pub(super) const fn new(session: Arc<Session>, number: u32) -> Self {
        Self { session, number, watch: None }
    }

    /// Sets the stream's observer; replaces a former one.
    pub fn watch(&mut self, watch: Box<dyn Watch>) {
        self.watch = Some(watch);
    }

    /// Returns the session that carries the stream.
    #[must_use]
    pub const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits until the peer has accepted the stream.
    ///
    /// # Errors
    /// `ConnectionRefused` if the peer offers no such service, or has too many waiting streams;
    /// `ConnectionReset` if the peer has exited.
    ///
    /// # Cancel safety
    /// If dropped, the next call continues the wait.
    pub async fn accepted(&self) -> io::Result<()> {
        poll_fn(|context| {
            self.session.with(|core| {
                let ended = core.ended;
                let Some(flow) = core.flow(self.number) else {
                    return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                };
                // A stream that was reset since fails when it is read or written, as a TCP socket does.
                if flow.is_accepted {
                    return Poll::Ready(Ok(()));
                }
                if let Some(reason) = flow.reset {
                    return Poll::Ready(Err(failed(reason, ended, false)));
                }
                core.await_bytes(self.number, context.waker());
                Poll::Pending
            })
        })
        .await
    }

    /// Ends both directions at once: the peer's reads and writes fail with `ConnectionReset`.
    pub fn reset(self) {
        self.session.with(|core| core.reset(self.number, Reason::Dropped));
    }

    fn poll_read_direct(
        &self,
        context: &Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.session.with(|core| {
            if copy_held(core, self.number, into) {
                return Poll::Ready(Ok(()));
            }
            let before = into.filled().len();
            loop {
                let any = core.pump(Some(Direct { stream: self.number, into }));
                if into.filled().len() > before || copy_held(core, self.number, into) {
                    return Poll::Ready(Ok(()));
                }
                if !any {
                    break;
                }
            }
            let ended = core.ended;
            let Some(flow) = core.flow(self.number) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if flow.receive.is_finished {
                return Poll::Ready(Ok(()));
            }
            if let Some(reason) = flow.reset {
                return Poll::Ready(Err(failed(reason, ended, flow.is_accepted)));
            }
            core.await_bytes(self.number, context.waker());
            Poll::Pending
        })
    }

    fn poll_write_parts(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(context));
        let written = self.session.with(|core| {
            let ended = core.ended;
            let Some(flow) = core.flow(self.number) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some(reason) = flow.reset {
                return Poll::Ready(Err(failed(reason, ended, flow.is_accepted)));
            }
            if flow.send.is_finished || flow.send.is_stopped {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if parts.iter().all(|part| part.is_empty()) {
                return Poll::Ready(Ok(0));
            }
            match core.write(self.number, parts, context.waker()) {
                0 => Poll::Pending,
                written => Poll::Ready(Ok(written)),
            }
        });
        if let Poll::Ready(done) = &written {
            budget.made_progress();
            if let (Some(watch), Ok(bytes)) = (&self.watch, done) {
                watch.on_sent(*bytes);
            }
        }
        written
    }
}

/// Copies bytes received before into `into`; returns whether there were any.
pub(super) fn copy_held(core: &mut Core, number: u32, into: &mut ReadBuf<'_>) -> bool {
    let Some(flow) = core.flow(number) else { return false };
    let mut copied = 0;
    while into.remaining() > 0 && !flow.receive.held.is_empty() {
        let front = flow.receive.held.front();
        let count = front.len().min(into.remaining());
        buffer::append(&front[..count], into);
        flow.receive.held.consume(count);
        copied += count;
    }
    if copied > 0 {
        core.consumed(number, copied as u64);
    }
    copied > 0
}

/// Maps the end of a stream to the error that a TCP socket would return.
fn failed(reason: Reason, ended: Option<Ended>, was_accepted: bool) -> io::Error {
    match (reason, ended) {
        (_, Some(Ended::Gone)) => {
            io::Error::new(io::ErrorKind::ConnectionReset, "the peer's process has ended")
        }
        (_, Some(Ended::Violation)) => io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the peer has broken the protocol; run one version on both sides",
        ),
        (_, Some(Ended::Closed)) => {
            io::Error::new(io::ErrorKind::ConnectionAborted, "the node was shut down")
        }
        (Reason::NoService, None) => {
            io::Error::new(io::ErrorKind::ConnectionRefused, "the peer offers no such service")
        }
        (Reason::TooMany, None) => io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "the peer has too many streams that wait to be accepted",
        ),
        (Reason::Dropped, None) if was_accepted => {
            io::Error::new(io::ErrorKind::ConnectionReset, "the peer has reset the stream")
        }
        (Reason::Dropped, None) => {
            io::Error::new(io::ErrorKind::ConnectionRefused, "the peer has dropped the stream")
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(poll_proceed(context));
        let before = into.filled().len();
        let read = self.poll_read_direct(context, into);
        if read.is_ready() {
            budget.made_progress();
            if let Some(watch) = &self.watch {
                watch.on_received(into.filled().len() - before);
            }
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.with(|core| core.finish(self.number));
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.session.with(|core| core.drop_stream(self.number));
    }
}
