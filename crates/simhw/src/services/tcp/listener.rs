//! TCP listeners of a simulated host.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::stream::TcpStream;
use crate::services::address::ToAddress;
use crate::services::kernel::{Kernel, current_or_unsupported};
use crate::services::udp::is_own;

/// Most connections that wait to be accepted at a listener. Further requests are dropped; peers resend them after 1 s.
pub const BACKLOG: usize = 1_024;

/// Accepts TCP connections of a simulated host. Dropping it resets those that are not accepted.
#[derive(Debug)]
pub struct TcpListener {
    kernel: Arc<Kernel>,
    address: SocketAddr,
}

impl TcpListener {
    /// Listens at an address of the host whose code runs on this thread; for port 0, at any free one.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] outside a simulation, [`io::ErrorKind::AddrInUse`], and
    /// [`io::ErrorKind::AddrNotAvailable`] for the address of another host.
    pub async fn bind(address: impl ToAddress) -> io::Result<Self> {
        let kernel = current_or_unsupported()?;
        let address = address.to_address(&kernel)?;
        if !is_own(address, kernel.ip()) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let address = kernel.state().tcp.listen(address)?;
        Ok(Self { kernel, address })
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// None.
    pub const fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Waits for a connection; returns it with the address of its peer.
    ///
    /// # Errors
    /// None.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has taken no connection.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// Accepts the next connection, as [`TcpListener::accept`] does. If there is none, wakes the task once there is.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.kernel.state().tcp.accept(self.address.port(), context.waker());
        let Some((id, ends)) = accepted else { return Poll::Pending };
        let stream = TcpStream::new(Arc::clone(&self.kernel), id, ends);
        let peer = stream.peer_addr();
        Poll::Ready(peer.map(|peer| (stream, peer)))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let acceptors = self.kernel.state().tcp.close(self.address.port());
        drop(acceptors);
    }
}
