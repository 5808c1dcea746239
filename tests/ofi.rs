//! Tests nodes that meet over UDP or TCP and continue over libfabric. Without libfabric, they are skipped by name.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "says what is skipped")]

use std::time::Duration;

use midplane::simhw::seal::Key;
use midplane::{ErrorKind, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PROVIDER: &str = "tcp@127.0.0.1";
const LIMIT: Duration = Duration::from_secs(60);

/// Starts a node; returns `None` if libfabric is missing.
async fn start(name: &str, places: &str, transports: &str, key: Option<&Key>) -> Option<Node> {
    let cluster = format!("ofi-{}-{transports}-{}", std::process::id(), key.is_some());
    let builder = Node::builder().name(name).cluster(cluster.replace(',', "-"));
    let builder = builder.transports(transports).libfabric(PROVIDER).discover(places);
    let builder = match key {
        Some(key) => builder.key(key.clone()),
        None => builder,
    };
    let builder = builder.bind("127.0.0.1:0".parse().unwrap());
    match builder.start().await {
        Ok(node) => Some(node),
        Err(error) if error.to_string().contains("libfabric") => {
            assert!(std::env::var_os("MIDPLANE_LIBFABRIC_TESTS").is_none(), "{error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Connects until a stream crosses libfabric, and exchanges bytes over it.
async fn meet(transports: &str, key: Option<Key>) {
    let Some(server) = start("server", "", transports, key.as_ref()).await else { return };
    let place = server.address().unwrap().to_string();
    let client = start("client", &place, transports, key.as_ref()).await.unwrap();
    let mut listener = server.listen("echo").await.unwrap();
    let serves = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
    });
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    // On a busy machine, the first stream may time out waiting for libfabric.
    loop {
        let stream = client.connect("echo").await.unwrap();
        let transport = stream.session().transport().name();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut received = Vec::new();
        let writes = async {
            writer.write_all(&bytes).await?;
            writer.shutdown().await
        };
        let (read, written) = tokio::join!(reader.read_to_end(&mut received), writes);
        written.unwrap();
        read.unwrap();
        assert!(received == bytes, "{} bytes over {transport}", received.len());
        if transport == "ofi" {
            break;
        }
    }
    let path = client.explain().peers.remove(0);
    assert_eq!((path.transport, path.is_sealed), ("ofi", key.is_some()), "{path}");
    assert_eq!(path.key, server.public_key());
    client.shutdown().await;
    server.shutdown().await;
    serves.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_met_over_udp_continue_over_libfabric() {
    tokio::time::timeout(LIMIT, meet("ofi,udp", None)).await.expect("they meet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_met_over_tcp_continue_sealed_over_libfabric() {
    let key = format!("1:{:064}", 7).parse().unwrap();
    tokio::time::timeout(LIMIT, meet("ofi,tcp", Some(key))).await.expect("they meet");
}

#[tokio::test]
async fn a_configured_provider_that_is_missing_is_an_error() {
    let builder = Node::builder().libfabric("nothing").bind("127.0.0.1:0".parse().unwrap());
    let error = builder.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = Node::builder().transports("ofi").start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = Node::builder().libfabric("@").bind("127.0.0.1:0".parse().unwrap());
    assert_eq!(error.start().await.unwrap_err().kind(), ErrorKind::Config);
}
