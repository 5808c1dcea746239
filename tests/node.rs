//! Nodes of one host: services by name, streams, and what becomes of them when a node ends.

use std::time::Duration;

use midplane::{ErrorKind, Node, NodeBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

/// A cluster of the test's own.
fn cluster(test: &str) -> NodeBuilder {
    Node::builder().cluster(format!("{test}-{}", std::process::id()))
}

async fn echo(node: &Node, service: &str) -> tokio::task::JoinHandle<()> {
    let mut listener = node.listen(service).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = split(stream);
                let _ = copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    })
}

async fn exchange(stream: &mut midplane::Stream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(back, bytes);
}

async fn bytes_come_back(service: Node, client: Node) {
    let _serving = echo(&service, "echo").await;
    let mut stream = client.connect("echo").await.unwrap();
    exchange(&mut stream, b"hello").await;
    let many: Vec<u8> = (0..3_000_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let (mut from, mut to) = split(stream);
    let sent = many.clone();
    let writer = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    from.read_to_end(&mut back).await.unwrap();
    assert!(back == many);
    writer.await.unwrap();
}

#[tokio::test]
async fn streams_by_name_carry_bytes_both_ways_and_end() {
    let service = cluster("bytes").name("service").start().await.unwrap();
    let client = cluster("bytes").start().await.unwrap();
    bytes_come_back(service, client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_several_threads() {
    let service = cluster("threads").start().await.unwrap();
    let client = cluster("threads").start().await.unwrap();
    bytes_come_back(service, client).await;
}

#[tokio::test]
async fn an_unread_stream_stops_no_other() {
    let service = cluster("unread").start().await.unwrap();
    let client = cluster("unread").start().await.unwrap();
    let mut listener = service.listen("sink").await.unwrap();
    let _serving = echo(&service, "echo").await;
    let mut unread = client.connect("sink").await.unwrap();
    let (_held, _) = listener.accept().await.unwrap();
    let chunk = vec![7; 64 * 1024];
    let mut written = 0;
    while let Ok(count) =
        tokio::time::timeout(Duration::from_millis(100), unread.write(&chunk)).await
    {
        written += count.unwrap();
        assert!(written <= 64 << 20, "what nobody reads is bounded");
    }
    let mut stream = client.connect("echo").await.unwrap();
    for length in [1, 1_000, 1_000_000] {
        exchange_both(&mut stream, length).await;
    }
}

/// Writes and reads at once: what comes back may be more than credit allows to wait.
async fn exchange_both(stream: &mut midplane::Stream, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
    let (mut from, mut to) = split(stream);
    let mut back = vec![0; length];
    let (wrote, read) = tokio::join!(to.write_all(&bytes), from.read_exact(&mut back));
    wrote.unwrap();
    read.unwrap();
    assert_eq!(back, bytes);
}

#[tokio::test]
async fn a_service_that_nobody_offers_is_an_error_that_lists_who_was_asked() {
    let at_once = cluster("nobody").connect_within(Duration::ZERO);
    let client = at_once.start().await.unwrap();
    let error = client.connect("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    let other = cluster("nobody").name("other").start().await.unwrap();
    let _listener = other.listen("kv").await.unwrap();
    let error = client.connect("orders").await.unwrap_err();
    assert!(error.to_string().contains("other (offers kv)"), "{error}");
    let error = other.listen("kv").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(client.connect("").await.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_service_that_comes_late_is_reached() {
    let client = cluster("late").start().await.unwrap();
    let connecting = tokio::spawn(async move { client.connect("echo").await.map(drop) });
    tokio::task::yield_now().await;
    let service = cluster("late").start().await.unwrap();
    let _serving = echo(&service, "echo").await;
    connecting.await.unwrap().unwrap();
}

#[tokio::test]
async fn streams_of_a_node_that_ends_are_reset_and_its_successor_is_reached() {
    let first = cluster("restart").start().await.unwrap();
    let client = cluster("restart").start().await.unwrap();
    let _serving = echo(&first, "echo").await;
    let mut stream = client.connect("echo").await.unwrap();
    exchange(&mut stream, b"one").await;
    drop(first);
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let second = cluster("restart").start().await.unwrap();
    let _serving = echo(&second, "echo").await;
    let mut stream = client.connect("echo").await.unwrap();
    exchange(&mut stream, b"two").await;
}

#[tokio::test]
async fn a_listener_that_is_dropped_resets_the_streams_that_wait() {
    let service = cluster("waits").start().await.unwrap();
    let client = cluster("waits").connect_within(Duration::ZERO).start().await.unwrap();
    let listener = service.listen("sink").await.unwrap();
    let mut stream = client.connect("sink").await.unwrap();
    drop(listener);
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "it has ended");
    assert_eq!(client.connect("sink").await.unwrap_err().kind(), ErrorKind::NoService);
}

#[tokio::test]
async fn shutdown_lets_streams_end() {
    let service = cluster("drain").start().await.unwrap();
    let client = cluster("drain").start().await.unwrap();
    let mut listener = service.listen("sink").await.unwrap();
    let stream = client.connect("sink").await.unwrap();
    let (mut accepted, peer) = listener.accept().await.unwrap();
    assert_ne!(peer.id, 0);
    let ending = tokio::spawn(client.shutdown());
    let mut stream = stream;
    stream.write_all(b"the last words").await.unwrap();
    drop(stream);
    let mut words = String::new();
    accepted.read_to_string(&mut words).await.unwrap();
    assert_eq!(words, "the last words");
    drop(accepted);
    ending.await.unwrap();
}

#[tokio::test]
async fn writes_to_a_reader_that_is_gone_fail() {
    let service = cluster("gone").start().await.unwrap();
    let client = cluster("gone").start().await.unwrap();
    let mut listener = service.listen("sink").await.unwrap();
    let mut stream = client.connect("sink").await.unwrap();
    drop(listener.accept().await.unwrap());
    let error = loop {
        match stream.write(&[0; 1024]).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}
