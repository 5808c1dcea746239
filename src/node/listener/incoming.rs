//! Adapts a listener's streams to tonic.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use midplane_via::session::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::{Listener, PeerName};

/// Yields the streams that a listener accepts; made by [`Listener::incoming`].
#[derive(Debug)]
pub struct Incoming(Listener);

impl Incoming {
    pub(super) const fn new(listener: Listener) -> Self {
        Self(listener)
    }
}

impl futures_core::Stream for Incoming {
    type Item = io::Result<NamedStream>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<NamedStream>>> {
        // The only error means that the node was shut down.
        let accepted = self.get_mut().0.poll_accept(context).map(Result::ok);
        accepted.map(|accepted| accepted.map(|(stream, peer)| Ok(NamedStream { stream, peer })))
    }
}

/// A [`Stream`] that gives tonic the node at its other end.
#[derive(Debug)]
pub struct NamedStream {
    stream: Stream,
    peer: PeerName,
}

impl Connected for NamedStream {
    type ConnectInfo = PeerName;

    fn connect_info(&self) -> PeerName {
        self.peer.clone()
    }
}

impl NamedStream {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut Stream> {
        Pin::new(&mut self.get_mut().stream)
    }
}

impl AsyncRead for NamedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(self.stream(), context, into)
    }
}

impl AsyncWrite for NamedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(self.stream(), context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(self.stream(), context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        AsyncWrite::is_write_vectored(&self.stream)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(self.stream(), context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(self.stream(), context)
    }
}
