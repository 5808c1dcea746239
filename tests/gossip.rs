//! Tests that nodes that each know one other node find each service of the cluster by gossip.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use midplane::{ErrorKind, Key, Listener, Node, NodeBuilder};

/// Returns a builder of nodes of the test's own cluster, which gossip over loopback.
fn builder(test: &str, key: Option<&Key>) -> NodeBuilder {
    let builder = Node::builder().cluster(format!("{test}-{}", std::process::id()));
    let builder = builder.transports("udp").gossip();
    key.iter().fold(builder, |builder, key| builder.key((*key).clone()))
}

/// Starts a node that offers a service of its own name, and knows `seed` at most.
async fn node(builder: &NodeBuilder, name: &str, seed: Option<SocketAddr>) -> (Node, Listener) {
    let builder = builder.clone().name(name);
    let builder = seed.iter().fold(builder, |builder, seed| builder.discover(seed.to_string()));
    let node = builder.start().await.unwrap();
    let listener = node.listen(name).await.unwrap();
    (node, listener)
}

fn address(node: &Node) -> SocketAddr {
    node.address().unwrap()
}

/// Waits until gossip has given a node the addresses of these nodes, and no others.
async fn names(node: &Node, others: &[&Node]) {
    let others: BTreeSet<_> = others.iter().map(|other| address(other)).collect();
    let named = async {
        while node.explain().gossip.into_iter().collect::<BTreeSet<_>>() != others {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), named).await.is_err() {
        panic!("{} has no {others:?}: {}", node.name(), node.explain());
    }
}

async fn nodes_find_each_service(key: Option<Key>) {
    let builder = builder(if key.is_some() { "sealed" } else { "plain" }, key.as_ref());
    let (one, _one) = node(&builder, "one", None).await;
    let (two, _two) = node(&builder, "two", Some(address(&one))).await;
    let (three, _three) = node(&builder, "three", Some(address(&two))).await;
    // Another node joins late, and knows any of them.
    let (late, _late) = node(&builder, "late", Some(address(&three))).await;
    late.connect("one").await.unwrap();
    let met: BTreeSet<_> = late.peers().into_iter().map(|peer| peer.name).collect();
    assert!(met.contains("one") && !met.contains("two"), "no full mesh: {met:?}");
    for node in [&one, &two, &three, &late] {
        for service in ["one", "two", "three", "late"] {
            if node.name() != service {
                node.connect(service).await.unwrap();
            }
        }
    }
    names(&one, &[&two, &three, &late]).await;
}

#[tokio::test]
async fn nodes_that_know_one_other_find_each_service() {
    nodes_find_each_service(None).await;
}

#[tokio::test]
async fn nodes_with_a_key_find_each_service() {
    nodes_find_each_service(Some(Key::new(1, [5; 32]))).await;
}

#[tokio::test]
async fn a_thief_without_the_key_learns_nothing_and_is_named_to_no_node() {
    let honest = builder("thief", Some(&Key::new(1, [5; 32])));
    let (one, _one) = node(&honest, "one", None).await;
    let (bare, _bare) = node(&builder("thief", None), "bare", Some(address(&one))).await;
    let other_key = builder("thief", Some(&Key::new(1, [6; 32])));
    let (thief, _thief) = node(&other_key, "thief", Some(address(&one))).await;
    // The nodes that join after the thieves are named.
    let (two, _two) = node(&honest, "two", Some(address(&one))).await;
    names(&one, &[&two]).await;
    names(&two, &[&one]).await;
    for node in [&bare, &thief] {
        assert!(node.explain().gossip.is_empty(), "{}", node.explain());
    }
}

#[tokio::test]
async fn a_node_that_ended_is_no_longer_named_until_it_restarts() {
    let builder = builder("crash", None);
    let (one, _one) = node(&builder, "one", None).await;
    let (two, _two) = node(&builder, "two", Some(address(&one))).await;
    let (dying, listener) = node(&builder, "dying", Some(address(&two))).await;
    for node in [&one, &two] {
        node.connect("dying").await.unwrap();
    }
    let place = address(&dying);
    names(&one, &[&two, &dying]).await;
    let began = tokio::time::Instant::now();
    drop((dying, listener));
    names(&one, &[&two]).await;
    println!("named no longer after {:?}", began.elapsed());
    let again = builder.clone().bind(place);
    let (back, _back) = node(&again, "back", Some(address(&two))).await;
    one.connect("back").await.unwrap();
    names(&one, &[&two, &back]).await;
    // Gossip spreads services that are offered later or withdrawn.
    let more = back.listen("more").await.unwrap();
    one.connect("more").await.unwrap();
    drop(more);
}

#[tokio::test]
async fn a_node_at_all_addresses_gossips_the_one_that_reaches_its_seed() {
    let builder = builder("everywhere", None).trusted_network();
    let (one, _one) = node(&builder, "one", None).await;
    let everywhere = builder.clone().bind("0.0.0.0:0".parse().unwrap());
    let (two, _two) = node(&everywhere, "two", Some(address(&one))).await;
    one.connect("two").await.unwrap();
    two.connect("one").await.unwrap();
    let named = one.explain().gossip;
    assert_eq!(named, [SocketAddr::from(([127, 0, 0, 1], address(&two).port()))]);
}

#[tokio::test]
async fn gossip_without_udp_is_an_error_that_says_so() {
    let error = builder("tcp", None).transports("tcp").start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("allow `udp`"), "{error}");
}
