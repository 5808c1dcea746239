//! The state of a node: its services, its peers and theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use midplane_via::session::{Ended, Handler, Refusal, Session, Sessions, Stream, Transport};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::hello::{Hello, MOST_SERVICES};
use super::listener::Accepted;

/// Nodes that a node knows at once.
const MOST_PEERS: usize = 4_096;

/// State that a node's parts share.
#[derive(Debug)]
pub(super) struct Shared {
    sessions: Sessions,
    state: Mutex<State>,
    /// A peer has come, gone, or told of its services.
    pub(super) changed: Notify,
}

#[derive(Debug)]
struct State {
    hello: Hello,
    listeners: BTreeMap<String, mpsc::Sender<Accepted>>,
    peers: BTreeMap<u64, Peer>,
    /// Sessions by number: of which peer, once it has told.
    known: BTreeMap<u64, (Arc<Session>, Option<u64>)>,
    tasks: Vec<AbortHandle>,
    is_closed: bool,
}

/// A node that this one has a session with.
#[derive(Debug)]
struct Peer {
    name: String,
    services: BTreeSet<String>,
    sessions: Vec<Arc<Session>>,
    /// It accepts no more streams.
    is_leaving: bool,
}

/// A way to a service.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) peer: u64,
    pub(super) session: Arc<Session>,
}

/// A peer, as [`Node::peers`](crate::Node::peers) shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The node's name.
    pub name: String,
    /// The number that tells it from all others, and from its former self.
    pub id: u64,
    /// The services that it offers.
    pub services: Vec<String>,
    /// The transport of its streams: `shm` or `udp`.
    pub transport: &'static str,
    /// Streams that are open.
    pub streams: usize,
}

