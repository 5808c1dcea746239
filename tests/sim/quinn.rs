//! Tests quinn in virtual time: every byte arrives at the link's rate, and every run is the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use midplane::net::QuinnRuntime;
use midplane::sim::{Report, Result, SimBuilder};
use midplane::{Sim, time};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, EndpointConfig, ServerConfig};

/// Returns the configurations of a server and of a client that trusts it. The key is always the same and an Ed25519
/// one, whose signatures have one length; the certificate is valid at any time. Each run needs its own configurations:
/// a client's keeps sessions and tokens for its next connections.
fn configs() -> (ServerConfig, ClientConfig) {
    // PKCS #8 without the key's own 32 bytes.
    let mut key = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
    key.extend([7; 32]);
    let key = PrivatePkcs8KeyDer::from(key);
    let pair = rcgen::KeyPair::try_from(&key).unwrap();
    let parameters = rcgen::CertificateParams::new(["server".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&pair).unwrap();
    let chain = vec![certificate.der().clone()];
    let mut roots = RootCertStore::empty();
    roots.add(chain[0].clone()).unwrap();
    let server = ServerConfig::with_single_cert(chain, key.into()).unwrap();
    (server, ClientConfig::with_root_certificates(Arc::new(roots)).unwrap())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Echoes the bytes of each stream.
async fn echo(server: ServerConfig) -> Result {
    let endpoint =
        QuinnRuntime::endpoint(EndpointConfig::default(), Some(server), "0.0.0.0:443".parse()?)?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            loop {
                let (mut send, mut receive) = connection.accept_bi().await?;
                let bytes = receive.read_to_end(usize::MAX).await?;
                send.write_all(&bytes).await?;
                send.finish()?;
            }
            #[expect(unreachable_code, reason = "it names the type of the errors")]
            Result::Ok(())
        });
    }
    Ok(())
}

/// Sends `length` bytes to the server and reads the echo.
async fn ask(client: ClientConfig, length: usize) -> Result {
    let endpoint = QuinnRuntime::endpoint(EndpointConfig::default(), None, "0.0.0.0:0".parse()?)?;
    let connection = endpoint.connect_with(client, "10.0.0.1:443".parse()?, "server")?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let sent = pattern(length);
    send.write_all(&sent).await?;
    send.finish()?;
    let back = receive.read_to_end(length).await?;
    assert!(back == sent, "{} bytes come back as {}", sent.len(), back.len());
    let path = connection.stats().path;
    assert!(path.current_mtu > 1_400, "{path:?}");
    connection.close(0_u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

/// Checks twice a run of a server and a client that sends and receives `length` bytes.
fn transfer(sim: SimBuilder, length: usize) -> Report {
    let report = sim.check(|sim| {
        let (server, client) = configs();
        sim.host("server", move |_| echo(server.clone()));
        sim.client(move |_| ask(client.clone(), length));
    });
    report.unwrap()
}

#[test]
fn ten_megabytes_there_and_back_take_the_time_of_their_packets_at_a_gigabit() {
    let report = transfer(Sim::builder(), 10_000_000);
    // 1,452 of 1,538 bytes are UDP payload: 85 ms in each direction, one after the other.
    let line = Duration::from_millis(170);
    assert!(report.time > line && report.time < 2 * line, "{report:?}");
    assert_eq!(report.drops.total(), 0, "{report:?}");
}

#[test]
fn lost_packets_are_sent_again_and_a_seed_gives_one_run() {
    let digest = |seed| {
        let report = transfer(Sim::builder().seed(seed).loss(0.02), 300_000);
        assert!(report.drops.total() > 5, "{report:?}");
        println!("digest: quinn, seed {seed}: {:016x}", report.digest);
        report.digest
    };
    let digests: BTreeSet<u64> = (0..10).map(digest).collect();
    assert_eq!(digests.len(), 10);
    assert!(digests.contains(&digest(1)));
}

#[test]
fn a_peer_that_has_crashed_is_given_up_after_the_idle_timeout() {
    let (server, client) = configs();
    let mut sim = Sim::builder().build();
    sim.host("server", move |_| echo(server.clone()));
    sim.client(move |_| {
        let client = client.clone();
        async move {
            let any = "0.0.0.0:0".parse()?;
            let endpoint = QuinnRuntime::endpoint(EndpointConfig::default(), None, any)?;
            let to = "10.0.0.1:443".parse()?;
            let connection = endpoint.connect_with(client, to, "server")?.await?;
            let start = time::Instant::now();
            assert_eq!(connection.closed().await, quinn::ConnectionError::TimedOut);
            // The default idle timeout of both sides is 30 s.
            assert!((29..31).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
            Ok(())
        }
    });
    sim.at(Duration::from_millis(100)).crash("server");
    sim.run().unwrap();
}
