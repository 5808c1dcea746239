//! The kernel's sockets, through tokio.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

use crate::pingpong::arguments::{Kernel, MAX_BYTES};
use crate::pingpong::layers::{LOST, lost};
use crate::pingpong::measure::Side;
use crate::processes::Peer;

/// Bytes of a datagram; longer messages take several.
const DATAGRAM: usize = 32 << 10;

/// Error for a second process that was started by hand with such a peer.
const NOT_THE_KERNEL: &str = "--peer: other libraries have processes of their own";

fn failed(error: std::io::Error) -> String {
    format!("a socket failed: {error}")
}

/// A byte stream.
struct Stream<S> {
    socket: S,
    buffer: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Side for Stream<S> {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        self.socket.write_all(&self.buffer[..bytes]).await.map_err(failed)
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        self.socket.read_exact(&mut self.buffer[..bytes]).await.map(drop).map_err(failed)
    }
}

/// Datagrams, without retransmission.
struct Datagrams {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Side for Datagrams {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        for part in self.buffer[..bytes].chunks(DATAGRAM) {
            self.socket.send(part).await.map_err(failed)?;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let mut came = 0;
        while came < bytes {
            let part = tokio::time::timeout(LOST, self.socket.recv(&mut self.buffer[came..]));
            came += part.await.map_err(|_| lost())?.map_err(failed)?;
        }
        Ok(())
    }
}

/// Part of one side over a connection.
pub(crate) trait Game {
    type Result;
    async fn play(self, side: &mut impl Side) -> Result<Self::Result, String>;
}

fn buffer() -> Vec<u8> {
    vec![7; MAX_BYTES + DATAGRAM]
}

/// Listens on this host's address, passes it to the child, and runs `game` over the connection.
pub(crate) async fn wait<G: Game>(
    kernel: Kernel,
    own: IpAddr,
    tell: impl FnOnce(String) -> Result<Peer, String>,
    game: G,
) -> Result<G::Result, String> {
    match kernel {
        Kernel::Tcp => {
            let listener = TcpListener::bind((own, 0)).await.map_err(failed)?;
            let mut child = tell(listener.local_addr().map_err(failed)?.to_string())?;
            let part = async {
                let (socket, _) = listener.accept().await.map_err(failed)?;
                socket.set_nodelay(true).map_err(failed)?;
                game.play(&mut Stream { socket, buffer: buffer() }).await
            };
            child.beside(part).await
        }
        Kernel::Unix => {
            let folder = tempfile::tempdir().map_err(failed)?;
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).map_err(failed)?;
            let mut child = tell(path.display().to_string())?;
            let part = async {
                let (socket, _) = listener.accept().await.map_err(failed)?;
                game.play(&mut Stream { socket, buffer: buffer() }).await
            };
            child.beside(part).await
        }
        Kernel::Udp => {
            let socket = UdpSocket::bind((own, 0)).await.map_err(failed)?;
            let mut child = tell(socket.local_addr().map_err(failed)?.to_string())?;
            let part = async {
                let mut first = [0];
                let (_, from) = socket.recv_from(&mut first).await.map_err(failed)?;
                socket.connect(from).await.map_err(failed)?;
                game.play(&mut Datagrams { socket, buffer: buffer() }).await
            };
            child.beside(part).await
        }
        Kernel::Ucx | Kernel::Libfabric | Kernel::Openmpi | Kernel::Iceoryx2 => {
            Err(NOT_THE_KERNEL.into())
        }
    }
}

/// Connects to the waiting side, and runs `game` over the connection.
pub(crate) async fn go<G: Game>(kernel: Kernel, place: &str, game: G) -> Result<G::Result, String> {
    match kernel {
        Kernel::Tcp => {
            let socket = TcpStream::connect(place).await.map_err(failed)?;
            socket.set_nodelay(true).map_err(failed)?;
            game.play(&mut Stream { socket, buffer: buffer() }).await
        }
        Kernel::Unix => {
            let socket = UnixStream::connect(place).await.map_err(failed)?;
            game.play(&mut Stream { socket, buffer: buffer() }).await
        }
        Kernel::Udp => {
            let to: SocketAddr = place.parse().map_err(|error| format!("{place}: {error}"))?;
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
            socket.connect(to).await.map_err(failed)?;
            socket.send(&[0]).await.map_err(failed)?;
            game.play(&mut Datagrams { socket, buffer: buffer() }).await
        }
        Kernel::Ucx | Kernel::Libfabric | Kernel::Openmpi | Kernel::Iceoryx2 => {
            Err(NOT_THE_KERNEL.into())
        }
    }
}
