//! Counts the streams of each service, and creates a span for each stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{SharedString, gauge};
use midplane_via::session::{Stream, Watch};
use tracing::Span;

use super::{Total, count, name};

/// The side that a node is on in a service's stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// The node offers the service.
    Server,
    /// The node has opened the stream.
    Client,
}

impl Role {
    pub(in crate::node) const fn label(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Counts the streams of one service.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(in crate::node) accepted: Total,
    pub(in crate::node) refused: Total,
    pub(in crate::node) open: AtomicU64,
    pub(in crate::node) sent: Total,
    pub(in crate::node) received: Total,
    /// Answered calls, if it is a service of calls that the node offers.
    pub(crate) calls: Total,
}

impl Streams {
    /// Reports the changes since the last report. Once the node has ended, no stream counts as open.
    pub(super) fn report(&self, node: &SharedString, role: Role, service: &str, has_ended: bool) {
        let labels = [
            ("node", node.clone()),
            ("service", service.to_owned().into()),
            ("role", role.label().into()),
        ];
        let totals = [
            (name::SERVICE_ACCEPTED, &self.accepted),
            (name::SERVICE_REFUSED, &self.refused),
            (name::SERVICE_SENT, &self.sent),
            (name::SERVICE_RECEIVED, &self.received),
        ];
        for (name, total) in totals {
            count(name, &labels, total.take());
        }
        let open = if has_ended { 0 } else { self.open.load(Ordering::Relaxed) };
        gauge!(name::SERVICE_OPEN, &labels).set(open as f64);
    }
}

/// Makes the span of a stream.
pub(in crate::node) fn stream_span(stream: &Stream, role: Role, service: &str, peer: &str) -> Span {
    let transport = stream.session().transport().name();
    tracing::debug_span!("stream", service, peer, transport, role = role.label())
}

/// Counts the bytes of a stream, and holds its span; dropped with the stream.
#[derive(Debug)]
pub(in crate::node) struct Watched {
    streams: Arc<Streams>,
    _span: Span,
}

impl Watched {
    /// Observes a stream until it is dropped.
    pub(in crate::node) fn start(stream: &mut Stream, streams: Arc<Streams>, span: Span) {
        streams.open.fetch_add(1, Ordering::Relaxed);
        stream.watch(Box::new(Self { streams, _span: span }));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.streams.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch for Watched {
    fn on_sent(&self, bytes: usize) {
        self.streams.sent.add(bytes as u64);
    }

    fn on_received(&self, bytes: usize) {
        self.streams.received.add(bytes as u64);
    }
}
