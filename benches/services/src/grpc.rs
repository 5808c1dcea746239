//! A tonic service that echoes, and its callers, who share a channel.

use bytes::Bytes;
use midplane::Node;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::Failure;
use crate::place::{SERVICE, Target};

/// The code that `build.rs` generates.
mod generated {
    include!(concat!(env!("OUT_DIR"), "/bench.Echo.rs"));
}
use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// The message of requests and answers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
}

struct Echoes;

#[tonic::async_trait]
impl Echo for Echoes {
    async fn echo(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

pub async fn serve(node: &Node) -> Result<(), Failure> {
    let incoming = node.listen(SERVICE).await?.incoming();
    let server = Server::builder().add_service(EchoServer::new(Echoes));
    Ok(server.serve_with_incoming(incoming).await?)
}

pub async fn serve_tcp(listener: TcpListener) -> Result<(), Failure> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().add_service(EchoServer::new(Echoes));
    Ok(server.serve_with_incoming(incoming).await?)
}

/// A caller with one call under way.
#[derive(Clone)]
pub struct Caller {
    client: EchoClient<Channel>,
    payload: Bytes,
}

impl Caller {
    pub async fn new(target: &Target, bytes: usize) -> Result<Self, Failure> {
        let channel = match target {
            Target::Tcp(address) => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
                endpoint.tcp_nodelay(true).connect().await?
            }
            Target::Tls(_) => return Err("tonic over TLS is not compared".into()),
            Target::Node(node) => {
                let endpoint = Endpoint::from_static("http://service");
                endpoint.connect_with_connector(node.connector(SERVICE)).await?
            }
        };
        Ok(Self { client: EchoClient::new(channel), payload: vec![7; bytes].into() })
    }

    pub async fn call(&mut self) -> Result<(), Failure> {
        let sent = Payload { bytes: self.payload.clone() };
        let received = self.client.echo(sent).await?.into_inner();
        if received.bytes.len() != self.payload.len() {
            return Err(format!("an answer of {} bytes", received.bytes.len()).into());
        }
        Ok(())
    }
}
