//! Runs a host's daemon: opens its sockets and its NIC, and forwards their events to the event loop.

mod clients;
mod options;
mod peers;
mod socket;
mod unauthenticated;

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
use super::exec_shim::{Leftover, Reaper};
use super::host_memory::HostMemory;
use super::job_cgroup::JobCgroups;
use super::link::Credentials;
use super::processes::{Processes, RanksNic};
use super::reclaimer::Reclaimer;
use super::record::Record;
use super::refusals::{Right, report};
use super::rights::Users;
use super::routes::Routes;
use super::snapshot::Budget;
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
pub(super) use socket::{is_foreign, is_temporary};

/// Interval between two deadlock checks of a job. Each check suspends the job for about a millisecond.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A daemon that wakes up this much later than it had to was paused.
const PAUSED: Duration = Duration::from_millis(200);
/// Time in which a daemon that was paused receives what has arrived meanwhile, before its timeouts count.
const CATCH_UP: Duration = Duration::from_millis(20);
/// Most events that the event loop handles before it sends messages and replies, unless the daemon was paused.
const EVENTS_PER_TURN: usize = 64;
/// Most time that ranks get to exit after they are killed, when the daemon ends.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT, and then ends all processes that the daemon has started. On SIGUSR1, prints to
/// standard error what the daemon waits for.
///
/// Calls `ready` once clients can connect.
///
/// Ranks die with the thread that this runs on: run it on the main thread, in a current-thread runtime.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// None: send the process SIGTERM instead of dropping this.
pub async fn serve(
    options: DaemonOptions,
    policy: Box<dyn Policy>,
    scheduler_config: SchedulerConfig,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let DaemonOptions { host, cluster, .. } = options;
    let credentials = credentials(&options)?;
    // Before the sockets: a new process has copies of its parent's descriptors until it executes its program, so the next daemon
    // could find a killed daemon's sockets open.
    let mut reaper = Reaper::start();
    let network = open_network(&options).await?;
    let listener = open_socket(&options.socket, options.socket_group.as_deref()).await?;
    let socket = Leftover::file(&options.socket);
    reaper.hold(socket.clone());
    let users = Users::of_this_process();
    let (cells, reclaimer) = open_cells(&options, &users, &mut reaper)?;
    let memory = options.memory.or_else(|| HostMemory::find().for_jobs()).unwrap_or(u64::MAX);
    // Sets this thread's timer slack to 1 us, so that its sleeps end on time. No other process is affected.
    let _ = set_current_timer_slack(NonZeroU64::new(1_000));
    let signals = Signals::open()?;
    let raised = priority::raise_new_threads();

    let (events, happens) = mpsc::unbounded_channel();
    let root = root_config(&options, policy, scheduler_config);
    let process_groups = ProcessGroups::default();
    let nic = start_nic(&options, (process_groups.clone(), events.clone())).await?;
    // The NIC's thread was started before this, so that it keeps the usual priority: it may spin.
    if let Err(error) = priority::raise_this_thread().and(raised) {
        Right::Priority.report_lack(&error);
    }
    let (patience, has_channels) = (options.patience, nic.channels.is_some());
    let takes_over = cluster.takes_over();
    let config = NodeConfig { host, cluster, patience, has_channels, memory, takes_over };
    let (record, durable) = open_record(&options)?;
    // If only host 0 can be the root, there is no election.
    let (root_host, above) = match takes_over {
        true => (None, Vec::new()),
        false => (Some(0), Tree::new(cluster.hosts, cluster.arity).above(host).collect()),
    };
    let core = NodeCore::new(config, (takes_over || host == 0).then_some(root), durable);
    let ranks_nic = ranks_nic(&options, &nic);
    let processes = Processes::new(
        (host, cluster, users.clone(), patience),
        (reaper, cells, reclaimer),
        (ranks_nic, process_groups, options.checkpoint_bytes),
        events.clone(),
    );
    let ((root, root_is), (above, above_is)) = (watch::channel(root_host), watch::channel(above));
    let routes = Routes {
        host,
        addresses: options.peers.clone().into(),
        credentials,
        patience,
        root: root_is,
        events,
        budget: Budget::default(),
    };
    let (channels, changes) = (nic.channels.clone(), RootChanges { root, above, record });
    let event_loop =
        EventLoop::new(core, (processes, channels), (routes.clone(), users.clone()), changes);
    tokio::spawn(clients::take(listener, routes.clone(), users));
    if let Some(listener) = network {
        tokio::spawn(peers::take(listener, routes.clone(), cluster));
        tokio::spawn(peers::stay_below(routes, cluster, above_is));
    }
    ready();
    run(event_loop, signals, happens).await;
    socket.clear();
    Ok(())
}

/// Returns the configuration that this daemon uses while it is the root.
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
        names: match options.peers.is_empty() {
            true => vec!["this host".into()],
            false => options.peers.clone(),
        },
        has_streams: true,
    }
}

/// Returns what ranks need to know about the NIC; `None` without a fabric.
fn ranks_nic(options: &DaemonOptions, nic: &Nic) -> Option<RanksNic> {
    let fabric = options.fabric.as_ref()?;
    Some(RanksNic { name: fabric.name.clone(), admitted: nic.admitted.clone() })
}

/// Opens the file in which this daemon records votes and jobs, if another host can take over.
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

/// Returns the credentials of this daemon; `None` for a single daemon without a key.
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

