//! The part of `std::net` that tokio's tests use for the other side, over nodes' streams.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{net, nodes};

/// A node's listener.
#[derive(Debug)]
pub struct TcpListener(Mutex<midplane::Listener>, SocketAddr);

fn resolve(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl TcpListener {
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let (listener, address) = nodes::wait(nodes::listen(resolve(address)?))?;
        Ok(Self(Mutex::new(listener), address))
    }

    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = nodes::wait(self.0.lock().unwrap().accept());
        let (stream, from) = nodes::accepted(accepted, self.1)?;
        Ok((TcpStream(net::TcpStream::new(stream, self.1, from)), from))
    }

    pub const fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.1)
    }
}

/// A node's stream.
#[derive(Debug)]
pub struct TcpStream(net::TcpStream);

impl TcpStream {
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        nodes::wait(net::TcpStream::connect(resolve(address)?)).map(Self)
    }

    /// Does nothing: streams of nodes never block the runtime.
    pub const fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        nodes::wait(self.0.read(into))
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        nodes::wait(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        nodes::wait(self.0.flush())
    }
}

impl TryFrom<TcpStream> for net::TcpStream {
    type Error = io::Error;

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Ok(stream.0)
    }
}
