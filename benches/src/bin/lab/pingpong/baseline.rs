//! The kernel's sockets, through tokio.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use midplane_benches::folder::Folder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

use crate::pingpong::arguments::{Kernel, MAX_BYTES};
use crate::pingpong::layers::{LOST, lost};
use crate::pingpong::measure::{Figures, Measurement, Side};

/// Bytes of a datagram; longer messages take several.
const DATAGRAM: usize = 32 << 10;

fn failed(error: io::Error) -> String {
    format!("a socket failed: {error}")
}

/// A socket, and the bytes that it sends and receives.
struct Socket<S> {
    socket: S,
    buffer: Vec<u8>,
}

impl<S> Socket<S> {
    fn new(socket: S) -> Self {
        Self { socket, buffer: vec![7; MAX_BYTES + DATAGRAM] }
    }
}

/// Sends and receives over a byte stream.
impl<S: AsyncRead + AsyncWrite + Unpin> Side for Socket<S> {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        self.socket.write_all(&self.buffer[..bytes]).await.map_err(failed)
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        self.socket.read_exact(&mut self.buffer[..bytes]).await.map(drop).map_err(failed)
    }
}

/// Datagrams, without retransmission.
struct Datagrams(Socket<UdpSocket>);

impl Side for Datagrams {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        for part in self.0.buffer[..bytes].chunks(DATAGRAM) {
            self.0.socket.send(part).await.map_err(failed)?;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let mut received = 0;
        while received < bytes {
            let part =
                tokio::time::timeout(LOST, self.0.socket.recv(&mut self.0.buffer[received..]));
            received += part.await.map_err(|_| lost())?.map_err(failed)?;
        }
        Ok(())
    }
}

/// The socket at which one process waits for the other.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Folder),
    Udp(UdpSocket),
}

impl Listener {
    /// Listens on this host's address; returns the place to which the other process connects.
    pub(crate) async fn bind(kernel: Kernel, own: IpAddr) -> Result<(Self, String), String> {
        let bound = async {
            Ok(match kernel {
                Kernel::Tcp => {
                    let listener = TcpListener::bind((own, 0)).await?;
                    let place = listener.local_addr()?.to_string();
                    (Self::Tcp(listener), place)
                }
                Kernel::Udp => {
                    let socket = UdpSocket::bind((own, 0)).await?;
                    let place = socket.local_addr()?.to_string();
                    (Self::Udp(socket), place)
                }
                _ => {
                    let folder = Folder::create()?;
                    let path = folder.path().join("socket");
                    (Self::Unix(UnixListener::bind(&path)?, folder), path.display().to_string())
                }
            })
        };
        bound.await.map_err(failed)
    }

    /// Waits for the other process, and measures over the connection.
    pub(crate) async fn run(self, measurement: Measurement<'_>) -> Result<Vec<Figures>, String> {
        match self {
            Self::Tcp(listener) => {
                over_tcp(listener.accept().await.map(|(socket, _)| socket), measurement).await
            }
            Self::Unix(listener, _folder) => {
                let (socket, _) = listener.accept().await.map_err(failed)?;
                measurement.run(&mut Socket::new(socket)).await
            }
            Self::Udp(socket) => {
                let (_, from) = socket.recv_from(&mut [0]).await.map_err(failed)?;
                socket.connect(from).await.map_err(failed)?;
                measurement.run(&mut Datagrams(Socket::new(socket))).await
            }
        }
    }
}

async fn over_tcp(
    socket: io::Result<TcpStream>,
    measurement: Measurement<'_>,
) -> Result<Vec<Figures>, String> {
    let socket = socket.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    measurement.run(&mut Socket::new(socket)).await
}

/// Connects to the waiting process, and measures over the connection.
pub(crate) async fn connect(
    kernel: Kernel,
    place: &str,
    measurement: Measurement<'_>,
) -> Result<Vec<Figures>, String> {
    match kernel {
        Kernel::Tcp => over_tcp(TcpStream::connect(place).await, measurement).await,
        Kernel::Udp => {
            let to: SocketAddr = place.parse().map_err(|error| format!("{place}: {error}"))?;
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
            socket.connect(to).await.map_err(failed)?;
            socket.send(&[0]).await.map_err(failed)?;
            measurement.run(&mut Datagrams(Socket::new(socket))).await
        }
        _ => {
            let socket = UnixStream::connect(place).await.map_err(failed)?;
            measurement.run(&mut Socket::new(socket)).await
        }
    }
}
