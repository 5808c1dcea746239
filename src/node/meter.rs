//! Counters and gauges of a node, for the recorder of the crate `metrics` that the process has installed.
//!
//! Sessions count under the lock that an operation holds anyway, or by one relaxed addition. Once a second the node
//! reports the changes; it reports ends at once. `docs/metrics.md` has the names.

mod losses;
mod named;
#[cfg(test)]
mod tests;
mod watched;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use metrics::{SharedString, counter, gauge};
use midplane_simhw::lock::lock;
use midplane_via::session::{Ended, Session, Stats};
use midplane_via::wire::endpoint::TokenCounters;

#[cfg(feature = "discovery-gossip")]
use midplane_via::wire::gossip::Counters as Gossiped;

use super::state::Shared;
use losses::Losses;
use named::Named;
pub(crate) use watched::{Role, Streams};
pub(super) use watched::{Watched, stream_span};

/// The period of reports.
const PERIOD: Duration = Duration::from_secs(1);

/// The names of all counters and gauges.
pub(crate) mod name {
    pub(crate) const SESSIONS_BEGUN: &str = "midplane_sessions_begun_total";
    pub(crate) const SESSIONS_ENDED: &str = "midplane_sessions_ended_total";
    pub(crate) const STREAMS_OPENED: &str = "midplane_streams_opened_total";
    pub(crate) const STREAMS_ACCEPTED: &str = "midplane_streams_accepted_total";
    pub(crate) const STREAMS_REFUSED: &str = "midplane_streams_refused_total";
    pub(crate) const STREAMS_OPEN: &str = "midplane_streams_open";
    pub(crate) const SENT_BYTES: &str = "midplane_stream_sent_bytes_total";
    pub(crate) const RECEIVED_BYTES: &str = "midplane_stream_received_bytes_total";
    pub(crate) const DATAGRAMS_SENT: &str = "midplane_datagrams_sent_total";
    pub(crate) const DATAGRAMS_RECEIVED: &str = "midplane_datagrams_received_total";
    pub(crate) const DATAGRAMS_LOST: &str = "midplane_datagrams_lost_total";
    pub(crate) const RETRANSMITTED_BYTES: &str = "midplane_retransmitted_bytes_total";
    pub(crate) const ROUND_TRIP: &str = "midplane_round_trip_seconds";
    pub(crate) const TOKENS_GRANTED: &str = "midplane_tokens_granted_total";
    pub(crate) const TOKENS_EXPIRED: &str = "midplane_tokens_expired_total";
    pub(crate) const TOKENS_WAITING: &str = "midplane_tokens_waiting";
    pub(crate) const SERVICE_ACCEPTED: &str = "midplane_service_accepted_total";
    pub(crate) const SERVICE_REFUSED: &str = "midplane_service_refused_total";
    pub(crate) const SERVICE_OPEN: &str = "midplane_service_streams_open";
    pub(crate) const SERVICE_SENT: &str = "midplane_service_sent_bytes_total";
    pub(crate) const SERVICE_RECEIVED: &str = "midplane_service_received_bytes_total";
    pub(crate) const CALLS: &str = "midplane_calls_total";
    pub(crate) const MESSAGES_SENT: &str = "midplane_messages_sent_total";
    pub(crate) const MESSAGES_RECEIVED: &str = "midplane_messages_received_total";
    #[cfg(feature = "discovery-gossip")]
    pub(crate) mod gossip {
        pub(crate) const SENT: &str = "midplane_gossip_sent_total";
        pub(crate) const RECEIVED: &str = "midplane_gossip_received_total";
        pub(crate) const DROPPED: &str = "midplane_gossip_dropped_total";
        pub(crate) const REFUSED: &str = "midplane_gossip_refused_total";
        pub(crate) const SKEWED: &str = "midplane_gossip_skewed_total";
        pub(crate) const NODES: &str = "midplane_gossip_nodes";
    }
}

/// A number that only grows, and the part of it that was reported.
#[derive(Debug, Default)]
pub(crate) struct Total {
    now: AtomicU64,
    reported: AtomicU64,
}

