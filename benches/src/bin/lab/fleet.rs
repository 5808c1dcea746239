//! Runs one program at several nodes: in virtual time, or as a process per node over a live fabric, on one or several
//! hosts.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use midplane::nicvm::collective::{self, COLLECTIVES, Collectives, Operation};
use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::launch::Place;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::port::{Completion, Port, PortOptions, Status};
use midplane::simhw::profile::Machine;
use midplane::simhw::region::Region;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::sim::World;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use serde::Serialize;

use crate::processes::{Peer, end_with_parent, free_addresses};
use crate::ranks::{self, Ranks};
use crate::report;

/// Time limit for processes to start.
const COME_UP: Duration = Duration::from_secs(20);
/// Interval at which a started process says hello to rank 0.
const SAY_SO: Duration = Duration::from_millis(20);
/// Time that a run may take beyond what it measures.
const LOST: Duration = Duration::from_secs(30);

/// The fabric between the nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// Simulated machines on 25 Gb/s Ethernet, in virtual time
    Sim,
    /// Shared memory, a process per node (Linux)
    Shm,
    /// UDP, a process per node, on one or several hosts
    Udp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("none is hidden").get_name())
    }
}

/// Flags of all such programs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Fleet {
    /// The fabric between the nodes
    #[arg(long, value_enum, default_value_t = Fabric::Udp)]
    pub(crate) fabric: Fabric,
    /// Nodes, from 3 to 16; with --peers, as many as there are peers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(3..=16))]
    pub(crate) nodes: u16,
    /// Seconds of each measured part, from 0.01 to 60
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    ranks: Ranks,
    /// Name of the shared memory, for the processes that a process alone starts
    #[arg(long, hide = true)]
    name: Option<String>,
}

/// The program of each node.
pub(crate) trait Part: Clone + Send + 'static {
    /// Result of the program; rank 0's is the run's.
    type Outcome: Send + 'static;

    /// Installs the program's extensions on a node's NIC.
    fn equip(&self, unit: &mut Unit);

    /// Runs a node's application.
    fn play<H: Host>(
        self,
        host: H,
        meeting: Meeting,
    ) -> impl Future<Output = Result<Self::Outcome, String>> + Send;
}

/// Reason for a missing result.
enum Failure {
    /// The input is bad.
    Input(String),
    /// A node was lost, or its program failed.
    Lost(String),
}

