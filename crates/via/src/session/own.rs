//! Connections of single streams, over TCP, beside a session. The system moves their bytes between the memory of the
//! reader and the writer.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use midplane_simhw::lock::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{Session, SharedState};
use crate::wire::pipe::Pipe;
use crate::wire::tcp::{Failed, Joining, answer, join};

/// Bytes of the offset before the bytes of each direction.
const HEAD: usize = 8;
/// Most slices that one call of the system gathers.
const GATHERED: usize = 16;
/// Limits how long the connection of a dropped stream stays open after the end of the session: 30 s.
const LINGER: Duration = Duration::from_secs(30);

/// The connection of a stream's own.
#[derive(Debug)]
pub(super) enum Own {
    /// The stream uses the session alone.
    None,
    /// One is being made.
    Asked,
    /// None could be made.
    Failed,
    /// The stream's handle has not used it yet.
    Ready(Socket),
    /// The stream's handle has it.
    Moved,
}

impl Own {
    /// Returns whether there is a connection.
    pub(super) const fn has_moved(&self) -> bool {
        matches!(self, Self::Ready(_) | Self::Moved)
    }
}

/// A socket, and the permit for it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    pub(super) _permit: OwnedSemaphorePermit,
}

/// The connection, in the stream's handle.
#[derive(Debug)]
pub(super) struct OwnConnection {
    socket: Socket,
    /// Bytes of the stream that this end has sent over the session, and how much of that number was sent.
    sent_before: [u8; HEAD],
    sent: usize,
    /// The same of the peer.
    received_before: [u8; HEAD],
    received: usize,
    /// True once the peer has closed the connection.
    pub(super) is_closed: bool,
    /// True once a read has failed. The system reports that once.
    pub(super) is_failed: bool,
}

impl OwnConnection {
    pub(super) fn new(socket: Socket, sent_before: u64) -> Box<Self> {
        Box::new(Self {
            socket,
            sent_before: sent_before.to_le_bytes(),
            sent: 0,
            received_before: [0; HEAD],
            received: 0,
            is_closed: false,
            is_failed: false,
        })
    }

    /// Writes part of `parts`, which are not empty; returns how many bytes.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.stream.poll_write_ready(context))?;
            let mut pieces = [IoSlice::new(&[]); GATHERED + 1];
            let head = HEAD - self.sent;
            pieces[0] = IoSlice::new(&self.sent_before[self.sent..]);
            let mut gathered = 0;
            for part in parts.iter().filter(|part| !part.is_empty()).take(GATHERED) {
                gathered += 1;
                pieces[gathered] = IoSlice::new(part);
            }
            let pieces = &pieces[usize::from(head == 0)..=gathered];
            match self.socket.stream.try_write_vectored(pieces) {
                Ok(written) => {
                    self.sent += written.min(head);
                    if written > head {
                        return Poll::Ready(Ok(written - head));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads the number of bytes that the peer has sent over the session. A peer that closes the connection before has none.
    pub(super) fn poll_received_before(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<u64>> {
        while self.received < HEAD {
            let mut into = ReadBuf::new(&mut self.received_before[self.received..]);
            ready!(poll_read(&self.socket.stream, context, &mut into))?;
            if into.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.received += into.filled().len();
        }
        Poll::Ready(Ok(u64::from_le_bytes(self.received_before)))
    }

    /// Reads bytes of the stream; none if the peer has closed the connection.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(poll_read(&self.socket.stream, context, into))?;
        self.is_closed = into.filled().len() == before;
        Poll::Ready(Ok(()))
    }

    /// Closes the connection of a dropped stream, later: bytes that the system has still leave. Unread ones, which would
    /// reset the connection, are discarded until the peer closes it as well, or up to [`LINGER`] after the end of the
    /// session.
    pub(super) fn close_later(self: Box<Self>, session: &Arc<Session>) {
        let closing = Closing::new(Arc::clone(session));
        session.shared.runtime.spawn(async move { self.close(&closing.0).await });
    }

    async fn close(mut self: Box<Self>, session: &Session) -> io::Result<()> {
        let Self { socket, sent_before, sent, .. } = &mut *self;
        // Without it, the peer would take the end for that of a process without this connection.
        socket.stream.write_all(&sent_before[*sent..]).await?;
        socket.stream.shutdown().await?;
        let (mut rest, mut check) = ([0; 4_096], Instant::now() + LINGER);
        loop {
            let read = tokio::time::timeout_at(check, socket.stream.read(&mut rest)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                return Ok(());
            }
            if Instant::now() >= check {
                if session.ended().is_some() {
                    return Ok(());
                }
                check += LINGER;
            }
        }
    }
}

/// A task that closes a connection; counted, so that the process's end waits for it.
struct Closing(Arc<Session>);

impl Closing {
    fn new(session: Arc<Session>) -> Self {
        session.shared.movers.fetch_add(1, Ordering::AcqRel);
        Self(session)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.shared.movers.fetch_sub(1, Ordering::AcqRel);
        self.0.shared.mover_ended.notify_waiters();
    }
}

fn poll_read(
    stream: &TcpStream,
    context: &mut Context<'_>,
    into: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        match stream.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read.map(drop)),
        }
    }
}

