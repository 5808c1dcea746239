//! The state of a node: its services, its peers and their services.

#[cfg(feature = "ofi")]
mod libfabric;
mod offers;
mod receiver;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use midplane_simhw::lock::lock;
use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::{Session, Sessions, Stream};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::dials::Dials;
use super::meter::{Meter, Role, Watched, stream_span};
use super::network::Network;
use crate::error::{Error, ErrorKind};
use crate::member::{self, Effect, Hello, Load, Members, Target};

pub(super) use offers::Accepted;
use offers::Offered;
pub(super) use receiver::Receiver;

/// State that a node's parts share.
#[derive(Debug)]
pub(super) struct Shared {
    sessions: Sessions,
    network: Box<dyn Network>,
    /// The runtime in which the node was started: the caller's may end sooner.
    pub(crate) runtime: Handle,
    started: tokio::time::Instant,
    state: Mutex<State>,
    pub(super) dials: Dials,
    pub(super) meter: Meter,
    #[cfg(feature = "ofi")]
    ofi: std::sync::OnceLock<Arc<super::ofi::Ofi>>,
    /// Notified when a peer has joined, ended, or changed its services, or this node has changed its own.
    pub(super) changed: Notify,
    /// Notified when the time of the next timeout has changed.
    due: Notify,
}

#[derive(Debug)]
struct State {
    hello: Hello,
    /// Number of changes of `hello` so far.
    generation: u64,
    listeners: BTreeMap<String, Offered>,
    members: Members,
    /// Sessions that have not ended, by number.
    sessions: BTreeMap<u64, Arc<Session>>,
    /// The text of the error if another node had this one's name before it.
    rival: Option<String>,
    tasks: Vec<AbortHandle>,
    is_closed: bool,
    /// True once the node accepts no new streams, because it ends.
    is_leaving: bool,
}

/// A session to a peer that offers a service.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) peer: u64,
    pub(crate) session: Arc<Session>,
    pub(crate) choice: member::Choice,
}

/// A peer, as [`Node::peers`](crate::Node::peers) returns it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The node's name.
    pub name: String,
    /// The random number of this incarnation of the peer.
    pub id: u64,
    /// The services that the peer offers.
    pub services: Vec<String>,
    /// The transport of its streams: `shm`, `ofi`, `udp` or `tcp`.
    pub transport: &'static str,
    /// Number of open streams.
    pub streams: usize,
}

impl State {
    fn load(&self, link: u64) -> Load {
        let Some(session) = self.sessions.get(&link) else { return Load::default() };
        Load { streams: session.streams(), is_suspected: session.is_suspected() }
    }

    /// Returns the session that new streams to a peer use.
    fn session_to(&self, id: u64, links: &[u64]) -> Option<&Arc<Session>> {
        let chosen = self.members.link_to(id, |link| self.load(link));
        chosen.iter().chain(links).find_map(|link| self.sessions.get(link))
    }

    /// Returns the number of open streams over these links.
    fn streams(&self, links: &[u64]) -> usize {
        let sessions = links.iter().filter_map(|link| self.sessions.get(link));
        sessions.map(|session| session.streams()).sum()
    }

    /// Checks whether another node has this one's name, and reports it once.
    fn review_name(&mut self) {
        let rival = self.members.rival().map(|(id, by)| {
            let by = by.map(|by| format!(", as {by} reports")).unwrap_or_default();
            let name = &self.hello.name;
            format!(
                "another node is called {name:?} and was there before this one (it is {id:016x}{by}): \
                 give this one another name, or stop the other"
            )
        });
        if let Some(text) = rival.as_ref().filter(|_| self.rival.is_none()) {
            tracing::error!("{text}");
        }
        self.rival = rival;
    }
}

