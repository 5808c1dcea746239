//! Daemons below: which are taken, and what each may say.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use midplane_simhw::time::Instant;
use tokio::sync::mpsc;

use super::super::clock::now;
use super::super::message::{Down, Up};
use super::Hub;

/// Reports of who was not admitted are at least so far apart.
const REPORT_EACH: Duration = Duration::from_secs(1);

/// A daemon below.
#[derive(Debug)]
pub(super) struct Child {
    connection: u64,
    pub(super) to: mpsc::UnboundedSender<Down>,
    /// Its host, and the hosts below it.
    pub(super) hosts: BTreeSet<u16>,
    /// It was asked then whether it is there, and has said nothing since.
    probed_at: Option<Instant>,
}

/// Why a daemon was not admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) enum Refusal {
    /// A host with a key of its own says that it is another.
    Another {
        /// The host that the key belongs to.
        node: u16,
        /// The host that the daemon claims to be.
        claims: u16,
    },
    /// The host has a connection that is alive, or was a moment ago.
    Connected(u16),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another { node, claims } => {
                write!(f, "host {node} says that it is host {claims}; it is not admitted")
            }
            Self::Connected(host) => write!(
                f,
                "a second daemon says that it is host {host}, whose own is connected; it is not admitted while that lives"
            ),
        }
    }
}

/// Reports on standard error of who was not admitted.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    reported_at: Option<Instant>,
    unsaid: u64,
}

impl Refusals {
    pub(super) fn report(&mut self, now: Instant, refusal: Refusal) {
        if self.reported_at.is_some_and(|at| now < at + REPORT_EACH) {
            self.unsaid += 1;
            return;
        }
        self.reported_at = Some(now);
        match std::mem::take(&mut self.unsaid) {
            0 => eprintln!("midplane gang daemon: {refusal}"),
            more => eprintln!("midplane gang daemon: {refusal}; {more} more were refused before"),
        }
    }
}

impl Hub {
    /// A daemon says that it is `host`. One that is connected already keeps its place while it lives.
    pub(super) fn adopt(&mut self, host: u16, connection: u64, to: mpsc::UnboundedSender<Down>) {
        if let Some(child) = self.below.get_mut(&host) {
            // If it does not answer in time it is lost, and the other is taken when it comes again.
            if child.probed_at.is_none() {
                child.probed_at = Some(now());
                let _ = child.to.send(Down::Probe);
            }
            self.refusals.report(now(), Refusal::Connected(host));
            return;
        }
        self.relay.adopt(host);
        let child = Child { connection, to, hosts: BTreeSet::new(), probed_at: None };
        self.below.insert(host, child);
    }

    pub(super) fn is_below(&self, host: u16, connection: u64) -> bool {
        self.below.get(&host).is_some_and(|child| child.connection == connection)
    }

    /// When the first that was probed is lost, unless it says something.
    pub(super) fn probed_until(&self) -> Option<Instant> {
        let probed = self.below.values().filter_map(|child| child.probed_at);
        probed.map(|at| at + self.patience).min()
    }

    /// It speaks for itself and those below it in the tree, and for nobody else.
    pub(super) fn hear_below(&mut self, host: u16, mut up: Up) {
        let Some(child) = self.below.get_mut(&host) else { return };
        child.probed_at = None;
        let tree = self.tree;
        match &mut up {
            Up::Report { number, outcome } => {
                self.relay.handle_report(host, *number, std::mem::take(outcome));
                return;
            }
            Up::Present => return,
            Up::Here(hosts) => {
                hosts.retain(|other| tree.is_within(*other, host));
                child.hosts.extend(&*hosts);
            }
            Up::Gone(hosts) => {
                hosts.retain(|other| tree.is_within(*other, host));
                child.hosts.retain(|host| !hosts.contains(host));
            }
            Up::Ended { job, rank, .. }
            | Up::Able { job, rank }
            | Up::Left { job, rank }
            | Up::Part { job, rank, .. } => {
                let its = self.root.as_ref().and_then(|root| root.host_of(*job, *rank));
                if its.is_some_and(|its| !tree.is_within(its, host)) {
                    return;
                }
            }
        }
        self.up(up);
    }

    /// A daemon below is gone, and with it whoever is below it.
    pub(super) fn lose(&mut self, host: u16) {
        let Some(child) = self.below.remove(&host) else { return };
        let _ = child.to.send(Down::Cut);
        self.relay.lose(host);
        self.up(Up::Gone(child.hosts.into_iter().collect()));
    }

    /// Gives up those below that have not reported, or answered, for too long; whether there were any.
    pub(super) fn lose_silent(&mut self) -> bool {
        let now = now();
        let is_late = |at: Instant| now >= at + self.patience;
        let mut silent: BTreeSet<u16> = BTreeSet::new();
        if is_late(self.order_began) {
            silent.extend(self.relay.waits_for());
        }
        let probed = self.below.iter().filter(|(_, child)| child.probed_at.is_some_and(is_late));
        silent.extend(probed.map(|(host, _)| *host));
        for host in &silent {
            self.lose(*host);
        }
        !silent.is_empty()
    }
}
