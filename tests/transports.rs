//! Tests the choice of transports, its explanation, and TCP where UDP does not answer.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midplane::simhw::seal::Key;
use midplane::{Congestion, ErrorKind, Node, NodeBuilder, UnusedReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::node::{Over, free_address, nodes};

/// Returns the reason why a peer is not reached over a transport.
fn why_not<'a>(explanation: &'a midplane::Explanation, word: &str) -> &'a UnusedReason {
    let [peer] = &explanation.peers[..] else { panic!("{explanation}") };
    &peer.others.iter().find(|(other, _)| *other == word).unwrap().1
}

/// Starts a service's node that receives over TCP alone, at a port where a socket swallows all datagrams.
async fn behind_a_wall(key: Option<Key>) -> (Node, UdpSocket, NodeBuilder) {
    let wall = UdpSocket::bind(free_address()).unwrap();
    let address = wall.local_addr().unwrap();
    let builder = Node::builder().cluster(format!("wall-{}", std::process::id()));
    let builder = match key {
        Some(key) => builder.key(key),
        None => builder,
    };
    let client = builder.clone().transports("udp,tcp").discover(address.to_string());
    let service = builder.transports("tcp").bind(address).start().await.unwrap();
    (service, wall, client)
}

#[tokio::test]
async fn where_udp_is_blocked_tcp_is_chosen_by_itself() {
    for key in [None, Some(Key::new(1, [5; 32]))] {
        let is_sealed = key.is_some();
        let (service, _wall, client) = behind_a_wall(key).await;
        let mut listener = service.listen("kv").await.unwrap();
        let client = client.start().await.unwrap();
        let mut stream = client.connect("kv").await.unwrap();
        stream.write_all(b"over").await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4];
        accepted.read_exact(&mut bytes).await.unwrap();
        let explanation = client.explain();
        assert_eq!(explanation.peers[0].transport, "tcp");
        assert_eq!(explanation.peers[0].is_sealed, is_sealed);
        assert!(matches!(why_not(&explanation, "udp"), UnusedReason::NoAnswer(_)), "{explanation}");
        assert_eq!(*why_not(&explanation, "shm"), UnusedReason::NotAllowed);
        assert_eq!(*why_not(&service.explain(), "udp"), UnusedReason::NotAllowed);
    }
}

/// Sends 8 MiB of a service to its client; returns how many streams of the client have moved to TCP connections.
async fn moved_by_a_long_answer(service: NodeBuilder, client: NodeBuilder) -> u64 {
    let (service, client) = (service.transports("udp,tcp"), client.transports("udp,tcp"));
    let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
    let mut listener = service.listen("bodies").await.unwrap();
    let mut stream = client.connect("bodies").await.unwrap();
    let body: Vec<u8> = (0..8_u32 << 20).map(|at| (at ^ at >> 9) as u8).collect();
    let expected = body.clone();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&body).await.unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    serving.await.unwrap();
    assert!(received == expected);
    let explanation = client.explain();
    let [peer] = &explanation.peers[..] else { panic!("{explanation}") };
    assert_eq!(peer.transport, "udp");
    assert_eq!(peer.to_string().contains("moved to TCP connections: 1"), peer.moved == 1, "{peer}");
    peer.moved
}

#[tokio::test]
async fn a_long_stream_moves_to_tcp_unless_a_node_has_a_key_tokens_or_another_law() {
    type Change = fn(NodeBuilder) -> NodeBuilder;
    let cases: [(&str, Change, Change, u64); 4] = [
        ("plain", |node| node, |node| node, 1),
        ("tokens", |node| node, NodeBuilder::receive_tokens, 0),
        ("law", |node| node.congestion(Congestion::Warp), |node| node, 0),
        ("key", |node| node.key(Key::new(1, [5; 32])), |node| node.key(Key::new(1, [5; 32])), 0),
    ];
    for (name, of_service, of_client, moved) in cases {
        let (service, client) = nodes(&format!("moves-{name}"), Over::Udp);
        let (service, client) = (of_service(service), of_client(client));
        assert_eq!(moved_by_a_long_answer(service, client).await, moved, "{name}");
    }
}

