//! A host's daemon: its sockets, its NIC, and what they carry to its hub.

mod socket;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nicd::ServerConfig;
use midplane_simhw::seal::Key;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use rustix::thread::set_current_timer_slack;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::cell::Cells;
use super::channels::{self, ChannelOptions};
use super::clock::now;
use super::hub::{Event, Hub};
use super::link::{self, Frame, Receiver, Sender};
use super::local::{Local, Network};
use super::message::{Cluster, Down, Hello, Request, Up};
use super::precedence;
use super::root::Root;
use super::streams;
use super::stub::Keeper;
use crate::agenda::AgendaConfig;
use crate::firmware::Gang;
use crate::names::JobId;
use crate::schedule::Policy;
use crate::tree::Tree;
use crate::{GANG, GangConfig};
pub use socket::default_socket;
use socket::open_socket;

/// How long nobody above is asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long ranks may take to end after their kill, when the daemon ends.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// What a daemon is.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Which host of the cluster this one is.
    pub host: u16,
    /// The cluster.
    pub cluster: Cluster,
    /// `host:port` of every daemon, in the order of hosts; may be empty for a single one.
    pub peers: Vec<String>,
    /// What daemons prove to each other that they have; needed where there are several.
    pub key: Option<Key>,
    /// The socket that front ends of this host connect to.
    pub socket: PathBuf,
    /// How long a daemon may take for an order before it is given up, for each step below it.
    pub patience: Duration,
    /// What ranks talk over, if the daemons have it.
    pub fabric: Option<FabricOptions>,
    /// How processes are stopped.
    pub freezer: Freezer,
    /// Most bytes of the states of jobs' ranks, and of their channels, that host 0 holds in memory at once: of those that
    /// are yet to be written, and of each checkpoint that is read. [`CHECKPOINT_BYTES`] suits most.
    pub checkpoint_bytes: u64,
}

/// Four gigabytes: what a host of a cluster has to spare.
pub const CHECKPOINT_BYTES: u64 = 4 << 30;

/// How a job's processes on a host are stopped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Freezer {
    /// By control groups where they are to be had, by signals elsewhere.
    #[default]
    Auto,
    /// By a control group (version 2) for each job, below that of the daemon: whatever ranks have started
    /// stands still with them, and ends with them. The daemon must be allowed to make some.
    Cgroup,
    /// By SIGSTOP to the process group of each rank. What ranks have started and put into another goes on.
    Signals,
}

/// The NICs of the daemons, and the channels on them.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// What joins them.
    pub fabric: Fabric,
    /// The name under which the daemons of one cluster, and their ranks, find each other on a host.
    pub name: String,
    /// The ranks' channels.
    pub channels: ChannelOptions,
}

/// What joins NICs.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fabric {
    /// Shared memory: all daemons are on this host.
    Shm,
    /// UDP, by the address of each, in the order of hosts; frames are sealed with the daemons' key, if they have
    /// one.
    Udp(Vec<SocketAddr>),
}

/// Why there is no daemon.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Somebody answers on the socket.
    #[error("{}: another daemon serves it; stop that, or name another --socket", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// There is no folder for the socket.
    #[error("--socket {}: there is no folder {}: make it, or name another", path.display(), folder.display())]
    NoFolder {
        /// The socket.
        path: PathBuf,
        /// Where it was to be.
        folder: PathBuf,
    },
    /// The socket is not to be had.
    #[error("{}: {error}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The address is not to be had.
    #[error("{address}: {error}")]
    Address {
        /// This host's.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Several daemons, and no key.
    #[error("daemons of several hosts need a key: give all of them the same --key")]
    NoKey,
    /// No control groups can be made.
    #[error(
        "no control groups can be made below this process's own: they need cgroup v2, delegated (systemd-run \
         --user --scope -p Delegate=yes) or as root"
    )]
    NoCgroup,
    /// The NIC can't be had.
    #[error("the NIC: {0}")]
    Nic(String),
    /// The system refuses signals or processes.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Serves until it is told to end by SIGTERM or SIGINT; nothing that it has started runs on then.