/// Opens the listener for other hosts' daemons, if the cluster has other hosts.
async fn open_network(options: &DaemonOptions) -> Result<Option<TcpListener>, StartError> {
    let own = options.peers.get(usize::from(options.host));
    let Some(address) = own.filter(|_| options.cluster.hosts > 1) else { return Ok(None) };
    let wrong = |error| StartError::Address(address.clone(), error);
    Ok(Some(TcpListener::bind(address).await.map_err(wrong)?))
}

/// Tests whether this process can freeze jobs by control groups, as a daemon does. Leaves no group behind. Returns the
/// folder of the groups.
///
/// # Errors
/// The reason: version 2 is not mounted, its own group is not delegated, or Linux is older than 5.14.
pub fn probe_control_groups() -> io::Result<PathBuf> {
    JobCgroups::open().map(|cells| cells.folder().to_owned())
}

/// Tests whether jobs' control groups can have the memory controller if a daemon starts in this process's group.
/// Leaves no group behind.
///
/// # Errors
/// The reason: no control groups can be made, the controller is missing, or other processes run in this process's
/// group.
pub fn probe_memory_controller() -> io::Result<()> {
    JobCgroups::open()?.can_have_memory()
}

/// Tests whether this host can save and restore processes with CRIU. Returns a text that says for which daemons.
///
/// # Errors
/// The reason: CRIU is not installed, is older than the kernel needs, or this process is not root's.
pub fn probe_criu() -> io::Result<String> {
    criu::lack().map_err(io::Error::other)?;
    Ok("criu check passes, for daemons of root".into())
}

/// Opens the control groups by which jobs are suspended, if the freezer allows them; the reaper removes them. With the
/// memory controller, also starts the reclaimer, which takes memory from suspended jobs. Without, reports that only if the
/// daemon limits the memory of jobs; otherwise the first job that claims memory reports it.
fn open_cells(
    options: &DaemonOptions,
    users: &Users,
    reaper: &mut Reaper,
) -> Result<(Option<JobCgroups>, Option<Reclaimer>), StartError> {
    let mut cells = match options.freezer {
        Freezer::Signals => None,
        Freezer::Auto => JobCgroups::open()
            .inspect_err(|error| Right::ControlGroups(users.has_all()).report_lack(error))
            .ok(),
        Freezer::Cgroup => Some(JobCgroups::open().map_err(|_| StartError::NoCgroup)?),
    };
    let reclaimer = cells.as_mut().and_then(|cells| {
        reaper.hold(Leftover::Cgroups(cells.folder().to_owned()));
        if let Err(error) = cells.take_memory() {
            match options.memory {
                Some(_) => Right::Memory.report_lack(&error),
                None => cells.keep_lack_of_memory(error),
            }
            return None;
        }
        Some(Reclaimer::start(HostMemory::find()))
    });
    Ok((cells, reclaimer))
}

/// The signals that a daemon handles.
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

/// Forwards events to the event loop until a signal ends it. Then kills all processes, and waits for their exit for at
/// most [`LAST_WAIT`].
async fn run(
    mut event_loop: EventLoop,
    mut signals: Signals,
    mut happens: mpsc::UnboundedReceiver<Event>,
) {
    let mut due = None;
    loop {
        let mut most = EVENTS_PER_TURN;
        if due.is_some_and(|due| now() > due + PAUSED) {
            // This process was paused, or has fallen behind. Others are not silent; their messages are still in the
            // sockets.
            sleep(CATCH_UP).await;
            most = usize::MAX;
        }
        for _ in 0..happens.len().min(most) {
            let Ok(event) = happens.try_recv() else { break };
            event_loop.handle(event);
        }
        due = event_loop.turn(happens.is_empty());
        let wait = due.map(|at| at.since(now()));
        tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.children.recv() => event_loop.processes.children_changed(),
            _ = signals.explain.recv() => report(format_args!("{}", event_loop.explain())),
            event = happens.recv() => event_loop.handle(event.expect("the event loop has the other end")),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
    event_loop.processes.kill_all();
    let ended = async {
        while !event_loop.is_empty() {
            signals.children.recv().await;
            event_loop.processes.children_changed();
        }
    };
    let _ = timeout(LAST_WAIT, ended).await;
}

/// A running NIC and the server of its ports. Dropping this stops both.
#[derive(Default)]
struct Nic {
    /// Steps for the ranks' channels, if the daemon has a fabric.
    channels: Option<StepQueue>,
    /// Users whose ranks may open ports, if the daemon has a fabric.
    admitted: Admitted,
    _held: Option<Box<dyn std::any::Any>>,
}

/// Starts the daemon's NIC, if the options have a fabric.
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
    let (hold, server, live, nic): (_, _, _, Box<dyn std::any::Any>) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            (hold, nic.serve_ports(served), nic.host(), Box::new(nic))
        }
        Fabric::Udp(addresses) => {
            // The channels pace themselves, so the link's rate is practically unlimited.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(NodeId(host), addresses.clone()).line(line);
            let config = options.key.iter().cloned().fold(config, UdpConfig::key);
            let config = options.identity.iter().cloned().fold(config, UdpConfig::identity);
            let nic = UdpNic::start(config, unit).map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            (hold, nic.serve_ports(served), nic.host(), Box::new(nic))
        }
    };
    let server = server.map_err(|error| text(&error))?;
    let (ports, admitted) = ((hold, server.holders()), server.admitted());
    let steps = channels::start(&live, (host, cluster), fabric.channels, ports, about);
    let steps = steps.map_err(|error| text(&error))?;
    Ok(Nic { channels: Some(steps), admitted, _held: Some(Box::new((server, nic))) })
}
