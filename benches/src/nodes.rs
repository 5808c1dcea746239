//! Programs whose runs take several nodes, in virtual time, on this host or across hosts: command line, processes, report.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use midplane::simhw::id::NodeId;
use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig};
use midplane_kit::command_line::{self, name_of};
use midplane_kit::processes::{self, Peer, free_addresses};
use midplane_kit::ranks::{self, Ranks};
use midplane_kit::report::{self, Failure};
use serde::Serialize;
use serde_json::json;

/// The fabric between the nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Virtual time.
    Sim,
    /// Real sockets, directly from process to process.
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
    #[arg(long, default_value_t = 10.0, value_parser = seconds())]
    wait: f64,

    /// Exit when standard input closes
    #[arg(long, hide = true)]
    pub child: bool,

    /// Run the switch, at the address of the first peer
    #[arg(long, hide = true)]
    serve_switch: bool,
}

/// Returns the parser of a number of seconds.
pub fn seconds() -> impl Fn(&str) -> Result<f64, String> + Clone {
    command_line::within(0.01, 36_000.0)
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

impl Place {
    /// Configures the NIC of this process's node in a run of `nodes` nodes.
    pub fn nic(&self, nodes: u16, line: LinkProfile, seed: u64) -> UdpConfig {
        let peers = self.peers[..usize::from(nodes)].to_vec();
        let config = UdpConfig::new(NodeId(self.rank), peers).line(line).seed(seed);
        match self.switch {
            Some(switch) => config.via(switch),
            None => config,
        }
    }
}

/// Returns how many of `peers` nodes play the part that `flag` counts: as many as are `wanted`, or `most`, if `others` are left.
///
/// # Errors
/// One line, if they are fewer than requested, or none.
pub fn among(
    peers: usize,
    others: usize,
    flag: &str,
    wanted: Option<u16>,
    most: usize,
) -> Result<u16, String> {
    let most = peers.saturating_sub(others).min(most);
    let count = wanted.map_or(most, usize::from);
    match u16::try_from(count) {
        Ok(0) => Err(format!("--peers: list more than {peers}")),
        Ok(wanted) if count <= most => Ok(wanted),
        _ => Err(format!("{flag}: {count} need {} peers, not {peers}", count + others)),
    }
}

fn input<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(what.into().into())
}

impl Nodes {
    /// Returns the time to wait for nodes.
    pub fn wait(&self) -> Duration {
        Duration::from_secs_f64(self.wait)
    }

    /// Returns this process's place; `None` if it carries out all runs. A child exits with its parent from then on.
    fn place(&self) -> Result<Option<ProcessGroup>, Failure> {
        let is_folder = |path: &&Path| *path == Path::new("") || path.is_dir();
        if let Some(path) = &self.plot
            && path.parent().is_some_and(|folder| !is_folder(&folder))
        {
            return input(format!("--plot {}: there is no such folder", path.display()));
        }
        let place = self.ranks.place()?;
        // Standard input had the list of peers; its end is the signal to exit.
        if self.child {
            processes::end_with_parent();
        }
        if place.is_none() && self.switch.is_some() {
            return input("--switch: name this host's place with --rank and --peers");
        }
        Ok(place)
    }

    /// Returns the addresses of a run of `nodes` nodes, this process among them.
    ///
    /// # Errors
    /// Bad input.
    pub fn seat(&self, place: &ProcessGroup, nodes: u16) -> Result<Place, Failure> {
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
            (Fabric::Switch, Some(at)) => Some(ranks::resolve("--switch", at)?),
        };
        let peers = ranks::addresses(place, self.wait())?;
        Ok(Place { rank, peers, switch })
    }

    /// Returns the arguments of a child that takes part in a run.
    pub fn for_child(&self) -> Vec<String> {
        let words = ["--child", "--json", "--peers=-"].map(str::to_owned);
        let (fabric, seed, wait) = (name_of(&self.fabric), self.seed, self.wait);
        let more = [format!("--fabric={fabric}"), format!("--seed={seed}")];
        words.into_iter().chain(more).chain([format!("--wait={wait}")]).collect()
    }
}

/// A program whose runs take several nodes. Its command line has [`Nodes`].
pub trait Program: Parser {
    /// The report of one run.
    type Run: Serialize;

    /// Returns the flags that such programs share.
    fn nodes(&self) -> &Nodes;

    /// Configures the switch of all runs.
    fn switch(&self, config: SwitchConfig) -> SwitchConfig;

    /// Carries out all runs from this process.
    ///
    /// # Errors
    /// Bad input, or the first run that failed.
    fn compare(&self) -> Result<Vec<Self::Run>, Failure>;

