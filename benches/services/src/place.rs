//! The places of services: at nodes, and at addresses of TCP.

use std::io::Write;
use std::net::IpAddr;

use midplane::{Key, Node, NodeBuilder, Stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::arguments::{Row, Transport, What};
use crate::{Failure, bulk, calls, grpc, http, tls};

/// The name of each service.
pub const SERVICE: &str = "service";

/// A stream of either kind.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl Io for Stream {}
impl Io for TcpStream {}
impl Io for TlsStream<TcpStream> {}

/// The service that a client connects to.
#[derive(Clone)]
pub enum Target {
    Tcp(String),
    Tls(String),
    Node(Node),
}

impl Target {
    pub async fn new(transport: Transport, place: &str, host: Host) -> Result<Self, Failure> {
        Ok(match transport {
            Transport::Tokio => Self::Tcp(place.to_owned()),
            Transport::Tls => Self::Tls(place.to_owned()),
            Transport::Shm => Self::Node(Node::builder().cluster(place).start().await?),
            over => Self::Node(host.node(over).discover(place).start().await?),
        })
    }

    pub async fn connect(&self) -> Result<Box<dyn Io>, Failure> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Tls(place) => Box::new(tls::connect(place).await?),
            Self::Node(node) => Box::new(node.connect(SERVICE).await?),
        })
    }
}

/// The host that a process runs on.
#[derive(Clone, Copy)]
pub struct Host {
    pub address: IpAddr,
    /// True if its nodes seal what they send.
    pub is_sealed: bool,
}

impl Host {
    /// Builds a node over UDP or TCP with the defaults; between hosts, one that trusts the network or has a key.
    fn node(self, transport: Transport) -> NodeBuilder {
        let mut builder = Node::builder().transports(&transport.of_nodes());
        if !self.address.is_loopback() {
            builder = builder.bind((self.address, 0).into());
        }
        match self.is_sealed {
            true => builder.key(Key::new(1, [7; 32])),
            false if self.address.is_loopback() => builder,
            false => builder.trusted_network(),
        }
    }
}

/// Serves until the process ends, at a place or where it is free; writes the place as the first line of the output.
pub async fn serve(row: Row, at: &str, host: Host) -> Result<(), Failure> {
    if row.transport == Transport::Tokio {
        let listener = TcpListener::bind((host.address, 0)).await?;
        write_line(listener.local_addr()?);
        return match row.what {
            What::Tonic64 | What::Tonic4096 => grpc::serve_tcp(listener).await,
            What::Call64 | What::Call4096 | What::Call65536 => calls::serve_tcp(listener).await,
            What::Memory => bulk::serve_tcp(listener).await,
            _ => http::serve_tcp(listener).await,
        };
    }
    if row.transport == Transport::Tls {
        let tcp = TcpListener::bind((host.address, 0)).await?;
        let (listener, place) = tls::Listener::new(tcp)?;
        write_line(place);
        return http::serve_on(listener).await;
    }
    let (node, place) = if row.transport == Transport::Shm {
        let own = format!("services-{}", std::process::id());
        let cluster = if at.is_empty() { own } else { at.to_owned() };
        (Node::builder().cluster(&cluster).start().await?, cluster)
    } else {
        let mut builder = host.node(row.transport);
        if !at.is_empty() {
            builder = builder.bind(at.parse()?);
        }
        let node = builder.start().await?;
        let address = node.address().ok_or("no address")?;
        (node, address.to_string())
    };
    write_line(place);
    match row.what {
        What::Tonic64 | What::Tonic4096 => grpc::serve(&node).await,
        What::Call64 | What::Call4096 | What::Call65536 => calls::serve(&node).await,
        What::Memory => bulk::serve(&node).await,
        _ => http::serve(&node).await,
    }
}

/// Writes a line for the process that has started this one.
pub fn write_line(line: impl std::fmt::Display) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}