impl Shared {
    pub(super) fn new(sessions: Sessions, hello: Hello) -> Arc<Self> {
        let state = State {
            hello,
            listeners: BTreeMap::new(),
            peers: BTreeMap::new(),
            known: BTreeMap::new(),
            tasks: Vec::new(),
            is_closed: false,
        };
        Arc::new(Self { sessions, state: Mutex::new(state), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Aborts a task once the node ends.
    pub(super) fn on_end(&self, task: AbortHandle) {
        self.state().tasks.push(task);
    }

    /// A session was made: describes this node to the peer.
    pub(super) fn on_session(&self, session: &Arc<Session>) {
        let hello = {
            let mut state = self.state();
            if state.is_closed || state.known.len() >= MOST_PEERS {
                drop(state);
                return session.end();
            }
            state.known.insert(session.number(), (Arc::clone(session), None));
            state.hello.emit()
        };
        session.say(hello);
    }

    /// Other nodes that this one has a session with.
    pub(super) fn peers(&self) -> Vec<PeerInfo> {
        let state = self.state();
        let info = |(id, peer): (&u64, &Peer)| PeerInfo {
            name: peer.name.clone(),
            id: *id,
            services: peer.services.iter().cloned().collect(),
            transport: peer.sessions.first().map_or("none", |session| match session.transport() {
                Transport::Udp(_) => "udp",
                _ => "shm",
            }),
            streams: peer.sessions.iter().map(|session| session.streams()).sum(),
        };
        let others = state.peers.iter().filter(|(id, _)| **id != state.hello.id);
        others.map(info).collect()
    }

    /// Peers with a session, whether they have described themselves or not.
    pub(super) fn knows(&self, id: u64) -> bool {
        self.state().peers.get(&id).is_some_and(|peer| !peer.sessions.is_empty())
    }

    /// Returns whether there is a session to an address.
    pub(super) fn has_dialed(&self, address: SocketAddr) -> bool {
        let is_there = |(session, _): &(Arc<Session>, Option<u64>)| {
            session.transport() == Transport::Udp(address) && session.ended().is_none()
        };
        self.state().known.values().any(is_there)
    }

    /// Returns whether a session's peer has described itself; `false` once the session has ended before, `None` while
    /// neither is so.
    pub(super) fn has_told(&self, session: u64) -> Option<bool> {
        match self.state().known.get(&session) {
            None => Some(false),
            Some((_, peer)) => peer.is_some().then_some(true),
        }
    }

    /// Peers that offer a service now.
    pub(super) fn candidates(&self, service: &str) -> Vec<Candidate> {
        let state = self.state();
        let offers = |peer: &&Peer| !peer.is_leaving && peer.services.contains(service);
        let candidates = state.peers.iter().filter(|(_, peer)| offers(peer));
        candidates
            .filter_map(|(id, peer)| {
                Some(Candidate { peer: *id, session: peer.sessions.first()?.clone() })
            })
            .collect()
    }

    /// Offers a service from now on; its streams go to `listener`. `false` if the node does already, or offers too many.
    pub(super) fn offer(&self, service: &str, listener: mpsc::Sender<Accepted>) -> bool {
        let mut state = self.state();
        if state.listeners.contains_key(service) || state.hello.services.len() >= MOST_SERVICES {
            return false;
        }
        state.listeners.insert(service.to_owned(), listener);
        state.hello.services.push(service.to_owned());
        say(state);
        true
    }

    /// Offers a service no longer.
    pub(super) fn withdraw(&self, service: &str) {
        let mut state = self.state();
        state.listeners.remove(service);
        state.hello.services.retain(|offered| offered != service);
        say(state);
    }

    /// Sessions that have not ended.
    pub(super) fn live(&self) -> Vec<Arc<Session>> {
        self.state().known.values().map(|(session, _)| Arc::clone(session)).collect()
    }

    /// Returns whether the node was shut down.
    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Ends everything at once.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let tasks = std::mem::take(&mut state.tasks);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        tasks.into_iter().for_each(|task| task.abort());
        drop(listeners);
        self.sessions.close();
        self.changed.notify_waiters();
    }
}

/// Tells all peers what this node offers now.
fn say(state: MutexGuard<'_, State>) {
    let hello = state.hello.emit();
    let sessions: Vec<_> = state.known.values().map(|(session, _)| Arc::clone(session)).collect();
    drop(state);
    for session in sessions {
        session.say(hello.clone());
    }
}

/// Handles what a node's sessions receive.
#[derive(Debug)]
pub(super) struct Receiver(pub(super) Arc<Shared>);

impl Handler for Receiver {
    fn on_accepted(&mut self, session: &Arc<Session>) {
        self.0.on_session(session);
    }

    fn on_hello(&mut self, session: &Arc<Session>, hello: &[u8]) {
        let Some(hello) = Hello::parse(hello) else {
            tracing::warn!("a peer describes itself in another version; run one on both sides");
            return session.end();
        };
        let mut state = self.0.state();
        let Some((_, id)) = state.known.get_mut(&session.number()) else { return };
        if id.replace(hello.id).is_some_and(|before| before != hello.id) {
            drop(state);
            return session.end();
        }
        let peer = state.peers.entry(hello.id).or_insert_with(|| Peer {
            name: hello.name,
            services: BTreeSet::new(),
            sessions: Vec::new(),
            is_leaving: false,
        });
        peer.services = hello.services.into_iter().collect();
        if !peer.sessions.iter().any(|known| known.number() == session.number()) {
            peer.sessions.push(Arc::clone(session));
            // The nearest first.
            peer.sessions.sort_by_key(|session| session.transport());
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    fn on_stream(
        &mut self,
        session: &Arc<Session>,
        service: &str,
        stream: Stream,
    ) -> Result<(), Refusal> {
        let state = self.0.state();
        let listener = state.listeners.get(service).cloned().ok_or(Refusal::NoService)?;
        let id = state.known.get(&session.number()).and_then(|(_, id)| *id);
        let peer = id.and_then(|id| Some((id, state.peers.get(&id)?.name.clone())));
        drop(state);
        let (id, name) = peer.unwrap_or_default();
        listener.try_send(Accepted { stream, id, name }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Refusal::TooMany,
            mpsc::error::TrySendError::Closed(_) => Refusal::NoService,
        })
    }

    fn on_goodbye(&mut self, session: &Arc<Session>) {
        let mut state = self.0.state();
        let id = state.known.get(&session.number()).and_then(|(_, id)| *id);
        if let Some(peer) = id.and_then(|id| state.peers.get_mut(&id)) {
            peer.is_leaving = true;
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    fn on_ended(&mut self, session: &Arc<Session>, why: Ended) {
        let mut state = self.0.state();
        let id = state.known.remove(&session.number()).and_then(|(_, id)| id);
        if let Some(id) = id
            && let Some(peer) = state.peers.get_mut(&id)
        {
            peer.sessions.retain(|known| known.number() != session.number());
            if peer.sessions.is_empty() {
                tracing::debug!(peer = peer.name, ?why, "a peer is gone");
                state.peers.remove(&id);
            }
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}
