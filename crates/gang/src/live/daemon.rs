//! A host's daemon: its sockets, its NIC, and what they carry to its hub.

mod fronts;
mod options;
mod peers;
mod socket;

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nicd::{Admitted, ServerConfig};
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use rustix::thread::set_current_timer_slack;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::channels::{self, CHECKPOINTER, Hold, ProcessGroups};
use super::clock::now;
use super::event::Event;
use super::event_loop::{EventLoop, RootChanges};
use super::exec_shim::Reaper;
use super::host_memory::HostMemory;
use super::job_cgroup::JobCgroups;
use super::link::Credentials;
use super::processes::{Processes, RanksNic};
use super::reclaimer::Reclaimer;
use super::record::Record;
use super::refusals::Right;
use super::rights::Users;
use super::routes::Routes;
use super::{criu, priority};
use crate::firmware::Gang;
use crate::node_core::replica::Durable;
use crate::node_core::{NodeConfig, NodeCore, RootConfig};
use crate::port_suspender::{ARRIVAL_WATCHER, PORT_SUSPENDER};
use crate::schedule::Policy;
use crate::scheduler_core::SchedulerConfig;
use crate::steps::StepQueue;
use crate::tree::Tree;
use crate::{GANG, GangConfig};
pub use options::{CHECKPOINT_BYTES, DaemonOptions, Fabric, FabricOptions, Freezer, StartError};
use socket::open_socket;
pub use socket::{SYSTEM_SOCKET, default_socket, find_socket};

/// Interval at which each job is searched for deadlocks: a cut stops a job for about a millisecond.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How long ranks may take to end after their kill, when the daemon ends.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Serves until it is told to end by SIGTERM or SIGINT; nothing that it has started runs on then. SIGUSR1 has it print
/// on standard error what it waits for.
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
    scheduler_config: SchedulerConfig,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let DaemonOptions { host, cluster, .. } = options;
    let credentials = credentials(&options)?;
    let listener = open_socket(&options.socket, options.socket_group.as_deref()).await?;
    let network = open_network(&options).await?;
    let mut reaper = Reaper::start();
    reaper.hold_file(&options.socket);
    let users = Users::of_this_process();
    let (cells, reclaimer) = open_cells((options.freezer, &users), &mut reaper)?;
    let memory = options.memory.or_else(|| HostMemory::find().for_jobs()).unwrap_or(u64::MAX);
    // How long naps are beyond what was asked for; nobody else's.
    let _ = set_current_timer_slack(NonZeroU64::new(1_000));
    let signals = Signals::open()?;
    let raised = priority::raise_new_threads();

    let (events, happens) = mpsc::unbounded_channel();
    let root = root_config(&options, policy, scheduler_config);
    let process_groups = ProcessGroups::default();
    let nic = start_nic(&options, (process_groups.clone(), events.clone())).await?;
    // The NIC's thread, which may spin, keeps the usual priority.
    if let Err(error) = priority::raise_this_thread().and(raised) {
        Right::Priority.report_lack(&error);
    }
    let (patience, has_channels) = (options.patience, nic.channels.is_some());
    let takes_over = cluster.takes_over();
    let config = NodeConfig { host, cluster, patience, has_channels, memory, takes_over };
    let (record, durable) = open_record(&options)?;
    // Where only host 0 can be the root, nothing is to be elected.
    let tree = Tree::new(cluster.hosts, cluster.arity);
    let (root_host, above) = match takes_over {
        true => (None, Vec::new()),
        false => (Some(0), tree.above(host).collect()),
    };
    let core = NodeCore::new(config, (takes_over || host == 0).then_some(root), durable);
    let ranks_nic = ranks_nic(&options, &nic);
    let processes = Processes::new(
        (host, cluster, users.clone()),
        (reaper, cells, reclaimer),
        (ranks_nic, process_groups),
        events.clone(),
    );
    let (root, root_is) = watch::channel(root_host);
    let (above, above_is) = watch::channel(above);
    let routes = Routes {
        host,
        addresses: options.peers.clone().into(),
        credentials,
        root: root_is,
        events,
    };
    let channels = nic.channels.clone();
    let changes = RootChanges { root, above, record };
    let event_loop =
        EventLoop::new(core, (processes, channels), (routes.clone(), users.clone()), changes);
    tokio::spawn(fronts::take(listener, routes.clone(), users));
    if let Some(listener) = network {
        tokio::spawn(peers::take(listener, routes.clone(), cluster));
        tokio::spawn(peers::stay_below(routes, cluster, above_is));
    }
    ready();
    run(event_loop, signals, happens).await;
    let _ = std::fs::remove_file(&options.socket);
    Ok(())
}

