//! Tests maps of latest values whose nodes end.

use midplane::{Sim, time};

use crate::MS;

/// Regression: a map's search for members kept a node running for up to 3 s after its last clone was dropped.
#[test]
fn a_node_that_searches_for_members_of_a_map_ends_when_it_is_dropped() {
    let mut sim = Sim::builder().build();
    sim.host("unreached", |_| std::future::pending());
    sim.client(|node| async move {
        time::sleep(10 * MS).await;
        let map = node.latest_map::<u32, u32>("map").await?;
        let mut watch = map.watch();
        // The search waits for the description of the host that it can't reach.
        time::sleep(100 * MS).await;
        let start = time::Instant::now();
        drop(node);
        assert_eq!(watch.next().await, None);
        assert!(start.elapsed() < 10 * MS, "{:?}", start.elapsed());
        Ok(())
    });
    sim.at(5 * MS).partition("unreached", "client-1");
    sim.run().unwrap();
}
