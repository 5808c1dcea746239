//! Implements hyper's I/O traits for streams, so that clients built on hyper take a connector that returns them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
#[cfg(feature = "hyper-client")]
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;

use super::Stream;

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut TokioIo::new(self.get_mut())).poll_read(context, into)
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write(self, context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write_vectored(self, context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        tokio::io::AsyncWrite::is_write_vectored(self)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(self, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_shutdown(self, context)
    }
}

#[cfg(feature = "hyper-client")]
impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(all(test, feature = "hyper-client"))]
mod tests {
    use super::*;

    #[test]
    fn a_connector_of_streams_suits_the_pooling_client_of_hyper_util() {
        const fn suits<T: Read + Write + Connection + Unpin + Send + 'static>() {}
        suits::<Stream>();
    }
}
