//! Configures a node.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::seal::{Key, SecretKey};
use midplane_via::wire::endpoint::{DEFAULT_PORT_BUFFER, PORT_BUFFERS};
use midplane_via::wire::pipe::congestion::Congestion;

#[cfg(feature = "discovery-gossip")]
use super::gossip::{Gossip, Gossiper};
use super::links::cut;
use super::places::Places;
#[cfg(feature = "discovery-gossip")]
use super::state::Shared;
use super::transports::{Transports, VARIABLE, WORDS};
use super::{Node, check_name, key};
use crate::discovery::{AnyDiscovery, Discovery, List, Place};
use crate::error::{Error, ErrorKind};

/// Default of [`NodeBuilder::connect_timeout`]: 5 s, longer than a service takes to restart.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default of [`NodeBuilder::drain`]: 10 s, longer than most requests take.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(10);
/// Longest of these times, in seconds: a year. Later instants than a clock has would be an error.
const MAX_SECONDS: u64 = 365 * 86_400;

/// Configures a [`Node`]; every setting has a default that suits a service on one host.
#[derive(Clone, Debug)]
#[must_use = "a node runs once `start` was awaited"]
pub struct NodeBuilder {
    pub(super) name: Option<String>,
    pub(super) cluster: String,
    pub(super) bind: Option<SocketAddr>,
    pub(super) discover: Vec<Arc<dyn AnyDiscovery>>,
    /// The text of the error for the first invalid place.
    wrong_place: Option<String>,
    pub(super) key: Option<Key>,
    key_file: Option<PathBuf>,
    identity_file: Option<PathBuf>,
    /// The node's own key, if the cluster has a key, and whether it is kept in a file.
    pub(super) own: Option<(SecretKey, bool)>,
    pub(super) is_trusted: bool,
    pub(super) is_gossiping: bool,
    pub(super) transports: Option<String>,
    #[cfg(feature = "ofi")]
    pub(super) libfabric: Option<String>,
    pub(super) port_buffer: Option<u64>,
    pub(super) congestion: Congestion,
    allows_top: bool,
    pub(super) connect_timeout: Duration,
    pub(super) drain: Duration,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            name: None,
            cluster: std::env::var("MIDPLANE_CLUSTER").unwrap_or_else(|_| "default".into()),
            bind: None,
            discover: Vec::new(),
            wrong_place: None,
            key: None,
            key_file: None,
            identity_file: None,
            own: None,
            is_trusted: false,
            is_gossiping: false,
            transports: None,
            #[cfg(feature = "ofi")]
            libfabric: None,
            port_buffer: None,
            congestion: Congestion::default(),
            allows_top: false,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Returns a time that a clock can add.
const fn bounded(time: Duration) -> Duration {
    if time.as_secs() < MAX_SECONDS { time } else { Duration::from_secs(MAX_SECONDS) }
}

impl NodeBuilder {
    /// Sets the node's name, 1 to 100 bytes, which its peers see. Default: the program's name, its process number, and
    /// a random number.
    ///
    /// Nodes of one cluster need different names. Of two living nodes with one name, the later is not used. Its
    /// [`Node::listen`] and [`Node::connect`] return [`ErrorKind::InUse`](crate::ErrorKind::InUse) once it is notified
    /// of the other; with a [key](NodeBuilder::key_file), they return [`ErrorKind::Key`](crate::ErrorKind::Key).
    ///
    /// A node whose host is silent counts as living for up to 1.5 s over UDP. Over TCP it does so until the connection
    /// ends, which takes up to 30 s.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the cluster: only nodes of one cluster connect. 1 to 40 letters, digits, `-`, `_` and `.`. Default:
    /// `MIDPLANE_CLUSTER` of the environment, or `default`.
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// Sets the address for nodes of other hosts, for UDP and TCP; the system chooses a port for port 0. Default: none
    /// without a [place to discover](NodeBuilder::discover); a port of the loopback address if all places are on this
    /// host; else a port of all addresses of this host.
    ///
    /// Any address but loopback needs a [key](NodeBuilder::key_file), or [`NodeBuilder::trusted_network`].
    pub const fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Adds the places of other nodes: `HOST:PORT`, several separated by commas. Names are resolved anew each time a
    /// service is not found, so a name may have many addresses, and they may change. Not all nodes need to
    /// run. An empty text adds none.
    ///
    /// Places on other hosts need a [key](NodeBuilder::key_file), or [`NodeBuilder::trusted_network`].
    pub fn discover(mut self, places: impl AsRef<str>) -> Self {
        let places = places.as_ref().split(',').map(str::trim).filter(|place| !place.is_empty());
        match places.map(str::parse).collect::<Result<Vec<Place>, _>>() {
            Ok(places) if places.is_empty() => self,
            Ok(places) => self.discover_with(List::new(places)),
            Err(wrong) => {
                self.wrong_place.get_or_insert_with(|| wrong.to_string());
                self
            }
        }
    }

