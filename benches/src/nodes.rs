//! Command line and processes of programs whose runs take several nodes: in virtual time, on this host, across hosts.

use std::fmt;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use midplane::simhw::id::NodeId;
use midplane::simhw::launch;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, SwitchCounters, resolve_peers};
use midplane_kit::command_line::name_of;
use midplane_kit::processes::{self, Peer, free_addresses};
use midplane_kit::ranks::{self, Ranks};
use serde::{Deserialize, Serialize};

/// The fabric between the nodes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Virtual time.
    Sim,
    /// Real sockets, straight from process to process.
    Udp,
    /// Real sockets, through a switch in software.
    Switch,
}

/// Flags that these programs share.
#[derive(Args, Clone, Debug)]
pub struct Nodes {
    /// The fabric between the nodes: virtual time, real sockets, or real sockets through a software switch
    #[arg(long, value_enum, default_value = "switch")]
    pub fabric: Fabric,

    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Print one JSON document, at rank 0, and nothing else
    #[arg(long)]
    pub json: bool,

    /// Draw the results into this file; further pictures go next to it
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Rank 0 reports
    #[command(flatten)]
    ranks: Ranks,

    /// Address of the switch, with --fabric switch across hosts
    #[arg(long, value_name = "HOST:PORT")]
    switch: Option<String>,

    /// Seconds to wait for nodes that have not started yet
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    wait: f64,

    /// Exit when standard input closes
    #[arg(long, hide = true)]
    pub child: bool,

    /// Run the switch, at the address of the first peer
    #[arg(long, hide = true)]
    serve_switch: bool,
}

/// Parses a number of seconds.
///
/// # Errors
/// The accepted range.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=36_000.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number from 0.01 to 36000".into()),
    }
}

/// A process's part in the runs.
#[derive(Debug)]
pub enum Part {
    /// It carries out all runs.
    All,
    /// It is the switch at the first address, between the nodes at the others.
    Switch(Vec<SocketAddr>),
    /// It is one of the nodes.
    Node(launch::ProcessGroup),
}

/// Addresses of the nodes of a live run.
#[derive(Clone, Debug)]
pub struct Place {
    /// This process's node.
    pub rank: u16,
    /// Addresses of all nodes.
    pub peers: Vec<SocketAddr>,
    /// Address of the switch, if there is one.
    pub switch: Option<SocketAddr>,
}

fn input<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Input(what.into()))
}

impl Nodes {
    /// Returns the time to wait for nodes.
    pub fn wait(&self) -> Duration {
        Duration::from_secs_f64(self.wait)
    }

    /// Returns this process's part; a child exits with its parent from then on.
    ///
    /// # Errors
    /// Bad input.
    pub fn part(&self) -> Result<Part, Failure> {
        let is_folder = |path: &&Path| *path == Path::new("") || path.is_dir();
        if let Some(path) = &self.plot
            && path.parent().is_some_and(|folder| !is_folder(&folder))
        {
            return input(format!("--plot {}: there is no such folder", path.display()));
        }
        if self.serve_switch {
            let peers = self.ranks.peers.read().map_err(Failure::Input)?;
            return match resolve_peers(&peers) {
                Ok(peers) => Ok(Part::Switch(peers)),
                Err(error) => input(format!("--peers: {error}")),
            };
        }
        let place = self.ranks.place().map_err(Failure::Input)?;
        // Standard input had the list of peers; its end is the signal to exit.
        if self.child {
            processes::end_with_parent();
        }
        match place {
            Some(place) => Ok(Part::Node(place)),
            None if self.switch.is_some() => {
                input("--switch: name this host's place with --rank and --peers")
            }
            None => Ok(Part::All),
        }
    }

    /// Returns the addresses of a run of `nodes` nodes, this process among them.
    ///
    /// # Errors
    /// Bad input.
    pub fn seat(&self, place: &launch::ProcessGroup, nodes: u16) -> Result<Place, Failure> {
        let rank = place.rank;
        if rank >= nodes {
            return input(format!(
                "--rank {rank}: outside the list of {nodes} peers; ranks count from 0"
            ));
        }
        let switch = match (self.fabric, &self.switch) {
            (Fabric::Sim, _) => {
                return input("--fabric sim: start one process, without --rank and --peers");
            }
            (Fabric::Udp, Some(_)) => {
                return input("--switch: leave it out; --fabric udp has none");
            }
            (Fabric::Udp, None) => None,
            (Fabric::Switch, None) => {
                return input("--switch: give its host:port, or use --fabric udp");
            }
            (Fabric::Switch, Some(at)) => match resolve_peers(std::slice::from_ref(at)) {
                Ok(found) => Some(found[0]),
                Err(_) => {
                    return input(format!(
                        "--switch {at}: it must be host:port with a host that resolves"
                    ));
                }
            },
        };
        let peers = ranks::addresses(place, self.wait()).map_err(Failure::Input)?;
        Ok(Place { rank, peers, switch })
    }

