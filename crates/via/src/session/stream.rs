//! A stream of bytes between two processes: tokio's `AsyncRead` and `AsyncWrite`.

use std::cmp::Ordering;
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
use super::flow::Flow;
use super::frame::Reason;
use super::own::OwnConnection;
use crate::wire::buffer;

/// A stream of bytes to and from another process.
///
/// A write completes once its bytes are on the wire. It waits while the reader is a window behind, and while the wire
/// has no room. A stream that has moved to a TCP connection of its own behaves like that connection. `shutdown` lets the peer's reads end after all written bytes. Dropping the stream does the same, and
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
    /// Its own connection, once it uses that.
    own: Option<Box<OwnConnection>>,
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
        Self { session, number, watch: None, own: None }
    }

    /// Sets the stream's observer; replaces a former one.
    #[doc(hidden)]
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

    /// Reads bytes that cross the session. Pending if none has arrived; the own connection is asked then.
    fn poll_read_direct(
        &mut self,
        context: &Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = &mut self.own;
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
            take_own(flow, own);
            if let Some(reason) = flow.reset.filter(|_| own.is_none() && !flow.awaits_own()) {
                return Poll::Ready(Err(failed(reason, ended, flow.is_accepted)));
            }
            core.await_bytes(self.number, context.waker());
            Poll::Pending
        })
    }

    /// Reads bytes that cross the stream's own connection.
    fn poll_read_own(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(own) = &mut self.own else { return Poll::Pending };
        let before = into.filled().len();
        let mut read = Poll::Pending;
        if !own.is_closed && !own.is_failed {
            read = match own.poll_received_before(context) {
                Poll::Ready(Ok(number)) => {
                    let compared = self.session.lock().compare_moved(self.number, number);
                    match compared {
                        Ordering::Equal => own.poll_read(context, into),
                        // The others have yet to cross the session.
                        Ordering::Greater => Poll::Pending,
                        Ordering::Less => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
                    }
                }
                read => read.map_ok(drop),
            };
        }
        own.is_failed |= matches!(read, Poll::Ready(Err(_)));
        let (is_closed, is_failed) = (own.is_closed, own.is_failed);
        let bytes = into.filled().len() - before;
        self.session.with(|core| {
            let ended = core.ended;
            core.counted.bytes_received += bytes as u64;
            let Some(flow) = core.flow(self.number) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            flow.has_received_apart(bytes as u64);
            if bytes == 0 && !flow.receive.held.is_empty() {
                // They have arrived meanwhile, and have woken this task.
                return Poll::Pending;
            }
            if bytes > 0 || flow.receive.is_finished {
                return Poll::Ready(Ok(()));
            }
            // The peer has ended its direction, or the session: all that it has sent still arrives.
            let is_cut = flow.receive.end.is_some() && is_closed;
            let is_over = flow.reset.is_some() && (flow.receive.end.is_none() || is_closed);
            if is_failed || is_cut || is_over {
                let reason = flow.reset.unwrap_or(Reason::Dropped);
                core.reset(self.number, reason);
                return Poll::Ready(Err(failed(reason, ended, true)));
            }
            Poll::Pending
        })
    }

    /// Writes to the stream's own connection.
    fn poll_write_own(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(own) = &mut self.own else { return Poll::Pending };
        let written = own.poll_write(context, parts);
        self.session.with(|core| {
            let ended = core.ended;
            let Some(flow) = core.flow(self.number) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            match written {
                Poll::Ready(Ok(bytes)) => {
                    flow.send.sent_apart += bytes as u64;
                    core.counted.bytes_sent += bytes as u64;
                    Poll::Ready(Ok(bytes))
                }
                Poll::Ready(Err(_)) if flow.send.is_stopped => {
                    Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
                }
                Poll::Ready(Err(_)) => {
                    core.reset(self.number, Reason::Dropped);
                    Poll::Ready(Err(failed(Reason::Dropped, ended, true)))
                }
                Poll::Pending if !flow.may_write() => {
                    // The stream has ended meanwhile.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => {
                    core.await_room(self.number, context.waker());
                    Poll::Pending
                }
            }
        })
    }

    fn poll_write_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(context));
        let own = &mut self.own;
        let mut written = self.session.with(|core| {
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
            take_own(flow, own);
            if own.is_some() {
                return Poll::Pending;
            }
            match core.write(self.number, parts, context.waker()) {
                0 => Poll::Pending,
                written => Poll::Ready(Ok(written)),
            }
        });
        if written.is_pending() && self.own.is_some() {
            written = self.poll_write_own(context, parts);
        }
        if let Poll::Ready(done) = &written {
            budget.made_progress();
            if let (Some(watch), Ok(bytes)) = (&self.watch, done) {
                watch.on_sent(*bytes);
            }
        }
        written
    }
}

/// Takes the stream's own connection, once there is one.
fn take_own(flow: &mut Flow, own: &mut Option<Box<OwnConnection>>) {
    if let Some(socket) = flow.take_own() {
        *own = Some(OwnConnection::new(socket, flow.send.sent));
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
        let this = self.get_mut();
        let mut read = this.poll_read_direct(context, into);
        if read.is_pending() && this.own.is_some() {
            read = this.poll_read_own(context, into);
        }
        if read.is_ready() {
            budget.made_progress();
            if let Some(watch) = &this.watch {
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
        self.get_mut().poll_write_parts(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_parts(context, parts)
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
        let own = &mut self.own;
        self.session.with(|core| {
            if let Some(flow) = core.flow(self.number) {
                take_own(flow, own);
            }
            core.drop_stream(self.number);
        });
        if let Some(own) = self.own.take() {
            own.close_later(&self.session);
        }
    }
}
