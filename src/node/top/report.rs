//! The report of a node, as one document.

use midplane_via::session::Session;
use serde::{Deserialize, Serialize};

use super::super::links::{self, cut};
use super::super::meter::Role;
use super::super::{FailedDial, Node, ReceiveTokens};
use super::SERVICE;

/// The version of [`Report`]: a reader of another one gets an error that names both.
pub const VERSION: u32 = 1;
/// Most entries of each list of a report: 512.
pub const MAX_ENTRIES: usize = 512;
/// Most bytes of each text of a report.
const MAX_TEXT: usize = 256;

/// A node's counters, and its peers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The number of the node's process.
    pub process: u32,
    /// When the node was started, in milliseconds since 1970 by its clock. It differs for each incarnation of the node.
    pub incarnation: u64,
    /// Milliseconds since the node's start.
    pub uptime_ms: u64,
    /// Bytes of memory that the node's process occupies.
    pub memory_bytes: u64,
    /// The address of the node's sockets, if it has any.
    pub address: Option<String>,
    /// The transports that the node may use.
    pub transports: Vec<String>,
    /// The tokens that the node grants to senders over UDP, if it grants any.
    pub tokens: Option<ReceiveTokens>,
    /// Number of messages that the node has sent.
    pub messages_sent: u64,
    /// Number of messages that the node's application has received.
    pub messages_received: u64,
    /// Number of messages that wait to be received.
    pub messages_waiting: u64,
    /// The peers that the node has a session with.
    pub peers: Vec<Peer>,
    /// The node's services, and the services of peers that it has opened streams to, except the service of reports.
    pub services: Vec<ServiceStreams>,
    /// The calls that the node has made, by service.
    pub calls: Vec<Calls>,
    /// The node's losses since its start, by cause.
    pub losses: Vec<Loss>,
    /// The places that the node could not reach.
    pub unanswered: Vec<FailedDial>,
    /// Number of entries left out of lists, beyond [`MAX_ENTRIES`].
    pub left_out: u64,
}

/// A peer of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Peer {
    /// The peer's name.
    pub name: String,
    /// The random number of this incarnation of the peer.
    pub id: u64,
    /// When the peer was started, in milliseconds since 1970 by its clock.
    pub incarnation: u64,
    /// `open`; `silent` if the peer does not answer, `leaving` if it ends, `another has its name` if it is not used.
    pub state: String,
    /// The transport of new streams: `shm`, `ofi`, `udp` or `tcp`.
    pub transport: String,
    /// The reason for this transport.
    pub why: String,
    /// Number of open streams.
    pub streams: u64,
    /// Bytes of streams sent over the session.
    pub sent_bytes: u64,
    /// Bytes of streams received over the session.
    pub received_bytes: u64,
    /// The smoothed round-trip time in microseconds; over UDP only.
    pub round_trip_us: Option<u64>,
    /// Number of datagrams lost on the network; over UDP only.
    pub datagrams_lost: u64,
    /// Bytes sent again; over UDP only.
    pub sent_again_bytes: u64,
    /// Bytes sent and not acknowledged; over UDP only.
    pub in_flight_bytes: u64,
    /// Bytes of memory for data in flight; over UDP only.
    pub memory_bytes: u64,
}

/// The streams of a service, on one side.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServiceStreams {
    /// The service's name; for a service of calls or a map, `(calls)` or `(a map)` follows it.
    pub name: String,
    /// `server` if the node offers it, `client` if it has opened the streams.
    pub role: String,
    /// Number of open streams, including those that wait.
    pub open: u64,
    /// Number of streams that wait to be accepted.
    pub waiting: u64,
    /// Number of accepted streams.
    pub accepted: u64,
    /// Number of calls that the node has answered, if it is a service of calls.
    pub calls: u64,
    /// Number of refused streams.
    pub refused: u64,
    /// Number of bytes sent.
    pub sent_bytes: u64,
    /// Number of bytes that the application has read.
    pub received_bytes: u64,
}

/// The calls that a node has made to a service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Calls {
    /// The service's name.
    pub service: String,
    /// Number of calls with a response.
    pub answered: u64,
    /// Number of calls with the service's own error.
    pub service_errors: u64,
    /// Number of calls that ended with neither, including lost ones.
    pub failed: u64,
}

/// Losses of a node for one cause.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Loss {
    /// The cause, in readable words.
    pub cause: String,
    /// Number of losses since the node's start.
    pub count: u64,
}

