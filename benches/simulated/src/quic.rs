//! A transfer over quinn, in midplane's `Sim`.

use std::sync::Arc;

use midplane::net::QuinnRuntime;
use midplane::{Sim, sim};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, EndpointConfig, ServerConfig};

use crate::Failure;

/// Bytes that the client sends.
pub const BYTES: usize = 20_000_000;

fn configs() -> Result<(ServerConfig, ClientConfig), Failure> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let certificate = rcgen::CertificateParams::new(["server".to_owned()])?.self_signed(&key)?;
    let chain = vec![certificate.der().clone()];
    let mut roots = RootCertStore::empty();
    roots.add(chain[0].clone())?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let server = ServerConfig::with_single_cert(chain, key.into())?;
    Ok((server, ClientConfig::with_root_certificates(Arc::new(roots))?))
}

async fn receive(server: ServerConfig) -> sim::Result {
    let address = "0.0.0.0:443".parse()?;
    let endpoint = QuinnRuntime::endpoint(EndpointConfig::default(), Some(server), address)?;
    while let Some(incoming) = endpoint.accept().await {
        let connection = incoming.await?;
        let mut stream = connection.accept_uni().await?;
        let mut bytes = 0;
        while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
            bytes += chunk.bytes.len();
        }
        if bytes != BYTES {
            return Err(format!("{bytes} bytes of {BYTES} have arrived").into());
        }
        connection.closed().await;
    }
    Ok(())
}

async fn send(client: ClientConfig) -> sim::Result {
    let endpoint = QuinnRuntime::endpoint(EndpointConfig::default(), None, "0.0.0.0:0".parse()?)?;
    let connection = endpoint.connect_with(client, "10.0.0.1:443".parse()?, "server")?.await?;
    let mut stream = connection.open_uni().await?;
    let part = [7; 100_000];
    for _ in 0..BYTES / part.len() {
        stream.write_all(&part).await?;
    }
    stream.finish()?;
    stream.stopped().await?;
    Ok(())
}

/// Sends the bytes to a server on another host, over links of 1 Gb/s.
pub fn transfer() -> Result<(), Failure> {
    let (server, client) = configs()?;
    let mut sim = Sim::builder().build();
    sim.host("server", move |_| receive(server.clone()));
    sim.client(move |_| send(client.clone()));
    sim.run()?;
    Ok(())
}
