//! Tests calls to services of which one does not answer, and calls of callers that are suspended.

use std::time::Duration;

use midplane::call::Limits;
use midplane::sim::Result;
use midplane::{Node, Sim, time};
use tower::service_fn;

use crate::MS;

async fn double(node: Node) -> Result {
    let service = service_fn(|number: u32| async move { Ok::<_, ()>(2 * number) });
    let _serving = node.serve("double", service)?;
    std::future::pending().await
}

/// A call to a node that is suspended takes a second longer, not until its own deadline.
#[test]
fn calls_avoid_a_node_that_is_suspended() {
    for seed in 0..20 {
        let mut sim = Sim::builder().seed(seed).build();
        sim.host("one", double).host("two", double);
        sim.client(|node| async move {
            // Both are known after this.
            node.client::<u32, u32, ()>("double").call(1).await.unwrap();
            time::sleep(Duration::from_millis(400)).await;
            let start = time::Instant::now();
            for number in 0..10 {
                // A client of its own has no idle stream to a node.
                let client = node.client::<u32, u32, ()>("double");
                assert_eq!(client.call(number).await.unwrap(), 2 * number);
            }
            assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
            Ok(())
        });
        sim.at(Duration::from_millis(300)).pause("one", Duration::from_secs(20));
        sim.run().unwrap();
    }
}

/// Sends a request of 500 kB, which takes 400 ms over a link of 10 Mb/s.
async fn ask_long(node: Node) -> Result {
    let client = node.client::<Vec<u8>, u64, ()>("length");
    assert_eq!(client.call(vec![7; 500_000]).await.unwrap(), 500_000);
    Ok(())
}

/// Regression: callers that were suspended while they sent long requests kept all others from sending theirs.
#[test]
fn callers_that_are_suspended_within_long_requests_do_not_stop_others() {
    let mut sim = Sim::builder().link_mbps(10).build();
    sim.host("service", |node| async move {
        let length = service_fn(|bytes: Vec<u8>| async move { Ok::<_, ()>(bytes.len() as u64) });
        let limits = Limits::default().concurrency(2);
        let _serving = node.serve_with("length", length, limits)?;
        std::future::pending().await
    });
    for name in ["one", "two"] {
        sim.host(name, ask_long);
        sim.at(250 * MS).pause(name, Duration::from_secs(20));
    }
    sim.client(|node| async move {
        time::sleep(300 * MS).await;
        let start = time::Instant::now();
        ask_long(node).await?;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        Ok(())
    });
    sim.run().unwrap();
}
