//! Tests names pinned to nodes' own keys: thieves, restarts, and lists of keys.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use midplane::simhw::seal::{Key, SecretKey};
use midplane::{ErrorKind, Listener, Node, NodeBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::node::free_address;

/// Limit of 3 s where virtual time asserts 1 s: allows for a busy machine.
const SOON: Duration = Duration::from_secs(3);

fn builder(test: &str, transports: &str) -> NodeBuilder {
    let builder = Node::builder().cluster(format!("{test}-{transports}-{}", std::process::id()));
    builder.transports(transports).key(Key::new(1, [7; 32])).connect_timeout(Duration::from_secs(2))
}

/// Returns a builder of nodes that reach this client, and that time out soon if it refuses them.
fn reaching(client: &Node, builder: &NodeBuilder) -> NodeBuilder {
    let builder = builder.clone().discover(client.address().unwrap().to_string());
    builder.connect_timeout(Duration::from_millis(300))
}

/// Starts a node that sends `greeting` to clients of `kv`. The former node may still be notifying its peers of its end.
async fn serve(builder: NodeBuilder, at: SocketAddr, greeting: u8) -> Node {
    let node = loop {
        match builder.clone().name("orders").bind(at).start().await {
            Ok(node) => break node,
            Err(error) => assert_eq!(error.kind(), ErrorKind::InUse, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    // A node that peers have already met may be refused.
    let Ok(mut listener) = node.listen("kv").await else { return node };
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_u8(greeting).await;
                while let Ok(byte) = stream.read_u8().await {
                    let _ = stream.write_u8(byte).await;
                }
            });
        }
    });
    node
}

/// Starts a client of the nodes at these places, which offers `inbox` itself.
async fn client(builder: &NodeBuilder, places: [SocketAddr; 2]) -> (Node, Listener) {
    let places = places.map(|place| place.to_string()).join(",");
    let client = builder.clone().name("client").discover(places).start().await.unwrap();
    let inbox = client.listen("inbox").await.unwrap();
    (client, inbox)
}

async fn greeted(client: &Node) -> u8 {
    client.connect("kv").await.unwrap().read_u8().await.unwrap()
}

/// Waits for the error of a node that the client refuses; checks that it may not offer a service either.
async fn refused(node: &Node) {
    let error = loop {
        let error = node.connect("inbox").await.unwrap_err();
        if error.kind() == ErrorKind::Key {
            break error;
        }
    };
    for part in ["client", "\"orders\"", "identity_file"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(node.listen("other").await.unwrap_err().kind(), ErrorKind::Key);
}

async fn a_thief_is_refused(transports: &str) {
    let folder = tempfile::tempdir().unwrap();
    let builder = builder("thief", transports);
    let (at, elsewhere) = (free_address(), free_address());
    let kept = builder.clone().identity_file(folder.path().join("orders.key"));
    let orders = serve(kept.clone(), at, 1).await;
    let (client, mut inbox) = client(&builder, [at, elsewhere]).await;
    let mut stream = client.connect("kv").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 1);
    assert_eq!(client.explain().peers[0].key, orders.public_key());

    let reaches = reaching(&client, &builder);
    let thief = serve(reaches.clone(), elsewhere, 2).await;
    assert_ne!(thief.public_key(), orders.public_key());
    refused(&thief).await;
    // The client searches, and meets the thief at its place.
    let error = client.connect("nothing").await.unwrap_err().to_string();
    assert!(error.contains(&format!("{elsewhere} (is refused: \"orders\"")), "{error}");
    for _ in 0..20 {
        assert_eq!(greeted(&client).await, 1);
    }
    stream.write_u8(9).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 9, "the stream is not disturbed");

    // Restarted with its key file, the node is reached soon; without, it is refused although the former node has
    // exited.
    drop(orders);
    assert!(stream.read_u8().await.is_err());
    let orders = serve(kept, at, 3).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(greeted(&client).await, 3);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    orders.shutdown().await;
    thief.shutdown().await;
    let other = serve(reaches, at, 4).await;
    refused(&other).await;
    let error = loop {
        let error = client.connect("kv").await.unwrap_err();
        if error.kind() == ErrorKind::Key {
            break error;
        }
    };
    assert!(error.to_string().contains("another key"), "{error}");
    assert!(
        tokio::time::timeout(Duration::ZERO, inbox.accept()).await.is_err(),
        "none came through"
    );
}

#[tokio::test]
async fn a_thief_of_a_name_is_refused_over_udp_and_a_restart_with_its_file_is_reached() {
    a_thief_is_refused("udp").await;
}

#[tokio::test]
async fn a_thief_of_a_name_is_refused_over_tcp_and_a_restart_with_its_file_is_reached() {
    a_thief_is_refused("tcp").await;
}

#[tokio::test]
async fn a_name_without_a_file_belongs_to_its_node_while_that_is_alive_and_is_free_afterwards() {
    for transports in ["udp", "tcp"] {
        let builder = builder("plain", transports);
        let (at, elsewhere) = (free_address(), free_address());
        let orders = serve(builder.clone(), at, 1).await;
        let (client, _inbox) = client(&builder, [at, elsewhere]).await;
        assert_eq!(greeted(&client).await, 1);
        let thief = serve(reaching(&client, &builder), elsewhere, 2).await;
        refused(&thief).await;
        assert_eq!(greeted(&client).await, 1);
        thief.shutdown().await;
        drop(orders);
        let _orders = serve(builder, at, 3).await;
        let begun = tokio::time::Instant::now();
        while !matches!(client.connect("kv").await.unwrap().read_u8().await, Ok(3)) {}
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}

fn write(path: &Path, at: SocketAddr, key: impl std::fmt::Display) {
    std::fs::write(path, format!("# orders\n{at} {key}\n")).unwrap();
}

#[tokio::test]
async fn a_node_at_a_listed_place_is_met_with_the_listed_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (builder, at, list) =
        (builder("listed", "udp"), free_address(), folder.path().join("peers"));
    let kept = builder.clone().identity_file(folder.path().join("orders.key"));
    let orders = serve(kept, at, 1).await;
    let client = builder.discover_with(midplane::discovery::File::new(&list));
    write(&list, at, orders.public_key().unwrap());
    assert_eq!(greeted(&client.clone().start().await.unwrap()).await, 1);
    write(&list, at, SecretKey::generate().unwrap().public());
    let client = client.start().await.unwrap();
    let error = loop {
        let error = client.connect("kv").await.unwrap_err();
        if error.kind() == ErrorKind::Key {
            break error;
        }
    };
    for part in [&at.to_string(), "listed with another key", "correct the list"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn keys_of_nodes_need_the_clusters() {
    let builder = Node::builder().cluster("no-key").transports("udp");
    let listed = format!("127.0.0.1:1 {}", SecretKey::generate().unwrap().public());
    for (builder, what) in [
        (builder.clone().identity_file("/nowhere/at/all"), "/nowhere/at/all"),
        (builder.clone().discover(listed), "127.0.0.1:1"),
    ] {
        let error = builder.start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains(what) && text.contains("NodeBuilder::key_file"), "{text}");
    }
    assert_eq!(builder.start().await.unwrap().public_key(), None);
}
