//! Tests calls to services of which one does not answer.

use std::time::Duration;

use midplane::sim::Result;
use midplane::{Node, Sim, time};
use tower::service_fn;

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
