//! Tests nodes that restart one after another, as in a rolling upgrade, while clients use their services.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use midplane::call::Serving;
use midplane::{Node, NodeBuilder, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tower::service_fn;

use crate::node::free_address;

/// Number of nodes that offer the services.
const NODES: usize = 3;
const BETWEEN: u32 = 20;

/// A node that offers calls and streams.
struct Replica {
    node: Node,
    _serving: Serving,
    _accepting: JoinHandle<()>,
}

async fn answer(mut stream: Stream) -> std::io::Result<()> {
    let number = stream.read_u32_le().await?;
    stream.write_u32_le(2 * number).await
}

impl Replica {
    async fn start(builder: NodeBuilder) -> Self {
        let node = loop {
            match builder.clone().start().await {
                Ok(node) => break node,
                // The former node's driver first notifies its peers of the end.
                Err(error) => assert_eq!(error.kind(), midplane::ErrorKind::InUse, "{error}"),
            }
            tokio::task::yield_now().await;
        };
        let double = service_fn(|number: u32| async move { Ok::<_, String>(2 * number) });
        let _serving = node.serve("double", double).unwrap();
        let mut listener = node.listen("double").await.unwrap();
        let _accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        Self { node, _serving, _accepting }
    }
}

/// Sends a request over its own stream; returns the answer.
async fn ask(node: &Node, number: u32) -> Result<u32, String> {
    let mut stream = node.connect("double").await.map_err(|error| error.to_string())?;
    let exchanged = async {
        stream.write_u32_le(number).await?;
        stream.read_u32_le().await
    };
    exchanged.await.map_err(|error: std::io::Error| format!("the stream: {error}"))
}

/// Sends and counts requests until `stop`; panics at the first failure.
fn load<F>(
    stop: &Arc<AtomicBool>,
    count: &Arc<AtomicU32>,
    request: impl Fn(u32) -> F + Send + 'static,
) -> JoinHandle<()>
where
    F: Future<Output = Result<u32, String>> + Send,
{
    let (stop, count) = (Arc::clone(stop), Arc::clone(count));
    tokio::spawn(async move {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(request(number).await, Ok(2 * number));
            number += 1;
            count.fetch_add(1, Ordering::Relaxed);
        }
    })
}

/// Restarts each of three nodes under load.
async fn roll(transports: &str) {
    let builder = Node::builder().cluster(format!("roll-{transports}-{}", std::process::id()));
    let builder = builder.transports(transports);
    let addresses: Vec<_> = (0..NODES).map(|_| free_address()).collect();
    let places = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let of = |at: usize| {
        let builder = builder.clone().name(format!("replica-{at}"));
        if transports == "shm" { builder } else { builder.bind(addresses[at]) }
    };
    let mut replicas = Vec::new();
    for at in 0..NODES {
        replicas.push(Some(Replica::start(of(at)).await));
    }
    let client =
        if transports == "shm" { builder.clone() } else { builder.clone().discover(&places) };
    let client = client.start().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let counts: Vec<Arc<AtomicU32>> = (0..4).map(|_| Arc::default()).collect();
    let mut clients = Vec::new();
    for (at, count) in counts.iter().enumerate() {
        if at % 2 == 0 {
            let calls = client.client::<u32, u32, String>("double").idempotent();
            clients.push(load(&stop, count, move |number| {
                let calls = calls.clone();
                async move { calls.call(number).await.map_err(|error| error.to_string()) }
            }));
        } else {
            let node = client.clone();
            clients.push(load(&stop, count, move |number| {
                let node = node.clone();
                async move { ask(&node, number).await }
            }));
        }
    }
    for at in (0..NODES).chain([0]) {
        let before: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let went_on = |(count, before): (&Arc<AtomicU32>, u32)| {
            count.load(Ordering::Relaxed) >= before + BETWEEN
        };
        while !counts.iter().zip(before.iter().copied()).all(went_on) {
            assert!(clients.iter().all(|client| !client.is_finished()), "a request has failed");
            tokio::task::yield_now().await;
        }
        let replica: Replica = replicas[at].take().unwrap();
        replica.node.shutdown().await;
        replicas[at] = Some(Replica::start(of(at)).await);
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn a_rolling_restart_under_load_fails_no_request_through_shared_memory() {
    roll("shm").await;
}

#[tokio::test]
async fn a_rolling_restart_under_load_fails_no_request_over_udp() {
    roll("udp").await;
}

#[tokio::test]
async fn a_rolling_restart_under_load_fails_no_request_over_tcp() {
    roll("tcp").await;
}