/// Returns the configuration of this daemon for the time when it is the root.
fn root_config(
    options: &DaemonOptions,
    policy: Box<dyn Policy>,
    scheduler: SchedulerConfig,
) -> RootConfig {
    RootConfig {
        policy,
        scheduler,
        geometry: options.fabric.as_ref().map(|fabric| fabric.channels.geometry),
        most_saved: options.checkpoint_bytes,
        check_every: CHECK_EVERY,
        names: peers_names(options),
        has_streams: true,
    }
}

/// Returns what ranks need to know of the NIC, if there is one.
fn ranks_nic(options: &DaemonOptions, nic: &Nic) -> Option<RanksNic> {
    let fabric = options.fabric.as_ref()?;
    let (name, mode) = (fabric.name.clone(), fabric.channels.mode);
    Some(RanksNic { name, mode, admitted: nic.admitted.clone() })
}

/// Opens what this daemon remembers of the cluster's jobs, if another host can take over.
fn open_record(options: &DaemonOptions) -> Result<(Option<Record>, Durable), StartError> {
    if !options.cluster.takes_over() {
        return Ok((None, Durable::default()));
    }
    let owner = (options.host, options.cluster, options.peers.clone());
    let opened = Record::open(&options.socket, owner);
    let path = || options.socket.with_extension("record");
    let (record, durable) = opened.map_err(|error| StartError::Record(path(), error))?;
    Ok((Some(record), durable))
}

/// Credentials of this daemon, if the cluster has other hosts.
fn credentials(options: &DaemonOptions) -> Result<Option<Credentials>, StartError> {
    let DaemonOptions { host, cluster, identity, key, .. } = options;
    if let Some(identity) = identity {
        let (own, listed) = (identity.node().0, identity.nodes());
        if identity.node() != NodeId(*host) || listed != usize::from(cluster.hosts) {
            let (host, hosts) = (*host, cluster.hosts);
            return Err(StartError::Identity { own, listed, host, hosts });
        }
    }
    match Credentials::new(identity.clone(), key.clone()) {
        None if cluster.hosts > 1 => Err(StartError::NoKey),
        credentials => Ok(credentials),
    }
}

/// Opens what other hosts' daemons connect to, if there may be some.
async fn open_network(options: &DaemonOptions) -> Result<Option<TcpListener>, StartError> {
    let own = options.peers.get(usize::from(options.host));
    let Some(address) = own.filter(|_| options.cluster.hosts > 1) else { return Ok(None) };
    let wrong = |error| StartError::Address(address.clone(), error);
    Ok(Some(TcpListener::bind(address).await.map_err(wrong)?))
}

/// Tests whether this process can freeze jobs by control groups, as a daemon does; leaves nothing behind. Returns the
/// folder of the groups.
///
/// # Errors
/// The reason why it can't: version 2 is not mounted, its own group is not delegated, or Linux is older than 5.14.
pub fn probe_control_groups() -> io::Result<PathBuf> {
    JobCgroups::open().map(|cells| cells.folder().to_owned())
}

/// Tests whether jobs' control groups can have the memory controller, as a daemon that starts in this process's group gives
/// them; leaves nothing behind.
///
/// # Errors
/// The reason why they can't: no control groups can be made, the controller is not there, or other processes run in this
/// process's group.
pub fn probe_memory_controller() -> io::Result<()> {
    JobCgroups::open()?.can_have_memory()
}

/// Tests whether this host can save and restore jobs whose programs take no part in checkpoints, with CRIU. Returns whose
/// jobs it does that for.
///
/// # Errors
/// The reason why it can't: CRIU is not installed, is older than the kernel needs, or this process is not root's.
pub fn probe_criu() -> io::Result<String> {
    criu::probe().map_err(io::Error::other)?;
    Ok("criu check passes, for daemons of root".into())
}

