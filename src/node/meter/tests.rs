use std::collections::BTreeSet;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString as Text, Unit,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::named::{MAX_NAMES, OTHER};
use super::*;
use crate::Node;

/// Returns the words in quotes that begin with `midplane_`.
fn quoted(text: &str, quote: char) -> BTreeSet<&str> {
    text.split(quote).filter(|word| word.starts_with("midplane_")).collect()
}

#[test]
fn the_table_of_the_docs_has_each_name_and_no_other() {
    let code = include_str!("../meter.rs");
    let names = code.split("pub(crate) mod name {").nth(1).unwrap().split("\n}").next().unwrap();
    let docs = include_str!("../../../docs/metrics.md");
    let (of_nodes, _) = docs.split_once("\n## NICs").unwrap();
    let table: String = of_nodes.lines().filter(|line| line.starts_with("| `midplane_")).collect();
    assert_eq!(quoted(&table, '`'), quoted(names, '"'));
}

#[test]
fn names_beyond_a_bound_share_one_label() {
    let all = Named::<Total>::default();
    for number in 0..2 * MAX_NAMES {
        all.counters(&format!("peer-{number}")).add_one();
    }
    let mut labels = 0;
    all.each(|label, total| {
        labels += 1;
        let expected = if label == OTHER { MAX_NAMES as u64 } else { 1 };
        assert_eq!(total.take(), expected, "{label}");
    });
    assert_eq!(labels, MAX_NAMES + 1);
    assert_eq!((all.label("peer-0"), all.label("late")), ("peer-0", OTHER));
}

#[test]
fn two_reports_at_once_take_each_addition_once() {
    let total = Total::default();
    let taken: u64 = std::thread::scope(|scope| {
        let take = || (0..10_000).map(|_| total.take()).sum::<u64>();
        let takers = [scope.spawn(take), scope.spawn(take)];
        (0..10_000).for_each(|_| total.add_one());
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    assert_eq!(taken + total.take(), 10_000);
}

/// A recorder that keeps counters by name and labels.
#[derive(Default)]
struct Kept(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Kept {
    fn at(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        Arc::clone(lock(&self.0).entry(name).or_default())
    }

    fn value(&self, name: &str) -> u64 {
        lock(&self.0).get(name).map_or(0, |value| value.load(Ordering::Relaxed))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: Text) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: Text) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: Text) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.at(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.at(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Regression: the report with the older counters made them underflow.
#[test]
fn two_reports_at_once_count_each_token_once() {
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || {
        let meter = Meter::new("n");
        for granted in [5, 7, 6, 8] {
            let tokens = TokenCounters { granted, expired: granted / 2, waiting: 0 };
            meter.report(Some(tokens));
        }
    });
    assert_eq!(kept.value("midplane_tokens_granted_total node=n"), 8);
    assert_eq!(kept.value("midplane_tokens_expired_total node=n"), 4);
}

#[test]
fn counts_since_the_last_report_are_reported_when_a_node_ends() {
    let kept = Kept::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&kept, || {
        runtime.block_on(async {
            let builder = Node::builder().cluster(format!("end-{}", std::process::id()));
            let server = builder.clone().name("server").start().await.unwrap();
            let client = builder.name("client").start().await.unwrap();
            let mut listener = server.listen("sink").await.unwrap();
            let mut stream = client.connect("sink").await.unwrap();
            stream.write_all(b"seven b").await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            accepted.read_exact(&mut [0; 7]).await.unwrap();
            drop((stream, accepted));
            client.shutdown().await;
            server.shutdown().await;
        });
    });
    for (node, role, name) in [
        ("client", "client", "midplane_service_sent_bytes_total"),
        ("server", "server", "midplane_service_received_bytes_total"),
    ] {
        let labels = format!("node={node} service=sink role={role}");
        assert_eq!(kept.value(&format!("{name} {labels}")), 7, "{:?}", lock(&kept.0));
        assert_eq!(kept.value(&format!("midplane_service_accepted_total {labels}")), 1);
        assert_eq!(kept.value(&format!("midplane_service_streams_open {labels}")), 0);
    }
}

/// Regression: the datagrams since the last report were lost with the connection.
#[test]
fn the_datagrams_of_a_session_that_its_peer_ends_are_counted() {
    let kept = Kept::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&kept, || {
        runtime.block_on(async {
            let builder = Node::builder().cluster(format!("gone-{}", std::process::id()));
            let builder = builder.transports("udp").bind(([127, 0, 0, 1], 0).into());
            let server = builder.clone().name("server").start().await.unwrap();
            let place = server.address().unwrap().to_string();
            let client = builder.name("client").discover(place).start().await.unwrap();
            let listener = server.listen("sink").await.unwrap();
            drop((client.connect("sink").await.unwrap(), listener));
            server.shutdown().await;
            let left = async {
                while !client.peers().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), left).await.expect("its peer has ended");
        });
    });
    for name in ["midplane_datagrams_sent_total", "midplane_datagrams_received_total"] {
        let labels = "node=client peer=server transport=udp";
        assert!(kept.value(&format!("{name} {labels}")) > 0, "{:?}", lock(&kept.0));
    }
}

#[test]
fn no_stream_counts_as_open_once_its_node_has_ended() {
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let builder = Node::builder().cluster(format!("held-{}", std::process::id()));
            let builder = builder.drain(Duration::ZERO);
            let server = builder.clone().name("server").start().await.unwrap();
            let client = builder.name("client").start().await.unwrap();
            let mut listener = server.listen("sink").await.unwrap();
            let _held = client.connect("sink").await.unwrap();
            let _accepted = listener.accept().await.unwrap();
            // Longer than the period of reports.
            tokio::time::sleep(2 * PERIOD).await;
            client.shutdown().await;
            server.shutdown().await;
        });
    });
    for (node, other) in [("client", "server"), ("server", "client")] {
        let open = format!("midplane_streams_open node={node} peer={other} transport=shm");
        assert_eq!(kept.value(&open), 0, "{:?}", lock(&kept.0));
    }
    for (node, role) in [("client", "client"), ("server", "server")] {
        let labels = format!("node={node} service=sink role={role}");
        assert_eq!(kept.value(&format!("midplane_service_streams_open {labels}")), 0);
        let ended = format!("midplane_sessions_ended_total node={node} transport=shm reason=");
        let ended = ["closed", "gone"].map(|reason| kept.value(&format!("{ended}{reason}")));
        assert_eq!(ended.iter().sum::<u64>(), 1, "{:?}", lock(&kept.0));
    }
}
