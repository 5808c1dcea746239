//! The client: hyper connections, each with one request under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use midplane::Node;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Failure;
use crate::arguments::{Transport, What};

/// Where the connections of a client go.
pub enum Target {
    Tcp(String),
    Node(Node),
}

type Sender = SendRequest<Empty<Bytes>>;

impl Target {
    pub async fn new(transport: Transport, place: &str) -> Result<Self, Failure> {
        Ok(match transport {
            Transport::Tcp => Self::Tcp(place.to_owned()),
            Transport::Shm => Self::Node(Node::builder().cluster(place).start().await?),
            Transport::Udp => {
                let builder = Node::builder().transports("udp").discover(place);
                Self::Node(builder.start().await?)
            }
        })
    }

    async fn connect(&self) -> Result<Sender, Failure> {
        match self {
            Self::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                hyper_over(stream).await
            }
            Self::Node(node) => hyper_over(node.connect("service").await?).await,
        }
    }

    /// Connects so many times.
    pub async fn connections(&self, count: u16) -> Result<Vec<Sender>, Failure> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.connect().await?);
        }
        Ok(all)
    }
}

async fn hyper_over<S>(stream: S) -> Result<Sender, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Answers a second over all connections, for `time`.
pub async fn measure(
    connections: &mut Vec<Sender>,
    what: What,
    time: Duration,
) -> Result<f64, Failure> {
    let (answers, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = std::mem::take(connections)
        .into_iter()
        .map(|sender| tokio::spawn(call(sender, what, Arc::clone(&answers), Arc::clone(&ends))))
        .collect();
    let start = Instant::now();
    tokio::time::sleep(time).await;
    let (count, taken) = (answers.load(Ordering::Relaxed), start.elapsed());
    ends.store(true, Ordering::Relaxed);
    for caller in callers {
        connections.push(caller.await??);
    }
    Ok(count as f64 / taken.as_secs_f64())
}

async fn call(
    mut sender: Sender,
    what: What,
    answers: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
) -> Result<Sender, Failure> {
    let (path, length) = match what {
        What::AxumHello => ("/hello", 5),
        What::Axum4mib => ("/large", 4 << 20),
    };
    while !ends.load(Ordering::Relaxed) {
        sender.ready().await?;
        let request = Request::get(path).header("host", "service").body(Empty::new())?;
        let mut body = sender.send_request(request).await?.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        if bytes != length {
            return Err(format!("an answer of {bytes} bytes instead of {length}").into());
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(sender)
}
