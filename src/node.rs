//! A node: joins a cluster, offers services by name, and connects to those of other nodes.

mod builder;
mod connector;
mod dials;
mod explain;
#[cfg(feature = "discovery-gossip")]
mod gossip;
pub(crate) mod host;
mod key;
pub(crate) mod links;
mod listener;
mod local;
pub(crate) mod mailbox;
pub(crate) mod meter;
mod network;
#[cfg(feature = "ofi")]
mod ofi;
mod places;
mod search;
#[cfg(feature = "sim")]
mod simulated;
mod sockets;
mod state;
pub mod top;
mod transports;
mod unreached;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use midplane_simhw::seal::{PublicKey, SecretKey};
use midplane_via::session::{Driver, Session, Sessions, Stream};
use midplane_via::wire::pipe::Config;
use midplane_via::wire::socket::Socket;
use midplane_via::wire::tcp;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument;

use crate::call::Serving;
use crate::error::{Error, ErrorKind};
use crate::member::{self, Hello, MAX_NAME, Members, VERSION};
pub use builder::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_DRAIN, NodeBuilder};
pub use connector::Connector;
pub use explain::{Explanation, FailedDial, PeerPath, ReceiveTokens, UnusedReason};
use links::Links;
#[cfg(feature = "tonic")]
pub use listener::{Incoming, NamedStream};
pub use listener::{Listener, PeerName};
use local::{Listening, Local, System};
use places::Places;
use search::Search;
use sockets::Sockets;
pub use state::PeerInfo;
use state::{Candidate, Receiver, Shared};
use transports::Transports;

/// The period in which a node that waits for a service searches for new nodes.
const SEARCH_PERIOD: Duration = Duration::from_millis(50);
/// The nanoseconds of silence after which a peer over UDP is pinged. They determine how soon the end of a process is
/// detected.
const KEEPALIVE_NANOS: u64 = 700_000_000;
/// The nanoseconds after which a dial without an answer ends: its place is dialed again within the 5 s of a `connect`, over
/// TCP too, whose listener may have started meanwhile.
const DIAL_NANOS: u64 = 3_000_000_000;
/// Limit of the time in which a node must describe itself, or accept a stream, before others are tried.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_nanos(member::DESCRIBE);
/// The longest pause between two attempts to open a stream over a session whose wire has no room.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Limit of the time in which [`Node::shutdown`] waits for its sockets to be closed. Notifying peers over UDP takes at
/// most 1 s.
const CLOSE: Duration = Duration::from_secs(2);

