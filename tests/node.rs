//! Tests nodes over each transport: services by name, streams, and their fate when a node ends.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use midplane::simhw::seal::Key;
use midplane::{ErrorKind, Node, NodeBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

/// The transport that carries the streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Shm,
    Udp,
    /// UDP with a key.
    Sealed,
    /// TCP alone, without and with a key.
    Tcp,
    SealedTcp,
}

/// Returns an address that was free a moment ago, for UDP and TCP. Its host address is its own, and its port is below
/// those that the system assigns to sockets of all addresses.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let host = Ipv4Addr::new(127, 1 + (std::process::id() % 254) as u8, high, low);
    let port = 10_000 + (std::process::id() % 20_000) as u16;
    UdpSocket::bind((host, port)).unwrap().local_addr().unwrap()
}

/// Returns builders of a service's node and a client's node, in the test's own cluster.
pub(crate) fn nodes(test: &str, over: Over) -> (NodeBuilder, NodeBuilder) {
    let builder = Node::builder().cluster(format!("{test}-{}", std::process::id()));
    if matches!(over, Over::Shm) {
        return (builder.clone(), builder);
    }
    let address = free_address();
    let is_tcp = matches!(over, Over::Tcp | Over::SealedTcp);
    let mut builder = builder.transports(if is_tcp { "tcp" } else { "udp" });
    if matches!(over, Over::Sealed | Over::SealedTcp) {
        builder = builder.key(Key::new(1, [7; 32]));
    }
    (builder.clone().bind(address), builder.discover(address.to_string()))
}

