//! Tests TCP connections through the gateway: it forwards ends, resets and restarts, and stops cleanly.

mod gateway;
mod nodes;

use std::net::SocketAddr;

use gateway::{Gateway, WITHIN, command, service};
use midplane::{ErrorKind, Listener, Node};
use nodes::{Over, over_each};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Echoes the bytes of each stream once the client has ended it.
fn serve_echo(mut listener: Listener) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut sent = Vec::new();
                stream.read_to_end(&mut sent).await.unwrap();
                stream.write_all(&sent).await.unwrap();
            });
        }
    });
}

/// Sends bytes, ends the stream, and returns the answer.
async fn echoed(address: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut client = TcpStream::connect(address).await?;
    client.write_all(bytes).await?;
    client.shutdown().await?;
    let mut back = Vec::new();
    let read = tokio::time::timeout(WITHIN, client.read_to_end(&mut back));
    read.await.expect("it comes back in time")?;
    Ok(back)
}

over_each! {
    async fn the_end_of_one_direction_is_forwarded_alone(over) {
        let (cluster, node) = service(over).await;
        serve_echo(node.listen("echo").await.unwrap());
        let gateway = Gateway::start(&cluster, "echo", &node).await;
        for length in [0, 1, 65_536, 3_000_000] {
            let sent: Vec<u8> = (0..length).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
            assert!(echoed(gateway.address, &sent).await.unwrap() == sent);
        }
        gateway.stop().await;
    }

    async fn a_thousand_connections_come_and_go(over) {
        let (cluster, node) = service(over).await;
        serve_echo(node.listen("echo").await.unwrap());
        let gateway = Gateway::start(&cluster, "echo", &node).await;
        for _ in 0..20 {
            let some = (0..50).map(|number: u8| async move {
                assert_eq!(echoed(gateway.address, &[number; 100]).await.unwrap(), [number; 100]);
            });
            futures::future::join_all(some).await;
        }
        gateway.stop().await;
        let idle = async { while node.peers().iter().any(|peer| peer.streams > 0) { tokio::task::yield_now().await } };
        tokio::time::timeout(WITHIN, idle).await.expect("no stream is left");
    }

    async fn a_service_that_is_lost_resets_its_clients_and_is_reached_once_it_is_back(over) {
        let (cluster, node) = service(over).await;
        let mut listener = node.listen("echo").await.unwrap();
        let gateway = Gateway::start(&cluster, "echo", &node).await;
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"a part").await.unwrap();
        let mut part = [0; 6];
        client.read_exact(&mut part).await.unwrap();
        let address = node.address();
        drop(node);
        // A plain end of the stream would pass for the end of the answer.
        let error = tokio::time::timeout(WITHIN, client.read(&mut part)).await.unwrap().unwrap_err();
        drop((stream, listener));
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        let mut again = Node::builder().cluster(&cluster).name("service");
        if let Some(address) = address {
            again = again.transports("udp").bind(address);
        }
        let start = async {
            loop {
                // The dropped node reports its end to its peers before it frees its address.
                match again.clone().start().await {
                    Err(error) if error.kind() == ErrorKind::InUse => tokio::task::yield_now().await,
                    started => return started.unwrap(),
                }
            }
        };
        let again = tokio::time::timeout(WITHIN, start).await.expect("the address is free in time");
        serve_echo(again.listen("echo").await.unwrap());
        assert_eq!(echoed(gateway.address, b"hello").await.unwrap(), b"hello");
        gateway.interrupt();
        let (status, said) = gateway.ended().await;
        assert!(status.success(), "{status}");
        assert_eq!(said.matches("a connection has ended").count(), 1, "{said}");
    }

    async fn after_ctrl_c_open_connections_end_by_themselves_and_none_is_accepted(over) {
        let (cluster, node) = service(over).await;
        let mut listener = node.listen("echo").await.unwrap();
        let mut gateway = Gateway::start(&cluster, "echo", &node).await;
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        gateway.interrupt();
        assert_eq!(gateway.line().await, "gateway: waits for 1 connections; Ctrl-C again ends them");
        assert!(TcpStream::connect(gateway.address).await.is_err());
        client.write_all(b"late").await.unwrap();
        client.shutdown().await.unwrap();
        let mut late = String::new();
        stream.read_to_string(&mut late).await.unwrap();
        stream.write_all(b"answered").await.unwrap();
        drop(stream);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((late.as_str(), answer.as_str()), ("late", "answered"));
        let (status, said) = gateway.ended().await;
        assert!(status.success() && said.is_empty(), "{status}: {said}");
    }

    async fn a_second_ctrl_c_ends_what_is_open(over) {
        let (cluster, node) = service(over).await;
        let mut listener = node.listen("echo").await.unwrap();
        let mut gateway = Gateway::start(&cluster, "echo", &node).await;
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        gateway.interrupt();
        gateway.line().await;
        gateway.interrupt();
        let (status, _) = gateway.ended().await;
        assert!(status.success(), "{status}");
        let ends = async { (client.read_u8().await.is_err(), stream.read_u8().await.is_err()) };
        assert_eq!(tokio::time::timeout(WITHIN, ends).await.unwrap(), (true, true));
    }
}

#[tokio::test]
async fn a_client_of_a_service_that_no_node_offers_is_reset_and_others_are_not() {
    let (cluster, node) = service(Over::Shm).await;
    serve_echo(node.listen("echo").await.unwrap());
    let gateway = Gateway::start(&cluster, "eho", &node).await;
    let error = echoed(gateway.address, b"hello").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    gateway.interrupt();
    let (status, said) = gateway.ended().await;
    assert!(status.success() && said.contains("no node offers \"eho\""), "{status}: {said}");
}

#[tokio::test]
async fn bad_input_is_one_line_that_names_the_cure_and_exit_code_2() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&key, "a password").unwrap();
    let key = key.path().to_str().unwrap();
    for (arguments, expected) in [
        (&[][..], "<SERVICE>"),
        (&["web", "--bind", "nowhere"], "--bind"),
        (&["web", "--bind", &taken], &format!("--bind {taken}: Address already in use")),
        (&["web", "--connections", "0"], "--connections"),
        (&["web", "--key", "/nowhere"], "the key file /nowhere: No such file"),
        (&["web", "--key", key], "a key is a number, a colon and 64 hexadecimal digits"),
        (&["web", "--discover", "nowhere"], "HOST:PORT"),
        (&["web", "--cluster", "two words"], "a cluster's name has"),
    ] {
        let output = tokio::time::timeout(WITHIN, command().args(arguments).output());
        let output = output.await.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains(expected), "{arguments:?}: {said}");
    }
}
