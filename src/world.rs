//! Messages by MPI's rules between nodes: ranks, tags, collective operations.
//!
//! ```
//! use midplane::Node;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let cluster = format!("doc-{}", std::process::id());
//! # let other = Node::builder().cluster(&cluster).start().await?;
//! # let other = tokio::spawn(async move {
//! #     let world = other.world("sum", 1, 2).await.unwrap();
//! #     world.all_gather_value(&2_u64).await.unwrap();
//! #     world.finalize().await;
//! # });
//! # let node = Node::builder().cluster(&cluster).start().await?;
//! // The first of two processes; the other one is rank 1.
//! let world = node.world("sum", 0, 2).await?;
//! let values = world.all_gather_value(&40_u64).await?;
//! assert_eq!(values, [40, 2]);
//! world.finalize().await;
//! # other.await?;
//! # Ok(())
//! # }
//! ```
//!
//! Packets to a process of the same host go through shared memory, if it is available; those to other hosts go through
//! a stream of the node. If the stream breaks, and the process is found again within 2 s, nothing is lost. The end of a
//! process is reported to each operation that waits for it. Another process that joins with its rank takes its place.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::shm::ShmConfig;
use midplane_via::lanes::LaneCarrier;
use midplane_via::message::carrier::Carrier;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Peer;
use midplane_via::message::streams::{StreamCarrier, StreamFeed, StreamSource};
use midplane_via::message::wires::Wires;
use midplane_via::session::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::error::{Error, ErrorKind};
use crate::node::host::{milliseconds, random};
use crate::node::links::Kind;
use crate::node::{Listener, Node};

/// The first bytes of the streams between ranks. The dialer's rank and the number of ranks follow, 4 bytes each.
const MAGIC: &[u8; 8] = b"midmpi 1";
/// Most ranks of a world: 1,024.
pub const MAX_RANKS: u32 = 1_024;
/// Time for which a process whose connection has broken is searched for before it counts as lost: 2 s.
pub const REJOIN: Duration = Duration::from_secs(2);
/// Limit of the time in which the dialer of a stream must send its rank.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a packet: the most that a stream carries without a handshake. A multiple of the page size, so that the
/// areas of the rings share no page.
const PACKET: usize = 60 << 10;
/// The pause before a process that has refused is dialed again.
const PAUSE: Duration = Duration::from_millis(50);

