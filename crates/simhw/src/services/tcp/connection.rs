//! A connection of a host's TCP.

use std::io;
use std::task::{Poll, Waker};
use std::time::Duration;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State};
use tokio::io::ReadBuf;

use super::packet::Ends;
use super::recovery::Recovery;
use crate::time::Instant;

/// Bytes that a connection keeps for its reader, and bytes that it keeps until the peer has acknowledged them.
pub const TCP_BUFFER_BYTES: usize = 256 << 10;

/// Time without an answer after which a connection that is being opened is given up: Linux sends SYN seven times.
const OPENING: Duration = Duration::from_secs(127);
/// Time without a packet of the peer after which unacknowledged data is given up: about as long as Linux resends it.
const UNACKNOWLEDGED: Duration = Duration::from_secs(900);
/// Time without a packet of the peer after which a connection that its code has dropped is given up.
const DROPPED: Duration = Duration::from_secs(60);

/// The holder of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Holder {
    /// A listener, before the handshake is over.
    Handshake,
    /// A listener, whose code has not accepted the connection yet.
    Backlog,
    /// A stream.
    Stream,
    /// None: the stream was dropped.
    Nobody,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The set of the one socket: the work for a packet does not depend on how many connections there are.
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) ends: Ends,
    pub(super) holder: Holder,
    /// Why the connection has ended, if not as both sides wanted.
    pub(super) error: Option<io::ErrorKind>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// When the peer was last heard of, or waiting for it began; `None` while nothing waits for it.
    waits_since: Option<Instant>,
    pub(super) recovery: Recovery,
    /// When the connection has something to do.
    pub(super) timer: Option<Instant>,
    /// True if it stands in the list of those that may have something to send.
    pub(super) is_active: bool,
}

impl Connection {
    pub(super) fn new(ends: Ends, holder: Holder) -> Self {
        let buffer = || SocketBuffer::new(vec![0; TCP_BUFFER_BYTES]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_congestion_control(CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self {
            sockets,
            handle,
            ends,
            holder,
            error: None,
            reader: None,
            writer: None,
            waits_since: None,
            recovery: Recovery::default(),
            timer: None,
            is_active: false,
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.handle).state()
    }

    /// Returns for how long the connection waits for its peer; `None` if it does not.
    fn patience(&self) -> Option<Duration> {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        match socket.state() {
            State::Closed | State::Listen | State::TimeWait => None,
            State::SynSent | State::SynReceived => Some(OPENING),
            _ if self.holder == Holder::Nobody => Some(DROPPED),
            State::FinWait1 | State::Closing | State::LastAck => Some(UNACKNOWLEDGED),
            _ => (socket.send_queue() > 0).then_some(UNACKNOWLEDGED),
        }
    }

    /// Returns when the connection gives its peer up, as things are at `now`.
    pub(super) fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.patience();
        let since = patience.map(|_| self.waits_since.unwrap_or(now));
        self.waits_since = since;
        Some(since? + patience?)
    }

    /// Gives the peer up if it is overdue.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.waits_since.is_some() && self.deadline(now).is_some_and(|deadline| deadline <= now)
        {
            self.error = Some(io::ErrorKind::TimedOut);
            self.socket().abort();
        }
    }

    /// Notes that a packet of the peer was handled, and with what it was closed. The state before is `before`.
    pub(super) fn on_packet(&mut self, before: State, is_reset: bool) {
        self.waits_since = None;
        let has_ended = before != State::Closed && self.state() == State::Closed;
        if has_ended && is_reset {
            let is_refused = before == State::SynSent;
            self.error = Some(match is_refused {
                true => io::ErrorKind::ConnectionRefused,
                false => io::ErrorKind::ConnectionReset,
            });
        }
        if self.holder == Holder::Nobody && self.socket().recv_queue() > 0 {
            // No stream is left to read it: the peer is reset, as by Linux.
            self.socket().abort();
        }
    }

