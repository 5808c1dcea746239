//! The part of `tokio::net` and `tokio::io::duplex` that nodes' streams offer.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use midplane::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{ToSocketAddrs, lookup_host};

use crate::nodes;

/// A node's listener.
#[derive(Debug)]
pub struct TcpListener {
    listener: Mutex<midplane::Listener>,
    address: SocketAddr,
}

async fn resolve(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    lookup_host(address).await?.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl TcpListener {
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let (listener, address) = nodes::listen(resolve(address).await?).await?;
        Ok(Self { listener: Mutex::new(listener), address })
    }

    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.listener.lock().unwrap().poll_accept(context);
        accepted.map(|accepted| {
            let (stream, from) = nodes::accepted(accepted, self.address)?;
            Ok((TcpStream::new(stream, self.address, from), from))
        })
    }

    pub const fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// A node's stream, shared by its halves.
#[derive(Debug)]
pub struct TcpStream {
    shared: Arc<Mutex<Shared>>,
    local: SocketAddr,
    peer: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    stream: Stream,
    /// Bytes that `peek` has returned and no read has.
    peeked: Vec<u8>,
}

/// A half of a stream, or all of it.
pub type Half = TcpStream;
pub type UnixStream = TcpStream;
pub type DuplexStream = TcpStream;

impl TcpStream {
    pub(crate) fn new(stream: Stream, local: SocketAddr, peer: SocketAddr) -> Self {
        let shared = Shared { stream, peeked: Vec::new() };
        Self { shared: Arc::new(Mutex::new(shared)), local, peer }
    }

    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let peer = resolve(address).await?;
        let (stream, local) = nodes::connect(peer).await?;
        Ok(Self::new(stream, local, peer))
    }

    /// Returns two ends of one stream.
    pub fn pair() -> io::Result<(Self, Self)> {
        nodes::wait(async {
            let listener = Self::listen().await?;
            let connected = Self::connect(listener.address).await?;
            Ok((connected, listener.accept().await?.0))
        })
    }

    async fn listen() -> io::Result<TcpListener> {
        TcpListener::bind("127.0.0.1:0").await
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    fn again(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), local: self.local, peer: self.peer }
    }

    pub fn split(&mut self) -> (Half, Half) {
        (self.again(), self.again())
    }

    pub fn into_split(self) -> (Half, OwnedWriteHalf) {
        (self.again(), OwnedWriteHalf(Some(self)))
    }

    pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<Self, ReuniteError> {
        let is_same = other.0.as_ref().is_some_and(|half| Arc::ptr_eq(&half.shared, &self.shared));
        if is_same {
            other.0 = None;
            return Ok(self);
        }
        Err(ReuniteError(self, other))
    }

    pub async fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.lock().peeked.is_empty() {
            let mut bytes = vec![0; into.len()];
            let count = self.read(&mut bytes).await?;
            bytes.truncate(count);
            self.lock().peeked = bytes;
        }
        let shared = self.lock();
        let count = shared.peeked.len().min(into.len());
        into[..count].copy_from_slice(&shared.peeked[..count]);
        Ok(count)
    }

    pub const fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    pub const fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

/// Returns two ends of one stream, with the default windows.
pub fn duplex(_: usize) -> (DuplexStream, DuplexStream) {
    TcpStream::pair().unwrap()
}

/// A write half that ends its direction when it is dropped.
#[derive(Debug)]
pub struct OwnedWriteHalf(Option<TcpStream>);

/// Error of joining halves of two streams.
#[derive(Debug)]
#[expect(dead_code, reason = "tokio's has them")]
pub struct ReuniteError(pub TcpStream, pub OwnedWriteHalf);

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let _ = Pin::new(stream).poll_shutdown(&mut context);
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut shared = self.lock();
        if !shared.peeked.is_empty() {
            let count = shared.peeked.len().min(into.remaining());
            into.put_slice(&shared.peeked[..count]);
            shared.peeked.drain(..count);
            return Poll::Ready(Ok(()));
        }
        AsyncRead::poll_read(Pin::new(&mut shared.stream), context, into)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.lock().stream), context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(Pin::new(&mut self.lock().stream), context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        AsyncWrite::is_write_vectored(&self.lock().stream)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.lock().stream), context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.lock().stream), context)
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.as_mut().expect("it was not reunited")).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.as_mut().expect("it was not reunited")).poll_shutdown(context)
    }
}

/// A listener with a made-up address: no file is created at the path.
#[derive(Debug)]
pub struct UnixListener(TcpListener);

/// Addresses of Unix listeners, by path.
static PATHS: Mutex<std::collections::BTreeMap<std::path::PathBuf, SocketAddr>> =
    Mutex::new(std::collections::BTreeMap::new());

impl UnixListener {
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let listener = nodes::wait(TcpStream::listen())?;
        PATHS.lock().unwrap().insert(path.as_ref().to_owned(), listener.address);
        Ok(Self(listener))
    }

    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        self.0.accept().await
    }
}

/// Connects as `UnixStream::connect` does, whose signature differs from TCP's.
pub async fn connect_path(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    let address = PATHS.lock().unwrap().get(path.as_ref()).copied();
    TcpStream::connect(address.ok_or(io::ErrorKind::NotFound)?).await
}
