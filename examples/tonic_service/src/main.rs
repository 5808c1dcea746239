//! A gRPC service that tonic serves over a node's listener: only the listener and the channel's connector are ours.
//!
//! To reuse it, also copy `Cargo.toml` and `build.rs` of the folder above.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use midplane::{ErrorKind, Node, PeerName};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// The code that `build.rs` generates.
mod generated {
    include!(concat!(env!("OUT_DIR"), "/orders.Orders.rs"));
}
use generated::orders_client::OrdersClient;
use generated::orders_server::{Orders, OrdersServer};

/// Takes orders over gRPC from other processes, without an address or a port.
///
/// Start `tonic_service --serve` once or more, and `tonic_service tea 3` in another terminal, as the same user, in
/// whichever order.
#[derive(Parser)]
struct Arguments {
    /// Serves until Ctrl-C; requests under way are answered first.
    #[arg(long, conflicts_with_all = ["item", "count"])]
    serve: bool,
    /// The item to order.
    #[arg(required_unless_present = "serve")]
    item: Option<String>,
    /// The number of items; the service refuses 0.
    #[arg(default_value_t = 1)]
    count: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Order {
    #[prost(string, tag = "1")]
    item: String,
    #[prost(uint32, tag = "2")]
    count: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Receipt {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Default)]
struct Shop {
    sold: AtomicU64,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn place(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let buyer = request.extensions().get::<PeerName>().cloned().unwrap_or_default();
        let Order { item, count } = request.into_inner();
        if count == 0 {
            return Err(Status::invalid_argument("an order is of at least 1"));
        }
        let sold = self.sold.fetch_add(count.into(), Ordering::Relaxed) + u64::from(count);
        let text = format!("{count} of {item} for {buyer}; {sold} sold");
        Ok(Response::new(Receipt { text }))
    }
}

async fn serve(node: Node, end: impl Future<Output = ()>) -> Result<(), Fail> {
    let incoming = node.listen("orders").await?.incoming();
    println!("serving; Ctrl-C ends it");
    let server = Server::builder().add_service(OrdersServer::new(Shop::default()));
    Ok(server.serve_with_incoming_shutdown(incoming, end).await?)
}

async fn place(node: Node, item: String, count: u32) -> Result<String, Fail> {
    // The connector chooses the service. tonic requires an address, and puts it into each request.
    let endpoint = Endpoint::from_static("http://orders");
    let channel = endpoint.connect_with_connector(node.connector("orders")).await?;
    let receipt = OrdersClient::new(channel).place(Order { item, count }).await;
    Ok(receipt.map_err(|status| status.message().to_owned())?.into_inner().text)
}

async fn run(arguments: Arguments) -> Result<(), Fail> {
    let node = Node::builder().start().await?;
    if let Some(item) = arguments.item {
        println!("{}", place(node.clone(), item, arguments.count).await?);
    } else {
        let pressed = async { drop(tokio::signal::ctrl_c().await) };
        serve(node.clone(), pressed).await?;
    }
    node.shutdown().await;
    Ok(())
}

/// Parses the command line; bad input ends the program with one line and exit code 2.
fn arguments() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit(); // `--help`
        }
        let text = error.to_string();
        let line = text.split("\n\n").next().unwrap_or(&text).split_whitespace();
        eprintln!("{}", line.collect::<Vec<_>>().join(" "));
        std::process::exit(2)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run(arguments()).await else { return ExitCode::SUCCESS };
    // tonic's own text is "transport error"; its source is the node's.
    let node = std::iter::successors(Some(&*error as &dyn std::error::Error), |e| e.source())
        .find_map(|error| error.downcast_ref::<midplane::Error>());
    match node {
        Some(node) => eprintln!("error: {node}"),
        None => eprintln!("error: {error}"),
    }
    let is_input = node.is_some_and(|e| matches!(e.kind(), ErrorKind::Config | ErrorKind::InUse));
    ExitCode::from(if is_input { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the same service and client in virtual time, on a network that loses one packet in twenty.
    #[test]
    fn orders_arrive_over_a_bad_network() {
        let tested = midplane::Sim::builder().loss(0.05).check(|sim| {
            sim.host("shop", |node| serve(node, std::future::pending()));
            sim.client(|node| async move {
                let receipt = place(node, "tea".into(), 3).await?;
                assert_eq!(receipt, "3 of tea for client-1; 3 sold");
                Ok(())
            });
        });
        tested.unwrap();
    }
}