    /// Adds the places of other nodes that a [discovery](crate::discovery) returns: a [`File`](crate::discovery::File)
    /// that may change, a [`Job`](crate::discovery::Job)'s environment, or one of your own.
    pub fn discover_with(mut self, discovery: impl Discovery) -> Self {
        self.discover.push(Arc::new(discovery));
        self
    }

    /// Exchanges the addresses and services of all nodes with other nodes, by gossip. A node begins with its
    /// [places](NodeBuilder::discover): one live node among them is enough. A node that was restarted, or joins late, is
    /// known to the others within about 2 s. One that has ended or is disconnected is no longer listed after about 10 s.
    ///
    /// A node still connects only to nodes whose services it needs. Each node exchanges a few datagrams twice a second
    /// with three others. Clusters of up to 800 nodes gossip, including nodes that ended within the last minute.
    ///
    /// - Gossip needs UDP, also between processes of one host, and an address of this node to which others can send. A
    ///   node that is bound to all addresses of its host reports the one from which it sends to the first place or node
    ///   that it knows. Behind address translation no node knows its own address: do not use gossip there.
    /// - With a [key](NodeBuilder::key_file), gossip is sealed, and the clocks of hosts may differ by a minute at most.
    #[cfg(feature = "discovery-gossip")]
    pub const fn gossip(mut self) -> Self {
        self.is_gossiping = true;
        self
    }

    /// Sets the cluster's key. Nodes without it can neither join, nor read or change the data that nodes send each
    /// other over UDP and TCP.
    pub fn key(mut self, key: Key) -> Self {
        (self.key, self.key_file) = (Some(key), None);
        self
    }

    /// Reads the cluster's [key](NodeBuilder::key) from a file when the node starts: `NUMBER:SECRET`, the secret in 64 hexadecimal
    /// digits. Other users must not be able to read the file.
    ///
    /// ```sh
    /// (umask 077; echo "1:$(openssl rand -hex 32)" > cluster.key)
    /// ```
    pub fn key_file(mut self, path: impl Into<PathBuf>) -> Self {
        (self.key, self.key_file) = (None, Some(path.into()));
        self
    }

    /// Keeps the node's own key in a file, so that the node keeps its name across restarts. If there is no file, the
    /// node creates it, readable by this user only. Each node needs a file of its own.
    ///
    /// Each node with a cluster's [key](NodeBuilder::key_file) proves a key of its own over UDP and TCP (X25519). By
    /// default the key is drawn at each start: the name belongs to the key as long as the node is alive, and is free
    /// afterwards. With a file, each node that has met this one refuses the name to any other key until its own process
    /// ends. If you lose the file, restart those nodes.
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), midplane::Error> {
    /// let node = midplane::Node::builder().name("orders-1").key_file("cluster.key");
    /// let node = node.identity_file("orders-1.key").discover("10.0.0.1:4700").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn identity_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.identity_file = Some(path.into());
        self
    }

    /// Trusts every host that can send to the node's address, so that no key is needed.
    pub const fn trusted_network(mut self) -> Self {
        self.is_trusted = true;
        self
    }

    /// Limits the transports that the node may use, instead of `MIDPLANE_TRANSPORTS` of the environment: some of `shm`,
    /// `ofi` (feature `ofi`), `udp` and `tcp`, in any order, separated by commas. Default: all of them.
    ///
    /// The order of preference is fixed: shared memory between nodes of one host, then libfabric, then UDP, then TCP.
    /// TCP is used if UDP has not answered within 300 ms. A connection keeps its transport until it ends. A node with
    /// UDP and TCP has one port for both. [`Node::explain`] reports the choice.
    ///
    /// With TCP, and without a key, a stream over UDP or TCP moves to a TCP connection of its own once 1 MiB was sent and
    /// its writer has to wait. The system then moves its bytes at the rate of plain TCP, under TCP's congestion control.
    /// A moved stream does not move back. No stream moves if this node or the peer [grants tokens](NodeBuilder::receive_tokens), has
    /// another [congestion control](NodeBuilder::congestion) than the default, or can't reach the other over TCP. Each node
    /// may use up to a quarter of its process's file descriptors for such connections.
    ///
    /// Shared memory needs Linux. Elsewhere `shm` only lets the nodes of one host find each other, over UDP or TCP.
    pub fn transports(mut self, allowed: impl Into<String>) -> Self {
        self.transports = Some(allowed.into());
        self
    }

