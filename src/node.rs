//! A node: joins a cluster, offers services by name, and connects to those of other nodes.

mod builder;
mod connector;
mod hello;
mod listener;
mod local;
mod state;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use midplane_via::session::{Sessions, Stream, Transport};
use midplane_via::wire::pipe::Config;
use midplane_via::wire::socket::Socket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind};
pub use builder::{DEFAULT_CONNECT_WITHIN, DEFAULT_DRAIN, NodeBuilder};
pub use connector::Connector;
use hello::{Hello, VERSION};
#[cfg(feature = "tonic")]
pub use listener::{Incoming, NamedStream};
pub use listener::{Listener, PeerName};
use local::Local;
pub use state::PeerInfo;
use state::{Candidate, Receiver, Shared};

/// The period in which a node that waits for a service searches for new nodes.
const LOOK: Duration = Duration::from_millis(50);
/// Silence after which a peer over UDP is asked for a sign of life: a process that has ended is noticed that soon.
const KEEPALIVE_NANOS: u64 = 700_000_000;
/// Limits how long a node that was dialed may take to describe itself.
const TELL: Duration = Duration::from_secs(1);

/// A node of a cluster: [listens](Node::listen) and [connects](Node::connect) by the names of services.
///
/// Clones are the same node. It ends, and its streams with it, when the last of them and of its connectors is dropped; its
/// listeners report [`ErrorKind::Closed`] then, so keep the node as long as they serve. [`Node::shutdown`] lets streams
/// end first.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    local: Option<Local>,
    address: Option<SocketAddr>,
    discover: Vec<String>,
    drain: Duration,
    connect_within: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Node {
    /// A node with all defaults: it meets the other nodes of this user on this host.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    fn start(builder: NodeBuilder) -> Result<Self, Error> {
        let failed = |error| Error::system("the node can't start", error);
        let bind = |address| {
            Socket::bind(address)
                .map_err(|error| Error::system(&format!("the node can't bind {address}"), error))
        };
        let socket = builder.address().map(bind).transpose()?;
        let address = socket.as_ref().and_then(|socket| socket.local_addr().ok());
        let udp = socket.map(|socket| {
            (socket, Config::default().key(builder.key.clone()).keepalive(KEEPALIVE_NANOS))
        });
        let (sessions, driver) = Sessions::new(udp).map_err(failed)?;
        let id = builder::random().map_err(failed)?;
        let hello =
            Hello { version: VERSION, id, name: builder.resolved_name(), services: Vec::new() };
        let shared = Shared::new(sessions, hello);
        let local = builder.is_local.then(|| Local::new(&builder.cluster, id));
        if let Some(local) = &local {
            local.listen(&shared).map_err(failed)?;
        }
        tokio::spawn(driver.run(Receiver(Arc::clone(&shared))));
        let NodeBuilder { drain, connect_within, discover, .. } = builder;
        Ok(Self(Arc::new(Inner { shared, local, address, discover, drain, connect_within })))
    }

    /// Offers a service: nodes that connect to it reach the listener.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if this node offers it already, [`ErrorKind::Config`] for a name that is empty or has more
    /// than 100 bytes, [`ErrorKind::Closed`].
    pub async fn listen(&self, service: &str) -> Result<Listener, Error> {
        check_name("a service's name", service)?;
        if self.0.shared.is_closed() {
            return Err(closed());
        }
        let (outbox, inbox) = mpsc::channel(listener::BACKLOG);
        if !self.0.shared.offer(service, outbox) {
            let text = format!("this node offers {service:?} already, or 64 services");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        Ok(Listener::new(service.to_owned(), inbox, Arc::clone(&self.0.shared)))
    }

    /// Connects to a node that offers a service: of two chosen at random, the one with fewer streams.
    ///
    /// If none offers it, waits for one as long as [`NodeBuilder::connect_within`] says.
    ///
    /// # Errors
    /// [`ErrorKind::NoService`], with the nodes that were asked; [`ErrorKind::Config`], [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// Dropped, it has connected to nothing.
    pub async fn connect(&self, service: &str) -> Result<Stream, Error> {
        check_name("a service's name", service)?;
        let until = Instant::now() + self.0.connect_within;
        let mut refused = BTreeSet::new();
        loop {
            if self.0.shared.is_closed() {
                return Err(closed());
            }
            let changed = self.0.shared.changed.notified();
            let candidates = self.0.shared.candidates(service);
            let fresh = |one: &Candidate| !refused.contains(&(one.peer, one.session.number()));
            let candidates: Vec<_> = candidates.into_iter().filter(fresh).collect();
            if let Some(chosen) = choose(&candidates) {
                let patience = until.max(Instant::now() + TELL);
                match tokio::time::timeout_at(patience, open(chosen, service)).await {
                    Ok(Some(stream)) => return Ok(stream),
                    _ => refused.insert((chosen.peer, chosen.session.number())),
                };
                continue;
            }
            let has_new = self.look().await;
            if has_new {
                continue;
            }
            if Instant::now() >= until {
                // Callers that try again in a loop let the node's own tasks run.
                tokio::task::yield_now().await;
                return Err(self.nobody_offers(service));
            }
            refused.clear();
            let _ = tokio::time::timeout(LOOK, changed).await;
        }
    }

    /// Connects to the service whenever it is called: a `tower` service for tonic, hyper and others.
    #[must_use]
    pub fn connector(&self, service: &str) -> Connector {
        Connector::new(self.clone(), service.to_owned())
    }

    /// The nodes that this one is connected to.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.0.shared.peers()
    }

    /// Dials the nodes that are there and not known, and waits until they have described themselves. Whether there were
    /// any.
    async fn look(&self) -> bool {
        let shared = &self.0.shared;
        let mut dialed = Vec::new();
        if let Some(local) = &self.0.local {
            let strangers = local.list().into_iter().filter(|id| !shared.knows(*id));
            // One that is gone by now is none.
            dialed.extend(strangers.filter_map(|id| local.dial(shared, id).ok()));
        }
        for address in self.places().await {
            if Some(address) != self.0.address && !shared.has_dialed(address) {
                dialed.extend(shared.sessions().dial(address));
            }
        }
        dialed.iter().for_each(|session| shared.on_session(session));
        let until = Instant::now() + TELL;
        let mut any = false;
        for session in dialed {
            loop {
                let changed = shared.changed.notified();
                if let Some(has_told) = shared.has_told(session.number()) {
                    any |= has_told;
                    break;
                }
                if tokio::time::timeout_at(until, changed).await.is_err() {
                    // A process of this host that does not answer may be stopped; a dial over UDP ends by itself.
                    if session.transport() == Transport::Shm {
                        session.end();
                    }
                    break;
                }
            }
        }
        any
    }

    /// The addresses of the places where other nodes are said to be.
    async fn places(&self) -> BTreeSet<SocketAddr> {
        let mut addresses = BTreeSet::new();
        for place in &self.0.discover {
            match tokio::net::lookup_host(place).await {
                Ok(found) => addresses.extend(found),
                Err(error) => tracing::debug!(place, %error, "a place to discover has no address"),
            }
        }
        addresses
    }

    /// The address at which nodes of other hosts reach this one, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address
    }

    fn nobody_offers(&self, service: &str) -> Error {
        let peers = self.peers();
        let asked: Vec<_> = peers
            .iter()
            .map(|peer| format!("{} (offers {})", peer.name, listed(&peer.services)))
            .collect();
        let asked = match asked.is_empty() {
            true => "no node was found to ask: is one running on this host, as this user, in this cluster?".into(),
            false => format!("asked {}", asked.join(", ")),
        };
        Error::new(ErrorKind::NoService, format!("no node offers {service:?}; {asked}"))
    }

    /// Ends the node once its streams have ended, at most as long as [`NodeBuilder::drain`] says: accepts and opens no
    /// more of them meanwhile.
    pub async fn shutdown(self) {
        let shared = &self.0.shared;
        let live = shared.live();
        live.iter().for_each(|session| session.say_goodbye());
        let until = Instant::now() + self.0.drain;
        while live.iter().any(|session| session.ended().is_none() && session.streams() > 0)
            && Instant::now() < until
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shared.close();
    }
}

fn listed(services: &[String]) -> String {
    if services.is_empty() { "nothing".into() } else { services.join(", ") }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the node was shut down")
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > hello::MOST_NAME {
        let text = format!("{what} has 1 to {} bytes, not {}", hello::MOST_NAME, name.len());
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(())
}

/// Of two at random the one with fewer streams.
fn choose(candidates: &[Candidate]) -> Option<&Candidate> {
    let pick = || candidates.get(builder::random().unwrap_or(0) as usize % candidates.len().max(1));
    let (one, other) = (pick()?, pick()?);
    Some(if other.session.streams() < one.session.streams() { other } else { one })
}

/// Opens a stream; `None` if the peer refuses it or is gone.
async fn open(candidate: &Candidate, service: &str) -> Option<Stream> {
    use midplane_via::session::OpenError;
    loop {
        match candidate.session.open(service) {
            Ok(stream) => return stream.accepted().await.is_ok().then_some(stream),
            Err(OpenError::Full) => tokio::task::yield_now().await,
            Err(OpenError::Ended(_)) => return None,
        }
    }
}
