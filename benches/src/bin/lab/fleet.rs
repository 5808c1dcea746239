//! Runs one program at several nodes: in virtual time, or as a process per node over a live fabric, on one or several
//! hosts.

mod meeting;

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::ValueEnum;
use midplane::nicvm::collective::{COLLECTIVES, Collectives};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::Machine;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::sim::World;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use serde::Serialize;

use crate::report;
pub(crate) use meeting::Meeting;

/// Time limit for processes to start, and for resolving names.
pub(crate) const COME_UP: Duration = Duration::from_secs(20);

/// The fabric between the nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// Simulated machines, in virtual time
    Sim,
    /// Shared memory (Linux)
    Shm,
    /// UDP
    Udp,
}

impl Fabric {
    /// Returns its name on the command line and in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Shm => "shm",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason for a missing result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input is bad.
    Input(String),
    /// A node was lost, or its program failed.
    Lost(String),
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Lost(what)
    }
}

impl Failure {
    /// Prints one line with the reason, and returns the exit code.
    pub(crate) fn exit(self) -> ExitCode {
        match self {
            Self::Input(what) => report::fail(&what, report::BAD_INPUT),
            Self::Lost(what) => report::fail(&what, report::FAILED),
        }
    }
}

pub(crate) fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The program of each node.
pub(crate) trait Part: Clone + Send + 'static {
    type Outcome: Send + 'static;

    /// Installs the program's extensions on a node's NIC.
    fn equip(&self, unit: &mut Unit);

    /// Runs a node's application.
    fn play<H: Host>(self, host: H) -> impl Future<Output = Result<Self::Outcome, String>> + Send;
}

/// Builds the unit of a node's NIC.
fn unit<P: Part>(nodes: u16, part: &P) -> Unit {
    let mut unit = Unit::default();
    let members = (0..nodes).map(NodeId).collect();
    unit.install(MESSAGES, Messages::new()).expect("the number is free");
    unit.install(COLLECTIVES, Collectives::new(members)).expect("the number is free");
    part.equip(&mut unit);
    unit
}

/// Runs a program at every node of a simulated cluster; returns the outcomes in the order of nodes.
pub(crate) fn simulate<P: Part>(
    machine: Machine,
    nodes: u16,
    seed: u64,
    part: P,
) -> Result<Vec<P::Outcome>, String> {
    let made = part.clone();
    let make = move |_, _| unit(nodes, &made);
    let mut world = World::new(&machine.topology(nodes), machine.nic, seed, make);
    world.set_hosts(machine.host);
    let outcomes: Vec<_> = (0..nodes).map(|_| Arc::new(Mutex::new(None))).collect();
    for (node, outcome) in (0..nodes).map(NodeId).zip(&outcomes) {
        let (work, outcome) = (part.clone().play(world.host(node)), Arc::clone(outcome));
        world.spawn(node, async move {
            let ended = work.await;
            *outcome.lock().expect("nobody panics with it") = Some(ended);
        });
    }
    world.run();
    let take = |outcome: Arc<Mutex<Option<_>>>| {
        let ended = outcome.lock().expect("all tasks have ended").take();
        ended.unwrap_or_else(|| Err("nothing is left to happen, and a node is not done".into()))
    };
    outcomes.into_iter().map(take).collect()
}

/// A node of a live fabric.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) fabric: Fabric,
    pub(crate) rank: u16,
    /// Addresses of all nodes.
    pub(crate) peers: Vec<SocketAddr>,
    /// Name of the shared memory.
    pub(crate) name: String,
    pub(crate) seed: u64,
}

/// Starts a node's NIC, and runs its program.
pub(crate) async fn take_part<P: Part>(node: Node, part: P) -> Result<P::Outcome, String> {
    let Node { fabric, rank, peers, name, seed } = node;
    let nodes = peers.len() as u16;
    let unit = unit(nodes, &part);
    if fabric == Fabric::Shm {
        let nic = ShmNic::start(ShmConfig::new(name, NodeId(rank), nodes).seed(seed), unit);
        let nic = nic.map_err(text)?;
        let met = tokio::time::timeout(COME_UP, nic.meet()).await;
        met.map_err(|_| format!("some did not come up in {COME_UP:?}"))?;
        let ended = part.play(nic.host()).await;
        nic.shutdown().await;
        return ended;
    }
    // A line rate above any loopback's: frames are not paced.
    let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
    let config = UdpConfig::new(NodeId(rank), peers).line(line).seed(seed);
    let nic = UdpNic::start(config, unit).map_err(|error| format!("--peers: {error}"))?;
    let ended = part.play(nic.host()).await;
    nic.shutdown().await;
    ended
}

/// Runs `work` on a runtime of two threads, for at most `limit`.
pub(crate) fn live<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.map_err(|error| format!("starting a runtime: {error}"))?.block_on(async {
        tokio::select! {
            ended = work => ended,
            () = tokio::time::sleep(limit) => Err(format!("it did not end in {limit:?}")),
            _ = tokio::signal::ctrl_c() => Err("stopped".into()),
        }
    })
}
