//! Calls of a node that are echoed; over TCP requests and answers with a length before them, as one writes them by hand.
//!
//! Theirs: each caller has a connection, the service a task for each connection. A frame is 4 bytes of length and a
//! body, written by one `write_all` of one buffer and read by a `BufReader`. There are no deadlines, traces,
//! cancellation, limits or reconnecting.

use std::io;

use bytes::Bytes;
use midplane::Node;
use midplane::call::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower::service_fn;

use crate::Failure;
use crate::place::{SERVICE, Target};

pub async fn serve(node: &Node) -> Result<(), Failure> {
    let echo = service_fn(|bytes: Bytes| async move { Ok::<_, String>(bytes) });
    let _serving = node.serve(SERVICE, echo)?;
    std::future::pending().await
}

pub async fn serve_tcp(listener: TcpListener) -> Result<(), Failure> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut framed = Framed::new(stream);
            while let Ok(body) = framed.read().await {
                if framed.write(&body).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A connection of frames.
pub struct Framed {
    stream: BufReader<TcpStream>,
    buffer: Vec<u8>,
}

impl Framed {
    fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream), buffer: Vec::new() }
    }

    async fn read(&mut self) -> io::Result<Vec<u8>> {
        let length = self.stream.read_u32_le().await?;
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).await?;
        Ok(body)
    }

    async fn write(&mut self, body: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(body);
        self.stream.write_all(&self.buffer).await
    }
}

/// A caller with one call under way.
pub enum Caller {
    Node(Client<Bytes, Bytes, String>, Bytes),
    Tcp(Framed, Bytes),
}

impl Caller {
    /// Creates `count` callers, of one client over a node.
    pub async fn new(target: &Target, bytes: usize, count: u16) -> Result<Vec<Self>, Failure> {
        let payload = Bytes::from(vec![7; bytes]);
        let mut callers = Vec::new();
        match target {
            Target::Tcp(address) => {
                for _ in 0..count {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    callers.push(Self::Tcp(Framed::new(stream), payload.clone()));
                }
            }
            Target::Tls(_) => return Err("calls over TLS are not compared".into()),
            Target::Node(node) => {
                let client = node.client(SERVICE);
                callers.extend((0..count).map(|_| Self::Node(client.clone(), payload.clone())));
            }
        }
        Ok(callers)
    }

    pub async fn call(&mut self) -> Result<(), Failure> {
        let (answer, asked) = match self {
            Self::Node(client, payload) => (client.call(payload.clone()).await?.len(), payload),
            Self::Tcp(framed, payload) => {
                framed.write(payload).await?;
                (framed.read().await?.len(), payload)
            }
        };
        if answer != asked.len() {
            return Err(format!("an answer of {answer} bytes").into());
        }
        Ok(())
    }
}
