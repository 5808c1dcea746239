//! An axum service, and hyper connections to it.

use std::fmt::Debug;

use axum::Router;
use axum::routing::get;
use axum::serve::{Listener, ListenerExt};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use midplane::Node;
use tokio::net::TcpListener;

use crate::Failure;
use crate::place::{SERVICE, Target};

static LARGE: [u8; 4 << 20] = [7; 4 << 20];

fn router() -> Router {
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/large", get(|| async { Bytes::from_static(&LARGE) }))
}

pub async fn serve(node: &Node) -> Result<(), Failure> {
    serve_on(node.listen(SERVICE).await?).await
}

pub async fn serve_tcp(listener: TcpListener) -> Result<(), Failure> {
    // As hyper's and tonic's servers do.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    serve_on(listener).await
}

pub async fn serve_on(listener: impl Listener<Addr: Debug>) -> Result<(), Failure> {
    Ok(axum::serve(listener, router()).await?)
}

/// A connection with one request under way.
pub struct Caller {
    sender: SendRequest<Empty<Bytes>>,
    path: &'static str,
    length: usize,
}

impl Caller {
    pub async fn new(target: &Target, is_large: bool) -> Result<Self, Failure> {
        let (sender, connection) = handshake(TokioIo::new(target.connect().await?)).await?;
        tokio::spawn(connection);
        let (path, length) = if is_large { ("/large", LARGE.len()) } else { ("/hello", 5) };
        Ok(Self { sender, path, length })
    }

    pub async fn call(&mut self) -> Result<(), Failure> {
        self.sender.ready().await?;
        let request = Request::get(self.path).header("host", "service").body(Empty::new())?;
        let mut body = self.sender.send_request(request).await?.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        if bytes != self.length {
            return Err(format!("an answer of {bytes} bytes instead of {}", self.length).into());
        }
        Ok(())
    }
}