/// The control groups that jobs are stopped by, if they are to be; gone when the reaper is. With the memory controller, also what
/// takes memory from suspended jobs.
fn open_cells(
    (freezer, users): (Freezer, &Users),
    reaper: &mut Reaper,
) -> Result<(Option<JobCgroups>, Option<Reclaimer>), StartError> {
    let mut cells = match freezer {
        Freezer::Signals => None,
        Freezer::Auto => JobCgroups::open()
            .inspect_err(|error| Right::ControlGroups(users.has_all()).report_lack(error))
            .ok(),
        Freezer::Cgroup => Some(JobCgroups::open().map_err(|_| StartError::NoCgroup)?),
    };
    let reclaimer = cells.as_mut().and_then(|cells| {
        reaper.hold_cells(cells.folder());
        let taken = cells.take_memory().inspect_err(|error| Right::Memory.report_lack(error));
        taken.ok().map(|()| Reclaimer::start(HostMemory::find()))
    });
    Ok((cells, reclaimer))
}

/// The signals that a daemon hears.
struct Signals {
    children: Signal,
    terminate: Signal,
    interrupt: Signal,
    explain: Signal,
}

impl Signals {
    fn open() -> io::Result<Self> {
        Ok(Self {
            children: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            explain: signal(SignalKind::user_defined1())?,
        })
    }
}

/// Hands events to the event loop until a signal ends it, and then waits until nothing runs that it has started, for
/// [`LAST_WAIT`] at most.
async fn run(
    mut event_loop: EventLoop,
    mut signals: Signals,
    mut happens: mpsc::UnboundedReceiver<Event>,
) {
    loop {
        let wait = event_loop.turn();
        let wait = wait.map(|at| Duration::from_nanos(at.nanos_since(now())));
        tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.children.recv() => event_loop.children_changed(),
            _ = signals.explain.recv() => eprintln!("midplane gang daemon: {}", event_loop.explain()),
            event = happens.recv() => event_loop.handle(event.expect("the event loop has the other end")),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
    event_loop.end_all();
    let ended = async {
        while !event_loop.is_empty() {
            signals.children.recv().await;
            event_loop.children_changed();
        }
    };
    let _ = timeout(LAST_WAIT, ended).await;
}

fn peers_names(options: &DaemonOptions) -> Vec<String> {
    match options.peers.is_empty() {
        true => vec!["this host".into()],
        false => options.peers.clone(),
    }
}

/// A NIC that runs, and the server of its ports. It stops when this is dropped.
#[derive(Default)]
struct Nic {
    /// The ranks' channels, if the daemon has a fabric.
    channels: Option<StepQueue>,
    /// The users whose ranks may open ports, if the daemon has a fabric.
    admitted: Admitted,
    _held: Option<Box<dyn std::any::Any>>,
}

/// Starts the daemon's NIC, if it is to have one.
async fn start_nic(
    options: &DaemonOptions,
    about: (ProcessGroups, mpsc::UnboundedSender<Event>),
) -> Result<Nic, StartError> {
    let Some(fabric) = &options.fabric else { return Ok(Nic::default()) };
    let text = |error: &dyn std::fmt::Display| StartError::Nic(error.to_string());
    let (host, cluster) = (options.host, options.cluster);
    let mut unit = Unit::default();
    let config = GangConfig { channels: cluster.slots + 1, ..GangConfig::default() };
    let config = config.port_suspender(PORT_SUSPENDER).arrival_watcher(ARRIVAL_WATCHER);
    unit.install(GANG, Gang::new(config)).map_err(|error| text(&error))?;
    let config = ViaConfig::default().checkpointer(CHECKPOINTER);
    unit.install(VIA, Via::new(config)).map_err(|error| text(&error))?;
    let served = ServerConfig::new(&fabric.name);
    let place = (host, cluster);
    let (held, admitted, steps): (Box<dyn std::any::Any>, _, _) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            let (ports, admitted) = ((hold, server.holders()), server.admitted());
            let steps = channels::start(&nic.host(), place, fabric.channels, ports, about);
            (Box::new((server, nic)), admitted, steps)
        }
        Fabric::Udp(addresses) => {
            // Nothing is paced but by the channels themselves.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(NodeId(host), addresses.clone()).line(line);
            let config = options.key.iter().cloned().fold(config, UdpConfig::key);
            let config = options.identity.iter().cloned().fold(config, UdpConfig::identity);
            let nic = UdpNic::start(config, unit).map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            let (ports, admitted) = ((hold, server.holders()), server.admitted());
            let steps = channels::start(&nic.host(), place, fabric.channels, ports, about);
            (Box::new((server, nic)), admitted, steps)
        }
    };
    let steps = steps.map_err(|error| text(&error))?;
    Ok(Nic { channels: Some(steps), admitted, _held: Some(held) })
}
