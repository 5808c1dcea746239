//! Tests the metrics of nodes, scraped as Prometheus does. It is one test, because a process has one recorder.

use std::time::Duration;

use midplane::{ErrorKind, Node, prometheus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::service_fn;

async fn scrape(endpoint: &prometheus::Endpoint) -> String {
    let mut stream = TcpStream::connect(endpoint.address()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// Returns the value of the line that begins with a name and has these labels.
fn value(scraped: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line = scraped.lines().find(|line| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    })?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Scrapes until the value is at least `least`.
async fn until(endpoint: &prometheus::Endpoint, name: &str, labels: &[&str], least: f64) {
    let found = async {
        while value(&scrape(endpoint).await, name, labels).unwrap_or(-1.0) < least {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), found).await;
    if found.is_err() {
        panic!("no {name} of {labels:?}: {}", scrape(endpoint).await);
    }
}

#[tokio::test]
async fn counters_of_nodes_are_scraped() {
    let endpoint = prometheus::serve("127.0.0.1:0").await.unwrap();
    let error = prometheus::serve("127.0.0.1:0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    let builder = Node::builder().cluster(format!("metrics-{}", std::process::id()));
    let service =
        builder.clone().transports("udp").receive_tokens().name("service").start().await.unwrap();
    let client = builder.transports("udp").discover(service.address().unwrap().to_string());
    let client = client.name("client").start().await.unwrap();
    let mut listener = service.listen("sink").await.unwrap();
    let double = service_fn(|number: u32| async move { Ok::<_, ()>(2 * number) });
    let _serving = service.serve("double", double).unwrap();
    let double = client.client::<u32, u32, ()>("double");
    assert_eq!(double.call(21).await.unwrap(), 42);
    let mut stream = client.connect("sink").await.unwrap();
    stream.write_all(&[7; 100_000]).await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    accepted.read_exact(&mut [0; 100_000]).await.unwrap();
    let receiving = tokio::spawn({
        let service = service.clone();
        async move { service.receive().await.map(drop) }
    });
    client.send("service", "hello").await.unwrap();
    receiving.await.unwrap().unwrap();

    let (node, peer) = ("node=\"client\"", "peer=\"service\"");
    let udp = "transport=\"udp\"";
    until(&endpoint, "midplane_stream_sent_bytes_total", &[node, peer, udp], 100_000.0).await;
    until(&endpoint, "midplane_streams_opened_total", &[node, peer, udp], 2.0).await;
    until(&endpoint, "midplane_streams_open", &[node, peer, udp], 1.0).await;
    until(&endpoint, "midplane_sessions_begun_total", &[node, udp], 1.0).await;
    until(&endpoint, "midplane_datagrams_sent_total", &[node, peer], 1.0).await;
    until(&endpoint, "midplane_round_trip_seconds", &[node, peer], 0.0).await;
    let called = [node, "service=\"double\"", "outcome=\"answered\""];
    until(&endpoint, "midplane_calls_total", &called, 1.0).await;
    until(&endpoint, "midplane_messages_sent_total", &[node], 1.0).await;
    let own = "node=\"service\"";
    until(&endpoint, "midplane_tokens_granted_total", &[own], 1.0).await;
    let peer = "peer=\"client\"";
    until(&endpoint, "midplane_stream_received_bytes_total", &[own, peer], 100_000.0).await;
    until(&endpoint, "midplane_service_accepted_total", &[own, "service=\"sink\""], 1.0).await;
    until(&endpoint, "midplane_messages_received_total", &[own], 1.0).await;
    drop((stream, client, double));
    until(&endpoint, "midplane_sessions_ended_total", &[own, udp, "reason=\"gone\""], 1.0).await;

    let names: Vec<_> = include_str!("../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    for line in scrape(&endpoint).await.lines().filter(|line| line.starts_with("midplane_")) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(names.contains(&name), "{name} is not documented");
    }

    // Regression: the recorder's upkeep ended with the endpoint, and the program's histograms grew from then on.
    drop(endpoint);
    tokio::task::yield_now().await;
    assert!(!cfg!(target_os = "linux") || threads().any(|name| name == "metrics-upkeep\n"));
}

/// Returns the names of the threads of this process, on Linux.
fn threads() -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
}