impl Total {
    pub(crate) fn add_one(&self) {
        self.add(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn add(&self, more: u64) {
        self.now.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns what was added since the last call.
    fn take(&self) -> u64 {
        let now = self.now.load(Ordering::Relaxed);
        // If two reports run at once, each takes the part that the other has not taken.
        now.saturating_sub(self.reported.fetch_max(now, Ordering::Relaxed))
    }
}

/// The outcomes of the calls of one service.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) answered: Total,
    pub(crate) service_errors: Total,
    pub(crate) failed: Total,
}

/// The counters of a node.
#[derive(Debug)]
pub(crate) struct Meter {
    node: SharedString,
    sessions: Mutex<BTreeMap<u64, Measured>>,
    /// The tokens at the last report.
    tokens: Mutex<TokenCounters>,
    /// Labels of peers, bounded because a holder of the key may use any number of names.
    peers: Named<()>,
    served: Named<Streams>,
    used: Named<Streams>,
    pub(super) calls: Named<Calls>,
    losses: Losses,
    pub(crate) messages_sent: Total,
    pub(crate) messages_received: Total,
    has_ended: AtomicBool,
}

/// A session whose peer has described itself.
#[derive(Debug)]
struct Measured {
    session: Arc<Session>,
    peer: SharedString,
    /// The counters at the last report.
    last: Stats,
}

impl Meter {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned().into(),
            sessions: Mutex::default(),
            tokens: Mutex::default(),
            peers: Named::default(),
            served: Named::default(),
            used: Named::default(),
            calls: Named::default(),
            losses: Losses::default(),
            messages_sent: Total::default(),
            messages_received: Total::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Returns the counters of a service's streams that this node accepts, or opens.
    pub(crate) fn streams(&self, role: Role, service: &str) -> Arc<Streams> {
        self.of(role).counters(service)
    }

    pub(super) const fn of(&self, role: Role) -> &Named<Streams> {
        match role {
            Role::Server => &self.served,
            Role::Client => &self.used,
        }
    }

    /// Returns the counters of the calls that this node makes to a service.
    pub(crate) fn calls(&self, service: &str) -> Arc<Calls> {
        self.calls.counters(service)
    }

    /// Counts a session whose peer has described itself.
    pub(super) fn on_hello(&self, session: &Arc<Session>, peer: &str) {
        let mut sessions = lock(&self.sessions);
        if sessions.contains_key(&session.number()) {
            return;
        }
        let transport = session.transport().name();
        tracing::debug!(node = &*self.node, peer, transport, "a session begins");
        counter!(name::SESSIONS_BEGUN, "node" => self.node.clone(), "transport" => transport)
            .increment(1);
        let measured = Measured {
            session: Arc::clone(session),
            peer: self.peers.label(peer).to_owned().into(),
            last: Stats::default(),
        };
        sessions.insert(session.number(), measured);
    }

    /// Reports the counts of gossip since `before`, and the number of nodes that it lists.
    #[cfg(feature = "discovery-gossip")]
    pub(super) fn on_gossip(&self, now: &Gossiped, before: &Gossiped, nodes: usize) {
        let labels = [("node", self.node.clone())];
        count(name::gossip::SENT, &labels, now.sent - before.sent);
        count(name::gossip::RECEIVED, &labels, now.received - before.received);
        count(name::gossip::DROPPED, &labels, now.dropped - before.dropped);
        count(name::gossip::REFUSED, &labels, now.refused - before.refused);
        count(name::gossip::SKEWED, &labels, now.skewed - before.skewed);
        self.losses.gossip_dropped.add(now.dropped - before.dropped);
        self.losses.gossip_refused.add(now.refused - before.refused);
        gauge!(name::gossip::NODES, &labels).set(nodes as f64);
    }

    /// Counts the end of a session.
    pub(super) fn on_ended(&self, session: &Session, why: Ended) {
        let mut sessions = lock(&self.sessions);
        let Some(mut measured) = sessions.remove(&session.number()) else { return };
        measured.report(&self.node);
        self.losses.on_ended(&measured.last, why);
        let same = |other: &&Measured| {
            other.peer == measured.peer
                && other.session.transport().name() == session.transport().name()
        };
        let open: usize = sessions.values().filter(same).map(|other| other.last.open).sum();
        let transport = session.transport().name();
        let labels = path(&self.node, &measured.peer, transport);
        gauge!(name::STREAMS_OPEN, &labels).set(open as f64);
        drop(sessions);
        let reason = match why {
            Ended::Gone => "gone",
            Ended::Violation => "violation",
            Ended::Closed => "closed",
        };
        tracing::debug!(
            node = &*self.node,
            peer = &*measured.peer,
            transport,
            reason,
            "a session ends"
        );
        let labels = [
            ("node", self.node.clone()),
            ("transport", transport.into()),
            ("reason", reason.into()),
        ];
        counter!(name::SESSIONS_ENDED, &labels).increment(1);
    }

    /// Counts the ends of all sessions, because the node has ended. The next report counts no stream as open.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let open: Vec<_> =
            lock(&self.sessions).values().map(|its| Arc::clone(&its.session)).collect();
        for session in open {
            self.on_ended(&session, session.ended().unwrap_or(Ended::Closed));
        }
    }

    /// Reports the changes since the last report; `tokens` has the counters of tokens if this node grants any.
    pub(super) fn report(&self, tokens: Option<TokenCounters>) {
        let mut open: BTreeMap<_, usize> = BTreeMap::new();
        // The end of a session sets its gauge to 0 under the same lock.
        let mut sessions = lock(&self.sessions);
        for measured in sessions.values_mut() {
            measured.report(&self.node);
            let key = (measured.peer.clone(), measured.session.transport().name());
            *open.entry(key).or_default() += measured.last.open;
        }
        for ((peer, transport), open) in open {
            let labels = path(&self.node, &peer, transport);
            gauge!(name::STREAMS_OPEN, &labels).set(open as f64);
        }
        drop(sessions);
        for role in [Role::Server, Role::Client] {
            self.of(role).each(|service, streams| {
                // Read under the lock of `each`: the report after the node's end sets the gauge last.
                let has_ended = self.has_ended.load(Ordering::Relaxed);
                streams.report(&self.node, role, service, has_ended);
            });
        }
        self.calls.each(|service, calls| {
            let outcomes = [
                ("answered", &calls.answered),
                ("service_error", &calls.service_errors),
                ("failed", &calls.failed),
            ];
            for (outcome, total) in outcomes {
                let labels = [
                    ("node", self.node.clone()),
                    ("service", service.to_owned().into()),
                    ("outcome", outcome.into()),
                ];
                count(name::CALLS, &labels, total.take());
            }
        });
        let labels = [("node", self.node.clone())];
        if let Some(now) = tokens {
            let mut last = lock(&self.tokens);
            count(name::TOKENS_GRANTED, &labels, now.granted.saturating_sub(last.granted));
            count(name::TOKENS_EXPIRED, &labels, now.expired.saturating_sub(last.expired));
            // If two reports run at once, the later one may have read the tokens first.
            last.granted = last.granted.max(now.granted);
            last.expired = last.expired.max(now.expired);
            drop(last);
            gauge!(name::TOKENS_WAITING, &labels).set(now.waiting as f64);
        }
        count(name::MESSAGES_SENT, &labels, self.messages_sent.take());
        count(name::MESSAGES_RECEIVED, &labels, self.messages_received.take());
    }
}

/// Returns the labels of counters that exist for each peer.
fn path(
    node: &SharedString,
    peer: &SharedString,
    transport: &'static str,
) -> [(&'static str, SharedString); 3] {
    [("node", node.clone()), ("peer", peer.clone()), ("transport", transport.into())]
}

fn count(name: &'static str, labels: &[(&'static str, SharedString)], more: u64) {
    if more > 0 {
        counter!(name, labels).increment(more);
    }
}

