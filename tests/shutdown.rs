//! Tests what the shutdown of a node waits for, and what the node refuses meanwhile.

use std::time::Duration;

use midplane::{ErrorKind, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::node::{Over, nodes, over_each};

/// Bytes of a body that no buffer holds whole.
const LONG: usize = 3 << 20;
const SOON: Duration = Duration::from_secs(20);

over_each! {
    /// Regression: over TCP, what a session's task had not sent was lost with the process that ended after the shutdown.
    async fn what_was_written_before_a_shutdown_arrives(over) {
        let (service, client) = nodes("written", over);
        // As in a process of its own, all tasks end with the shutdown.
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let service = service.start().await.unwrap();
                let mut listener = service.listen("long").await.unwrap();
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&vec![7; LONG]).await.unwrap();
                drop(stream);
                service.shutdown().await;
            });
        });
        let client = client.start().await.unwrap();
        let mut stream = client.connect("long").await.unwrap();
        stream.shutdown().await.unwrap();
        let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            match timeout(SOON, stream.read(&mut buffer)).await.expect("it goes on") {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) => panic!("{error} after {read} bytes"),
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read, LONG);
        serving.join().unwrap();
    }
}

#[tokio::test]
async fn a_node_that_drains_is_not_offered_to_new_peers() {
    let builder = Node::builder().cluster(format!("drains-{}", std::process::id()));
    let builder = builder.connect_timeout(Duration::from_millis(300));
    let (service, client) = (builder.clone().start(), builder.clone().start());
    let (service, client) = (service.await.unwrap(), client.await.unwrap());
    let mut listener = service.listen("sink").await.unwrap();
    let mut stream = client.connect("sink").await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    let ending = tokio::spawn(service.shutdown());
    tokio::task::yield_now().await;
    let late = builder.start().await.unwrap();
    let error = timeout(SOON, late.connect("sink")).await.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService, "{error}");
    stream.write_all(b"still there").await.unwrap();
    drop(stream);
    let mut words = String::new();
    accepted.read_to_string(&mut words).await.unwrap();
    assert_eq!(words, "still there");
    drop(accepted);
    ending.await.unwrap();
}

#[tokio::test]
async fn times_without_a_bound_are_accepted() {
    let builder = Node::builder().cluster(format!("unbounded-{}", std::process::id()));
    let node = builder.connect_timeout(Duration::MAX).drain(Duration::MAX).start().await.unwrap();
    assert!(timeout(Duration::from_millis(50), node.connect("nothing")).await.is_err());
    timeout(SOON, node.shutdown()).await.expect("there are no streams");
}
