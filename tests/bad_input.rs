//! Tests invalid input: each kind has an error of its own, and disturbs nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use midplane::via::session::{Ended, Handler, Refusal, Session, Sessions};
use midplane::via::wire::pipe::Config;
use midplane::via::wire::socket::Socket;
use midplane::{ErrorKind, Node, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::node::{Over, nodes, over_each};

/// A process that describes itself by these bytes, and does nothing else.
struct Stranger(Vec<u8>);

impl Handler for Stranger {
    fn on_accepted(&mut self, session: &Arc<Session>) {
        session.send_hello(self.0.clone());
    }

    fn on_hello(&mut self, _: &Arc<Session>, _: &[u8]) {}

    fn on_stream(&mut self, _: &Arc<Session>, _: &str, _: Stream) -> Result<(), Refusal> {
        Err(Refusal::NoService)
    }

    fn on_goodbye(&mut self, _: &Arc<Session>) {}

    fn on_ended(&mut self, _: &Arc<Session>, _: Ended) {}
}

impl Stranger {
    fn start(self) -> (Sessions, SocketAddr) {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let (sessions, driver) = Sessions::new(Some((socket, Config::default())), None).unwrap();
        tokio::spawn(driver.run(self));
        (sessions, address)
    }
}

#[tokio::test]
async fn a_peer_of_another_version_is_an_error_that_names_both_and_disturbs_no_other() {
    let (_stranger, address) = Stranger(vec![9, 0, 0, 0, 1, 2, 3]).start();
    let (service, client) = nodes("version", Over::Udp);
    let client = client.discover(address.to_string()).connect_timeout(Duration::ZERO);
    let client = client.start().await.unwrap();
    let error = loop {
        let error = client.connect("kv").await.unwrap_err();
        if error.kind() == ErrorKind::Version {
            break error;
        }
    };
    for part in [&address.to_string(), "version 9", "this node 2"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let unanswered = client.explain().unanswered;
    assert!(unanswered.iter().any(|one| one.place == address.to_string() && one.dials > 0));
    let service = service.start().await.unwrap();
    let _listener = service.listen("kv").await.unwrap();
    while let Err(error) = client.connect("kv").await {
        assert!(matches!(error.kind(), ErrorKind::Version | ErrorKind::NoService), "{error}");
    }
}

#[tokio::test]
async fn a_service_that_no_node_offers_is_an_error_at_once_or_after_a_deadline_by_choice() {
    for within in [Duration::ZERO, Duration::from_millis(400)] {
        let (_, client) = nodes("deadline", Over::Shm);
        let client = client.connect_timeout(within).start().await.unwrap();
        let begun = Instant::now();
        let error = client.connect("kv").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService);
        assert!(begun.elapsed() >= within);
    }
}

over_each! {
    async fn a_listener_with_too_many_streams_that_wait_is_busy_until_it_accepts(over) {
        let (service, client) = nodes("backlog", over);
        let service = service.name("service").start().await.unwrap();
        let client = client.connect_timeout(Duration::ZERO).start().await.unwrap();
        let mut listener = service.listen("kv").await.unwrap();
        let mut streams = Vec::new();
        let error = loop {
            match client.connect("kv").await {
                Ok(stream) => streams.push(stream),
                Err(error) if error.kind() == ErrorKind::Busy => break error,
                // The first searches may have found no node yet.
                Err(error) => assert!(streams.is_empty(), "{error}"),
            }
            assert!(streams.len() <= 1_024);
        };
        assert!(error.to_string().contains("service offers \"kv\""), "{error}");
        drop(listener.accept().await.unwrap());
        let _stream = client.connect("kv").await.unwrap();
    }

    async fn a_slow_reader_holds_its_own_writer_and_nothing_else(over) {
        let (service, client) = nodes("slow", over);
        let (service, client) = (service.start().await.unwrap(), client.start().await.unwrap());
        let mut listener = service.listen("kv").await.unwrap();
        let mut slow = client.connect("kv").await.unwrap();
        let (mut slow_reader, _) = listener.accept().await.unwrap();
        let mut writing = tokio::spawn(async move {
            slow.write_all(&vec![1; 2 << 20]).await.unwrap();
        });
        let mut other = client.connect("kv").await.unwrap();
        let (mut other_reader, _) = listener.accept().await.unwrap();
        other.write_all(&[2; 100_000]).await.unwrap();
        other_reader.read_exact(&mut [0; 100_000]).await.unwrap();
        assert!(!writing.is_finished());
        let mut read = 0;
        let mut bytes = vec![0; 256 * 1024];
        while read < 2 << 20 {
            read += slow_reader.read(&mut bytes).await.unwrap();
        }
        (&mut writing).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_that_was_shut_down_says_that_it_is_closed() {
    let (service, _) = nodes("closed", Over::Shm);
    let node: Node = service.start().await.unwrap();
    let other = node.clone();
    let mut listener = node.listen("kv").await.unwrap();
    node.shutdown().await;
    for error in [
        listener.accept().await.map(drop).unwrap_err(),
        other.connect("kv").await.map(drop).unwrap_err(),
        other.listen("other").await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("keep a clone"), "{error}");
    }
}