impl Measured {
    /// Reports the changes of a session.
    fn report(&mut self, node: &SharedString) {
        let (now, before) = (self.session.stats(), self.last);
        if now == before {
            return;
        }
        let labels = path(node, &self.peer, self.session.transport().name());
        let totals = [
            (name::STREAMS_OPENED, now.opened, before.opened),
            (name::STREAMS_ACCEPTED, now.accepted, before.accepted),
            (name::STREAMS_REFUSED, now.refused, before.refused),
            (name::SENT_BYTES, now.bytes_sent, before.bytes_sent),
            (name::RECEIVED_BYTES, now.bytes_received, before.bytes_received),
        ];
        for (name, now, before) in totals {
            count(name, &labels, now.saturating_sub(before));
        }
        if let Some(pipe) = now.pipe {
            let before = before.pipe.unwrap_or_default();
            let totals = [
                (name::DATAGRAMS_SENT, pipe.packets_sent, before.packets_sent),
                (name::DATAGRAMS_RECEIVED, pipe.packets_received, before.packets_received),
                (name::DATAGRAMS_LOST, pipe.packets_lost, before.packets_lost),
                (name::RETRANSMITTED_BYTES, pipe.bytes_retransmitted, before.bytes_retransmitted),
            ];
            for (name, now, before) in totals {
                count(name, &labels, now.saturating_sub(before));
            }
            gauge!(name::ROUND_TRIP, &labels).set(pipe.round_trip as f64 / 1e9);
        }
        self.last = now;
    }
}

/// Reports once a second, until the node ends.
pub(super) async fn run(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        match shared.upgrade() {
            Some(shared) => shared.meter.report(shared.sessions().token_counters()),
            None => return,
        }
    }
}
