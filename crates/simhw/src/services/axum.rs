//! axum on simulated hosts.

use std::io;
use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};

use super::tcp::{TcpListener, TcpStream};

impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        Self::accept(self).await.expect("a simulated host accepts without errors")
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// The address of an HTTP request's peer: handlers extract `ConnectInfo<PeerAddress>` of an app that was made a service
/// by `into_make_service_with_connect_info`. axum's own `ConnectInfo<SocketAddr>` is for tokio's sockets only.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PeerAddress(pub SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}
