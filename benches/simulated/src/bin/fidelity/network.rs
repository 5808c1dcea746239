//! The sockets that the traffic uses: the kernel's, or those of a simulated host.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use midplane_simhw::services::VirtualHost;
use tokio::io::{AsyncRead, AsyncWrite};

/// Sockets and a clock that all hosts share.
pub trait Network: Send + Sync + 'static {
    type Udp: Send + Sync;
    type Listener: Send;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn now() -> Duration;
    fn bind(port: u16) -> impl Future<Output = io::Result<Self::Udp>> + Send;
    fn send(
        socket: &Self::Udp,
        bytes: &[u8],
        to: SocketAddr,
    ) -> impl Future<Output = io::Result<usize>> + Send;
    fn receive(
        socket: &Self::Udp,
        bytes: &mut [u8],
    ) -> impl Future<Output = io::Result<usize>> + Send;
    fn listen(port: u16) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    fn accept(
        listener: &mut Self::Listener,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    fn connect(to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// The sockets of the kernel.
pub struct Kernel;

impl Network for Kernel {
    type Udp = tokio::net::UdpSocket;
    type Listener = tokio::net::TcpListener;
    type Stream = tokio::net::TcpStream;

    fn now() -> Duration {
        SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
    }

    async fn bind(port: u16) -> io::Result<Self::Udp> {
        Self::Udp::bind(("0.0.0.0", port)).await
    }

    async fn send(socket: &Self::Udp, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        socket.send_to(bytes, to).await
    }

    async fn receive(socket: &Self::Udp, bytes: &mut [u8]) -> io::Result<usize> {
        socket.recv(bytes).await
    }

    async fn listen(port: u16) -> io::Result<Self::Listener> {
        Self::Listener::bind(("0.0.0.0", port)).await
    }

    async fn accept(listener: &mut Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(to: SocketAddr) -> io::Result<Self::Stream> {
        Self::Stream::connect(to).await
    }
}

/// The sockets of simulated hosts.
pub struct Simulated;

impl Network for Simulated {
    type Udp = midplane::net::UdpSocket;
    type Listener = midplane::net::TcpListener;
    type Stream = midplane::net::TcpStream;

    fn now() -> Duration {
        let host = VirtualHost::current().expect("it runs on a simulated host");
        Duration::from_nanos(host.now().as_nanos())
    }

    async fn bind(port: u16) -> io::Result<Self::Udp> {
        Self::Udp::bind(SocketAddr::from(([0; 4], port)))
    }

    async fn send(socket: &Self::Udp, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        socket.send_to(bytes, to).await
    }

    async fn receive(socket: &Self::Udp, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(socket.recv_from(bytes).await?.0)
    }

    async fn listen(port: u16) -> io::Result<Self::Listener> {
        Self::Listener::bind(SocketAddr::from(([0; 4], port))).await
    }

    async fn accept(listener: &mut Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(to: SocketAddr) -> io::Result<Self::Stream> {
        Self::Stream::connect(to).await
    }
}