impl Report {
    /// Returns whether all lists and texts are within the bounds. Those of a hostile node may not be.
    pub(super) fn is_bounded(&self) -> bool {
        let peers =
            self.peers.iter().flat_map(|one| [&one.name, &one.state, &one.transport, &one.why]);
        let services = self.services.iter().flat_map(|one| [&one.name, &one.role]);
        let places = self.unanswered.iter().flat_map(|one| [&one.place, &one.error]);
        let calls = self.calls.iter().map(|one| &one.service);
        let losses = self.losses.iter().map(|one| &one.cause);
        let others = self.address.iter().chain(&self.transports);
        let mut texts =
            peers.chain(services).chain(places).chain(calls).chain(losses).chain(others);
        let lengths = [
            self.transports.len(),
            self.peers.len(),
            self.services.len(),
            self.calls.len(),
            self.losses.len(),
            self.unanswered.len(),
        ];
        lengths.into_iter().all(|length| length <= MAX_ENTRIES)
            && texts.all(|text| text.len() <= MAX_TEXT)
    }
}

impl Node {
    /// Returns this node's counters and peers: the report that others read if it
    /// [allows](crate::NodeBuilder::allow_top) that.
    #[must_use]
    pub fn report(&self) -> Report {
        let (shared, meter) = (&self.0.shared, self.meter());
        let (incarnation, age) = shared.age();
        let mut report = Report {
            process: std::process::id(),
            incarnation,
            uptime_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            memory_bytes: resident(),
            address: self.0.search.address.map(|address| address.to_string()),
            transports: self.0.allowed.words().map(str::to_owned).collect(),
            tokens: self.tokens(),
            messages_sent: meter.messages_sent.get(),
            messages_received: meter.messages_received.get(),
            messages_waiting: self.mailbox().waiting() as u64,
            ..Report::default()
        };
        let here = shared.network().local();
        let peers = shared.sessions_of_peers().into_iter();
        let peers = peers.map(|(id, name, session, streams)| Peer {
            streams: streams as u64,
            ..self.peer(id, name, &session, here.contains(&id))
        });
        let left_out = &mut report.left_out;
        report.peers = bounded(peers, left_out);
        report.services = bounded(self.services(), left_out);
        let mut calls = Vec::new();
        meter.calls.each(|service, counted| {
            calls.push(Calls {
                service: cut(service, MAX_TEXT),
                answered: counted.answered.get(),
                service_errors: counted.service_errors.get(),
                failed: counted.failed.get(),
            });
        });
        report.calls = bounded(calls, left_out);
        let losses = meter.losses().into_iter();
        report.losses = losses.map(|(cause, count)| Loss { cause: cause.into(), count }).collect();
        let unanswered = self.unanswered().into_iter().map(|FailedDial { place, dials, error }| {
            FailedDial { place: cut(&place, MAX_TEXT), dials, error: cut(&error, MAX_TEXT) }
        });
        report.unanswered = bounded(unanswered, left_out);
        report
    }

    /// Reports a peer, with the counters of its session.
    fn peer(&self, id: u64, name: String, session: &Session, is_here: bool) -> Peer {
        let stats = session.stats();
        let (incarnation, state) = self.0.shared.standing(id).unwrap_or((0, "leaving"));
        let state = if session.is_suspected() { "silent" } else { state };
        let path = self.path(id, name, session, &stats, is_here);
        let pipe = stats.pipe.unwrap_or_default();
        Peer {
            why: cut(&path.to_string(), MAX_TEXT),
            name: path.name,
            id,
            incarnation,
            state: state.into(),
            transport: path.transport.into(),
            streams: stats.open as u64,
            sent_bytes: stats.bytes_sent,
            received_bytes: stats.bytes_received,
            round_trip_us: stats.pipe.map(|pipe| pipe.round_trip / 1_000),
            datagrams_lost: pipe.packets_lost,
            sent_again_bytes: pipe.bytes_retransmitted,
            in_flight_bytes: pipe.in_flight,
            memory_bytes: pipe.memory_bytes as u64,
        }
    }

    /// Reports the services of both sides.
    fn services(&self) -> Vec<ServiceStreams> {
        let (waiting, mut services) = (self.0.shared.waiting(), Vec::new());
        for role in [Role::Server, Role::Client] {
            self.meter().of(role).each(|service, streams| {
                if service == SERVICE {
                    return;
                }
                let waiting = waiting.get(service).filter(|_| role == Role::Server);
                services.push(ServiceStreams {
                    name: cut(&links::shown(service), MAX_TEXT),
                    role: role.label().into(),
                    open: streams.open.load(std::sync::atomic::Ordering::Relaxed),
                    waiting: waiting.copied().unwrap_or(0) as u64,
                    accepted: streams.accepted.get(),
                    calls: streams.calls.get(),
                    refused: streams.refused.get(),
                    sent_bytes: streams.sent.get(),
                    received_bytes: streams.received.get(),
                });
            });
        }
        services
    }
}

/// Collects at most [`MAX_ENTRIES`] entries, and adds the number of the others to `left_out`.
fn bounded<T>(entries: impl IntoIterator<Item = T>, left_out: &mut u64) -> Vec<T> {
    let mut all = entries.into_iter();
    let kept = all.by_ref().take(MAX_ENTRIES).collect();
    *left_out += all.count() as u64;
    kept
}

/// Returns the bytes of memory that the process occupies; 0 if the system does not report them.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}