/// A node of a cluster: [listens](Node::listen) and [connects](Node::connect) by the names of services.
///
/// Clones are the same node. When the last clone and the last of its connectors are dropped, the node and its streams
/// end, and its listeners return [`ErrorKind::Closed`]. Keep the node as long as they serve. [`Node::shutdown`] lets
/// streams end first.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    shared: Arc<Shared>,
    search: Search,
    drain: Duration,
    connect_timeout: Duration,
    links: Links,
    allowed: Transports,
    is_sealed: bool,
    /// Bytes of the port's buffer, if this node grants tokens to senders over UDP.
    port_buffer: Option<u64>,
    /// Serves the node's report, if that is allowed.
    top: OnceLock<Serving>,
    public: Option<PublicKey>,
    /// Closed when the tasks that have sockets have ended.
    sockets: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Node {
    /// Returns the builder of a node. By default, the node connects to the other nodes of this user on this host.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    async fn start(
        builder: NodeBuilder,
        allowed: Transports,
        address: Option<SocketAddr>,
        places: Arc<Places>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::system("the node can't start", error);
        let sockets = match address {
            Some(address) => Some(Sockets::bind(address, allowed).await?),
            None => None,
        };
        let address = sockets.as_ref().map(|sockets| sockets.address);
        let (udp, tcp) = sockets.map_or((None, None), |sockets| (sockets.udp, sockets.tcp));
        let (own, is_kept) = builder.own.as_ref().map(|(own, kept)| (own, *kept)).unzip();
        let (public, is_kept) = (own.map(SecretKey::public), is_kept == Some(true));
        let (sessions, driver) = make_sessions(&builder, udp, tcp.is_some()).map_err(failed)?;
        #[cfg(feature = "ofi")]
        let ofi = ofi::Ofi::of(&builder, allowed).await?;
        let id = host::random().map_err(failed)?.max(1);
        let name = builder.resolved_name(id);
        let hello = describe(&builder, (id, &name), public, is_kept);
        #[cfg(feature = "ofi")]
        let hello =
            Hello { ofi: ofi.as_ref().map(|ofi| ofi.describe()).unwrap_or_default(), ..hello };
        tracing::info!(name, key = public.map(tracing::field::display), is_kept, "a node starts");
        let local = allowed.shm().then(|| Local::new(&builder.cluster, id));
        let listener = local.as_ref().map(|local| local.bind(address));
        let listener = listener.transpose().map_err(failed)?;
        let network = Box::new(System { sessions: sessions.clone(), local });
        let members = Members::new(&hello, address);
        let shared = Shared::new(sessions, network, hello, members);
        #[cfg(feature = "ofi")]
        if let Some(ofi) = ofi {
            shared.serve_ofi(ofi);
        }
        #[cfg(feature = "discovery-gossip")]
        let gossip = builder.start_gossip(&shared, &places, address);
        #[cfg(feature = "discovery-gossip")]
        let gossip = gossip.inspect_err(|_| shared.close())?;
        let span = tracing::info_span!("node", name, id = %format_args!("{id:016x}"));
        let sockets = spawn_tasks(&shared, &span, driver, listener, tcp);
        let NodeBuilder { drain, connect_timeout, key, port_buffer, .. } = builder;
        let search = Search {
            shared: Arc::clone(&shared),
            address,
            places,
            #[cfg(feature = "discovery-gossip")]
            gossip,
        };
        let inner = Inner {
            name,
            shared,
            search,
            drain,
            connect_timeout,
            links: Links::default(),
            allowed,
            is_sealed: key.is_some(),
            port_buffer,
            top: OnceLock::new(),
            public,
            sockets: tokio::sync::Mutex::new(sockets),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Offers a service: nodes that connect to it reach the listener.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if this node offers it already, [`ErrorKind::Config`] for a name that is empty or has more
    /// than 100 bytes, [`ErrorKind::Closed`]. [`ErrorKind::InUse`] as well if an earlier node has this one's name, and
    /// [`ErrorKind::Key`] if another node refuses this one because its name belongs to another key.
    pub async fn listen(&self, service: &str) -> Result<Listener, Error> {
        check_name("a service's name", service)?;
        if let Some(text) = self.0.shared.notice() {
            return Err(Error::new(ErrorKind::Key, text));
        }
        self.offer(service.to_owned())
    }

    /// Connects to a node that offers a service. Of two chosen at random among the nearest, takes the one with fewer
    /// streams.
    ///
    /// If no node offers it, waits for one for the time of [`NodeBuilder::connect_timeout`]. Skips a node that does not
    /// answer within a second until it answers again.
    ///
    /// # Errors
    /// [`ErrorKind::NoService`], with the nodes that were asked; [`ErrorKind::Busy`] if those that offer it have not
    /// accepted; [`ErrorKind::Version`] if only nodes of another version were found; [`ErrorKind::Key`] if the keys of
    /// all nodes found do not fit, or they refuse this node's; [`ErrorKind::InUse`] if an earlier node has this one's
    /// name; [`ErrorKind::Config`], [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped, no stream is open.
    pub async fn connect(&self, service: &str) -> Result<Stream, Error> {
        check_name("a service's name", service)?;
        let node = &*self.0.name;
        let span = tracing::debug_span!(
            "connect",
            node,
            service,
            peer = tracing::field::Empty,
            transport = tracing::field::Empty
        );
        let connected = self.connect_nearest(service).instrument(span.clone()).await;
        if let (Ok(stream), false) = (&connected, span.is_disabled()) {
            span.record("peer", self.0.shared.peer_name(stream));
            span.record("transport", stream.session().transport().name());
        }
        connected
    }

    async fn connect_nearest(&self, service: &str) -> Result<Stream, Error> {
        let (mut refused, until) = (BTreeSet::new(), self.search_deadline());
        loop {
            let candidates = self.find(service, &mut refused, until, |_| true).await?;
            let choices: Vec<_> = candidates.iter().map(|candidate| candidate.choice).collect();
            let at = member::choose(&choices, host::random().unwrap_or(0));
            let chosen = &candidates[at.expect("it has found one")];
            if let Some(stream) = self.open_at(chosen, service).await {
                return Ok(stream);
            }
            refused.insert(chosen.session.number());
        }
    }

    /// Opens a stream to a candidate; `None` if it refuses, has ended, or does not answer in time, perhaps because it
    /// is suspended.
    pub(crate) async fn open_at(&self, chosen: &Candidate, service: &str) -> Option<Stream> {
        let shared = Arc::clone(&self.0.shared);
        let (candidate, name) = (chosen.clone(), service.to_owned());
        let opening = async move { open(&shared, &candidate, &name).await };
        let mut opening = Box::pin(opening);
        let opened = tokio::time::timeout(ANSWER_WITHIN, &mut opening).await;
        let is_slow = opened.is_err();
        let may_change = is_slow || chosen.choice.rank.0;
        if may_change && self.0.shared.on_answer(chosen, is_slow) && is_slow {
            // Any late answer shows that it is no longer slow; one stream waits for it. The task ends with the session.
            let (shared, chosen) = (Arc::clone(&self.0.shared), chosen.clone());
            self.runtime().spawn(async move {
                drop(opening.await);
                shared.on_answer(&chosen, false);
            });
        }
        opened.ok().flatten()
    }

    /// Returns a `tower` service that connects to the service with each call, for tonic (feature `tonic`),
    /// hyper-util's client (feature `hyper`) and others.
    #[must_use]
    pub fn connector(&self, service: &str) -> Connector {
        Connector::new(self.clone(), service.to_owned())
    }

    /// Returns the node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the public key that the node proves to others, for their lists of places; `None` without the cluster's
    /// key.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.0.public
    }

    /// Returns the nodes that this one is connected to.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.0.shared.peers()
    }

    /// Returns the address at which nodes of other hosts reach this one, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.search.address
    }

    /// Ends the node when both directions of its streams have ended and what was written has left this process, or after the
    /// time of [`NodeBuilder::drain`]. Over UDP the peer has acknowledged it then. Over TCP (also a stream's own
    /// connection) and libfabric, the system has it, and the connections are closed within another second. Meanwhile
    /// peers open no streams to the node. When this returns, another node may use its address.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node ends at once.
    pub async fn shutdown(self) {
        let shared = &self.0.shared;
        let closing = Closing(shared);
        shared.leave();
        self.0.links.leave();
        let until = Instant::now() + self.0.drain;
        while shared.live().iter().any(|session| is_busy(session)) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(closing);
        // The channel carries no messages: `recv` returns when the last sender is dropped.
        let closed = async { self.0.sockets.lock().await.recv().await };
        let _ = tokio::time::timeout(CLOSE, closed).await;
    }
}