/// `ready` is called once front ends can connect.
///
/// Ranks die with the thread that this runs on: run it on the main thread, in a runtime of one thread.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// None: send the process SIGTERM instead.
pub async fn serve(
    options: DaemonOptions,
    policy: Box<dyn Policy>,
    agenda: AgendaConfig,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let DaemonOptions { host, cluster, ref peers, .. } = options;
    if cluster.hosts > 1 && options.key.is_none() {
        return Err(StartError::NoKey);
    }
    let listener = open_socket(&options.socket).await?;
    let network = match peers.get(usize::from(host)).filter(|_| cluster.hosts > 1) {
        Some(address) => {
            let wrong = |error| StartError::Address { address: address.clone(), error };
            Some(TcpListener::bind(address).await.map_err(wrong)?)
        }
        None => None,
    };
    let mut keeper = Keeper::start();
    keeper.hold_file(&options.socket);
    let cells = match options.freezer {
        Freezer::Signals => None,
        Freezer::Auto => Cells::open(),
        Freezer::Cgroup => Some(Cells::open().ok_or(StartError::NoCgroup)?),
    };
    if let Some(cells) = &cells {
        keeper.hold_cells(cells.folder());
    }
    // How long naps are beyond what was asked for; nobody else's.
    let _ = set_current_timer_slack(NonZeroU64::new(1_000));
    let mut children = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    precedence::take();

    let (events, mut happens) = mpsc::unbounded_channel();
    let options = Rc::new(options);
    let tree = Tree::new(cluster.hosts, cluster.arity);
    let steps = tree.depth_below(host).max(1);
    let geometry = options.fabric.as_ref().map(|fabric| fabric.channels.geometry);
    let about = (cluster, geometry, options.checkpoint_bytes);
    let root = (host == 0).then(|| Root::new(policy, agenda, about, peers_names(&options), now()));
    let nic = start_nic(&options, &events).await?;
    // Not its NIC, which may spin.
    precedence::take_at_once();
    let local = Local::new((host, cluster), (keeper, cells), nic.network, events.clone());
    let dial_root = dial_root(&options);
    let about = (host, cluster, options.patience * steps);
    let mut hub = Hub::new(about, local, root, events.clone(), dial_root);
    tokio::spawn(take_fronts(listener, events.clone()));
    if let (Some(listener), Some(key)) = (network, options.key.clone()) {
        tokio::spawn(take_daemons(listener, key, cluster, events.clone()));
        if host != 0 {
            tokio::spawn(stay_below((*options).clone(), tree, events.clone()));
        }
    }
    ready();
    loop {
        let wait = hub.turn();
        let wait = wait.map(|at| Duration::from_nanos(at.nanos_since(now())));
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = children.recv() => hub.children_changed(),
            event = happens.recv() => hub.handle(event.expect("this end has one as well")),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
    hub.end_all();
    let ended = async {
        while !hub.is_empty() {
            children.recv().await;
            hub.children_changed();
        }
    };
    let _ = timeout(LAST_WAIT, ended).await;
    let _ = std::fs::remove_file(&options.socket);
    Ok(())
}

/// A NIC that runs, and whoever serves its ports; it stops when this is dropped.
struct Nic {
    network: Option<Network>,
    _held: Option<Box<dyn std::any::Any>>,
}

async fn start_nic(
    options: &DaemonOptions,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<Nic, StartError> {
    let Some(fabric) = &options.fabric else { return Ok(Nic { network: None, _held: None }) };
    let text = |error: &dyn std::fmt::Display| StartError::Nic(error.to_string());
    let (host, cluster) = (options.host, options.cluster);
    let mut unit = Unit::default();
    let config = GangConfig { channels: cluster.slots + 1, ..GangConfig::default() };
    unit.install(GANG, Gang::new(config)).map_err(|error| text(&error))?;
    let served = ServerConfig::new(&fabric.name);
    let channels = |nic: &ShmOrUdp| match nic {
        ShmOrUdp::Shm(nic) => {
            channels::start(&nic.host(), (host, cluster), fabric.channels, events.clone())
        }
        ShmOrUdp::Udp(nic) => {
            channels::start(&nic.host(), (host, cluster), fabric.channels, events.clone())
        }
    };
    let (nic, server) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            (ShmOrUdp::Shm(nic), server)
        }
        Fabric::Udp(addresses) => {
            // Nothing is paced but by the channels themselves.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(NodeId(host), addresses.clone()).line(line);
            let config = options.key.iter().cloned().fold(config, UdpConfig::key);
            let nic = UdpNic::start(config, unit).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            (ShmOrUdp::Udp(nic), server)
        }
    };
    let tasks = channels(&nic).map_err(|error| text(&error))?;
    let network = Some(Network { name: fabric.name.clone(), tasks });
    Ok(Nic { network, _held: Some(Box::new((server, nic))) })
}

/// One of the live NICs.
enum ShmOrUdp {
    Shm(ShmNic),
    Udp(UdpNic),
}

fn peers_names(options: &DaemonOptions) -> Vec<String> {
    match options.peers.is_empty() {
        true => vec!["this host".into()],
        false => options.peers.clone(),
    }
}

/// Takes front ends of this user.
async fn take_fronts(listener: UnixListener, events: mpsc::UnboundedSender<Event>) {
    let own = rustix::process::geteuid().as_raw();
    let mut next = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
            next += 1;
            tokio::spawn(serve_front(next, stream, events.clone()));
        }
    }
}