impl Node {
    /// Joins the world `name` as `rank` of `size` processes, and waits until it is connected to all others.
    ///
    /// Each process calls this once with its own rank, 0 to `size - 1`. Each node must find those of lower ranks: on
    /// other hosts, by a list of all ([`discover`](crate::NodeBuilder::discover)) or by gossip. A restarted process
    /// calls it again with its former rank. The communicator keeps the node running until its last handle is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::NoService`], with the ranks that are missing, if they have not joined within the time of
    /// [`connect_timeout`](crate::NodeBuilder::connect_timeout). [`ErrorKind::InUse`] if this node is in the world
    /// already, [`ErrorKind::Config`] for a rank that is not below `size`, for more than [`MAX_RANKS`], or a name of
    /// more than 70 bytes, [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the process has left the world.
    pub async fn world(&self, name: &str, rank: u32, size: u32) -> Result<Communicator, Error> {
        if rank >= size || size > MAX_RANKS {
            let text = format!(
                "rank {rank} of {size} processes: ranks are from 0 to the number of processes less 1, and a world has \
                 at most {MAX_RANKS}"
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        let (streams, feed) = StreamCarrier::new(Peer(rank), size);
        let source = feed.source();
        let world = Arc::new(World {
            node: self.clone(),
            name: name.to_owned(),
            rank,
            size,
            source,
            met: Mutex::default(),
            changed: Notify::new(),
        });
        let listener = self.offer(world.service(rank)?)?;
        tokio::spawn(Arc::clone(&world).accept(listener));
        tokio::spawn(Arc::clone(&world).serve(feed));
        let mut carriers: Vec<Box<dyn Carrier>> = vec![Box::new(streams)];
        let host =
            self.rings(&world).map(|rings| carriers.push(Box::new(rings))).and_then(|()| host());
        // Distinguishes processes that are started within a millisecond.
        let low = random().map_err(|error| Error::system("the node can't join", error))? >> 48;
        let identity = milliseconds() << 16 | low;
        let wires = Wires::new(identity, host.unwrap_or(0), carriers);
        let engine = Engine::new(wires, Config::default());
        let joined = Communicator::world(engine, size);
        let joined = joined.map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
        world.wait_for_all(self.search_deadline()).await?;
        Ok(joined)
    }

    /// Opens the rings to processes of the same host, if shared memory is allowed.
    fn rings(&self, world: &World) -> Option<LaneCarrier> {
        if !self.shares_memory() || world.size < 2 {
            return None;
        }
        let name = format!("world-{:016x}", hash(&(self.cluster(), &world.name)));
        let nodes = u16::try_from(world.size).expect("it was checked");
        let own = NodeId(u16::try_from(world.rank).expect("it was checked"));
        let config = ShmConfig::new(name, own, nodes).mtu(PACKET);
        match LaneCarrier::open(&config) {
            Ok(rings) => Some(rings),
            Err(error) => {
                tracing::debug!(%error, "no memory is shared with other ranks");
                None
            }
        }
    }
}

/// Identifies the processes that can share memory: same host, network namespace and user. `None` if the system does not
/// report these.
fn host() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(hash(&(boot, network, rustix::process::geteuid().as_raw())).max(1))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A process's connections to the others of a world.
#[derive(Debug)]
struct World {
    node: Node,
    name: String,
    rank: u32,
    size: u32,
    source: StreamSource<Stream>,
    /// Number of streams made to each process so far.
    met: Mutex<BTreeMap<u32, u64>>,
    /// Notified when a stream to a process was made.
    changed: Notify,
}

impl World {
    /// Returns the name of the service of a rank.
    fn service(&self, rank: u32) -> Result<String, Error> {
        Kind::World.service(&format!("{}:{rank}", self.name))
    }

    /// Returns how many streams to the process were made.
    fn times_met(&self, rank: u32) -> u64 {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.get(&rank).copied().unwrap_or(0)
    }

    /// Passes a stream to the carrier; returns `false` if the process has left the world.
    fn connect(&self, rank: u32, stream: Stream) -> bool {
        *self.met.lock().unwrap_or_else(PoisonError::into_inner).entry(rank).or_insert(0) += 1;
        self.changed.notify_waiters();
        self.source.connect(Peer(rank), stream)
    }

    /// Waits until there was a stream to each other process.
    async fn wait_for_all(&self, until: Instant) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            let is_missing = |rank: &u32| *rank != self.rank && self.times_met(*rank) == 0;
            let missing: Vec<_> =
                (0..self.size).filter(is_missing).map(|rank| rank.to_string()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if timeout_at(until, changed).await.is_err() {
                let (name, missing) = (&self.name, missing.join(", "));
                let text = format!(
                    "of the world {name:?} of {}, these ranks have not joined: {missing}; they do not run, have another \
                     size, or are not found: `Node::explain` names the places that did not answer",
                    self.size
                );
                return Err(Error::new(ErrorKind::NoService, text));
            }
        }
    }

    /// Accepts the streams of processes with higher ranks.
    async fn accept(self: Arc<Self>, mut listener: Listener) {
        let mut peers = self.node.links();
        loop {
            let accepted = tokio::select! {
                biased;
                () = peers.left() => return,
                () = self.source.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else { return };
            let world = Arc::clone(&self);
            tokio::spawn(async move {
                if let Err(error) = world.greeted(stream).await {
                    tracing::warn!(%from, world = world.name, %error, "a process can't join");
                }
            });
        }
    }

    /// Takes a stream whose dialer sends its rank.
    async fn greeted(&self, mut stream: Stream) -> io::Result<()> {
        let mut greeting = [0; 16];
        timeout(GREETING_WITHIN, stream.read_exact(&mut greeting)).await??;
        let (magic, numbers) = greeting.split_at(MAGIC.len());
        let (words, _) = numbers.as_chunks::<4>();
        let [rank, size] = [words[0], words[1]].map(u32::from_le_bytes);
        let wrong = if magic != MAGIC {
            "it speaks another protocol: run one version in all processes".to_owned()
        } else if size != self.size {
            format!("it takes the world for one of {size} processes, this one for {}", self.size)
        } else if rank <= self.rank || rank >= size {
            format!("rank {rank} does not connect to rank {}", self.rank)
        } else {
            self.connect(rank, stream);
            return Ok(());
        };
        stream.reset();
        Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
    }

    /// Connects the processes that the carrier requests.
    async fn serve(self: Arc<Self>, mut feed: StreamFeed<Stream>) {
        let mut peers = self.node.links();
        loop {
            let wanted = tokio::select! {
                biased;
                () = peers.left() => return,
                wanted = feed.wanted() => wanted,
            };
            let Some(Peer(rank)) = wanted else { return };
            let world = Arc::clone(&self);
            if rank < self.rank {
                tokio::spawn(world.dial(rank));
            } else if rank > self.rank {
                tokio::spawn(world.expect(rank));
            }
        }
    }

    /// Returns until when to wait for a process.
    fn deadline(&self, rank: u32) -> Instant {
        match self.times_met(rank) {
            0 => self.node.search_deadline(),
            _ => Instant::now() + REJOIN,
        }
    }

    /// Waits for a process to dial; reports it as lost if it does not in time.
    async fn expect(self: Arc<Self>, rank: u32) {
        let (before, until) = (self.times_met(rank), self.deadline(rank));
        tokio::select! {
            biased;
            () = self.source.closed() => {}
            () = sleep_until(until) => {
                if self.times_met(rank) == before {
                    self.source.lose(Peer(rank));
                }
            }
        }
    }

    /// Dials a process until it answers; reports it as lost if that takes too long.
    async fn dial(self: Arc<Self>, rank: u32) {
        let Ok(service) = self.service(rank) else { return };
        let (mut refused, until) = (BTreeSet::new(), self.deadline(rank));
        let dialing = async {
            loop {
                if Instant::now() >= until {
                    self.source.lose(Peer(rank));
                }
                let found = self.node.find(&service, &mut refused, until, |_| true).await;
                match found {
                    Ok(found) => {
                        if let Some(stream) = self.greet(&found[0], &service).await {
                            self.connect(rank, stream);
                            return;
                        }
                        refused.insert(found[0].session.number());
                        sleep(PAUSE).await;
                    }
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        let mut peers = self.node.links();
        tokio::select! {
            biased;
            () = peers.left() => {}
            () = self.source.closed() => {}
            () = dialing => {}
        }
    }

    /// Opens a stream, and sends this process's rank.
    async fn greet(
        &self,
        candidate: &crate::node::links::Candidate,
        service: &str,
    ) -> Option<Stream> {
        let mut stream = self.node.open(candidate, service, Instant::now()).await?;
        let mut greeting = MAGIC.to_vec();
        greeting.extend_from_slice(&self.rank.to_le_bytes());
        greeting.extend_from_slice(&self.size.to_le_bytes());
        timeout(GREETING_WITHIN, stream.write_all(&greeting)).await.ok()?.ok()?;
        Some(stream)
    }
}
