//! Tests the spans of nodes as a subscriber receives them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use midplane::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::service_fn;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a span, by name.
type Fields = BTreeMap<&'static str, String>;

/// Records the spans of this crate: their names, fields, and whether they have closed.
#[derive(Clone, Default)]
struct Seen(Arc<(AtomicU64, Mutex<BTreeMap<u64, Span>>)>);

#[derive(Clone, Debug)]
struct Span {
    name: &'static str,
    fields: Fields,
    handles: usize,
}

impl Seen {
    fn at<R>(&self, id: &Id, change: impl FnOnce(&mut Span) -> R) -> Option<R> {
        self.0.1.lock().unwrap().get_mut(&id.into_u64()).map(change)
    }

    /// Returns the spans with this name whose fields include these.
    fn of(&self, name: &str, fields: &[(&str, &str)]) -> Vec<Span> {
        let has = |span: &&Span| {
            let is = |(key, value): &(&str, &str)| span.fields.get(key).is_some_and(|v| v == value);
            span.name == name && fields.iter().all(is)
        };
        self.0.1.lock().unwrap().values().filter(has).cloned().collect()
    }
}

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("midplane")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.0.0.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = Fields::new();
        span.record(&mut Into(&mut fields));
        let new = Span { name: span.metadata().name(), fields, handles: 1 };
        self.0.1.lock().unwrap().insert(id, new);
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.at(span, |span| values.record(&mut Into(&mut span.fields)));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.at(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.at(&id, |span| {
            span.handles -= 1;
            span.handles == 0
        })
        .unwrap_or(false)
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_subscriber_sees_nodes_connects_streams_messages_and_calls() {
    let seen = Seen::default();
    let _guard = tracing::subscriber::set_default(seen.clone());
    let builder = Node::builder().cluster(format!("spans-{}", std::process::id()));
    let server = builder.clone().name("server").start().await.unwrap();
    let client = builder.name("client").start().await.unwrap();
    assert_eq!(seen.of("node", &[("name", "server")]).len(), 1);
    assert_eq!(seen.of("node", &[("name", "client")]).len(), 1);

    let mut listener = server.listen("sink").await.unwrap();
    let mut stream = client.connect("sink").await.unwrap();
    stream.write_all(b"one").await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    accepted.read_exact(&mut [0; 3]).await.unwrap();
    let (service, shm) = (("service", "sink"), ("transport", "shm"));
    let connected = [("node", "client"), ("peer", "server"), service, shm];
    assert_eq!(seen.of("connect", &connected).len(), 1);
    let sides = [
        [("role", "client"), ("peer", "server"), service, shm],
        [("role", "server"), ("peer", "client"), service, shm],
    ];
    for side in &sides {
        let streams = seen.of("stream", side);
        assert_eq!((streams.len(), streams[0].handles), (1, 1), "{side:?}");
    }
    drop((stream, accepted));
    for side in &sides {
        assert_eq!(seen.of("stream", side)[0].handles, 0, "a span outlives its stream: {side:?}");
    }

    let (sent, received) = tokio::join!(client.send("server", "hello"), server.receive());
    sent.unwrap();
    received.unwrap();
    let message = [("node", "client"), ("peer", "server"), ("bytes", "5")];
    assert_eq!(seen.of("send", &message).len(), 1);

    let double = service_fn(|number: u32| async move { Ok::<_, ()>(2 * number) });
    let _serving = server.serve("double", double).unwrap();
    assert_eq!(client.client::<u32, u32, ()>("double").call(21).await.unwrap(), 42);
    assert_eq!(seen.of("request", &[("service", "double")]).len(), 1);
    assert_eq!(seen.of("call", &[("service", "double"), ("peer", "client")]).len(), 1);

    let table: BTreeMap<_, BTreeSet<_>> = include_str!("../docs/metrics.md")
        .split("## Spans")
        .nth(1)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, rest)| (name, rest.split(" | ").nth(1).unwrap().split(", ").collect()))
        .collect();
    let mut names = BTreeSet::new();
    for span in seen.0.1.lock().unwrap().values() {
        let fields: BTreeSet<_> = span.fields.keys().copied().collect();
        assert_eq!(table.get(span.name), Some(&fields), "{span:?}");
        names.insert(span.name);
    }
    assert_eq!(
        names,
        table.keys().copied().collect(),
        "the documentation has spans that no node has"
    );
}
