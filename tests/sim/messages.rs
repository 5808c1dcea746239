//! Tests messages to receivers that shut down, are suspended, or were unreachable for long.

use midplane::sim::Result;
use midplane::{ErrorKind, Node, Sim, time};

use crate::MS;

/// Regression: a node that had received messages waited for its senders, until the time of `drain` was over.
#[test]
fn a_node_that_has_received_messages_shuts_down_at_once() {
    let mut sim = Sim::builder().build();
    sim.host("a", |node| async move {
        node.send("client-1", "hello").await?;
        std::future::pending().await
    });
    sim.client(|node| async move {
        node.receive().await?;
        let start = time::Instant::now();
        node.shutdown().await;
        assert!(start.elapsed() < 1_000 * MS, "{:?}", start.elapsed());
        Ok(())
    });
    sim.run().unwrap();
}

/// Receives all messages.
async fn sink(node: Node) -> Result {
    loop {
        node.receive().await?;
    }
}

/// Regression: a message that was sent during the shutdown opened a stream, which the shutdown then waited for.
#[test]
fn a_node_that_sends_often_shuts_down_at_once_and_then_sends_no_more() {
    let mut sim = Sim::builder().build();
    sim.host("sink", sink);
    sim.client(|node| async move {
        node.send("sink", "first").await?;
        let sender = node.clone();
        let sending = tokio::spawn(async move {
            loop {
                if let Err(error) = sender.send("sink", "next").await {
                    return error;
                }
                time::sleep(MS).await;
            }
        });
        time::sleep(20 * MS).await;
        let start = time::Instant::now();
        node.shutdown().await;
        assert!(start.elapsed() < 1_000 * MS, "{:?}", start.elapsed());
        assert_eq!(sending.await?.kind(), ErrorKind::Closed);
        Ok(())
    });
    sim.run().unwrap();
}