/// Ends a node at once when it is dropped.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Creates the sessions of a node and their driver: over shared memory, over UDP with a socket, and over TCP if it is
/// open.
fn make_sessions(
    builder: &NodeBuilder,
    udp: Option<Socket>,
    is_tcp_open: bool,
) -> io::Result<(Sessions, Driver)> {
    let own = builder.own.as_ref().map(|(own, _)| own.clone());
    let udp = udp.map(|socket| {
        let config = Config::default().key(builder.key.clone()).own_key(own.clone());
        let config = match builder.port_buffer {
            Some(bytes) => config.receive_tokens(bytes),
            None => config,
        };
        let config = config.congestion(builder.congestion.factory());
        (socket, config.keepalive(KEEPALIVE_NANOS).dial_timeout(DIAL_NANOS))
    });
    // Tokens and other laws control all data: the system's TCP has its own law.
    let is_law_free =
        builder.port_buffer.is_none() && builder.congestion == crate::Congestion::default();
    let tcp = is_tcp_open.then(|| {
        let config = tcp::Config::default().key(builder.key.clone()).own_key(own);
        if is_law_free { config.own_connections() } else { config }
    });
    Sessions::new(udp, tcp)
}

/// Returns the description of a node that offers no service yet.
fn describe(
    builder: &NodeBuilder,
    (id, name): (u64, &str),
    public: Option<PublicKey>,
    is_kept: bool,
) -> Hello {
    Hello {
        version: VERSION,
        cluster: builder.cluster.clone(),
        id,
        incarnation: host::milliseconds(),
        name: name.to_owned(),
        services: Vec::new(),
        rival: 0,
        key: public.map_or([0; 32], |public| *public.bytes()),
        is_kept,
        refusal: 0,
        ofi: Vec::new(),
    }
}