impl Shared {
    pub(super) fn new(
        sessions: Sessions,
        network: Box<dyn Network>,
        hello: Hello,
        members: Members,
    ) -> Arc<Self> {
        let meter = Meter::new(&hello.name);
        let state = State {
            hello,
            generation: 0,
            listeners: BTreeMap::new(),
            members,
            sessions: BTreeMap::new(),
            rival: None,
            tasks: Vec::new(),
            is_closed: false,
            is_leaving: false,
        };
        Arc::new(Self {
            sessions,
            network,
            runtime: Handle::current(),
            started: tokio::time::Instant::now(),
            state: Mutex::new(state),
            dials: Dials::default(),
            meter,
            #[cfg(feature = "ofi")]
            ofi: std::sync::OnceLock::new(),
            changed: Notify::new(),
            due: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the time in membership's units.
    fn now(&self) -> Instant {
        Instant::from_nanos(1) + self.started.elapsed()
    }

    pub(super) const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(super) fn network(&self) -> &dyn Network {
        &*self.network
    }

    /// Registers a task to be aborted when the node ends.
    pub(super) fn on_end(&self, task: AbortHandle) {
        self.state().tasks.push(task);
    }

    /// Changes the membership, and performs its effects.
    fn change<R>(&self, change: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.state();
        let result = change(&mut state, self.now());
        let (mut ends, mut describes, mut wakes) = (Vec::new(), Vec::new(), false);
        while let Some(effect) = state.members.poll_effect() {
            match effect {
                // Under the lock, so that the link exists when the peer answers.
                Effect::Dial(target) => self.dial(&mut state, target),
                Effect::End(link) => ends.extend(state.sessions.get(&link).cloned()),
                Effect::Describe(link) => describes.push(link),
                Effect::Wake => wakes = true,
            }
        }
        drop(state);
        self.describe(&describes);
        ends.iter().for_each(Session::end);
        if wakes {
            self.changed.notify_waiters();
        }
        self.due.notify_one();
        result
    }

    fn dial(&self, state: &mut State, target: Target) {
        let now = self.now();
        if state.is_closed {
            return state.members.handle_refused(now, target);
        }
        let dialed = self.network.dial(target);
        self.dials.on_dialed(target, dialed.as_ref());
        match dialed {
            Ok(session) => {
                let (number, transport) = (session.number(), session.transport());
                state.sessions.insert(number, session);
                state.members.handle_dialed(now, target, number, transport);
            }
            Err(error) => {
                tracing::debug!(?target, %error, "a node can't be dialed");
                state.members.handle_refused(now, target);
            }
        }
    }

    /// Sends this node's description to the peers of these links; it is current when this returns.
    fn describe(&self, links: &[u64]) {
        for link in links {
            let mut described = None;
            loop {
                let state = self.state();
                let rival = state.members.rival_of(*link);
                let refusal = state.members.refusal_of(*link);
                let is_leaving = state.is_leaving;
                let as_now = (state.generation, is_leaving, rival, refusal);
                let Some(session) = state.sessions.get(link).cloned() else { break };
                // Another thread may have sent an older description meanwhile.
                if described.replace(as_now) == Some(as_now) {
                    break;
                }
                let hello = Hello { rival, refusal, ..state.hello.clone() };
                drop(state);
                session.send_hello(hello.emit());
                if is_leaving {
                    session.send_goodbye();
                }
            }
        }
    }

    /// Adds the session of a node that has connected; ends it if this node has ended meanwhile.
    pub(super) fn on_session(&self, session: &Arc<Session>) {
        let is_closed = self.change(|state, now| {
            if !state.is_closed {
                state.sessions.insert(session.number(), Arc::clone(session));
                state.members.handle_accepted(now, session.number(), session.transport());
            }
            state.is_closed
        });
        if is_closed {
            session.end();
        }
    }

    /// Dials the nodes at these places that are unknown, or are of this host and reached over a network, for a while from now on. The nodes at addresses in `keys` must have
    /// these keys.
    pub(super) fn search(
        &self,
        places: &BTreeSet<Target>,
        keys: BTreeSet<(SocketAddr, PublicKey)>,
        time: std::time::Duration,
    ) {
        self.dials.forget_others(places);
        self.change(|state, now| {
            state.members.handle_keys(keys);
            state.members.handle_places(now, places);
            state.members.seek(now, now + time);
        });
    }

    /// Returns whether a node that was dialed a short time ago has not described itself.
    pub(super) fn is_expecting(&self) -> bool {
        self.state().members.is_expecting(self.now())
    }

    /// Returns the numbers of the known nodes.
    pub(super) fn known(&self) -> BTreeSet<u64> {
        self.state().members.peers().map(|(id, ..)| id).collect()
    }

    /// Records whether a peer is slow: it did not answer in time. Returns whether that has changed.
    pub(super) fn on_answer(&self, candidate: &Candidate, is_slow: bool) -> bool {
        let link = candidate.session.number();
        self.state().members.handle_answer(link, is_slow)
    }

    /// Performs all timed work, until the node ends.
    pub(super) async fn run_timeouts(self: Arc<Self>) {
        loop {
            let due = self.due.notified();
            let at = self.state().members.poll_timeout();
            let Some(at) = at else {
                due.await;
                continue;
            };
            let at = self.started + at.since(Instant::from_nanos(1));
            if tokio::time::timeout_at(at, due).await.is_err() {
                self.change(|state, now| {
                    let loads = state.members.links().map(|link| (link, state.load(link)));
                    let loads: BTreeMap<_, _> = loads.collect();
                    let load = |link: u64| loads.get(&link).copied().unwrap_or_default();
                    state.members.handle_timeout(now, load);
                });
            }
        }
    }

    /// Returns the nodes that this one has a session with.
    pub(super) fn peers(&self) -> Vec<PeerInfo> {
        let state = self.state();
        let info = |(id, name, services, links): (u64, &str, &BTreeSet<String>, &[u64])| {
            let session = state.session_to(id, links);
            PeerInfo {
                name: name.to_owned(),
                id,
                services: services.iter().cloned().collect(),
                transport: session.map_or("none", |session| session.transport().name()),
                streams: state.streams(links),
            }
        };
        state.members.peers().map(info).collect()
    }

    /// Observes a stream that this node has opened over a session, and counts it.
    pub(super) fn on_opened(&self, stream: &mut Stream, service: &str) {
        let streams = self.meter.streams(Role::Client, service);
        streams.accepted.add_one();
        let span = stream_span(stream, Role::Client, service, &self.peer_name(stream));
        Watched::start(stream, streams, span);
    }

    /// Returns the name of the node at the other end of a stream; empty once the stream's session has ended.
    pub(super) fn peer_name(&self, stream: &Stream) -> String {
        let state = self.state();
        let peer = state.members.peer_of(stream.session().number());
        peer.map(|(_, name)| name.to_owned()).unwrap_or_default()
    }

    /// Counts a stream that a peer has refused, or that was lost before the peer accepted it.
    pub(super) fn on_refused(&self, service: &str) {
        self.meter.streams(Role::Client, service).refused.add_one();
    }

    /// Returns the numbers and names of the peers, each with the session of new streams, and with the number of open
    /// streams of all its sessions.
    pub(super) fn sessions_of_peers(&self) -> Vec<(u64, String, Arc<Session>, usize)> {
        let state = self.state();
        let best = |(id, name, _, links): (u64, &str, _, &[u64])| {
            let session = Arc::clone(state.session_to(id, links)?);
            Some((id, name.to_owned(), session, state.streams(links)))
        };
        state.members.peers().filter_map(best).collect()
    }

    /// Returns when a peer was started, by its own clock, and its state as this node sees it.
    pub(super) fn standing(&self, id: u64) -> Option<(u64, &'static str)> {
        self.state().members.standing(id)
    }

    /// Returns the milliseconds since 1970 at the node's start, and how long it has run.
    pub(super) fn age(&self) -> (u64, std::time::Duration) {
        (self.state().hello.incarnation, self.started.elapsed())
    }

    /// Returns whether there is a session with this node, and the node has described itself.
    pub(super) fn knows(&self, id: u64) -> bool {
        self.state().members.knows(id)
    }

    /// Returns whether there is a session with this node, and the node does not leave.
    pub(super) fn stays(&self, id: u64) -> bool {
        self.state().members.stays(id)
    }

    /// Returns whether the known node of this number has this name.
    pub(super) fn is_called(&self, id: u64, name: &str) -> bool {
        self.state().members.is_called(id, name)
    }

    /// Returns the random number of this node.
    #[cfg(feature = "discovery-gossip")]
    pub(super) fn id(&self) -> u64 {
        self.state().hello.id
    }

    /// Returns the name of the node's cluster.
    pub(super) fn cluster(&self) -> String {
        self.state().hello.cluster.clone()
    }

    /// Returns the peers that offer a service now.
    pub(super) fn candidates(&self, service: &str) -> Vec<Candidate> {
        let state = self.state();
        let choices = state.members.choices(service, |link| state.load(link));
        let candidate = |choice: member::Choice| {
            let session = state.sessions.get(&choice.link)?.clone();
            Some(Candidate { peer: choice.peer, session, choice })
        };
        choices.into_iter().filter_map(candidate).collect()
    }

    fn describe_to_all(&self, mut state: MutexGuard<'_, State>) {
        state.generation += 1;
        let links: Vec<_> = state.sessions.keys().copied().collect();
        drop(state);
        self.describe(&links);
        self.changed.notify_waiters();
    }

    /// Returns the sessions that have not ended.
    pub(super) fn live(&self) -> Vec<Arc<Session>> {
        self.state().sessions.values().cloned().collect()
    }

    /// Reports to all peers, and to those that connect later, that this node ends.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.is_leaving = true;
        let links: Vec<_> = state.sessions.keys().copied().collect();
        drop(state);
        // A peer ignores a goodbye that comes before the first description.
        self.describe(&links);
    }

    /// Returns whether the node was shut down.
    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Returns an error if the node was shut down, or if another node had its name before it.
    pub(super) fn check(&self) -> Result<(), Error> {
        let state = self.state();
        if state.is_closed {
            return Err(super::closed());
        }
        match &state.rival {
            Some(text) => Err(Error::new(ErrorKind::InUse, text)),
            None => Ok(()),
        }
    }

    /// Ends the node at once: its tasks, listeners and sessions.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let tasks = std::mem::take(&mut state.tasks);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        tasks.into_iter().for_each(|task| task.abort());
        drop(listeners);
        self.sessions.close();
        // The reporting task has ended, so the last counts are reported here. The receiver of the sessions' events
        // reports later ones.
        self.meter.report(self.sessions().token_counters());
        self.changed.notify_waiters();
    }
}

/// Returns the readable form of a place.
pub(super) fn placed(target: &Target) -> String {
    match target {
        Target::Local(id) => format!("{id:016x} of this host"),
        Target::Address(address) => address.to_string(),
    }
}