    /// Appends the wakers of tasks that can read or write now.
    pub(super) fn take_ready(&mut self, wakes: &mut Vec<Waker>) {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let is_opening = matches!(socket.state(), State::SynSent | State::SynReceived);
        let can_read = socket.can_recv() || !socket.may_recv();
        let can_write = !is_opening && (socket.can_send() || !socket.may_send());
        if can_read {
            wakes.extend(self.reader.take());
        }
        if can_write {
            wakes.extend(self.writer.take());
        }
    }

    /// Returns whether the connection is open, or the reason why it never will be. If neither, wakes the task once it is;
    /// returns the waker that it replaces.
    pub(super) fn poll_open(&mut self, waker: &Waker) -> (Poll<io::Result<()>>, Option<Waker>) {
        match self.state() {
            State::SynSent | State::SynReceived => {
                (Poll::Pending, self.writer.replace(waker.clone()))
            }
            _ => (Poll::Ready(self.error.map_or(Ok(()), |kind| Err(kind.into()))), None),
        }
    }

    /// Reads what has arrived, at the end nothing. If there is nothing yet, wakes the task once there is; returns the waker
    /// that it replaces.
    pub(super) fn poll_read(
        &mut self,
        waker: &Waker,
        out: &mut ReadBuf<'_>,
    ) -> (Poll<io::Result<()>>, Option<Waker>) {
        let before = out.filled().len();
        loop {
            let read = self.socket().recv(|bytes| {
                let length = bytes.len().min(out.remaining());
                out.put_slice(&bytes[..length]);
                (length, length)
            });
            match read {
                // The buffer is a ring: the bytes may go on at its start.
                Ok(1..) if out.remaining() > 0 => {}
                _ if out.filled().len() > before || out.remaining() == 0 => {
                    return (Poll::Ready(Ok(())), None);
                }
                Ok(_) => return (Poll::Pending, self.reader.replace(waker.clone())),
                Err(RecvError::Finished) => return (Poll::Ready(Ok(())), None),
                Err(RecvError::InvalidState) => {
                    let result = self.error.map_or(Ok(()), |kind| Err(kind.into()));
                    return (Poll::Ready(result), None);
                }
            }
        }
    }

    /// Takes bytes to send. If there is no space, wakes the task once there is; returns the waker that it replaces.
    pub(super) fn poll_write(
        &mut self,
        waker: &Waker,
        bytes: &[u8],
    ) -> (Poll<io::Result<usize>>, Option<Waker>) {
        match self.socket().send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => (Poll::Pending, self.writer.replace(waker.clone())),
            Ok(sent) => (Poll::Ready(Ok(sent)), None),
            Err(_) => {
                let kind = self.error.unwrap_or(io::ErrorKind::BrokenPipe);
                (Poll::Ready(Err(kind.into())), None)
            }
        }
    }

    /// Releases the connection from its stream: sends what was written and FIN, or RST if there is something unread or `at
    /// once` is true. Returns its wakers.
    pub(super) fn release(&mut self, at_once: bool) -> [Option<Waker>; 2] {
        self.holder = Holder::Nobody;
        self.waits_since = None;
        let socket = self.socket();
        if at_once || socket.recv_queue() > 0 {
            socket.abort();
        } else {
            socket.close();
        }
        [self.reader.take(), self.writer.take()]
    }

    /// Returns whether nothing of the connection is left to do for anybody.
    pub(super) fn is_over(&mut self) -> bool {
        let is_held = matches!(self.holder, Holder::Stream | Holder::Backlog);
        match self.state() {
            // Without a peer's address, its RST is sent or was never due.
            State::Closed => !is_held && self.socket().remote_endpoint().is_none(),
            // The peer has reset what it asked for.
            State::Listen => !is_held,
            // The peer has all and has sent all. A FIN that it resends is answered with RST, which ends it there.
            State::TimeWait => self.holder == Holder::Nobody,
            _ => false,
        }
    }
}