impl Fleet {
    /// Checks the flags; returns this process's place, or `None` if it is alone.
    ///
    /// # Errors
    /// One line that names the argument.
    pub(crate) fn place(&mut self) -> Result<Option<Place>, String> {
        if !(0.01..=60.0).contains(&self.seconds) {
            return Err(format!("--seconds {}: from 0.01 to 60", self.seconds));
        }
        if cfg!(not(target_os = "linux")) && self.fabric == Fabric::Shm {
            return Err("--fabric shm: needs Linux".into());
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

    /// Runs `part` at every node with a progress bar of `steps` at rank 0, and passes rank 0's outcome to `finish`.
    /// `own` are the program's own flags, for the processes that it starts.
    pub(crate) fn conduct<P: Part>(
        &self,
        place: Option<Place>,
        (own, steps): (&[String], u64),
        part: impl FnOnce(ProgressBar) -> P,
        finish: impl FnOnce(&P::Outcome) -> ExitCode,
    ) -> ExitCode {
        let leads = place.as_ref().is_none_or(|place| place.rank == 0);
        let bar = if leads { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta}");
        bar.set_style(style.expect("a constant"));
        let ended = self.run(place, own, part(bar.clone()));
        bar.finish_and_clear();
        match ended {
            Ok(Some(outcome)) => finish(&outcome),
            Ok(None) => ExitCode::SUCCESS,
            Err(Failure::Input(what)) => report::fail(&what, report::BAD_INPUT),
            Err(Failure::Lost(what)) => report::fail(&what, report::FAILED),
        }
    }

    /// Runs `part` at every node; returns rank 0's outcome if this process is rank 0.
    fn run<P: Part>(
        &self,
        place: Option<Place>,
        own: &[String],
        part: P,
    ) -> Result<Option<P::Outcome>, Failure> {
        if self.name.is_some() {
            end_with_parent();
        }
        let Some(place) = place else {
            return match self.fabric {
                Fabric::Sim => self.simulate(part).map(Some).map_err(Failure::Lost),
                _ => self.start(own, part),
            };
        };
        let peers = ranks::addresses(&place, COME_UP).map_err(Failure::Input)?;
        let name = self.name.clone().unwrap_or_default();
        let outcome = self.live(place.rank, peers, &name, part).map_err(Failure::Lost)?;
        Ok((place.rank == 0).then_some(outcome))
    }

    /// Starts a process for each other node, and runs rank 0 here.
    fn start<P: Part>(&self, own: &[String], part: P) -> Result<Option<P::Outcome>, Failure> {
        let peers = free_addresses(self.nodes.into()).map_err(Failure::Lost)?;
        let name = format!("midplane-fleet-{}", std::process::id());
        let words = |rank: u16| {
            let common = [
                format!("--fabric={}", self.fabric),
                format!("--seconds={}", self.seconds),
                format!("--seed={}", self.seed),
                format!("--rank={rank}"),
                "--peers=-".into(),
                format!("--name={name}"),
            ];
            own.iter().cloned().chain(common).collect::<Vec<_>>()
        };
        let others = (1..self.nodes).map(|rank| Peer::start(&words(rank), &peers));
        let mut others = others.collect::<Result<Vec<_>, _>>().map_err(Failure::Lost)?;
        self.live(0, peers.clone(), &name, part).map(Some).map_err(|what| {
            // The failed process names the cause; the others only miss it.
            let said = others.iter_mut().find_map(Peer::complaint);
            Failure::Lost(said.unwrap_or(what))
        })
    }

    fn unit<P: Part>(nodes: u16, part: &P) -> Unit {
        let mut unit = Unit::default();
        let members = (0..nodes).map(NodeId).collect();
        unit.install(MESSAGES, Messages::new()).expect("the number is free");
        unit.install(COLLECTIVES, Collectives::new(members)).expect("the number is free");
        part.equip(&mut unit);
        unit
    }

    fn simulate<P: Part>(&self, part: P) -> Result<P::Outcome, String> {
        let (machine, nodes, made) = (Machine::ETHERNET_25G, self.nodes, part.clone());
        let mut world = World::new(&machine.topology(nodes), machine.nic, self.seed, {
            move |_, _| Self::unit(nodes, &made)
        });
        world.set_hosts(machine.host);
        for node in (1..nodes).map(NodeId) {
            // Rank 0 reports the failure of a lost node.
            let work = take_part(world.host(node), nodes, part.clone());
            world.spawn(node, async move { drop(work.await) });
        }
        let first = take_part(world.host(NodeId(0)), nodes, part);
        let ended = world.block_on(NodeId(0), first);
        ended.ok_or("nothing is left to happen, and rank 0 is not done")?
    }

    fn live<P: Part>(
        &self,
        rank: u16,
        peers: Vec<SocketAddr>,
        name: &str,
        part: P,
    ) -> Result<P::Outcome, String> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
        let (nodes, seed, limit) = (self.nodes, self.seed, self.time() * 4 + COME_UP + LOST);
        let unit = Self::unit(nodes, &part);
        runtime.block_on(async {
            let work = async {
                match self.fabric {
                    #[cfg(target_os = "linux")]
                    Fabric::Shm => {
                        let config = ShmConfig::new(name, NodeId(rank), nodes).seed(seed);
                        let nic = ShmNic::start(config, unit).map_err(text)?;
                        let met = tokio::time::timeout(COME_UP, nic.meet()).await;
                        met.map_err(|_| format!("some did not come up in {COME_UP:?}"))?;
                        let ended = take_part(nic.host(), nodes, part).await;
                        nic.shutdown().await;
                        ended
                    }
                    _ => {
                        // A line rate above any loopback's: frames are not paced.
                        let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
                        let config = UdpConfig::new(NodeId(rank), peers).line(line).seed(seed);
                        let nic = UdpNic::start(config, unit)
                            .map_err(|error| format!("--peers: {error}"))?;
                        let ended = take_part(nic.host(), nodes, part).await;
                        nic.shutdown().await;
                        ended
                    }
                }
            };
            tokio::select! {
                ended = work => ended,
                () = tokio::time::sleep(limit) => Err(format!("it did not end in {limit:?}")),
                _ = tokio::signal::ctrl_c() => Err("stopped".into()),
            }
        })
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

async fn take_part<P: Part>(host: impl Host, nodes: u16, part: P) -> Result<P::Outcome, String> {
    let meeting = Meeting::new(&host, nodes).await?;
    part.play(host, meeting).await
}

/// Barrier and reductions over all nodes, before, between and after the measured parts.
pub(crate) struct Meeting {
    port: Port,
    words: Region,
    /// Kept open, so that later ports have the same numbers at all nodes.
    _listener: Option<Port>,
}

impl Meeting {
    /// Waits until all nodes have started.
    pub(crate) async fn new(host: &impl Host, nodes: u16) -> Result<Self, String> {
        let mut listener =
            host.open_port_with(PortOptions::default().number(PortId(0))).map_err(text)?;
        let mut port = host.open_port().map_err(text)?;
        let words = port.register(collective::SMALL).map_err(text)?;
        let listener = if host.node() == NodeId(0) {
            greet(host, listener, nodes).await?;
            None
        } else {
            let memory = listener.register(16).map_err(text)?;
            let (hello, lent) = (memory.range(0, 8), memory.range(8, 8));
            let (hello, lent) = hello.zip(lent).expect("within it");
            listener.submit(&messages::receive(lent, 1)).map_err(text)?;
            let until = host.now() + COME_UP;
            'up: while host.now() < until {
                listener.submit(&messages::send(NodeId(0), PortId(0), hello, 0)).map_err(text)?;
                host.sleep_until(host.now() + SAY_SO).await;
                while let Some(done) = listener.poll() {
                    if done.cookie == 1 {
                        break 'up;
                    }
                }
            }
            if host.now() >= until {
                return Err(format!("rank 0 did not come up in {COME_UP:?}"));
            }
            Some(listener)
        };
        let mut meeting = Self { port, words, _listener: listener };
        meeting.barrier().await?;
        Ok(meeting)
    }

    /// Waits for all nodes.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn barrier(&mut self) -> Result<(), String> {
        self.port.submit(&collective::barrier(0)).map_err(text)?;
        self.ended().await
    }

    /// Sums the words of all nodes, up to eleven; every node gets the sums.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn sum(&mut self, words: &mut [u64]) -> Result<(), String> {
        self.combine(Operation::Sum, words).await
    }

