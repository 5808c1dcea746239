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
//! #     other.shutdown().await;
//! # });
//! # let node = Node::builder().cluster(&cluster).start().await?;
//! // The first of two processes; the other one is rank 1.
//! let world = node.world("sum", 0, 2).await?;
//! let values = world.all_gather_value(&40_u64).await?;
//! assert_eq!(values, [40, 2]);
//! world.finalize().await;
//! node.shutdown().await;
//! # other.await?;
//! # Ok(())
//! # }
//! ```
//!
//! Packets to a process of the same host go through shared memory, if it is available; those to other hosts go through
//! a stream of the node. If the stream breaks, and the process is found again within 2 s, nothing is lost. The end of a
//! process is reported to each operation that waits for it. Another process that joins with its rank takes its place: if
//! the former one still runs, it loses the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::lock::lock;
use midplane_simhw::nic::StartError;
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
use crate::node::links::{Kind, Offer};
use crate::node::{Listener, Node, PeerName};

/// The first bytes of the streams between ranks, in both directions. The dialer's are followed by its rank and the number of
/// ranks, 4 bytes each. The other process answers once it has admitted the dialer.
const MAGIC: &[u8; 8] = b"midmpi 2";
/// Begins the answer to a dialer with another number of ranks; that of the answering process follows, 2 bytes.
const OTHER_SIZE: &[u8; 6] = b"midsiz";
/// Most ranks of a world: 1,024.
pub const MAX_RANKS: u32 = 1_024;
/// Time for which a process whose connection has broken is searched for before it counts as lost: 2 s.
pub const REJOIN: Duration = Duration::from_secs(2);
/// Limit of the time in which the dialer of a stream must send its rank, and of the time for the answer.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a packet: the most that a stream carries without a handshake. A multiple of the page size, so that the
/// areas of the rings share no page.
const PACKET: usize = 60 << 10;
/// The pause before a process that has refused is dialed again.
const PAUSE: Duration = Duration::from_millis(50);
/// Time that a process which has left may take to give its rings back: 500 ms.
const GIVEN_BACK: Duration = Duration::from_millis(500);
/// Most former processes of a rank that are refused.
const MAX_FORMER: usize = 8;

impl Node {
    /// Joins the world `name` as `rank` of `size` processes, and waits until it is connected to all others.
    ///
    /// Each process calls this once with its own rank, 0 to `size - 1`. Each node must find those of lower ranks: on
    /// other hosts, by a list of all ([`discover`](crate::NodeBuilder::discover)) or by gossip. A restarted process
    /// calls it again with its former rank. The communicator keeps the node running until its last handle is dropped.
    /// Before a process exits, it must wait for [`Node::shutdown`] after [`Communicator::finalize`]: the last messages to
    /// other hosts may still be in the node's streams.
    ///
    /// # Errors
    /// [`ErrorKind::NoService`], with the ranks that are missing, if they have not joined within the time of
    /// [`connect_timeout`](crate::NodeBuilder::connect_timeout); [`ErrorKind::Config`] if one of them has joined with another
    /// `size`. [`ErrorKind::InUse`] if this node is in the world already, if another process of this host has the rank, or
    /// if an earlier node has this one's name. [`ErrorKind::Config`] for a rank that is not below `size`, for more than
    /// [`MAX_RANKS`], or a name of more than 70 bytes, [`ErrorKind::Closed`], [`ErrorKind::System`] without random numbers.
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
        let (mut streams, feed) = StreamCarrier::new(Peer(rank), size);
        let source = feed.source();
        let world = Arc::new(World {
            node: self.clone(),
            name: name.to_owned(),
            rank,
            size,
            source,
            met: Mutex::default(),
            mismatch: Mutex::default(),
            changed: Notify::new(),
        });
        let listener = self.offer(world.service(rank)?)?;
        streams.keep(Membership(listener.offer()));
        self.runtime().spawn(Arc::clone(&world).accept(listener));
        self.runtime().spawn(Arc::clone(&world).serve(feed));
        let mut carriers: Vec<Box<dyn Carrier>> = vec![Box::new(streams)];
        let rings = self.rings(&world).await?;
        let host = rings.map(|rings| carriers.push(Box::new(rings))).and_then(|()| host());
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
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a peer on this host has the rank.
    async fn rings(&self, world: &World) -> Result<Option<LaneCarrier>, Error> {
        if !self.shares_memory() || world.size < 2 {
            return Ok(None);
        }
        let name = format!("world-{:016x}", hash(&(self.cluster(), &world.name)));
        let nodes = u16::try_from(world.size).expect("it was checked");
        let own = NodeId(u16::try_from(world.rank).expect("it was checked"));
        let config = ShmConfig::new(name, own, nodes).mtu(PACKET);
        let until = Instant::now() + GIVEN_BACK;
        loop {
            let error = match LaneCarrier::open(&config) {
                Ok(rings) => return Ok(Some(rings)),
                Err(error) => error,
            };
            let is_occupied = matches!(error, StartError::Occupied { .. });
            if is_occupied && let Some(error) = world.is_taken()? {
                return Err(error);
            }
            if !is_occupied || Instant::now() >= until {
                tracing::debug!(%error, "no memory is shared with other ranks");
                return Ok(None);
            }
            sleep(PAUSE).await;
        }
    }
}

