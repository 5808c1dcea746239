//! Tests an axum service over TCP between simulated hosts.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::routing::post;
use midplane::Sim;
use midplane::net::{PeerAddress, TcpListener, TcpStream};
use midplane::sim::Result;
use midplane::simhw::drops::DropCause;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers with the peer's address, and the body's length and sum.
async fn sum(ConnectInfo(PeerAddress(peer)): ConnectInfo<PeerAddress>, body: Bytes) -> String {
    let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
    format!("{} {} {sum}", peer.ip(), body.len())
}

async fn serve() -> Result {
    let app = Router::new().route("/sum", post(sum));
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<PeerAddress>()).await?;
    Ok(())
}

/// Posts a body over its own connection, and returns the response's body.
async fn ask(body: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect("web:80").await?;
    let length = body.len();
    let head =
        format!("POST /sum HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: {length}");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(b"\r\n\r\n").await?;
    stream.write_all(body).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    let (_, body) = response.split_once("\r\n\r\n").ok_or("no body")?;
    Ok(body.to_owned())
}

#[test]
fn axum_serves_a_simulated_listener_and_handlers_know_the_address_of_their_peer() {
    for (seed, loss) in [(1, 0.0), (2, 0.02)] {
        let report = Sim::builder().seed(seed).loss(loss).check(|sim| {
            sim.host("web", |_| serve());
            for client in 1..=2_u8 {
                sim.client(move |_| async move {
                    for length in [0, 1, 10_000, 1_000_000] {
                        let expected = format!("10.0.0.{} {length} {}", client + 1, 3 * length);
                        assert_eq!(ask(&vec![3; length]).await?, expected);
                    }
                    Ok(())
                });
            }
        });
        let report = report.unwrap();
        println!("digest: axum, seed {seed}: {:016x}", report.digest);
        assert!(report.time < Duration::from_secs(60), "{report:?}");
        assert_eq!(report.drops.of(DropCause::LinkLoss) > 0, loss > 0.0, "{report:?}");
    }
}
