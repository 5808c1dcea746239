//! TLS 1.3 over tokio's TCP, with the ciphers of `ring` that rustls prefers: what sealed nodes are compared with.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::Failure;

/// The name in the certificate.
const NAME: &str = "service";

/// A listener whose streams are TLS streams.
pub struct Listener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener {
    /// Makes a certificate; returns the listener and its place: the address and the certificate.
    pub fn new(tcp: TcpListener) -> Result<(Self, String), Failure> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![cert.der().clone()], key)?;
        let place = format!("{} {}", tcp.local_addr()?, hex::encode(cert.der()));
        Ok((Self { tcp, acceptor: Arc::new(config).into() }, place))
    }

    async fn handshake(&self) -> io::Result<(server::TlsStream<TcpStream>, SocketAddr)> {
        let (stream, address) = self.tcp.accept().await?;
        stream.set_nodelay(true)?;
        Ok((self.acceptor.accept(stream).await?, address))
    }
}

impl axum::serve::Listener for Listener {
    type Io = server::TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok(accepted) = self.handshake().await {
                return accepted;
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Connects to the place of a [`Listener`].
pub async fn connect(place: &str) -> Result<client::TlsStream<TcpStream>, Failure> {
    let (address, certificate) = place.split_once(' ').ok_or("a place without a certificate")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(hex::decode(certificate)?))?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let connector = TlsConnector::from(Arc::new(config));
    Ok(connector.connect(ServerName::try_from(NAME)?, stream).await?)
}
