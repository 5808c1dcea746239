//! Tests futures that are dropped at any poll: nothing is lost, and nothing arrives twice.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use midplane::sim::Result;
use midplane::{Node, Sim, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::MS;

const COUNT: u32 = 200;

/// Of six futures, awaits one to its end, and polls the others 0 to 4 times and drops them. Returns the output of a
/// future that has completed.
async fn interrupted<F: Future>(number: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    if number % 6 == 5 {
        return Some(future.await);
    }
    for _ in 0..number % 6 {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        time::sleep(Duration::from_micros(10)).await;
    }
    None
}

/// Waits before the next stream or value: from 0 to 60 us.
async fn pause(number: u32) {
    time::sleep(number % 7 * Duration::from_micros(10)).await;
}

/// Opens numbered streams, and keeps them open.
async fn open(node: Node) -> Result {
    let mut streams = Vec::new();
    for number in 0..COUNT {
        let mut stream = node.connect("numbers").await?;
        stream.write_u32(number).await?;
        streams.push(stream);
        pause(number).await;
    }
    std::future::pending().await
}

async fn accept(node: Node) -> Result {
    let mut listener = node.listen("numbers").await?;
    let mut calls = 0..;
    for expected in 0..COUNT {
        let (mut stream, _) = loop {
            let call = calls.next().unwrap_or(0);
            if let Some(accepted) = interrupted(call, listener.accept()).await {
                break accepted?;
            }
        };
        assert_eq!(stream.read_u32().await?, expected);
    }
    assert!(time::timeout(1_000 * MS, listener.accept()).await.is_err(), "a stream came twice");
    Ok(())
}

#[test]
fn accepts_that_are_dropped_at_any_poll_take_no_stream() {
    for seed in 0..5 {
        let mut sim = Sim::builder().seed(seed).loss(0.01).build();
        sim.host("opens", open).client(accept);
        sim.run().unwrap();
    }
}

/// Sets each key of a map once.
async fn set(node: Node) -> Result {
    let map = node.latest_map::<u32, u32>("numbers").await?;
    for number in 0..COUNT {
        map.set(&number, &number)?;
        pause(number).await;
    }
    std::future::pending().await
}

async fn watch(node: Node) -> Result {
    let map = node.latest_map::<u32, u32>("numbers").await?;
    let (mut watch, mut calls, mut seen) = (map.watch(), 0.., BTreeSet::new());
    while seen.len() < COUNT as usize {
        let call = calls.next().unwrap_or(0);
        if let Some(change) = interrupted(call, watch.next()).await {
            let change = change.expect("the node runs");
            assert_eq!(change.value, Some(change.key));
            assert!(seen.insert(change.key), "{} came twice", change.key);
        }
    }
    assert!(time::timeout(1_000 * MS, watch.next()).await.is_err(), "a change came twice");
    Ok(())
}

#[test]
fn waits_of_a_watch_that_are_dropped_at_any_poll_take_no_change() {
    for seed in 0..5 {
        let mut sim = Sim::builder().seed(seed).loss(0.01).build();
        sim.host("sets", set).client(watch);
        sim.run().unwrap();
    }
}
