//! Runs one program at several nodes: in virtual time, or as a process per node over a live fabric, on one or several
//! hosts.

mod meeting;

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use midplane::nicvm::collective::{COLLECTIVES, Collectives};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::Machine;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::sim::World;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use serde::Serialize;

use crate::processes::{Peer, end_with_parent, free_addresses};
use crate::ranks::{self, Ranks};
use crate::report;
pub(crate) use meeting::Meeting;

/// Time limit for processes to start, and for resolving names.
pub(crate) const COME_UP: Duration = Duration::from_secs(20);
/// Time that a run may take beyond what it measures.
const LOST: Duration = Duration::from_secs(30);

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

/// Flags of questions whose nodes are processes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Fleet {
    /// The fabric between the nodes: a process per node, or 25 Gb/s Ethernet in virtual time
    #[arg(long, value_enum, default_value_t = Fabric::Udp)]
    pub(crate) fabric: Fabric,
    /// Nodes, from 3 to 16; with --peers, as many as there are peers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(3..=16))]
    pub(crate) nodes: u16,
    /// Seconds of each measured part, from 0.01 to 60
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ranks: Ranks,
    /// Name of the shared memory, for the processes that a process alone starts
    #[arg(long, hide = true)]
    name: Option<String>,
}

/// A question whose nodes are processes; the outcome of rank 0 are the rows of its report.
pub(crate) trait Question: Part<Outcome = Vec<Self::Run>> {
    type Run: Serialize;

    fn fleet(&mut self) -> &mut Fleet;

    /// Returns whether the rows show what the question claims.
    fn holds(runs: &[Self::Run]) -> bool;
}

#[derive(Serialize)]
struct Document<'a, R> {
    fabric: Fabric,
    nodes: u16,
    runs: &'a [R],
    holds: bool,
}

/// Runs a question at every node. Rank 0 passes its rows to `finish`, and prints them.
pub(crate) fn conduct<Q: Question>(
    mut question: Q,
    finish: impl FnOnce(&[Q::Run]) -> Result<(), String>,
) -> ExitCode {
    let ended = run(&mut question).and_then(|runs| {
        let Some(runs) = runs else { return Ok(ExitCode::SUCCESS) };
        finish(&runs).map_err(Failure::Input)?;
        let (holds, &mut Fleet { fabric, nodes, json, .. }) = (Q::holds(&runs), question.fleet());
        Ok(report::conclude(json, &Document { fabric, nodes, runs: &runs, holds }, holds))
    });
    ended.unwrap_or_else(Failure::exit)
}

/// Runs a question; returns its rows if this process is rank 0.
fn run<Q: Question>(question: &mut Q) -> Result<Option<Vec<Q::Run>>, Failure> {
    let place = question.fleet().place().map_err(Failure::Input)?;
    let Fleet { fabric, nodes, seed, name, .. } = question.fleet().clone();
    if name.is_some() {
        end_with_parent();
    }
    let (limit, question) = (question.fleet().time() * 4 + COME_UP + LOST, question.clone());
    match place {
        None if fabric == Fabric::Sim => {
            let runs = simulate(Machine::ETHERNET_25G, nodes, seed, question)?;
            Ok(runs.into_iter().next())
        }
        None => {
            let peers = free_addresses(nodes.into())?;
            let name = format!("midplane-fleet-{}", std::process::id());
            let others = (1..nodes).map(|rank| Peer::start(&arguments_of(rank, &name), &peers));
            let mut others = others.collect::<Result<Vec<_>, _>>()?;
            let node = Node { fabric, rank: 0, peers, name, seed };
            live(limit, take_part(node, question)).map(Some).map_err(|what| {
                // The failed process names the cause; the others only miss it.
                let said = others.iter_mut().find_map(Peer::complaint);
                Failure::Lost(said.unwrap_or(what))
            })
        }
        Some(place) => {
            let peers = ranks::addresses(&place, COME_UP).map_err(Failure::Input)?;
            let (rank, name) = (place.rank, name.unwrap_or_default());
            let runs = live(limit, take_part(Node { fabric, rank, peers, name, seed }, question))?;
            Ok((rank == 0).then_some(runs))
        }
    }
}

/// Returns this process's arguments, and those of another rank.
fn arguments_of(rank: u16, name: &str) -> Vec<String> {
    let own = std::env::args().skip(1);
    let more = [format!("--rank={rank}"), "--peers=-".into(), format!("--name={name}")];
    own.chain(more).collect()
}

impl Fleet {
    /// Checks the flags; returns this process's place, or `None` if it is alone.
    ///
    /// # Errors
    /// One line that names the argument.
    fn place(&mut self) -> Result<Option<ProcessGroup>, String> {
        if !(0.01..=60.0).contains(&self.seconds) {
            return Err(format!("--seconds {}: from 0.01 to 60", self.seconds));
        }
        let Some(place) = self.ranks.place()? else { return Ok(None) };
        if self.name.is_none() && self.fabric != Fabric::Udp {
            return Err(format!("--fabric {}: hosts are joined by udp", self.fabric));
        }
        if !(3..=16).contains(&place.size()) {
            return Err(format!("--peers: from 3 to 16 take part, not {}", place.size()));
        }
        self.nodes = place.size() as u16;
        Ok(Some(place))
    }

    /// Returns the time of each measured part.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}
