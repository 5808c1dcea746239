//! Passes the spans and events of hosts' own `tracing` to a trace, in virtual time.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Values};
use tracing::{Event, Level, Metadata, Subscriber};

use super::kernel::current;
use crate::host::Host as _;
use crate::id::NodeId;
use crate::lock::lock;
use crate::time::Instant;
use crate::trace::{Record, Recorder};

/// A subscriber of `tracing` that records the spans and events of simulated hosts' code, up to the level `DEBUG`.
///
/// A span lasts from its creation to the drop of its last handle. Spans and events of other code are left out.
#[derive(Clone, Debug)]
pub struct Spans(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    recorder: Recorder,
    /// Spans that have handles, by their numbers.
    spans: BTreeMap<u64, Span>,
    next: u64,
}

#[derive(Debug)]
struct Span {
    /// The span's host and begin; `None` if code outside all hosts has begun it.
    begin: Option<(NodeId, Instant)>,
    text: String,
    handles: usize,
}

impl Spans {
    /// Creates a subscriber that writes to a recorder.
    #[must_use]
    pub fn new(recorder: Recorder) -> Self {
        Self(Arc::new(Mutex::new(Open { recorder, spans: BTreeMap::new(), next: 0 })))
    }

    /// Records the spans that have not ended, as if they ended now.
    pub fn end(&self, now: Instant) {
        let mut open = lock(&self.0);
        let spans = std::mem::take(&mut open.spans);
        spans.into_values().for_each(|span| span.record(&open.recorder, now));
    }
}

impl Span {
    fn record(&self, recorder: &Recorder, ends: Instant) {
        if let Some((node, begins)) = self.begin {
            recorder.record(&Record::Span { node, begins, ends, name: &self.text });
        }
    }
}

/// Returns the host whose code runs, and the time of the network.
fn place() -> Option<(NodeId, Instant)> {
    let kernel = current()?;
    Some((kernel.host.node(), kernel.host.world_now()))
}

/// Appends fields to a text.
struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let separator = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.0, "{separator}{value}"),
            name => write!(self.0, "{separator}{name}={value}"),
        };
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = span.metadata().name().to_owned();
        span.record(&mut Fields(&mut text));
        let begin = place();
        let mut open = lock(&self.0);
        open.next += 1;
        let id = open.next;
        open.spans.insert(id, Span { begin, text, handles: 1 });
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Values<'_>) {
        let mut text = String::new();
        values.record(&mut Fields(&mut text));
        if let Some(span) = lock(&self.0).spans.get_mut(&span.into_u64()) {
            span.text.push(' ');
            span.text.push_str(&text);
        }
    }

    fn event(&self, event: &Event<'_>) {
        let Some((node, at)) = place() else { return };
        let mut text = event.metadata().level().to_string();
        event.record(&mut Fields(&mut text));
        lock(&self.0).recorder.record(&Record::Log { at, node, text: &text });
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(span) = lock(&self.0).spans.get_mut(&id.into_u64()) {
            span.handles += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let id = id.into_u64();
        let mut open = lock(&self.0);
        let Some(span) = open.spans.get_mut(&id) else { return false };
        span.handles -= 1;
        if span.handles > 0 {
            return false;
        }
        let span = open.spans.remove(&id).expect("it is there");
        if let Some((_, now)) = place() {
            span.record(&open.recorder, now);
        }
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