    /// Combines the words of all nodes by `operation`.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn combine(
        &mut self,
        operation: Operation,
        words: &mut [u64],
    ) -> Result<(), String> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.words.write(0, &bytes).map_err(text)?;
        let region = self.words.range(0, bytes.len()).expect("no more than eleven words");
        self.port.submit(&collective::all_reduce(operation, region, 0)).map_err(text)?;
        self.ended().await?;
        self.words.read(0, &mut bytes).map_err(text)?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(())
    }

    async fn ended(&mut self) -> Result<(), String> {
        match self.port.completion().await.map_err(text)?.status {
            Status::Done => Ok(()),
            status => Err(format!("a node is lost: a collective ended as {status:?}")),
        }
    }
}

/// Runs rank 0's part: collects the nodes' hellos and answers each node once all have started, and again whenever a
/// node repeats its hello.
async fn greet(host: &impl Host, mut listener: Port, nodes: u16) -> Result<(), String> {
    let memory = listener.register(8 * usize::from(nodes) * 4).map_err(text)?;
    let slot = |at: u64| memory.range(8 * at as usize, 8).expect("within it");
    for at in 1..u64::from(nodes) * 4 {
        listener.post(&messages::receive(slot(at), at)).map_err(text)?;
    }
    listener.ring();
    let mut up = vec![false; nodes.into()];
    up[0] = true;
    let until = host.now() + COME_UP;
    while up.contains(&false) {
        while let Some(done) = listener.poll() {
            up[done.node.index()] = true;
            listener.submit(&messages::receive(slot(done.cookie), done.cookie)).map_err(text)?;
        }
        if host.now() > until {
            let missing = up.iter().position(|up| !up).unwrap_or(0);
            return Err(format!("rank {missing} did not come up in {COME_UP:?}"));
        }
        host.sleep_until(host.now() + SAY_SO / 4).await;
    }
    for node in (1..nodes).map(NodeId) {
        listener.submit(&messages::send(node, PortId(0), slot(0), 0)).map_err(text)?;
    }
    host.spawn(async move {
        let memory = memory;
        let slot = |at: u64| memory.range(8 * at as usize, 8).expect("within it");
        // A stopped NIC needs no answers.
        while let Ok(Completion { status: Status::Done, cookie, node, .. }) =
            listener.completion().await
        {
            if cookie > 0 {
                let posted = listener
                    .post(&messages::receive(slot(cookie), cookie))
                    .and_then(|()| listener.submit(&messages::send(node, PortId(0), slot(0), 0)));
                if posted.is_err() {
                    return;
                }
            }
        }
    });
    Ok(())
}
