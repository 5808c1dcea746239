//! Tests messages to receivers that shut down, are suspended, or were unreachable for long.

use std::time::Duration;

use midplane::sim::Result;
use midplane::{DEFAULT_CONNECT_TIMEOUT, ErrorKind, Node, Sim, time};

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

/// Receives messages until the node is shut down.
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

/// Regression: a node that a peer had lost its connection to was never reached again by its `PeerName`.
#[test]
fn a_peer_is_reached_again_after_a_partition_that_has_ended_the_connection() {
    // Sends during the partition as well, or only after it.
    for pause in [Duration::ZERO, Duration::from_secs(41)] {
        let mut sim = Sim::builder().build();
        sim.host("b", |node| async move {
            node.send("client-1", "hello").await?;
            loop {
                node.receive().await?;
                // The first answer after the partition is an error, because earlier ones may be lost.
                let _ = node.send("client-1", "answer").await;
            }
        });
        sim.client(move |node| async move {
            let start = time::Instant::now();
            let (peer, _) = node.receive().await?;
            node.send(&peer, "first").await?;
            assert_eq!(node.receive().await?.1, "answer");
            time::sleep(2_000 * MS + pause).await;
            while time::timeout(100 * MS, node.receive()).await.is_err() {
                if let Err(error) = node.send(&peer, "next").await {
                    assert_eq!(error.kind(), ErrorKind::Reset, "{error}");
                }
            }
            assert!(start.elapsed() < Duration::from_secs(46), "{:?}", start.elapsed());
            Ok(())
        });
        sim.at(1_000 * MS).partition("b", "client-1");
        sim.at(41_000 * MS).heal("b", "client-1");
        sim.run().unwrap();
    }
}

/// Regression: the first messages to a node that was suspended for some time were reported as lost.
#[test]
fn first_messages_wait_for_a_receiver_that_is_suspended_until_the_time_is_over() {
    for (suspended, arrive) in [(8_000, false), (2_000, true)] {
        let mut sim = Sim::builder().build();
        sim.host("b", |node| async move {
            let _stream = node.connect("meet").await?;
            sink(node).await
        });
        sim.client(move |node| async move {
            let mut listener = node.listen("meet").await?;
            let (_stream, peer) = listener.accept().await?;
            time::sleep(500 * MS).await;
            let start = time::Instant::now();
            let send = || node.send(&peer, "hello");
            let (one, two, three, four) = tokio::join!(send(), send(), send(), send());
            for sent in [one, two, three, four] {
                match arrive {
                    true => sent.unwrap(),
                    false => assert_eq!(sent.unwrap_err().kind(), ErrorKind::NoService),
                }
            }
            let took = start.elapsed();
            assert!(took < DEFAULT_CONNECT_TIMEOUT + 3_000 * MS, "{took:?}");
            time::sleep(4_000 * MS).await;
            node.send(&peer, "later").await?;
            Ok(())
        });
        sim.at(400 * MS).pause("b", suspended * MS);
        sim.run().unwrap();
    }
}

/// Regression: a first send to a node that ended meanwhile waited until the connect timeout was over.
#[test]
fn a_first_send_to_a_node_that_ends_fails_as_soon_as_that_is_known() {
    for restarts in [true, false] {
        let mut sim = Sim::builder().build();
        sim.host("silent", move |node| async move {
            let stream = node.connect("meet").await?;
            if !restarts {
                // The stream is open until the node has ended.
                time::sleep(500 * MS).await;
                node.shutdown().await;
            }
            drop(stream);
            std::future::pending().await
        });
        sim.client(|node| async move {
            let mut listener = node.listen("meet").await?;
            let (_stream, peer) = listener.accept().await?;
            let start = time::Instant::now();
            let error = node.send(&peer, "hello").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoService);
            assert!(start.elapsed() < 2_500 * MS, "{:?}", start.elapsed());
            Ok(())
        });
        if restarts {
            // Without a restart, nothing answers, and the connection ends only after 30 s of silence.
            sim.at(500 * MS).crash("silent");
            sim.at(700 * MS).restart("silent");
        }
        sim.run().unwrap();
    }
}