    /// Chooses a provider of libfabric, instead of `MIDPLANE_OFI` of the environment: `PROVIDER[/DOMAIN][@ADDRESS]`,
    /// like `efa` or `tcp@10.0.0.1`. Default: that of a hardware NIC, if there is one. Without a provider, libfabric is
    /// not used.
    ///
    /// Two nodes that have connected over UDP or TCP, and have the same provider, open a session over it: the transport
    /// `ofi`. New streams use it, and wait up to 300 ms for it; open streams keep their transport. `midplane doctor`
    /// lists the providers of a host.
    #[cfg(feature = "ofi")]
    pub fn libfabric(mut self, provider: impl Into<String>) -> Self {
        self.libfabric = Some(provider.into());
        self
    }

    /// Grants tokens to the nodes that send to this one over UDP: they take turns, so that many senders together never
    /// overflow the switch's port before this node. The senders need no configuration; small messages need no token.
    /// Default: off.
    ///
    /// Assumes a port buffer of 64 KiB, as in switches with shallow buffers; [`NodeBuilder::port_buffer`] sets another
    /// size. At most half of the buffer arrives in each round trip: with 64 KiB, 160 MB/s at 0.2 ms, 32 MB/s at 1 ms.
    pub const fn receive_tokens(self) -> Self {
        self.port_buffer(DEFAULT_PORT_BUFFER)
    }

    /// Grants tokens like [`NodeBuilder::receive_tokens`], for a port whose buffer has `bytes`: the smallest buffer on
    /// the path to this node. 8 KiB to 1 GiB; other sizes are an [`ErrorKind::Config`].
    pub const fn port_buffer(mut self, bytes: u64) -> Self {
        self.port_buffer = Some(bytes);
        self
    }

    /// Sets the congestion control of the data that this node sends over UDP. Default: [`Congestion::Cubic`]. Peers
    /// need no configuration. [`Node::explain`] names it.
    ///
    /// ```
    /// let node = midplane::Node::builder().congestion(midplane::Congestion::Warp);
    /// ```
    pub const fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// Lets other nodes of the cluster read this node's [report](crate::top), which `midplane top` shows. Default: off.
    ///
    /// Each process that may connect to this node can then read the report: the names, addresses and transports of its
    /// peers, the names of its services, its counters, and the memory of its process. These processes are this user's
    /// on this host, and elsewhere the holders of the cluster's [key](NodeBuilder::key_file). Without a key, they are
    /// all that reach the node's address. The report can't change anything.
    pub const fn allow_top(mut self) -> Self {
        self.allows_top = true;
        self
    }

