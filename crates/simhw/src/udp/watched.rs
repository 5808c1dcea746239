//! A socket of which the runtime reports only readability.
//!
//! tokio's own socket also reports each time that more can be sent: every datagram that a peer accepts would
//! then wake this host.

use std::io;
use std::net::UdpSocket;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(super) struct Watched(AsyncFd<UdpSocket>);

impl Watched {
    /// Registers a socket with the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O is not enabled.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "a UdpSocket stays open; the replacement is unsafe")]
        AsyncFd::with_interest(socket, Interest::READABLE).map(Self)
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
        self.0.try_io(Interest::READABLE, read)
    }
}
