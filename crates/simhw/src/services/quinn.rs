//! quinn on simulated hosts: its runtime, and its sockets.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{
    AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, UdpPoller,
};
use tokio::time::{Sleep, sleep_until};

use super::VirtualHost;
use super::kernel::current_or_unsupported;
use super::udp::{Arrival, TRAIN_BYTES, UdpSocket};

/// The runtime of quinn on a simulated host. Its timers are tokio's, which fire at whole milliseconds as on real hosts.
#[derive(Clone, Copy, Debug)]
pub struct QuinnRuntime;

impl QuinnRuntime {
    /// Creates an endpoint at an address of the host whose code runs on this thread; for port 0, at any free one. With
    /// a server's configuration, it accepts connections. The endpoint's random numbers are drawn from the host's.
    ///
    /// Two runs with one seed are the same on two conditions. Each run creates its own configurations, because a
    /// client's configuration keeps sessions and tokens for later connections. The server's key is an Ed25519 key: TLS
    /// draws its keys from the system's random numbers, and an ECDSA signature then has 70 to 72 bytes. The length of
    /// encrypted data does not depend on the keys.
    ///
    /// # Errors
    /// Those of [`UdpSocket::bind`].
    pub fn endpoint(
        mut config: EndpointConfig,
        server: Option<ServerConfig>,
        address: SocketAddr,
    ) -> io::Result<Endpoint> {
        let host = VirtualHost(current_or_unsupported()?);
        let socket = UdpSocket::bind(address)?;
        let mut seed = [0; 32];
        seed.chunks_mut(8).for_each(|word| word.copy_from_slice(&host.random().to_le_bytes()));
        config.rng_seed(Some(seed));
        Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(Self))
    }
}

impl Runtime for QuinnRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(Box::pin(sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let text =
            "a socket of the system is none of a simulated host: use `QuinnRuntime::endpoint`";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

#[derive(Debug)]
struct Timer(Pin<Box<Sleep>>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        Sleep::reset(self.0.as_mut(), at.into());
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), context)
    }
}

/// Waits for space for the most bytes that quinn sends at once.
#[derive(Debug)]
struct Poller(Arc<UdpSocket>);

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send_ready(context, TRAIN_BYTES).map(Ok)
    }
}

impl AsyncUdpSocket for UdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, ecn, contents, segment_size, .. } = transmit;
        let segment = segment_size.unwrap_or(contents.len());
        let ecn = ecn.map_or(0, |ecn| ecn as u8);
        match Self::try_send(self, *destination, contents, segment, ecn) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // The datagram is lost, as with quinn's own sockets: it is too long, like some MTU probes, or no host has
            // its address.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let most = buffers.len().min(metas.len());
        let mut count = 0;
        while count < most {
            let datagram = match self.poll_receive(context) {
                Poll::Ready(Arrival::Datagram(datagram)) => datagram,
                Poll::Ready(Arrival::Unreachable(_)) => continue,
                Poll::Pending if count > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let buffer = &mut buffers[count];
            let length = datagram.bytes.len().min(buffer.len());
            buffer[..length].copy_from_slice(&datagram.bytes[..length]);
            metas[count] = RecvMeta {
                addr: datagram.peer,
                len: length,
                stride: length,
                ecn: EcnCodepoint::from_bits(datagram.ecn),
                dst_ip: None,
            };
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(Self::local_addr(self))
    }

    fn max_transmit_segments(&self) -> usize {
        TRAIN_BYTES / self.max_datagram()
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