    /// Returns the arguments of a child that takes part in a run.
    pub fn for_child(&self) -> Vec<String> {
        let words = ["--child", "--json", "--peers=-"].map(str::to_owned);
        let (fabric, seed, wait) = (name_of(&self.fabric), self.seed, self.wait);
        let more = [format!("--fabric={fabric}"), format!("--seed={seed}")];
        words.into_iter().chain(more).chain([format!("--wait={wait}")]).collect()
    }

    /// Returns the file of the pictures: `default` if none is named and the report is a table.
    pub fn picture(&self, default: Option<&str>) -> Option<PathBuf> {
        let default = default.filter(|_| !self.json).map(PathBuf::from);
        self.plot.clone().or(default)
    }
}

/// Creates a runtime for one node.
///
/// # Errors
/// The system's error.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::stopped)
}

/// Runs the switch at the first of `peers` until standard input ends; returns its counters.
///
/// # Errors
/// Bad input: the address is not free.
pub fn serve(
    mut peers: Vec<SocketAddr>,
    with: impl FnOnce(SwitchConfig) -> SwitchConfig,
) -> Result<SwitchCounters, Failure> {
    let bind = peers.remove(0);
    let switch = SoftSwitch::start(with(SwitchConfig::new(bind, peers)));
    let switch = switch.map_err(|error| Failure::Input(error.to_string()))?;
    // After an end or an error of standard input no process uses the switch.
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
    Ok(runtime()?.block_on(switch.shutdown()))
}

/// Processes of a run on this host.
#[derive(Debug)]
pub struct Children {
    /// Addresses of all nodes.
    pub peers: Vec<SocketAddr>,
    /// The switch and its address, if there is one.
    pub switch: Option<(Peer, SocketAddr)>,
    /// The started nodes, in order.
    pub nodes: Vec<(u16, Peer)>,
}

impl Children {
    /// Starts the switch if `fabric` has one, and nodes `first..count`, all with the arguments `words`.
    ///
    /// # Errors
    /// There are no free addresses, or the system starts no process.
    pub fn start(
        words: &[String],
        fabric: Fabric,
        (first, count): (u16, u16),
    ) -> Result<Self, Failure> {
        let start = |more: &[String], peers: &[SocketAddr]| {
            Peer::start(&[words, more].concat(), peers).map_err(Failure::Stopped)
        };
        let mut peers = free_addresses(usize::from(count) + 1).map_err(Failure::Stopped)?;
        let has_switch = fabric == Fabric::Switch;
        let switch = has_switch.then(|| start(&["--serve-switch".into()], &peers)).transpose()?;
        let at = peers.remove(0);
        let mut nodes = Vec::new();
        for rank in first..count {
            let mut more = vec![format!("--rank={rank}")];
            more.extend(has_switch.then(|| format!("--switch={at}")));
            nodes.push((rank, start(&more, &peers)?));
        }
        Ok(Self { peers, switch: switch.map(|switch| (switch, at)), nodes })
    }

    /// Returns the error of a node that failed; it explains more than the time-out of those that wait for it.
    pub fn complaint(&mut self) -> Option<Failure> {
        let mut complaints = self.nodes.iter_mut().filter_map(|(rank, node)| {
            Some(Failure::Stopped(format!("rank {rank}: {}", node.complaint()?)))
        });
        complaints.next()
    }
}

/// Reason for a missing result.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// These nodes never answered.
    Unreachable(Vec<NodeId>),
    /// A node was started for another run.
    Mismatch(NodeId),
    /// These nodes were lost during the run.
    Lost(Vec<u16>),
    /// The arguments cannot be satisfied: bad input.
    Input(String),
    /// The fabric failed.
    Stopped(String),
}

impl Failure {
    /// Wraps an error of a NIC or a port.
    pub fn stopped(error: impl fmt::Display) -> Self {
        Self::Stopped(error.to_string())
    }

    /// Returns whether other arguments would help.
    pub const fn is_input(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Mismatch(_) | Self::Input(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(nodes) => {
                let ranks: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                let ranks = ranks.join(", ");
                write!(f, "--peers: rank {ranks} did not answer; start it, or see --wait")
            }
            Self::Mismatch(node) => {
                write!(f, "rank {node} was started with other parameters; give all ranks the same")
            }
            Self::Lost(ranks) => write!(f, "rank {ranks:?} was lost during the run"),
            Self::Input(what) | Self::Stopped(what) => f.write_str(what),
        }
    }
}
