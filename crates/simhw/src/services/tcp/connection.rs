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

/// Bytes of a connection's receive buffer, and of its send buffer, which keeps bytes until the peer acknowledges them.
pub const TCP_BUFFER_BYTES: usize = 256 << 10;

/// Time without an answer after which opening a connection fails: as long as Linux sends SYN, seven times.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);
/// Time without a packet of the peer after which a connection with unacknowledged data fails: about as long as Linux
/// resends the data.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(900);
/// Time without a packet of the peer after which a connection whose stream was dropped fails.
const DROPPED_TIMEOUT: Duration = Duration::from_secs(60);

/// The holder of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Holder {
    /// A listener, while the handshake is in progress.
    Handshake,
    /// A listener, until its code accepts the connection.
    Backlog,
    /// A stream of the host's code.
    Stream,
    /// None, because the stream was dropped.
    Dropped,
}

/// A TCP connection of a host.
#[derive(Debug)]
pub(super) struct Connection {
    /// A set with the connection's socket only: the work for a packet does not depend on the number of connections.
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) ends: Ends,
    pub(super) holder: Holder,
    /// The reason why the connection has failed.
    pub(super) error: Option<io::ErrorKind>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// When the last packet of the peer arrived, or waiting for the peer began; `None` while nothing waits for it.
    waits_since: Option<Instant>,
    pub(super) recovery: Recovery,
    /// When the connection is polled next.
    pub(super) timer: Option<Instant>,
    /// True if the connection is in the list of active ones.
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

    /// Returns how long the connection waits for its peer; `None` if it does not wait.
    fn timeout(&self) -> Option<Duration> {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        match socket.state() {
            State::Closed | State::Listen | State::TimeWait => None,
            State::SynSent | State::SynReceived => Some(CONNECT_TIMEOUT),
            _ if self.holder == Holder::Dropped => Some(DROPPED_TIMEOUT),
            State::FinWait1 | State::Closing | State::LastAck => Some(UNACKNOWLEDGED_TIMEOUT),
            _ => (socket.send_queue() > 0).then_some(UNACKNOWLEDGED_TIMEOUT),
        }
    }

    /// Returns when the connection fails if no packet of the peer arrives, in its state at `now`.
    pub(super) fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let timeout = self.timeout();
        let since = timeout.map(|_| self.waits_since.unwrap_or(now));
        self.waits_since = since;
        Some(since? + timeout?)
    }

    /// Aborts the connection if its deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.waits_since.is_some() && self.deadline(now).is_some_and(|deadline| deadline <= now)
        {
            self.error = Some(io::ErrorKind::TimedOut);
            self.socket().abort();
        }
    }

    /// Records that a packet of the peer was handled, and the error if it closed the connection. `before` is the state
    /// before the packet.
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
        if self.holder == Holder::Dropped && self.socket().recv_queue() > 0 {
            // No stream is left to read the data: like Linux, resets the peer.
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

    /// Returns whether the connection is open, or the reason why it failed. If neither is known, wakes the task once it
    /// is. Returns the replaced waker.
    pub(super) fn poll_open(&mut self, waker: &Waker) -> (Poll<io::Result<()>>, Option<Waker>) {
        match self.state() {
            State::SynSent | State::SynReceived => {
                (Poll::Pending, self.writer.replace(waker.clone()))
            }
            state => {
                let closed = (state == State::Closed).then_some(io::ErrorKind::ConnectionAborted);
                let error = self.error.or(closed);
                (Poll::Ready(error.map_or(Ok(()), |kind| Err(kind.into()))), None)
            }
        }
    }

    /// Reads received bytes; at the end of the stream, none. If none have arrived yet, wakes the task once some have.
    /// Returns the replaced waker.
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
                // The buffer is a ring: the bytes may continue at its start.
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

    /// Takes bytes to send. If there is no space, wakes the task once there is. Returns the replaced waker.
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

    /// Releases the connection from its stream: sends the written bytes and FIN, or RST if received bytes are unread or
    /// `at_once` is true. Returns its wakers.
    pub(super) fn release(&mut self, at_once: bool) -> [Option<Waker>; 2] {
        self.holder = Holder::Dropped;
        self.waits_since = None;
        let socket = self.socket();
        if at_once || socket.recv_queue() > 0 {
            socket.abort();
        } else {
            socket.close();
        }
        [self.reader.take(), self.writer.take()]
    }

    /// Returns whether the connection can be removed.
    pub(super) fn is_over(&mut self) -> bool {
        let is_held = matches!(self.holder, Holder::Stream | Holder::Backlog);
        match self.state() {
            // The socket keeps the peer's address until its RST is sent.
            State::Closed => !is_held && self.socket().remote_endpoint().is_none(),
            // The peer has reset its request.
            State::Listen => !is_held,
            // The peer has received all bytes and sent all. If it resends its FIN, RST ends its connection.
            State::TimeWait => self.holder == Holder::Dropped,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_connection_that_is_closed_without_a_reason_is_not_open() {
        let end = (Ipv4Addr::LOCALHOST, 7);
        let mut closed = Connection::new(Ends { local: end, peer: end }, Holder::Stream);
        let (Poll::Ready(opened), _) = closed.poll_open(Waker::noop()) else {
            panic!("it waits for a peer");
        };
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
