//! The task that moves the bytes of one session between its buffers and a TCP socket, or another stream of bytes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Session;
use super::core::Ended;
use super::line::Line;
use crate::wire::buffer::Buffer;
use crate::wire::tcp::{Connection, Records};

/// Bytes of one read.
const READ: usize = 64 * 1024;
/// Most reads and writes of one turn, so that other tasks run.
const TURN: usize = 16;
/// Limits how long a close waits until the peer has received everything.
const CLOSE: Duration = Duration::from_secs(5);
/// Time without progress of the system's writes after which the peer is suspected.
const STUCK: Duration = Duration::from_secs(1);

/// Moves the bytes of one session.
pub(super) struct Mover<S> {
    session: Arc<Session>,
    line: Arc<Line>,
    stream: S,
    records: Option<Records>,
    /// Bytes for the system, of which it has taken the first `written`.
    outbox: Vec<u8>,
    written: usize,
    /// Bytes that are to be sealed.
    plain: Vec<u8>,
    inbox: Buffer,
    /// Fires if the system has taken nothing for [`STUCK`].
    alarm: Pin<Box<Sleep>>,
    is_alarmed: bool,
}

/// The reason why the task ends.
enum Exit {
    /// The session has ended here.
    Closed,
    /// The peer or the network has ended the connection.
    Gone,
    /// The peer has sent bytes that no holder of the key sends.
    Violation,
}

impl From<io::Error> for Exit {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Ends the session when the task ends, however that happens.
impl<S> Drop for Mover<S> {
    fn drop(&mut self) {
        self.session.with(super::core::Core::on_wire_ended);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Mover<S> {
    pub(super) fn new(session: Arc<Session>, line: Arc<Line>, connection: Connection<S>) -> Self {
        Self {
            session,
            line,
            stream: connection.stream,
            records: connection.records,
            outbox: Vec::new(),
            written: 0,
            plain: Vec::new(),
            inbox: Buffer::new(READ),
            alarm: Box::pin(tokio::time::sleep(STUCK)),
            is_alarmed: false,
        }
    }

    /// Moves bytes until the session or the connection ends.
    pub(super) async fn run(mut self) {
        match poll_fn(|context| self.poll(context)).await {
            Exit::Closed => {
                let _ = tokio::time::timeout(CLOSE, self.close()).await;
            }
            // Dropping the mover makes the session handle the received bytes, and end.
            Exit::Gone => {}
            Exit::Violation => self.session.with(|core| core.end(Ended::Violation)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Exit> {
        self.line.register(context.waker());
        for _ in 0..TURN {
            let sent = self.send(context);
            let received = self.receive(context);
            match (sent, received) {
                (Err(over), _) | (_, Err(over)) => return Poll::Ready(over),
                (Ok(false), Ok(false)) => return Poll::Pending,
                _ => {}
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends part of the waiting bytes; returns whether the system took any.
    fn send(&mut self, context: &mut Context<'_>) -> Result<bool, Exit> {
        if self.written == self.outbox.len() && !self.fill_outbox() {
            return if self.line.buffers().is_closing() { Err(Exit::Closed) } else { Ok(false) };
        }
        let rest = &self.outbox[self.written..];
        match Pin::new(&mut self.stream).poll_write(context, rest) {
            Poll::Ready(written) => {
                self.written += written?;
                if std::mem::take(&mut self.is_alarmed) {
                    self.line.buffers().is_stuck = false;
                }
                Ok(true)
            }
            Poll::Pending => {
                if !std::mem::replace(&mut self.is_alarmed, true) {
                    self.alarm.as_mut().reset(Instant::now() + STUCK);
                }
                if self.alarm.as_mut().poll(context).is_ready() {
                    self.line.buffers().is_stuck = true;
                }
                Ok(false)
            }
        }
    }

    /// Takes the bytes that the session has written; returns whether there are any.
    fn fill_outbox(&mut self) -> bool {
        self.outbox.clear();
        self.written = 0;
        let is_awaited = match &mut self.records {
            None => self.line.buffers().take_outgoing(&mut self.outbox),
            Some(records) => {
                self.plain.clear();
                let is_awaited = self.line.buffers().take_outgoing(&mut self.plain);
                if !self.plain.is_empty() {
                    records.seal(&self.plain, &mut self.outbox);
                }
                is_awaited
            }
        };
        if is_awaited {
            self.session.with(|core| core.is_dirty = true);
        }
        !self.outbox.is_empty()
    }

    /// Receives bytes; returns whether there were any.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, Exit> {
        if !self.line.buffers().wants_more() {
            return Ok(false);
        }
        let mut buffer = ReadBuf::new(&mut self.inbox);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(read) => read?,
        }
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Err(Exit::Gone);
        }
        let mut buffers = self.line.buffers();
        match &mut self.records {
            None => buffers.incoming().extend_from_slice(bytes),
            Some(records) => {
                records.open(bytes, buffers.incoming()).map_err(|_| Exit::Violation)?;
            }
        }
        drop(buffers);
        self.session.with(|core| core.is_dirty = true);
        Ok(true)
    }

    /// Ends the connection after all written bytes; reads until the peer has ended it too, so that nothing is cut off.
    async fn close(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.outbox[self.written..]).await?;
        self.stream.shutdown().await?;
        while self.stream.read(&mut self.inbox).await? > 0 {}
        Ok(())
    }
}
