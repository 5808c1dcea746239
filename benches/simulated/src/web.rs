//! The service that both sides run, and its client: code that knows of no simulation.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Failure;

/// Connections of the client.
pub const CONNECTIONS: u64 = 4;
/// Requests of one connection, one after another.
pub const REQUESTS: u64 = 5_000;
/// Requests of all.
pub const TOTAL: u64 = CONNECTIONS * REQUESTS;

/// The axum service.
pub fn app() -> axum::Router {
    axum::Router::new().route("/", axum::routing::get(|| async { "hello" }))
}

/// Sends the requests of one connection.
pub async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(), Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for _ in 0..REQUESTS {
        let request = Request::get("/").header("host", "web").body(Empty::<Bytes>::new())?;
        let body = sender.send_request(request).await?.into_body().collect().await?;
        if body.to_bytes() != "hello" {
            return Err("another answer".into());
        }
    }
    Ok(())
}