#[tokio::test]
async fn where_udp_answers_it_is_chosen_and_shared_memory_before_both() {
    for (over, transport) in [(Over::Shm, "shm"), (Over::Udp, "udp")] {
        let (service, client) = nodes("explain", over);
        let service = if transport == "udp" { service.transports("udp,tcp") } else { service };
        let client = if transport == "udp" { client.transports("tcp,udp") } else { client };
        let service = service.name("service").start().await.unwrap();
        let _listener = service.listen("kv").await.unwrap();
        let client = client.start().await.unwrap();
        let _stream = client.connect("kv").await.unwrap();
        let explanation = client.explain();
        let peer = &explanation.peers[0];
        assert_eq!((peer.transport, &*peer.name, peer.streams), (transport, "service", 1));
        assert_eq!(peer.mtu.is_some(), transport == "udp");
        assert_eq!(*why_not(&explanation, "tcp"), UnusedReason::NotNeeded);
        let text = explanation.to_string();
        assert!(text.contains(&format!("service: {transport}")), "{text}");
    }
}

/// Regression: a node that was dialed at its address before it was listed on this host stayed on UDP.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_node_of_this_host_that_starts_after_its_address_was_dialed_is_reached_through_memory() {
    let address = free_address();
    let builder = Node::builder().cluster(format!("late-{}", std::process::id()));
    let client = builder.clone().discover(address.to_string()).start().await.unwrap();
    let connecting = tokio::spawn({
        let client = client.clone();
        async move { client.connect("kv").await }
    });
    // The client dials the address meanwhile.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let service = builder.bind(address).start().await.unwrap();
    let _listener = service.listen("kv").await.unwrap();
    let _stream = connecting.await.unwrap().unwrap();
    let is_shared = async {
        while client.peers().first().is_none_or(|peer| peer.transport != "shm") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_shared).await.expect("it is dialed again");
}

#[tokio::test]
async fn places_without_an_answer_are_listed_with_their_last_error() {
    // Bound and never read: neither UDP nor TCP answers there.
    let silent = UdpSocket::bind(free_address()).unwrap();
    let place = silent.local_addr().unwrap().to_string();
    let client = Node::builder().cluster(format!("silent-{}", std::process::id()));
    let client = client.transports("udp,tcp").discover(&place).connect_timeout(Duration::ZERO);
    let client = client.start().await.unwrap();
    let error = client.connect("kv").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    assert!(error.to_string().contains(&place), "{error}");
    let explanation = client.explain();
    let [unanswered] = &explanation.unanswered[..] else { panic!("{explanation}") };
    assert_eq!(unanswered.place, place);
    for part in ["udp: no answer", "tcp: Connection refused"] {
        assert!(unanswered.error.contains(part), "{explanation}");
    }
    assert!(explanation.to_string().contains(&place));
}

#[tokio::test]
async fn a_node_without_shared_memory_is_told_to_name_a_place() {
    let builder = Node::builder().cluster(format!("alone-{}", std::process::id()));
    let builder = builder.transports("udp").connect_timeout(Duration::ZERO);
    let service = builder.clone().start().await.unwrap();
    let _listener = service.listen("kv").await.unwrap();
    let error = builder.start().await.unwrap().connect("kv").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    assert!(error.to_string().contains("without the transport `shm` (allowed: udp)"), "{error}");
    assert!(error.to_string().contains("`NodeBuilder::discover`"), "{error}");
}

#[tokio::test]
async fn unknown_transports_are_an_error_that_lists_them() {
    for list in ["shm,infiniband", ""] {
        let error = Node::builder().transports(list).start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("udp, tcp"), "{error}");
    }
}

#[tokio::test]
async fn udp_and_tcp_have_one_port_and_a_taken_one_is_an_error() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = Node::builder().bind(address).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("TCP"), "{error}");
    let node = Node::builder().transports("udp,tcp").start().await.unwrap();
    drop(TcpStream::connect(node.address().unwrap()).await.unwrap());
}

