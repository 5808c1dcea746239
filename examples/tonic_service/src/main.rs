//! A gRPC service that nodes reach by its name, and its client: tonic's own server and channel over a node's streams.
//!
//! ```text
//! cargo run --manifest-path examples/tonic_service/Cargo.toml -- serve
//! cargo run --manifest-path examples/tonic_service/Cargo.toml -- Ada
//! ```

use clap::Parser;
use midplane::prelude::*;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

mod generated {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("greeter.Greeter");
}
use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A gRPC service and its client, on one host, in whichever order they start.
#[derive(Parser)]
struct Options {
    /// `serve`, or whom to greet
    name: String,
}

/// The request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    #[prost(string, tag = "1")]
    name: String,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Greeting {
    #[prost(string, tag = "1")]
    text: String,
}

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn hello(&self, request: Request<Name>) -> Result<Response<Greeting>, Status> {
        let Name { name } = request.into_inner();
        Ok(Response::new(Greeting { text: format!("hello {name}") }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let Options { name } = Options::parse();
    let node = Node::builder().start().await?;
    if name == "serve" {
        let incoming = node.listen("greeter-grpc").await?.incoming();
        println!("{} serves until Ctrl-C", node.name());
        let ended = async { drop(tokio::signal::ctrl_c().await) };
        let server = Server::builder().add_service(GreeterServer::new(Polite));
        server.serve_with_incoming_shutdown(incoming, ended).await?;
    } else {
        // The connector knows the way; the address is not used.
        let endpoint = Endpoint::from_static("http://greeter");
        let channel = endpoint.connect_with_connector(node.connector("greeter-grpc")).await?;
        let answer = GreeterClient::new(channel).hello(Name { name }).await?;
        println!("{}", answer.into_inner().text);
    }
    node.shutdown().await;
    Ok(())
}
