//! Tests reports of nodes over each transport: only nodes that allow it report.

use std::time::Duration;

use midplane::top::Report;
use midplane::{ErrorKind, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::service_fn;

use crate::node::{Over, nodes, over_each};

async fn read(observer: &Node) -> Report {
    let readings = observer.top().await.unwrap();
    let reading = readings.into_iter().find(|reading| reading.peer.name == "service");
    reading.expect("it was found").report.unwrap()
}

over_each! {
    async fn a_report_has_peers_services_calls_and_messages(over) {
        let (service, client) = nodes("top", over);
        let service = service.name("service").allow_top().start().await.unwrap();
        let observer = client.clone().name("observer").start().await.unwrap();
        let client = client.name("client").start().await.unwrap();
        let mut listener = service.listen("sink").await.unwrap();
        let double = service_fn(|number: u32| async move { Ok::<_, ()>(2 * number) });
        let _serving = service.serve("double", double).unwrap();
        assert_eq!(client.client::<u32, u32, ()>("double").call(21).await.unwrap(), 42);
        let mut stream = client.connect("sink").await.unwrap();
        stream.write_all(&[7; 1_000]).await.unwrap();
        let report = read(&observer).await;
        let sink = |report: &Report| {
            report.services.iter().find(|one| one.name == "sink" && one.role == "server").cloned()
        };
        let waits = sink(&report).unwrap();
        assert_eq!((waits.open, waits.waiting, waits.accepted), (1, 1, 1));
        let (mut accepted, _) = listener.accept().await.unwrap();
        accepted.read_exact(&mut [0; 1_000]).await.unwrap();
        tokio::spawn({
            let service = service.clone();
            async move { service.receive().await }
        });
        client.send("service", "one").await.unwrap();
        let report = loop {
            let report = read(&observer).await;
            if report.messages_received == 1 {
                break report;
            }
        };
        let read = sink(&report).unwrap();
        assert_eq!((read.waiting, read.received_bytes), (0, 1_000));
        assert!(report.services.iter().any(|one| one.name == "double (calls)" && one.calls == 1));
        assert!(report.services.iter().all(|one| one.name != "top"), "{:?}", report.services);
        let peer = report.peers.iter().find(|peer| peer.name == "client").unwrap();
        assert!(peer.received_bytes >= 1_003 && peer.state == "open", "{peer:?}");
        assert_eq!(peer.transport, service.explain().peers[0].transport);
        assert!(peer.incarnation > 0 && report.incarnation <= peer.incarnation);
        assert!(report.uptime_ms > 0 && report.memory_bytes > 1 << 20);
        assert_eq!(report.process, std::process::id());
        assert!(report.losses.iter().any(|loss| loss.cause == "calls failed" && loss.count == 0));
        let own = client.report();
        assert_eq!((own.calls[0].service.as_str(), own.calls[0].answered), ("double", 1));
        assert_eq!(own.messages_sent, 1);
    }
}

#[tokio::test]
async fn a_node_that_does_not_allow_it_or_ends_is_an_error_that_says_so() {
    let (builder, _) = nodes("top-deny", Over::Shm);
    let observer = builder.clone().connect_timeout(Duration::ZERO).start().await.unwrap();
    let error = observer.top().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService, "{error}");
    let silent = builder.clone().name("silent").start().await.unwrap();
    let allowed = builder.name("allowed").allow_top().start().await.unwrap();
    let readings = observer.top().await.unwrap();
    let [first, second] = &readings[..] else { panic!("{readings:?}") };
    assert_eq!((&*first.peer.name, first.report.is_ok()), ("allowed", true));
    let error = second.report.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    assert!(error.to_string().contains("silent does not allow it: call `allow_top`"), "{error}");
    drop(silent);
    allowed.shutdown().await;
    while observer.top().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