    /// Limits how long [`Node::connect`] waits for a service that no node offers; with zero it does not wait. Default:
    /// [`DEFAULT_CONNECT_TIMEOUT`].
    pub const fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = bounded(time);
        self
    }

    /// Limits how long [`Node::shutdown`] waits for streams to end. Default: [`DEFAULT_DRAIN`].
    pub const fn drain(mut self, time: Duration) -> Self {
        self.drain = bounded(time);
        self
    }

    /// Starts the node, and its task on the current runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an invalid name, place, file of places or key file, for an address that other hosts reach
    /// without a key, and for an identity file or a place's key without the cluster's key. [`ErrorKind::InUse`] if another
    /// process has the address, [`ErrorKind::System`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub async fn start(mut self) -> Result<Node, Error> {
        #[cfg(feature = "sim")]
        self.on_simulated_host()?;
        if let Some(name) = &self.name {
            check_name("a node's name", name)?;
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=40).contains(&self.cluster.len()) || !self.cluster.chars().all(is_plain) {
            let text = format!(
                "a cluster's name has 1 to 40 letters, digits, '-', '_' and '.': {:?} has others",
                self.cluster
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        if let Some(wrong) = self.wrong_place.take() {
            return Err(Error::new(ErrorKind::Config, wrong));
        }
        if let Some(path) = self.key_file.take() {
            self.key = Some(key::read(&path)?);
        }
        if let Some(bytes) = self.port_buffer.filter(|bytes| !PORT_BUFFERS.contains(bytes)) {
            let text = format!(
                "a port's buffer has 8 KiB to 1 GiB, not {bytes} bytes: name that of the narrowest port before the node, \
                 or call `receive_tokens` if you don't know it"
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        let transports = self.allowed()?;
        if self.port_buffer.is_some() && !transports.udp() {
            let text = "tokens are for senders over UDP, which the node may not use: add `udp` to its transports";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let places = Places::new(std::mem::take(&mut self.discover)).await?;
        self.own = self.own_key(&places)?;
        let address = self.address(transports, &places)?;
        let allows_top = self.allows_top;
        let node = Node::start(self, transports, address, Arc::new(places)).await?;
        if allows_top {
            node.serve_top()?;
        }
        Ok(node)
    }

    /// Returns the node's own key and whether it is kept, if the cluster has a key to prove it under.
    fn own_key(&self, places: &Places) -> Result<Option<(SecretKey, bool)>, Error> {
        let Some(path) = &self.identity_file else {
            return match places.keyed() {
                Some(place) if self.key.is_none() => {
                    Err(no_cluster_key(&format!("{place} is listed with the key of its node")))
                }
                _ if self.key.is_none() => Ok(None),
                _ => {
                    let own = SecretKey::generate().map_err(io::Error::other);
                    let failed = |error| Error::system("the node can't make a key", error);
                    Ok(Some((own.map_err(failed)?, false)))
                }
            };
        };
        if self.key.is_none() {
            return Err(no_cluster_key(&format!("the identity file {}", path.display())));
        }
        Ok(Some((key::read_or_make(path)?, true)))
    }

    /// Returns the transports that the node may use.
    fn allowed(&self) -> Result<Transports, Error> {
        match (&self.transports, std::env::var(VARIABLE)) {
            (Some(list), _) => Transports::parse(list, "NodeBuilder::transports"),
            (None, Ok(list)) => Transports::parse(&list, VARIABLE),
            (None, Err(_)) => Transports::parse(&WORDS.join(","), VARIABLE),
        }
    }

    /// Returns the address of the node's sockets, if it has any.
    fn address(
        &self,
        transports: Transports,
        places: &Places,
    ) -> Result<Option<SocketAddr>, Error> {
        let is_open = self.key.is_some() || self.is_trusted;
        if let Some(bind) = self.bind.filter(|bind| !bind.ip().is_loopback() && !is_open) {
            let text = format!(
                "{bind} is reached from other hosts: give the node a key, or call `trusted_network`"
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        if !transports.udp() && !transports.tcp() {
            return Ok(None);
        }
        if self.bind.is_some() {
            return Ok(self.bind);
        }
        // Without shared memory, nodes of this host connect over UDP or TCP.
        let has_rings = transports.shm() && cfg!(target_os = "linux");
        let is_needed = self.key.is_some() || !has_rings || self.is_gossiping;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(places.own_address(is_open)?.or_else(|| is_needed.then_some(loopback)))
    }

    /// Starts to gossip, if that is configured.
    #[cfg(feature = "discovery-gossip")]
    pub(super) fn start_gossip(
        &self,
        shared: &Arc<Shared>,
        places: &Arc<Places>,
        bound: Option<SocketAddr>,
    ) -> Result<Option<Arc<Gossip>>, Error> {
        if !self.is_gossiping {
            return Ok(None);
        }
        let datagrams = shared.sessions().begin_gossip(&self.cluster);
        let datagrams = datagrams.map_err(|error| Error::system("the node can't gossip", error))?;
        let Some((datagrams, bound)) = datagrams.zip(bound) else {
            let text =
                "gossip travels in datagrams of UDP: allow `udp` among the node's transports";
            return Err(Error::new(ErrorKind::Config, text.to_owned()));
        };
        let gossip = Arc::<Gossip>::default();
        let gossiper = Gossiper {
            gossip: Arc::clone(&gossip),
            datagrams,
            shared: Arc::clone(shared),
            places: Arc::clone(places),
            cluster: self.cluster.clone(),
            bound,
        };
        shared.on_end(tokio::spawn(gossiper.run()).abort_handle());
        Ok(Some(gossip))
    }

    /// Returns the node's name. The default is the program's name, made unique by the node's number.
    pub(super) fn resolved_name(&self, id: u64) -> String {
        self.name.clone().unwrap_or_else(|| {
            let program = std::env::args_os().next().unwrap_or_default();
            let program = std::path::Path::new(&program).file_name().unwrap_or_default();
            let program = cut(&program.to_string_lossy(), 60);
            format!("{program}-{}-{:08x}", std::process::id(), id >> 32)
        })
    }
}

fn no_cluster_key(what: &str) -> Error {
    let text = format!(
        "{what}: nodes prove their keys under the cluster's: give the node one (`NodeBuilder::key_file`)"
    );
    Error::new(ErrorKind::Config, text)
}
