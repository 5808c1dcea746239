//! A key-value service: one process serves, another one asks, over UDP on this host.
//!
//! ```text
//! cargo run --manifest-path examples/standalone/Cargo.toml
//! ```
//!
//! With a rank and the two addresses each process is one side, here or on two hosts:
//! `standalone 0 10.0.0.1:4700 10.0.0.2:4700` serves, `standalone 1` and the same addresses asks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use midplane::prelude::*;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::process::Process;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};
use midplane::via::service::{Client, Server};
use tower_service::Service;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Until the client says that it has no more questions.
const DONE: Tag = Tag(1);

/// "key=value" puts, "key" gets.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<String, String>>>);

impl Service<Bytes> for Store {
    type Response = Bytes;
    type Error = Infallible;
    type Future = Ready<Result<Bytes, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        let text = String::from_utf8_lossy(&request);
        let mut entries = self.0.lock().expect("nobody panics with it");
        let answer = match text.split_once('=') {
            Some((key, value)) => entries.insert(key.into(), value.into()),
            None => entries.get(text.as_ref()).cloned(),
        };
        ready(Ok(answer.unwrap_or_default().into()))
    }
}

async fn take_part(rank: u16, peers: Vec<SocketAddr>) -> Result<(), Fault> {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default()))?;
    let nic = UdpNic::start(UdpConfig::new(NodeId(rank), peers), unit)?;
    let nodes = [NodeId(0), NodeId(1)];
    let config = RdmaConfig::default();
    let carrier = RdmaCarrier::open(&nic.host(), Peer(rank.into()), &nodes, config).await?;
    let (process, scope) = Process::new(Engine::new(carrier, Config::default()), 2)?;
    let world = Communicator::world(process, scope);
    world.barrier().await?;
    // Requests have a communicator of their own.
    let requests = world.duplicate().await?;
    if rank == 0 {
        let stop = async { drop(world.receive(Rank(1), DONE).await) };
        Server::new(requests).serve_until(Store::default(), stop).await?;
    } else {
        let mut client = Client::new(requests, Rank(0));
        for (request, expected) in [("color=blue", ""), ("color=green", "blue"), ("color", "green")]
        {
            poll_fn(|context| client.poll_ready(context)).await?;
            let answer = client.call(Bytes::from_static(request.as_bytes())).await?;
            println!("{request}: {:?}", String::from_utf8_lossy(&answer));
            assert_eq!(answer, expected);
        }
        world.send(Rank(0), DONE, vec![]).await?;
    }
    world.barrier().await?;
    world.finalize().await;
    nic.shutdown().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [rank, first, second] = &words[..] {
        return take_part(rank.parse()?, vec![first.parse()?, second.parse()?]).await;
    }
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let peers = vec![free()?, free()?];
    tokio::try_join!(take_part(0, peers.clone()), take_part(1, peers)).map(drop)
}
