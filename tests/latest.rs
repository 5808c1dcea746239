//! Tests maps of latest values over each transport: members that join late, leave, are slow or restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use midplane::latest::{LatestMap, Watch};
use midplane::{ErrorKind, Node, NodeBuilder};
use serde::{Deserialize, Serialize};

use crate::node::{Over, nodes, over_each};

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Load {
    busy: f64,
    queue: Vec<u32>,
}

async fn map(node: &Node) -> LatestMap<String, u32> {
    node.latest_map("map").await.unwrap()
}

/// Waits until a key has the given value, or is removed.
async fn until(watch: &mut Watch<String, u32>, key: &str, value: Option<u32>) {
    loop {
        let change = watch.next().await.expect("the node runs");
        if change.key == key && change.value == value {
            return;
        }
    }
}

async fn start(builder: &NodeBuilder) -> Node {
    loop {
        match builder.clone().start().await {
            Ok(node) => return node,
            Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
        }
        tokio::task::yield_now().await;
    }
}

fn values(map: &LatestMap<String, u32>) -> BTreeMap<String, u32> {
    map.snapshot().into_iter().map(|entry| (entry.key, entry.value.unwrap())).collect()
}

over_each! {
    async fn members_see_each_others_values_and_late_ones_all_of_them(over) {
        let (hub, other) = nodes("members", over);
        let hub = start(&hub).await;
        let one = start(&other).await;
        let (a, b) = (map(&hub).await, map(&one).await);
        let (mut sees_a, mut sees_b) = (a.watch(), b.watch());
        a.set(&"x".into(), &1).unwrap();
        until(&mut sees_b, "x", Some(1)).await;
        b.set(&"x".into(), &2).unwrap();
        b.set(&"y".into(), &3).unwrap();
        until(&mut sees_a, "x", Some(2)).await;
        until(&mut sees_a, "y", Some(3)).await;
        assert!(a.remove(&"y".into()));
        assert!(!a.remove(&"y".into()));
        until(&mut sees_b, "y", None).await;
        assert_eq!((b.get(&"x".into()), b.get(&"y".into())), (Some(2), None));
        for number in 0..2_000 {
            a.set(&format!("key {number}"), &number).unwrap();
        }
        // Over UDP, the late member knows the first member alone, which forwards the others' values.
        let late = start(&other).await;
        let c = map(&late).await;
        let mut sees_c = c.watch();
        let mut seen = BTreeSet::new();
        while seen.len() < 2_001 {
            seen.insert(sees_c.next().await.unwrap().key);
        }
        assert_eq!(values(&c), values(&a));
        b.set(&"from b".into(), &4).unwrap();
        until(&mut sees_c, "from b", Some(4)).await;
        c.set(&"from c".into(), &5).unwrap();
        until(&mut sees_b, "from c", Some(5)).await;
        assert_eq!((a.dropped(), b.dropped(), c.dropped()), (0, 0, 0));
    }

    async fn any_serde_type_is_a_value_and_ages_travel(over) {
        let (one, more) = nodes("types", over);
        let (one, other) = (start(&one).await, start(&more).await);
        let a = one.latest_map::<(u8, String), Load>("load").await.unwrap();
        let load = Load { busy: 0.5, queue: vec![1, 2, 3] };
        a.set(&(7, "disk".into()), &load).unwrap();
        let wait = Duration::from_millis(50);
        tokio::time::sleep(wait).await;
        let b = other.latest_map::<(u8, String), Load>("load").await.unwrap();
        let change = b.watch().next().await.unwrap();
        assert_eq!((change.key, change.value), ((7, "disk".into()), Some(load)));
        assert!(change.age >= wait, "{:?}", change.age);
        assert!(b.snapshot()[0].age >= change.age);
        // A map with another type under the same name: its entries are counted, and disturb nothing.
        let third = start(&more).await;
        let c = third.latest_map::<String, String>("load").await.unwrap();
        c.set(&"key".into(), &"value".into()).unwrap();
        while c.dropped() == 0 || b.dropped() + a.dropped() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((a.snapshot().len(), c.snapshot().len()), (1, 1));
    }

    async fn a_restarted_member_receives_all_and_its_new_values_win(over) {
        let (one, other) = nodes("back", over);
        let keeper = start(&one).await;
        let kept = map(&keeper).await;
        let mut sees = kept.watch();
        let first = start(&other).await;
        let map_of_first = map(&first).await;
        for number in 0..100 {
            map_of_first.set(&"load".into(), &number).unwrap();
        }
        until(&mut sees, "load", Some(99)).await;
        drop((map_of_first, first));
        let second = start(&other).await;
        let again = map(&second).await;
        // The restarted member knows none of the hundred writes, and this write is later by more than an update may take.
        tokio::time::sleep(Duration::from_millis(250)).await;
        again.set(&"load".into(), &7).unwrap();
        until(&mut sees, "load", Some(7)).await;
        kept.set(&"more".into(), &1).unwrap();
        until(&mut again.watch(), "more", Some(1)).await;
        assert_eq!((kept.get(&"load".into()), again.get(&"load".into())), (Some(7), Some(7)));
    }

    async fn a_watch_that_is_not_read_yields_the_newest_value_alone(over) {
        let (one, other) = nodes("newest", over);
        let (one, other) = (start(&one).await, start(&other).await);
        let (a, b) = (map(&one).await, map(&other).await);
        let mut lazy = b.watch();
        let mut eager = b.watch();
        for number in 0..5_000 {
            a.set(&"x".into(), &number).unwrap();
        }
        until(&mut eager, "x", Some(4_999)).await;
        assert_eq!(lazy.next().await.unwrap().value, Some(4_999));
        // The watch has no further change.
        assert!(tokio::time::timeout(Duration::from_millis(50), lazy.next()).await.is_err());
    }

    async fn shutdown_delivers_the_last_values_and_ends_watches(over) {
        let (one, other) = nodes("last", over);
        let (one, other) = (start(&one).await, start(&other).await);
        let (a, b) = (map(&one).await, map(&other).await);
        let (mut watch, mut ended) = (a.watch(), b.watch());
        b.set(&"first".into(), &0).unwrap();
        until(&mut watch, "first", Some(0)).await;
        for number in 0..3_000 {
            b.set(&format!("{number}"), &number).unwrap();
        }
        other.shutdown().await;
        while values(&a).len() < 3_001 {
            watch.next().await.unwrap();
        }
        while ended.next().await.is_some() {}
    }

    async fn an_entry_that_is_too_large_for_a_map_is_an_error_that_names_the_limit(over) {
        let (one, _) = nodes("bounds", over);
        let one = start(&one).await;
        let map = one.latest_map::<String, String>("map").await.unwrap();
        for (key, value, text) in [(2_000, 1, "1024"), (1, 40_000, "32768"), (1, 100_000, "32768")] {
            let error = map.set(&"k".repeat(key), &"v".repeat(value)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.to_string().contains(text), "{error}");
        }
        map.set(&"k".repeat(1_000), &"v".repeat(32_000)).unwrap();
        let error = one.latest_map::<String, String>("map").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(map);
        let _again = one.latest_map::<String, String>("map").await.unwrap();
        let error = one.latest_map::<String, String>("").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

/// A value that serde can't encode in the format of maps.
#[derive(Deserialize, Serialize)]
struct Flat {
    #[serde(flatten)]
    more: BTreeMap<String, u32>,
}

/// Regression: such a value was reported as too large.
#[tokio::test]
async fn a_value_that_serde_cannot_encode_is_an_error_that_says_so() {
    let (one, _) = nodes("flat", Over::Shm);
    let one = start(&one).await;
    let map = one.latest_map::<u32, Flat>("map").await.unwrap();
    let error = map.set(&1, &Flat { more: BTreeMap::new() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("flatten"), "{error}");
}

/// A value whose encoding without the field does not decode.
#[derive(Debug, Deserialize, Serialize)]
struct Sparse {
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Regression: a watch reported the end of the node for such a value, and other members dropped it.
#[tokio::test]
async fn a_value_that_would_not_decode_is_refused_and_ends_no_watch() {
    let (one, _) = nodes("sparse", Over::Shm);
    let one = start(&one).await;
    let map = one.latest_map::<u32, Sparse>("map").await.unwrap();
    let mut watch = map.watch();
    let error = map.set(&1, &Sparse { note: None }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("skip_serializing_if"), "{error}");
    map.set(&2, &Sparse { note: Some("here".into()) }).unwrap();
    let change = watch.next().await.expect("the node runs");
    assert_eq!((change.key, change.value.unwrap().note.as_deref()), (2, Some("here")));
}

/// Regression: a map that was joined in a runtime of its own sent and received nothing once that had ended.
#[test]
fn a_map_lives_as_long_as_its_node_in_whichever_runtime_it_was_joined() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let main = runtime();
    let (one, other) = main.block_on(async {
        let (one, other) = nodes("map-runtimes", Over::Udp);
        (start(&one).await, start(&other).await)
    });
    let brief = runtime();
    let (a, b) = brief.block_on(async { (map(&one).await, map(&other).await) });
    drop(brief);
    let mut watch = b.watch();
    a.set(&"key".into(), &1).unwrap();
    let within = Duration::from_secs(20);
    main.block_on(async {
        let arrives = until(&mut watch, "key", Some(1));
        tokio::time::timeout(within, arrives).await.expect("the map's task runs");
    });
    // A watch ends with the runtime of its node.
    let watching = std::thread::spawn(move || {
        let ends = async { while watch.next().await.is_some() {} };
        runtime().block_on(async { tokio::time::timeout(within, ends).await })
    });
    drop(main);
    watching.join().unwrap().expect("it ends");
}