#[tokio::test]
async fn silent_connections_keep_no_node_out() {
    let (service, client) = nodes("mute", Over::Tcp);
    let service = service.start().await.unwrap();
    let mut listener = service.listen("kv").await.unwrap();
    let mut mute = Vec::new();
    for _ in 0..100 {
        mute.push(TcpStream::connect(service.address().unwrap()).await.unwrap());
    }
    let mut stranger = TcpStream::connect(service.address().unwrap()).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let client = client.start().await.unwrap();
    let _stream = client.connect("kv").await.unwrap();
    listener.accept().await.unwrap();
    for mut mute in mute {
        // The node has closed each connection, at once or after the time of a handshake.
        assert!(matches!(mute.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    }
}

#[test]
fn streams_over_tcp_are_reset_when_the_peers_runtime_ends_at_once() {
    let (service, client) = nodes("killed", Over::Tcp);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (of_service, of_client) = (runtime(), runtime());
    let service = of_service.block_on(service.start()).unwrap();
    let mut listener = of_service.block_on(service.listen("kv")).unwrap();
    let (opened, is_open) = tokio::sync::oneshot::channel();
    let serving = std::thread::spawn(move || {
        let accepted = of_service.block_on(listener.accept()).unwrap();
        of_service.block_on(is_open).unwrap();
        // The node sends no goodbye: its tasks are dropped where they are.
        of_service.shutdown_background();
        (accepted, listener)
    });
    of_client.block_on(async {
        let client = client.start().await.unwrap();
        let mut stream = client.connect("kv").await.unwrap();
        opened.send(()).unwrap();
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
    drop(serving.join().unwrap());
}

/// Runs an ignored test of this file in its own process, with these variables.
fn process(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("transports::{test}"), "--ignored", "--nocapture"]);
    command.envs(variables.iter().copied());
    command
}

#[test]
fn the_environment_limits_transports_and_the_builder_overrides_it() {
    for (value, found) in
        [("tcp", "allowed tcp; overridden udp"), ("wifi", "\"wifi\" is no transport")]
    {
        let variables = [("MIDPLANE_TRANSPORTS", value)];
        let output = process("prints_its_transports", &variables).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains(found), "{output}");
    }
}

#[tokio::test]
#[ignore = "another test starts it as a process"]
async fn prints_its_transports() {
    match Node::builder().start().await {
        Ok(node) => {
            let overridden = Node::builder().transports("udp").start().await.unwrap();
            let [node, overridden] =
                [node, overridden].map(|node| node.explain().allowed.join(","));
            println!("allowed {node}; overridden {overridden}");
        }
        Err(error) => println!("{error}"),
    }
}

/// Kills its process when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn over_tcp_a_killed_process_resets_its_streams_and_its_successor_is_reached() {
    for over in [Over::Tcp, Over::SealedTcp] {
        let (service, client) = nodes("kill", over);
        let client = client.start().await.unwrap();
        let free = service.start().await.unwrap();
        let address = free.address().unwrap().to_string();
        free.shutdown().await;
        let cluster = format!("kill-{}", std::process::id());
        let key = if matches!(over, Over::SealedTcp) { "sealed" } else { "" };
        let variables =
            [("MIDPLANE_CLUSTER", &*cluster), ("TEST_ADDRESS", &*address), ("TEST_KEY", key)];
        let start = || {
            let mut command = process("serves_until_it_is_killed", &variables);
            Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        let first = start();
        for mut next in [Some(first), None] {
            let mut second = next.is_none().then(start);
            // The process may start slowly on a busy machine.
            let mut stream = loop {
                match client.connect("echo").await {
                    Ok(stream) => break stream,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NoService, "{error}"),
                }
                let process = next.as_mut().or(second.as_mut()).unwrap();
                assert_eq!(process.0.try_wait().unwrap(), None, "it has ended by itself");
            };
            stream.write_all(b"here").await.unwrap();
            stream.read_exact(&mut [0; 4]).await.unwrap();
            if let Some(first) = next {
                drop(first);
                let reset = tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await;
                let error = reset.expect("a killed process is noticed").unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            }
        }
    }
}

#[tokio::test]
#[ignore = "another test starts it as a process, and kills it"]
async fn serves_until_it_is_killed() {
    let Ok(address) = std::env::var("TEST_ADDRESS") else { return };
    let mut builder = Node::builder().transports("tcp").bind(address.parse().unwrap());
    if std::env::var("TEST_KEY").is_ok_and(|key| !key.is_empty()) {
        builder = builder.key(Key::new(1, [7; 32]));
    }
    let node = builder.start().await.unwrap();
    let mut listener = node.listen("echo").await.unwrap();
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).await.is_ok() {
                let _ = stream.write_all(&bytes).await;
            }
        });
    }
}