/// Returns the most own connections of all sessions of a driver: a quarter of the process's file descriptors.
pub(super) fn most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(Semaphore::MAX_PERMITS, |limit| limit as usize / 4).min(Semaphore::MAX_PERMITS)
}

/// Accepts a connection for a stream, from the session's peer.
pub(super) async fn accept(
    shared: &SharedState,
    mut socket: TcpStream,
    peer: IpAddr,
    joining: Joining,
) -> io::Result<()> {
    let session = lock(&shared.accepted).get(&joining.session).and_then(Weak::upgrade);
    let session = session.filter(|session| {
        let at = session.transport().address().map(|at| at.ip().to_canonical());
        at == Some(peer.to_canonical())
    });
    let permit = Arc::clone(&shared.own_connections).try_acquire_owned().ok();
    let accepted = session.zip(permit);
    let accepted =
        accepted.filter(|(session, _)| session.with(|core| core.reserve_move(joining.stream)));
    let answered = socket.write_all(&answer(accepted.is_some())).await;
    if let Some((session, permit)) = accepted {
        let socket = Socket { stream: socket, _permit: permit };
        let leftover = session.with(|core| match answered {
            Ok(()) => core.move_stream(joining.stream, socket),
            Err(_) => {
                core.on_move_failed(joining.stream);
                None
            }
        });
        if let Some(socket) = leftover {
            OwnConnection::new(socket, u64::MAX).close_later(&session);
        }
    }
    answered
}

/// Returns whether other streams of the peer would fail for the same reason: it can't be reached over TCP, or does not
/// support own connections. A peer that closes has too many handshakes under way, and a process may have no file
/// descriptors left for now.
fn is_lasting(failed: &Failed) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match failed {
        Failed::System(error) => matches!(
            error.kind(),
            ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
        ),
        failed => matches!(failed, Failed::Version(_) | Failed::NoNode),
    }
}

/// Makes the connection of a stream.
pub(super) async fn make(session: Arc<Session>, stream: u32) {
    let to = session.transport().address();
    let id = session.id.get().copied().or_else(|| session.over_pipe(Pipe::remote));
    let permit = Arc::clone(&session.shared.own_connections).try_acquire_owned().ok();
    let Some(((to, id), permit)) = to.zip(id).zip(permit) else {
        return session.with(|core| core.on_move_failed(stream));
    };
    let joined = join(to, Joining { session: id, stream }).await;
    let leftover = session.with(|core| match joined {
        Ok(socket) => core.move_stream(stream, Socket { stream: socket, _permit: permit }),
        Err(error) => {
            core.may_move &= !is_lasting(&error);
            core.on_move_failed(stream);
            None
        }
    });
    if let Some(socket) = leftover {
        OwnConnection::new(socket, u64::MAX).close_later(&session);
    }
}