async fn serve_front(client: u64, stream: UnixStream, events: mpsc::UnboundedSender<Event>) {
    let (mut sender, mut receiver) = link::local(stream);
    let (reply, mut replies) = mpsc::channel::<Frame>(streams::QUEUE);
    tokio::spawn(async move {
        while let Some(frame) = replies.recv().await {
            if sender.send(&frame).await.is_err() {
                return;
            }
        }
    });
    while let Ok(Some(request)) = receiver.message::<Request>().await {
        if let Request::Feed(job) = request {
            return feed(job, receiver, &events).await;
        }
        if events.send(Event::Asked(client, request, reply.clone())).is_err() {
            return;
        }
    }
    let _ = events.send(Event::ClientGone(client));
}

/// Hands a job what its front end reads.
async fn feed(job: JobId, mut receiver: Receiver, events: &mpsc::UnboundedSender<Event>) {
    let (to, feed) = oneshot::channel();
    let _ = events.send(Event::Feeds(job, to));
    let Ok(feed) = feed.await else { return };
    while let Ok(Some(frame @ Frame::Data { .. })) = receiver.receive().await {
        if feed.send(frame).await.is_err() {
            return;
        }
        let _ = events.send(Event::Arrived(job));
    }
}

/// Takes other hosts' daemons that have the key.
async fn take_daemons(
    listener: TcpListener,
    key: Key,
    cluster: Cluster,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut next = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        next += 1;
        let (key, events) = (key.clone(), events.clone());
        tokio::spawn(async move {
            let Ok((sender, mut receiver)) = link::accept(stream, &key).await else { return };
            match receiver.message::<Hello>().await {
                Ok(Some(Hello::Child { host, cluster: theirs })) if theirs == cluster => {
                    serve_child((host, next), (sender, receiver), &events).await;
                }
                Ok(Some(Hello::Streams { host, job })) => {
                    let link = Box::new((sender, receiver));
                    let _ = events.send(Event::Streams { host, job, link });
                }
                // Somebody of another cluster, or another version.
                _ => {}
            }
        });
    }
}

async fn serve_child(
    (host, connection): (u16, u64),
    (mut sender, mut receiver): (Sender, Receiver),
    events: &mpsc::UnboundedSender<Event>,
) {
    let (to, mut orders) = mpsc::unbounded_channel::<Down>();
    let _ = events.send(Event::Adopted { host, connection, to });
    let writing = tokio::spawn(async move {
        while let Some(down) = orders.recv().await {
            if sender.send(&Frame::message(&down)).await.is_err() {
                return;
            }
        }
    });
    while let Ok(Some(up)) = receiver.message::<Up>().await {
        let _ = events.send(Event::FromBelow(host, connection, up));
    }
    let _ = events.send(Event::Lost(host, connection));
    writing.abort();
}

/// Looks for somebody above, the nearest that answers, again and again.
async fn stay_below(options: DaemonOptions, tree: Tree, events: mpsc::UnboundedSender<Event>) {
    let Some(key) = &options.key else { return };
    let mut above = Vec::new();
    let mut host = options.host;
    while let Some(parent) = tree.parent(host) {
        above.push(parent);
        host = parent;
    }
    loop {
        for parent in &above {
            let Some(address) = options.peers.get(usize::from(*parent)) else { continue };
            let Ok((mut sender, receiver)) = link::dial(address, key).await else { continue };
            let hello = Hello::Child { host: options.host, cluster: options.cluster };
            if sender.send(&Frame::message(&hello)).await.is_ok() {
                stay(sender, receiver, &events).await;
                break;
            }
        }
        sleep(AGAIN).await;
    }
}

/// Hears whoever is above, until that is gone.
async fn stay(mut sender: Sender, mut receiver: Receiver, events: &mpsc::UnboundedSender<Event>) {
    let (to, mut reports) = mpsc::unbounded_channel::<Up>();
    let _ = events.send(Event::Below(to));
    let writing = tokio::spawn(async move {
        while let Some(up) = reports.recv().await {
            if sender.send(&Frame::message(&up)).await.is_err() {
                return;
            }
        }
    });
    while let Ok(Some(down)) = receiver.message::<Down>().await {
        let is_cut = down == Down::Cut;
        let _ = events.send(Event::Above(down));
        if is_cut {
            break;
        }
    }
    let _ = events.send(Event::Cut);
    writing.abort();
}

/// What opens links for jobs' streams to the root.
fn dial_root(options: &Rc<DaemonOptions>) -> super::hub::DialRoot {
    let (peers, key) = (options.peers.clone(), options.key.clone());
    let host = options.host;
    Box::new(move |job, mut output, input| {
        let (address, key) = (peers.first().cloned(), key.clone());
        tokio::spawn(async move {
            if let (Some(address), Some(key)) = (address, key)
                && let Ok((mut sender, receiver)) = link::dial(&address, &key).await
                && sender.send(&Frame::message(&Hello::Streams { host, job })).await.is_ok()
            {
                streams::to_root((sender, receiver), &mut output, input).await;
            }
            // Nobody hears it; nobody waits for that either.
            while output.recv().await.is_some() {}
        });
    })
}
