//! Tests that a real QUIC connection under the law delivers every byte over loopback. Tests of rate
//! and queue run in virtual time, in `bottleneck.rs`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use midplane_warp::quinn::{WarpController, WarpFactory};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Endpoint, ServerConfig, TransportConfig};

const BYTES: usize = 4 << 20;

fn endpoints(transport: TransportConfig) -> (Endpoint, Endpoint, SocketAddr) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let chain = vec![certificate.cert.der().clone()];
    let server = ServerConfig::with_single_cert(chain, key.into()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    client.transport_config(Arc::new(transport));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Endpoint::server(server, any).unwrap();
    let address = server.local_addr().unwrap();
    let mut endpoint = Endpoint::client(any).unwrap();
    endpoint.set_default_client_config(client);
    (endpoint, server, address)
}

#[tokio::test]
async fn a_quic_connection_sends_under_the_law() {
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(WarpFactory::new(64 << 10)));
    let (client, server, address) = endpoints(transport);
    let receive = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let received = stream.read_to_end(BYTES).await.unwrap();
        (received, connection)
    });
    let connection = client.connect(address, "localhost").unwrap().await.unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|i| i as u8).collect();
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(&sent).await.unwrap();
    stream.finish().unwrap();
    let received = tokio::time::timeout(Duration::from_secs(20), receive).await;
    let (received, _peer) = received.expect("it ends").unwrap();
    assert!(received == sent, "every byte arrives");
    let state = connection.congestion_state().into_any().downcast::<WarpController>().unwrap();
    let state = state.state();
    assert!(state.is_valid, "acknowledgements steer it: {state:?}");
}
