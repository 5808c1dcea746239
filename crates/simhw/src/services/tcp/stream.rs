//! TCP streams of a simulated host.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Connection;
use super::packet::Ends;
use crate::services::address::ToAddress;
use crate::services::kernel::{Hosts, Kernel, current_or_unsupported};

/// A TCP connection of a simulated host. Use it as tokio's; `tokio::io::split` splits it.
///
/// Each direction has a buffer of [`TCP_BUFFER_BYTES`](super::TCP_BUFFER_BYTES), and the window is no larger. A lost
/// segment is resent at the third duplicate acknowledgement, or after about two round trips without one. If the peer is
/// silent for 15 minutes while it has data to acknowledge, the stream fails with [`io::ErrorKind::TimedOut`]. A peer
/// that has restarted resets the connection ([`io::ErrorKind::ConnectionReset`]).
///
/// Like on Linux, a dropped stream sends the written bytes, then FIN; if received bytes are unread, it sends RST. There
/// is no TIME-WAIT.
///
/// # Cancel safety
/// Like tokio's: a read or write that is dropped before it is ready has taken or sent nothing.
#[derive(Debug)]
pub struct TcpStream {
    kernel: Arc<Kernel>,
    id: u64,
    ends: Ends,
}

fn address((ip, port): (Ipv4Addr, u16)) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

impl TcpStream {
    pub(super) const fn new(kernel: Arc<Kernel>, id: u64, ends: Ends) -> Self {
        Self { kernel, id, ends }
    }

    /// Connects to an address, or to `HOST:PORT` with the name of a host. Loopback addresses, unspecified ones and
    /// `localhost` are the own host.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] if nothing listens there, [`io::ErrorKind::TimedOut`] without an answer
    /// within 127 s, [`io::ErrorKind::HostUnreachable`] if no host has the address, [`io::ErrorKind::AddrNotAvailable`]
    /// without a free port, [`io::ErrorKind::Unsupported`] outside a simulation.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection.
    pub async fn connect(to: impl ToAddress) -> io::Result<Self> {
        let kernel = current_or_unsupported()?;
        let to = to.to_address(&kernel)?;
        let (node, is_loopback) = kernel.route(to.ip()).ok_or(io::ErrorKind::HostUnreachable)?;
        let ip = if is_loopback { Ipv4Addr::LOCALHOST } else { Hosts::ipv4(node) };
        let (id, ends) = {
            let mut state = kernel.state();
            let id = state.tcp.connect((ip, to.port()))?;
            (id, state.tcp.connections[&id].ends)
        };
        let stream = Self { kernel, id, ends };
        poll_fn(|context| stream.with(|connection| connection.poll_open(context.waker()))).await?;
        Ok(stream)
    }

    /// Returns the address of the own end.
    ///
    /// # Errors
    /// None.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.ends.local))
    }

    /// Returns the address of the peer's end.
    ///
    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.ends.peer))
    }

    /// Sends short segments at once (`true`), or waits until earlier ones are acknowledged, by Nagle's algorithm.
    /// Default: `false`.
    ///
    /// # Errors
    /// None.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.with(|connection| {
            connection.socket().set_nagle_enabled(!nodelay);
            ((), None)
        });
        self.kernel.state().tcp.activate(self.id);
        Ok(())
    }

    /// Calls `act` with the connection under the host's lock, and drops a replaced waker after releasing the lock.
    fn with<T>(&self, act: impl FnOnce(&mut Connection) -> (T, Option<Waker>)) -> T {
        let (result, replaced) = {
            let mut state = self.kernel.state();
            let connection = state.tcp.connections.get_mut(&self.id);
            act(connection.expect("a stream holds its connection"))
        };
        drop(replaced);
        result
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = self.with(|connection| connection.poll_read(context.waker(), out));
        if polled.is_ready() {
            // The window may have grown.
            self.kernel.state().tcp.activate(self.id);
        }
        polled
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = self.with(|connection| connection.poll_write(context.waker(), bytes));
        if polled.is_ready() {
            self.kernel.state().tcp.activate(self.id);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|connection| {
            connection.socket().close();
            ((), None)
        });
        self.kernel.state().tcp.activate(self.id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let wakers = self.kernel.state().tcp.release(self.id, false);
        drop(wakers);
    }
}