/// Spawns the tasks of a node. The returned channel is closed when the tasks that have sockets have ended.
fn spawn_tasks(
    shared: &Arc<Shared>,
    span: &tracing::Span,
    driver: Driver,
    listener: Option<Listening>,
    tcp: Option<TcpListener>,
) -> mpsc::Receiver<()> {
    let (open, sockets) = mpsc::channel::<()>(1);
    // Dropped after the task's socket.
    let spawn = |task: Pin<Box<dyn Future<Output = ()> + Send>>| {
        let open = open.clone();
        let task = async move {
            let _open = open;
            task.await;
        };
        tokio::spawn(task.instrument(span.clone()))
    };
    if let Some(listener) = listener {
        let accepting = spawn(Box::pin(local::accept(listener, Arc::downgrade(shared))));
        shared.on_end(accepting.abort_handle());
    }
    if let Some(listener) = tcp {
        let accepting = spawn(Box::pin(sockets::accept(listener, Arc::downgrade(shared))));
        shared.on_end(accepting.abort_handle());
    }
    let timeouts = Arc::clone(shared).run_timeouts().instrument(span.clone());
    shared.on_end(tokio::spawn(timeouts).abort_handle());
    shared.on_end(tokio::spawn(meter::run(Arc::downgrade(shared))).abort_handle());
    spawn(Box::pin(driver.run(Receiver(Arc::clone(shared)))));
    sockets
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the node was shut down: keep a clone of it as long as it is used",
    )
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_NAME {
        let text = format!("{what} has 1 to {} bytes, not {}", MAX_NAME, name.len());
        return Err(Error::new(ErrorKind::Config, text));
    }
    if name.starts_with(links::RESERVED) {
        let text = format!("names that begin with {:?} are reserved", links::RESERVED);
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(())
}

/// Returns whether a session still carries bytes for its streams. Bytes to a silent peer count for nothing.
fn is_busy(session: &Session) -> bool {
    let is_unsent = || !session.is_flushed() && !session.is_suspected();
    session.ended().is_none() && (session.streams_in_use() > 0 || is_unsent())
}

/// Opens a stream; `None` if the peer refuses it or has ended.
async fn open(shared: &Shared, candidate: &Candidate, service: &str) -> Option<Stream> {
    use midplane_via::session::OpenError;
    let mut pause = Duration::from_millis(1);
    loop {
        match candidate.session.open(service) {
            Ok(mut stream) => {
                let opened = stream.accepted().await;
                let transport = candidate.session.transport().name();
                tracing::debug!(service, transport, error = ?opened.as_ref().err(), "a stream opens");
                if opened.is_err() {
                    shared.on_refused(service);
                    return None;
                }
                shared.on_opened(&mut stream, service);
                return Some(stream);
            }
            // The peer may be suspended.
            Err(OpenError::Full) => {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(FULL_PAUSE);
            }
            Err(OpenError::Ended(_)) => return None,
        }
    }
}
