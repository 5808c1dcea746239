//! The node's links for calls, messages and maps: services under reserved names.

use std::collections::BTreeSet;
use std::sync::Arc;

use midplane_via::session::Stream;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::Instant;

use super::listener::{self, Listener};
use super::mailbox::Mailbox;
use super::search::Search;
use super::{ANSWER_WITHIN, Node, PeerInfo, SEARCH_PERIOD};
use crate::error::{Error, ErrorKind};

pub(crate) use super::listener::Offer;
pub(crate) use super::state::Candidate;

/// The prefix of reserved service names, which users can't use.
pub(super) const RESERVED: &str = "midplane:";
/// Most bytes of the name of a service of calls, or of a map.
const MAX_NAME: usize = 80;

/// State that a node keeps for calls, messages and maps.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// True once the node must end; closed when it has ended.
    leaving: watch::Sender<bool>,
    messages: Mailbox,
}

impl Links {
    /// Notifies the tasks of calls, messages and maps that the node must end, and closes the streams of messages.
    pub(super) fn leave(&self) {
        self.leaving.send_replace(true);
        self.messages.close();
    }
}

/// The use of a reserved service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Calls,
    Map,
    #[cfg(feature = "fabric")]
    World,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Calls => "midplane:call:",
            Self::Map => "midplane:map:",
            #[cfg(feature = "fabric")]
            Self::World => "midplane:world:",
        }
    }

    /// Returns the reserved name of a user's service.
    pub(crate) fn service(self, name: &str) -> Result<String, Error> {
        if name.is_empty() || name.len() > MAX_NAME {
            let text = format!("this name has 1 to {MAX_NAME} bytes, not {}", name.len());
            return Err(Error::new(ErrorKind::Config, text));
        }
        Ok(format!("{}{name}", self.prefix()))
    }
}

/// Returns the readable name of a service.
pub(super) fn shown(service: &str) -> String {
    let kinds = [
        (Kind::Calls, "calls"),
        (Kind::Map, "a map"),
        #[cfg(feature = "fabric")]
        (Kind::World, "a rank"),
    ];
    for (kind, what) in kinds {
        if let Some(name) = service.strip_prefix(kind.prefix()) {
            return format!("{name} ({what})");
        }
    }
    service.strip_prefix(RESERVED).unwrap_or(service).to_owned()
}

/// Cuts a text to this many bytes, at the end of a character.
pub(super) fn cut(text: &str, bytes: usize) -> String {
    let fits = |(at, char): &(usize, char)| at + char.len_utf8() <= bytes;
    text.char_indices().take_while(fits).map(|(_, char)| char).collect()
}

/// Returns a hint if a peer offers a service of the same name and another kind; empty if none does.
pub(super) fn hint(service: &str, peers: &[PeerInfo]) -> String {
    let calls = Kind::Calls.prefix();
    let (other, cure) = match service.strip_prefix(calls) {
        Some(name) => (name.to_owned(), "as streams: use `connect`"),
        None => (format!("{calls}{service}"), "as calls: use `client`"),
    };
    match peers.iter().find(|peer| peer.services.contains(&other)) {
        Some(peer) => format!("; {} offers it {cure}", peer.name),
        None => String::new(),
    }
}

/// The peers of a node; does not keep the node running.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    search: Search,
    leaving: watch::Receiver<bool>,
}

impl Peers {
    /// Returns the peers that offer a service now.
    pub(crate) fn offering(&self, service: &str) -> Vec<Candidate> {
        self.search.shared.candidates(service)
    }

    /// Completes when a peer has joined, ended, or changed its services since this was called.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.search.shared.changed.notified()
    }

    /// Completes when the node must end, or has ended.
    pub(crate) async fn left(&mut self) {
        // An error means that the node has ended.
        let _ = self.leaving.wait_for(|is_leaving| *is_leaving).await;
    }

    /// Returns whether the node must end, or has ended.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.leaving.borrow() || self.search.shared.is_closed()
    }

    /// Opens a stream to a service of a peer, which may answer until `until`, and for a second at least. `None` if it
    /// refuses the stream, has ended, or does not answer in time.
    pub(crate) async fn open(
        &self,
        candidate: &Candidate,
        service: &str,
        until: Instant,
    ) -> Option<Stream> {
        let until = until.max(Instant::now() + ANSWER_WITHIN);
        let opening = super::open(&self.search.shared, candidate, service);
        tokio::time::timeout_at(until, opening).await.ok().flatten()
    }

    /// Searches for unknown nodes that offer a service; returns `false` once the node has ended.
    pub(crate) async fn search(&self, service: &str) -> bool {
        if self.search.shared.is_closed() {
            return false;
        }
        self.search.run(service, || false).await;
        true
    }
}