    /// Carries out all runs as one of their nodes; only rank 0 has reports.
    ///
    /// # Errors
    /// Bad input, or the first run that failed.
    fn take_part(&self, place: &ProcessGroup) -> Result<Vec<Self::Run>, Failure>;

    /// Formats the reports as text.
    fn text(&self, runs: &[Self::Run]) -> String;

    /// Returns the file of the pictures of a comparison, unless --plot names one; `None` if this is none.
    fn picture(&self) -> Option<&'static str>;

    /// Draws the pictures, and returns their files.
    ///
    /// # Errors
    /// One line that names the file.
    fn draw(&self, path: &Path, runs: &[Self::Run]) -> Result<Vec<PathBuf>, Failure>;

    /// Checks the reports of all runs.
    ///
    /// # Errors
    /// One line: a rank was lost, or a run did not do what it should.
    fn check(&self, runs: &[Self::Run]) -> Result<(), Failure>;
}

/// Runs a program; returns its exit code.
pub fn main<P: Program>() -> ExitCode {
    command_line::main::<P>(|program| conduct(program).map(|()| 0))
}

fn conduct<P: Program>(program: &P) -> Result<(), Failure> {
    let nodes = program.nodes();
    if nodes.serve_switch {
        return serve(program, ranks::resolve_all(&nodes.ranks.peers.read()?)?);
    }
    let place = nodes.place()?;
    let runs = match &place {
        Some(place) => program.take_part(place)?,
        None => program.compare()?,
    };
    if runs.is_empty() {
        return Ok(());
    }
    report::print_document(nodes.json, &json!({"runs": runs}), |_| program.text(&runs));
    let usual = program.picture().filter(|_| place.is_none() && !nodes.json).map(PathBuf::from);
    let drawn = nodes.plot.clone().or(usual).map(|path| program.draw(&path, &runs)).transpose();
    if let Ok(Some(drawn)) = &drawn
        && !nodes.json
    {
        let drawn: Vec<String> = drawn.iter().map(|path| path.display().to_string()).collect();
        report::print(&format!("Pictures: {}\n", drawn.join(", ")));
    }
    // A lost rank explains more than a picture that could not be written.
    program.check(&runs)?;
    drawn.map(drop)
}

/// Runs the switch at the first of `peers` until standard input ends, and prints its drops by cause.
fn serve(program: &impl Program, mut peers: Vec<SocketAddr>) -> Result<(), Failure> {
    let bind = peers.remove(0);
    let switch = SoftSwitch::start(program.switch(SwitchConfig::new(bind, peers)));
    let switch = switch.map_err(|error| error.to_string())?;
    // After an end or an error of standard input no process uses the switch.
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
    let counters = processes::run(async { Ok(switch.shutdown().await) })?;
    let drops = counters.frame_drops.iter().map(|(cause, count)| (cause.name(), count));
    report::print_json(&drops.collect::<BTreeMap<_, _>>());
    Ok(())
}

/// Runs `part` as rank 0 of a run of `nodes` nodes. The others are processes of this host, started with the arguments
/// `words`, and so is the switch if `fabric` has one. Also returns the switch's drops by cause.
///
/// # Errors
/// The error of `part`, or of the child that caused it: its error explains more than those of nodes that wait for it.
pub fn with_children<T>(
    words: &[String],
    fabric: Fabric,
    nodes: u16,
    part: impl AsyncFnOnce(Place) -> Result<T, Failure>,
) -> Result<(T, BTreeMap<String, u64>), Failure> {
    let start = |more: &[String], peers: &[SocketAddr]| {
        Peer::start(&[words, more].concat(), peers).map_err(Failure::of_run)
    };
    let mut peers = free_addresses(usize::from(nodes) + 1).map_err(Failure::of_run)?;
    let has_switch = fabric == Fabric::Switch;
    let switch = has_switch.then(|| start(&["--serve-switch".into()], &peers)).transpose()?;
    let at = Some(peers.remove(0)).filter(|_| has_switch);
    let mut children = Vec::new();
    for rank in 1..nodes {
        let mut more = vec![format!("--rank={rank}")];
        more.extend(at.map(|at| format!("--switch={at}")));
        children.push((rank, start(&more, &peers)?));
    }
    let place = Place { rank: 0, peers, switch: at };
    let done = processes::run(part(place)).map_err(|failure| {
        let complaint = |(rank, child): &mut (u16, Peer)| {
            Some(Failure::of_run(format!("rank {rank}: {}", child.complaint()?)))
        };
        children.iter_mut().find_map(complaint).unwrap_or(failure)
    })?;
    let Some(mut switch) = switch else { return Ok((done, BTreeMap::new())) };
    switch.close();
    let printed = switch.output().map_err(Failure::of_run)?;
    let drops = serde_json::from_str(&printed);
    Ok((done, drops.map_err(|_| Failure::of_run("the switch printed no counters"))?))
}
