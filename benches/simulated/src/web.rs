//! The service that both sides run, and its client: code that does not depend on a simulator.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Failure;

/// Connections of the client.
pub const CONNECTIONS: u64 = 4;
/// Requests of one connection, one after another.
pub const REQUESTS: u64 = 5_000;
/// Requests of all connections together.
pub const TOTAL: u64 = CONNECTIONS * REQUESTS;

/// Returns the axum service.
pub fn app() -> axum::Router {
    axum::Router::new().route("/", axum::routing::get(|| async { "hello" }))
}

/// Begins an HTTP connection over a stream.
pub async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Empty<Bytes>>, Failure> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Gets the body at a path.
pub async fn get(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Result<Bytes, Failure> {
    let request = Request::get(path).header("host", "web").body(Empty::new())?;
    Ok(sender.send_request(request).await?.into_body().collect().await?.to_bytes())
}

/// Sends the requests of one connection.
pub async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(), Failure> {
    let mut sender = open(stream).await?;
    for _ in 0..REQUESTS {
        if get(&mut sender, "/").await? != "hello" {
            return Err("another answer".into());
        }
    }
    Ok(())
}
