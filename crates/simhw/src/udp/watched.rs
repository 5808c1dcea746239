//! A socket of which the runtime reports only readability.
//!
//! tokio's own socket also reports each time that more can be sent: every datagram that a peer accepts would
//! then wake this host.

use std::io;
use std::net::UdpSocket;
use std::task::{Context, Poll};

#[cfg(unix)]
type Inner = tokio::io::unix::AsyncFd<UdpSocket>;
#[cfg(not(unix))]
type Inner = (tokio::net::UdpSocket, UdpSocket);

#[derive(Debug)]
pub(super) struct Watched(Inner);

#[cfg(unix)]
impl Watched {
    /// Registers a socket with the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O is not enabled.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "a UdpSocket stays open; the replacement is unsafe")]
        Inner::with_interest(socket, tokio::io::Interest::READABLE).map(Self)
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        self.0.get_ref()
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(context).map(drop)
    }

    /// Calls `read` if datagrams may have arrived; `WouldBlock` from it means that none is left.
    pub(super) fn try_read(
        &self,
        read: impl FnOnce(&UdpSocket) -> io::Result<()>,
    ) -> io::Result<()> {
        self.0.try_io(tokio::io::Interest::READABLE, read)
    }
}

#[cfg(not(unix))]
impl Watched {
    /// Registers a socket with the current runtime.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let other = socket.try_clone()?;
        Ok(Self((tokio::net::UdpSocket::from_std(socket)?, other)))
    }

    pub(super) const fn socket(&self) -> &UdpSocket {
        &self.0.1
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.0.poll_recv_ready(context).map(drop)
    }

    pub(super) fn try_read(
        &self,
        read: impl FnOnce(&UdpSocket) -> io::Result<()>,
    ) -> io::Result<()> {
        self.0.0.try_io(tokio::io::Interest::READABLE, || read(&self.0.1))
    }
}
