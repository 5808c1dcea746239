//! Keeps the last report of each node, and computes the rates between two readings.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use midplane::top::{self, Peer, Report};
use midplane::{Error, ErrorKind};
use serde::Serialize;

use crate::gang::listing::Job;

/// Most vanished nodes that are still shown; those that started first are dropped.
const MAX_GONE: usize = 32;

/// Results of one reading of the cluster.
pub(super) struct Reading {
    pub(super) nodes: Result<Vec<top::Reading>, Error>,
    pub(super) jobs: Option<Result<Vec<Job>, String>>,
}

/// The nodes of a cluster, and the jobs of a gang daemon.
#[derive(Default, Serialize)]
pub(super) struct Board {
    /// The nodes, by name.
    pub(super) nodes: Vec<Row>,
    pub(super) jobs: Option<Vec<Job>>,
    /// The errors of the last search for nodes, and of the gang daemon.
    #[serde(skip)]
    pub(super) problems: Vec<String>,
    /// The number of readings so far.
    #[serde(skip)]
    pub(super) readings: u64,
}

/// State of a node, as the observer sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The node has answered.
    Live,
    /// The node has not answered in time.
    Silent,
    /// The node's answer can't be parsed.
    Broken,
    /// The node's program does not call `allow_top`.
    Denied,
    /// The node has ended, or was lost.
    Gone,
}

impl State {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Silent => "silent",
            Self::Broken => "broken",
            Self::Denied => "denied",
            Self::Gone => "gone",
        }
    }
}

/// A node and its last report.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(skip)]
    pub(super) id: u64,
    pub(super) state: State,
    /// Reason why there is no newer report.
    pub(super) error: Option<String>,
    /// The changes between the last two reports.
    pub(super) rates: Option<Rates>,
    /// The node's last report.
    pub(super) report: Option<Report>,
}

/// Changes in a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) received_bytes: f64,
    pub(super) sent_bytes: f64,
    pub(super) messages: f64,
    pub(super) calls: f64,
    /// Bytes received from and sent to each peer, by its id: two peers may have one name.
    pub(super) peers: BTreeMap<u64, (f64, f64)>,
}

impl Board {
    /// Updates the rows from a reading.
    pub(super) fn update(&mut self, Reading { nodes, jobs }: Reading) {
        self.problems.clear();
        self.readings += 1;
        let mut before = std::mem::take(&mut self.nodes);
        match nodes {
            Ok(nodes) => self.nodes = nodes.into_iter().map(|one| row(one, &mut before)).collect(),
            Err(error) => self.problems.push(error.to_string()),
        }
        self.jobs = match jobs.transpose() {
            Ok(jobs) => jobs,
            Err(error) => {
                self.problems.push(error);
                None
            }
        };
        // A node that has restarted replaces its former row.
        let is_known = |old: &Row| self.nodes.iter().any(|new| new.name == old.name);
        before.retain(|old| old.report.is_some() && !is_known(old));
        before.sort_by_key(|old| Reverse(old.report.as_ref().map(|report| report.incarnation)));
        before.truncate(MAX_GONE);
        let gone = before.into_iter().map(|old| Row { state: State::Gone, rates: None, ..old });
        self.nodes.extend(gone);
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

/// Makes the row of a node; takes its former one out of `before`.
fn row(reading: top::Reading, before: &mut Vec<Row>) -> Row {
    let top::Reading { peer, report, .. } = reading;
    let at = before.iter().position(|old| old.name == peer.name && old.id == peer.id);
    let old = at.map(|at| before.swap_remove(at)).and_then(|row| row.report);
    let (state, error, report) = match report {
        Ok(report) => (State::Live, None, Some(report)),
        Err(error) => {
            let state = match error.kind() {
                ErrorKind::NoService if old.is_none() => State::Denied,
                ErrorKind::Busy => State::Silent,
                ErrorKind::Version | ErrorKind::TooLarge => State::Broken,
                _ => State::Gone,
            };
            (state, Some(error.to_string()), None)
        }
    };
    let rates = report.as_ref().zip(old.as_ref()).and_then(|(new, old)| rates(new, old));
    Row { name: peer.name, id: peer.id, state, error, rates, report: report.or(old) }
}

/// Returns the changes in a second from one report of a node to the next.
pub(super) fn rates(new: &Report, old: &Report) -> Option<Rates> {
    let passed = new.uptime_ms.checked_sub(old.uptime_ms).filter(|passed| *passed > 0)?;
    if new.incarnation != old.incarnation {
        return None;
    }
    let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 * 1_000.0 / passed as f64;
    let rate = |of: &dyn Fn(&Report) -> u64| per_second(of(new), of(old));
    let of_peer = |peer: &Peer| {
        let former = old.peers.iter().find(|old| old.id == peer.id);
        // A session that has begun since has counted from zero.
        let before = former.map_or((0, 0), |old| (old.received_bytes, old.sent_bytes));
        let received = per_second(peer.received_bytes, before.0);
        (peer.id, (received, per_second(peer.sent_bytes, before.1)))
    };
    Some(Rates {
        received_bytes: rate(&|report| sum(report.services.iter().map(|one| one.received_bytes))),
        sent_bytes: rate(&|report| sum(report.services.iter().map(|one| one.sent_bytes))),
        messages: rate(&|report| report.messages_sent.saturating_add(report.messages_received)),
        calls: rate(&calls),
        peers: new.peers.iter().map(of_peer).collect(),
    })
}

/// Adds numbers, which a hostile node may have chosen.
pub(super) fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// Counts the calls that a node has made and answered.
fn calls(report: &Report) -> u64 {
    let made = report.calls.iter().flat_map(|one| [one.answered, one.service_errors, one.failed]);
    sum(made.chain(report.services.iter().map(|one| one.calls)))
}

/// Counts queued items: streams to accept, messages to receive, and peers that wait for a token.
pub(super) fn queued(report: &Report) -> u64 {
    let tokens = report.tokens.map_or(0, |tokens| tokens.waiting as u64);
    let streams = report.services.iter().map(|one| one.waiting);
    sum(streams.chain([report.messages_waiting, tokens]))
}
