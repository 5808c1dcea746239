//! Tests that with the feature `deterministic`, all that code reads from the system derives from the seed.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the order of a map and the wall clock are tested"
)]

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use midplane::sim::Result;
use midplane::{Node, Sim, time};

use super::{ask, echo};

/// Sends in the order of a `HashMap`. The system's random numbers determine the number of bytes, and the wall clock the
/// time.
async fn ask_what_differs(node: Node) -> Result {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    assert!(since.as_secs() == 1_000_000_000, "{since:?}");
    time::sleep(Duration::from_nanos(since.subsec_nanos().into())).await;
    let names: HashMap<_, _> =
        (0..20).map(|number| (number, getrandom::u32().unwrap() % 5_000)).collect();
    for bytes in names.into_values() {
        ask(&node, &vec![1; bytes as usize]).await?;
    }
    Ok(())
}

#[test]
fn with_the_feature_maps_random_numbers_and_the_wall_clock_repeat() {
    let run = |seed| {
        let set_up = |sim: &mut Sim| {
            sim.host("one", echo);
            sim.client(ask_what_differs);
        };
        Sim::builder().seed(seed).check(set_up).unwrap().digest
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