/// The service of a rank. Dropping it withdraws the service at once, so that the process may join again.
#[derive(Debug)]
struct Membership(Arc<Offer>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.withdraw();
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

/// The processes that had a rank.
#[derive(Debug, Default)]
struct Met {
    /// Number of streams made so far.
    times: u64,
    /// The node of the last process that dialed as this rank.
    holder: Option<u64>,
    /// The nodes of former ones, the oldest first: they are refused while there is a session with the holder's.
    former: VecDeque<u64>,
}

impl Met {
    /// Takes a stream of a node; returns `false` if that belongs to a former process of the rank.
    fn admit(&mut self, node: u64, knows: impl Fn(u64) -> bool) -> bool {
        if let Some(holder) = self.holder.filter(|holder| *holder != node) {
            if self.former.contains(&node) && knows(holder) {
                return false;
            }
            self.former.retain(|former| *former != node);
            self.former.push_back(holder);
            if self.former.len() > MAX_FORMER {
                self.former.pop_front();
            }
        }
        self.holder = Some(node);
        true
    }
}

/// A process's connections to the others of a world.
#[derive(Debug)]
struct World {
    node: Node,
    name: String,
    rank: u32,
    size: u32,
    source: StreamSource<Stream>,
    /// The processes that there was a stream to.
    met: Mutex<BTreeMap<u32, Met>>,
    /// The last process that has joined with another number of ranks: its rank, its name, and that number.
    mismatch: Mutex<Option<(u32, String, u32)>>,
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
        let met = lock(&self.met);
        met.get(&rank).map_or(0, |met| met.times)
    }

    /// Returns the error of joining with a rank that a peer has; `None` if no peer has it.
    fn is_taken(&self) -> Result<Option<Error>, Error> {
        let service = self.service(self.rank)?;
        let peers = self.node.peers();
        Ok(peers.into_iter().find(|peer| peer.services.contains(&service)).map(|peer| {
            let text = format!(
                "rank {} of the world {:?} is taken by the node {:?}, a process of this host: give each process a rank of \
                 its own, or end that one first",
                self.rank, self.name, peer.name
            );
            Error::new(ErrorKind::InUse, text)
        }))
    }

    /// Passes a stream to the carrier; returns `false` if the process has left the world.
    fn connect(&self, rank: u32, stream: Stream) -> bool {
        let mut met = lock(&self.met);
        met.entry(rank).or_default().times += 1;
        drop(met);
        // It may be the process that had a rank which this world does not have. Any other one dials again.
        let mut mismatch = lock(&self.mismatch);
        *mismatch = mismatch.take().filter(|(rank, ..)| *rank < self.size);
        drop(mismatch);
        self.changed.notify_waiters();
        self.source.connect(Peer(rank), stream)
    }

    /// Waits until there was a stream to each other process.
    async fn wait_for_all(&self, until: Instant) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            let is_missing = |rank: &u32| *rank != self.rank && self.times_met(*rank) == 0;
            let missing: Vec<_> = (0..self.size).filter(is_missing).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if timeout_at(until, changed).await.is_err() {
                return Err(self.not_joined(&missing));
            }
        }
    }

    /// Returns the error of a world that some ranks have not joined in time.
    fn not_joined(&self, missing: &[u32]) -> Error {
        let mismatch = lock(&self.mismatch).clone();
        // Another process has joined with that rank since, unless it is missing, or this world has no such rank.
        let is_reason = |rank: &u32| *rank >= self.size || missing.contains(rank);
        let (kind, why) = match mismatch.filter(|(rank, ..)| is_reason(rank)) {
            Some((_, process, size)) => {
                let why = format!(
                    "{process} has joined a world of {size}: give all processes the same size"
                );
                (ErrorKind::Config, why)
            }
            None => {
                let why = "they do not run, or are not found: `Node::explain` names the places that did not answer";
                (ErrorKind::NoService, why.to_owned())
            }
        };
        let (name, size) = (&self.name, self.size);
        let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!(
            "of the world {name:?} of {size}, these ranks have not joined: {missing}; {why}"
        );
        Error::new(kind, text)
    }

    fn note_mismatch(&self, rank: u32, process: String, size: u32) {
        let mut mismatch = lock(&self.mismatch);
        *mismatch = Some((rank, process, size));
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
                if let Err(error) = world.greeted(stream, &from).await {
                    tracing::warn!(%from, world = world.name, %error, "a process can't join");
                }
            });
        }
    }

    /// Takes a stream whose dialer sends its rank.
    async fn greeted(&self, mut stream: Stream, from: &PeerName) -> io::Result<()> {
        let mut greeting = [0; 16];
        timeout(GREETING_WITHIN, stream.read_exact(&mut greeting)).await??;
        let (magic, numbers) = greeting.split_at(MAGIC.len());
        let (words, _) = numbers.as_chunks::<4>();
        let [rank, size] = [words[0], words[1]].map(u32::from_le_bytes);
        let wrong = if magic != MAGIC {
            "it speaks another protocol: run one version in all processes".to_owned()
        } else if size != self.size {
            self.note_mismatch(rank, from.to_string(), size);
            let mut answer = OTHER_SIZE.to_vec();
            answer.extend_from_slice(&(self.size as u16).to_le_bytes());
            timeout(GREETING_WITHIN, stream.write_all(&answer)).await??;
            // The dialer ends the stream once it has read the answer.
            let _ = timeout(GREETING_WITHIN, stream.read(&mut [0])).await;
            format!("it has joined a world of {size} processes, this one a world of {}", self.size)
        } else if rank <= self.rank || rank >= size {
            format!("rank {rank} does not connect to rank {}", self.rank)
        } else if !self.admit(rank, from.id) {
            format!("another process has joined as rank {rank} since: give each a rank of its own")
        } else {
            timeout(GREETING_WITHIN, stream.write_all(MAGIC)).await??;
            self.connect(rank, stream);
            return Ok(());
        };
        stream.reset();
        Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
    }

    fn admit(&self, rank: u32, node: u64) -> bool {
        let mut met = lock(&self.met);
        met.entry(rank).or_default().admit(node, |holder| self.node.knows(holder))
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
                    // A process that was too slow to answer may answer now.
                    refused.clear();
                }
                let found = self.node.find(&service, &mut refused, until, |_| true).await;
                match found {
                    Ok(found) => {
                        if let Some(stream) = self.greet(&found[0], rank, &service).await {
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

    /// Opens a stream, sends this process's rank, and waits until it is admitted; `None` if it is not.
    async fn greet(
        &self,
        candidate: &crate::node::links::Candidate,
        rank: u32,
        service: &str,
    ) -> Option<Stream> {
        let mut stream = self.node.links().open(candidate, service, Instant::now()).await?;
        let mut greeting = MAGIC.to_vec();
        greeting.extend_from_slice(&self.rank.to_le_bytes());
        greeting.extend_from_slice(&self.size.to_le_bytes());
        let mut answer = [0; MAGIC.len()];
        let exchange = async {
            stream.write_all(&greeting).await?;
            stream.read_exact(&mut answer).await
        };
        timeout(GREETING_WITHIN, exchange).await.ok()?.ok()?;
        if let Some(size) = answer.strip_prefix(OTHER_SIZE) {
            let size = u32::from(u16::from_le_bytes([size[0], size[1]]));
            let peer = self.node.peers().into_iter().find(|peer| peer.id == candidate.peer);
            let process = peer.map_or_else(|| "a process".into(), |peer| peer.name);
            self.note_mismatch(rank, process, size);
        }
        (answer == *MAGIC).then_some(stream)
    }
}