/// Makes a test of each function over each transport.
macro_rules! over_each {
    ($($(#[$doc:meta])* async fn $name:ident($over:ident) $body:block)*) => {
        $(
            async fn $name($over: Over) $body
        )*
        mod shm { $(#[tokio::test] async fn $name() { super::$name(super::Over::Shm).await; })* }
        mod udp { $(#[tokio::test] async fn $name() { super::$name(super::Over::Udp).await; })* }
        mod sealed { $(#[tokio::test] async fn $name() { super::$name(super::Over::Sealed).await; })* }
        mod tcp { $(#[tokio::test] async fn $name() { super::$name(super::Over::Tcp).await; })* }
        mod sealed_tcp { $(#[tokio::test] async fn $name() { super::$name(super::Over::SealedTcp).await; })* }
    };
}
pub(crate) use over_each;

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
    let many: Vec<u8> = (0..3_000_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_carry_bytes_on_several_threads() {
    for over in [Over::Shm, Over::Udp, Over::Tcp, Over::SealedTcp] {
        let (service, client) = nodes("threads", over);
        bytes_come_back(service.start().await.unwrap(), client.start().await.unwrap()).await;
    }
}

/// Writes and reads at the same time: the echo may exceed the stream's window.
async fn exchange_both(stream: &mut midplane::Stream, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
    let (mut from, mut to) = split(stream);
    let mut back = vec![0; length];
    let (wrote, read) = tokio::join!(to.write_all(&bytes), from.read_exact(&mut back));
    wrote.unwrap();
    read.unwrap();
    assert_eq!(back, bytes);
}

over_each! {
    async fn streams_by_name_carry_bytes_both_ways_and_end(over) {
        let (service, client) = nodes("bytes", over);
        let service = service.name("service").start().await.unwrap();
        bytes_come_back(service, client.start().await.unwrap()).await;
    }

    async fn a_connect_that_is_dropped_at_any_poll_leaves_no_stream(over) {
        let (service, client) = nodes("dropped", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
        let _serving = echo(&service, "echo").await;
        for polls in 0..60 {
            let mut connect = Box::pin(client.connect("echo"));
            for _ in 0..polls {
                if connect.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let mut stream = client.connect("echo").await.unwrap();
        exchange(&mut stream, b"hello").await;
        drop(stream);
        let open = |node: &Node| node.peers().iter().map(|peer| peer.streams).sum::<usize>();
        while open(&client) + open(&service) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn an_unread_stream_stops_no_other(over) {
        let (service, client) = nodes("unread", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
        let mut listener = service.listen("sink").await.unwrap();
        let _serving = echo(&service, "echo").await;
        let mut unread = client.connect("sink").await.unwrap();
        let (_held, _) = listener.accept().await.unwrap();
        let chunk = vec![7; 64 * 1024];
        let mut written = 0;
        while let Ok(count) =
            tokio::time::timeout(Duration::from_millis(300), unread.write(&chunk)).await
        {
            written += count.unwrap();
            assert!(written <= 64 << 20, "unread bytes are bounded");
        }
        let mut stream = client.connect("echo").await.unwrap();
        for length in [1, 1_000, 1_000_000] {
            exchange_both(&mut stream, length).await;
        }
    }

    async fn a_service_that_no_node_offers_is_an_error_that_lists_the_nodes_asked(over) {
        let (service, client) = nodes("nobody", over);
        let client = client.connect_timeout(Duration::ZERO).start().await.unwrap();
        let error = client.connect("orders").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService);
        let other = service.name("other").start().await.unwrap();
        let _listener = other.listen("kv").await.unwrap();
        // The first dial may have found no node. The next one follows when the node's refusal arrives.
        let error = loop {
            let error = client.connect("orders").await.unwrap_err();
            if error.to_string().contains("asked") {
                break error;
            }
        };
        assert!(error.to_string().contains("other (offers kv)"), "{error}");
        assert!(error.to_string().contains("check the name"), "{error}");
        let error = other.listen("kv").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains("drop it first"), "{error}");
        assert_eq!(client.connect("").await.unwrap_err().kind(), ErrorKind::Config);
    }

    async fn a_service_that_starts_late_is_reached(over) {
        let (service, client) = nodes("late", over);
        let client = client.start().await.unwrap();
        let connecting = tokio::spawn(async move { client.connect("echo").await.map(drop) });
        tokio::task::yield_now().await;
        let service = service.start().await.unwrap();
        let _serving = echo(&service, "echo").await;
        connecting.await.unwrap().unwrap();
    }

    async fn streams_of_a_node_that_ends_are_reset_and_its_successor_is_reached(over) {
        let (service, client) = nodes("restart", over);
        let first = service.clone().start().await.unwrap();
        let client = client.start().await.unwrap();
        let _serving = echo(&first, "echo").await;
        let mut stream = client.connect("echo").await.unwrap();
        exchange(&mut stream, b"one").await;
        drop(first);
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        // The address is free once the node's driver has notified its peers of the end.
        let second = loop {
            match service.clone().start().await {
                Ok(node) => break node,
                Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
            }
            tokio::task::yield_now().await;
        };
        let _serving = echo(&second, "echo").await;
        let mut stream = client.connect("echo").await.unwrap();
        exchange(&mut stream, b"two").await;
    }

    async fn a_listener_that_is_dropped_resets_the_streams_that_wait(over) {
        let (service, client) = nodes("waits", over);
        let service = service.start().await.unwrap();
        let client = client.connect_timeout(Duration::ZERO).start().await.unwrap();
        let listener = service.listen("sink").await.unwrap();
        let mut stream = client.connect("sink").await.unwrap();
        drop(listener);
        let error = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(client.connect("sink").await.unwrap_err().kind(), ErrorKind::NoService);
    }

    async fn shutdown_lets_streams_end(over) {
        let (service, client) = nodes("drain", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
        let mut listener = service.listen("sink").await.unwrap();
        let mut stream = client.connect("sink").await.unwrap();
        let (mut accepted, peer) = listener.accept().await.unwrap();
        assert_ne!(peer.id, 0);
        let ending = tokio::spawn(client.shutdown());
        stream.write_all(b"the last words").await.unwrap();
        drop(stream);
        let mut words = String::new();
        accepted.read_to_string(&mut words).await.unwrap();
        assert_eq!(words, "the last words");
        drop(accepted);
        ending.await.unwrap();
    }

    async fn shutdown_does_not_wait_for_a_stream_that_is_held_after_both_its_ends(over) {
        let (service, client) = nodes("held", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
        let mut listener = service.listen("echo").await.unwrap();
        let mut stream = client.connect("echo").await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        stream.write_all(b"once around").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut words = Vec::new();
        accepted.read_to_end(&mut words).await.unwrap();
        accepted.write_all(&words).await.unwrap();
        drop(accepted);
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).await.unwrap();
        let within = midplane::DEFAULT_DRAIN / 2;
        tokio::time::timeout(within, client.shutdown()).await.expect("no byte is under way");
        assert_eq!(echo, b"once around");
        drop(stream);
    }

    async fn writes_to_a_dropped_reader_fail(over) {
        let (service, client) = nodes("gone", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
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
}

#[tokio::test]
async fn a_node_with_another_key_or_none_meets_no_node() {
    let (service, client) = nodes("keys", Over::Sealed);
    let service = service.start().await.unwrap();
    let _listener = service.listen("kv").await.unwrap();
    let client = client.connect_timeout(Duration::ZERO);
    let (_, plain) = nodes("keys", Over::Udp);
    let address = service.address().unwrap().to_string();
    let plain = plain.connect_timeout(Duration::ZERO).discover(address);
    for stranger in [client.key(Key::new(1, [8; 32])), plain] {
        let stranger = stranger.start().await.unwrap();
        // With a key, a node believes a refusal only after a second, because any host can forge one.
        let error = loop {
            let error = stranger.connect("kv").await.unwrap_err();
            if error.kind() == ErrorKind::Key {
                break error;
            }
            assert_eq!(error.kind(), ErrorKind::NoService);
        };
        assert!(error.to_string().contains("the same key file"), "{error}");
        assert_eq!(stranger.peers(), []);
    }
}

#[tokio::test]
async fn an_invalid_configuration_is_an_error_that_says_what_to_change() {
    let any = "0.0.0.0:0".parse().unwrap();
    let wrong = [
        (Node::builder().bind(any), "trusted_network"),
        (Node::builder().discover("nowhere"), "HOST:PORT"),
        (Node::builder().cluster("a/b"), "letters"),
        (Node::builder().name(""), "1 to 100"),
    ];
    for (builder, cure) in wrong {
        let error = builder.start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(cure), "{error}");
    }
    let taken = Node::builder().bind("127.0.0.1:0".parse().unwrap()).start().await.unwrap();
    let error = Node::builder().bind(taken.address().unwrap()).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
}

#[tokio::test]
async fn an_address_is_free_once_its_node_is_shut_down() {
    let address = free_address();
    for transports in ["udp", "tcp", "shm,udp,tcp"] {
        for _ in 0..50 {
            let node = Node::builder().transports(transports).bind(address).start().await.unwrap();
            node.shutdown().await;
        }
    }
}
