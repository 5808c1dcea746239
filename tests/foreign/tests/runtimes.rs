//! Tests a node's runtime that is dropped while tasks of another runtime wait, as tokio's `io_driver_drop` tests its
//! sockets.

#[allow(unused, reason = "no test here runs over each transport by the macro")]
mod nodes;

use std::time::Duration;

use midplane::ErrorKind;
use nodes::{Over, nodes};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn the_end_of_a_nodes_runtime_ends_waits_of_other_runtimes(over: Over) {
    let (own, other) = (runtime(), runtime());
    let (service, client) = own.block_on(nodes(over));
    other.block_on(async {
        let mut listener = service.listen("web").await.unwrap();
        let mut stream = client.connect("web").await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        let waiting = tokio::spawn(async move { listener.accept().await.map(drop) });
        let reading = tokio::spawn(async move { accepted.read_u8().await });
        tokio::task::yield_now().await;
        own.shutdown_background();
        let ends = async {
            assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
            assert!(reading.await.unwrap().is_err() && stream.read_u8().await.is_err());
            assert_eq!(client.connect("web").await.unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(service.listen("api").await.unwrap_err().kind(), ErrorKind::Closed);
        };
        tokio::time::timeout(Duration::from_secs(60), ends).await.expect("nothing waits for ever");
    });
}

#[test]
fn the_end_of_a_nodes_runtime_ends_waits_of_other_runtimes_over_shm() {
    the_end_of_a_nodes_runtime_ends_waits_of_other_runtimes(Over::Shm);
}

#[test]
fn the_end_of_a_nodes_runtime_ends_waits_of_other_runtimes_over_udp() {
    the_end_of_a_nodes_runtime_ends_waits_of_other_runtimes(Over::Udp);
}