impl Node {
    /// Offers a service under a reserved name.
    pub(crate) fn offer(&self, service: String) -> Result<Listener, Error> {
        self.0.shared.check()?;
        let (outbox, inbox) = mpsc::channel(listener::BACKLOG);
        let number = self.0.shared.offer(&service, outbox)?;
        let offer = Offer::new(Arc::downgrade(&self.0.shared), service, number);
        Ok(Listener::new(offer, inbox))
    }

    /// Returns the runtime in which the node was started.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.shared.runtime
    }

    /// Returns the node's peers.
    pub(crate) fn links(&self) -> Peers {
        let leaving = self.0.links.leaving.subscribe();
        Peers { search: self.0.search.clone(), leaving }
    }

    /// Returns whether the node may share memory with others of its host; a simulated one never does.
    #[cfg(all(feature = "fabric", target_os = "linux"))]
    pub(crate) fn shares_memory(&self) -> bool {
        self.0.allowed.shm() && !super::host::is_simulated()
    }

    /// Returns the name of the node's cluster.
    #[cfg(all(feature = "fabric", target_os = "linux"))]
    pub(crate) fn cluster(&self) -> String {
        self.0.shared.cluster()
    }

    /// Returns the node's state of messages.
    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.0.links.messages
    }

    /// Returns the node's counters.
    pub(crate) fn meter(&self) -> &super::meter::Meter {
        &self.0.shared.meter
    }

    /// Returns whether the node of this number has this name.
    pub(crate) fn is_called(&self, id: u64, name: &str) -> bool {
        self.0.shared.is_called(id, name)
    }

    /// Returns whether there is a session with the node of this number.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.0.shared.knows(id)
    }

    /// Completes when there is no session with the node of this number, or that node leaves. Fails if this node ends.
    pub(crate) async fn departed(&self, id: u64) -> Result<(), Error> {
        loop {
            let changed = self.0.shared.changed.notified();
            self.0.shared.check()?;
            if !self.0.shared.stays(id) {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Returns whether there is a session with the node of this number; if there is none, first searches for nodes that
    /// offer the service, at most once a second.
    pub(crate) async fn reaches(&self, id: u64, service: &str) -> Result<bool, Error> {
        if !self.knows(id) && !self.mailbox().was_searched(id) {
            self.0.shared.check()?;
            self.0.search.run(service, || self.knows(id)).await;
            if !self.knows(id) {
                self.mailbox().note_searched(id);
            }
        }
        Ok(self.knows(id))
    }

    /// Returns the end of a search for a service that begins now.
    pub(crate) fn search_deadline(&self) -> Instant {
        Instant::now() + self.0.connect_timeout
    }

    /// Waits for peers that offer a service, for which `is_fit` returns `true`, and whose sessions are not in
    /// `refused`. Returns those of the best rank. If only refused ones are left, tries them again until the time is
    /// over.
    pub(crate) async fn find(
        &self,
        service: &str,
        refused: &mut BTreeSet<u64>,
        until: Instant,
        is_fit: impl Fn(&Candidate) -> bool,
    ) -> Result<Vec<Candidate>, Error> {
        let suitable = |refused: &BTreeSet<u64>| {
            let mut candidates = self.0.shared.candidates(service);
            candidates.retain(|one| !refused.contains(&one.session.number()) && is_fit(one));
            candidates
        };
        loop {
            self.0.shared.check()?;
            let changed = self.0.shared.changed.notified();
            let mut candidates = suitable(refused);
            if let Some(best) = candidates.iter().map(|one| one.choice.rank).min() {
                candidates.retain(|one| one.choice.rank == best);
                #[cfg(feature = "ofi")]
                if let Some(at) = self.0.shared.awaits_libfabric(&candidates) {
                    let _ = tokio::time::timeout_at(at, changed).await;
                    continue;
                }
                return Ok(candidates);
            }
            let found = self.0.search.run(service, || !suitable(refused).is_empty()).await;
            if found && (Instant::now() < until || !suitable(refused).is_empty()) {
                continue;
            }
            if Instant::now() >= until {
                // Callers that retry in a loop thereby let the node's own tasks run.
                tokio::task::yield_now().await;
                return Err(self.no_node_offers(service, !refused.is_empty()));
            }
            let has_refused = !refused.is_empty();
            refused.clear();
            let _ = tokio::time::timeout(SEARCH_PERIOD, changed).await;
            if !has_refused && self.lack_memory(&suitable(refused)) {
                // They were found meanwhile: another search dials them through shared memory.
                let until = until.min(Instant::now() + SEARCH_PERIOD);
                let _ = tokio::time::timeout_at(until, self.0.search.run(service, || true)).await;
            }
        }
    }

    /// Returns whether all candidates are nodes of this host that share memory with others, and are known over a network
    /// only.
    fn lack_memory(&self, candidates: &[Candidate]) -> bool {
        if candidates.is_empty() || !cfg!(target_os = "linux") || !self.0.allowed.shm() {
            return false;
        }
        let here = self.0.shared.network().local();
        candidates.iter().all(|one| one.choice.rank.1 > 0 && here.contains(&one.peer))
    }
}
