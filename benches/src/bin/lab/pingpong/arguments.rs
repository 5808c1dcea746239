//! Command line of `lab pingpong`, and its contestants.

use std::net::{IpAddr, Ipv4Addr};

use crate::processes;
use clap::{Parser, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  lab pingpong                                     every layer over shared memory, and the kernel's sockets
  lab pingpong --layer message --wait poll         messages alone, both processes spinning
  lab pingpong --fabric udp --peer tcp --sizes 64,4096,65536
  lab pingpong --wait poll --layer vi,message --peer ucx,openmpi,libfabric,iceoryx2   other libraries too
  lab pingpong --fabric udp --between 10.0.0.1,10.0.0.2 --launch 'ssh other'   two hosts

One way is half a round trip: the median over batches of round trips, and over the rounds. The sender copies
nothing beforehand: messages lie in a buffer (kernel) or in registered memory (raw, vi). The receiver reads every byte.
Layers: slots is the bare ring slots, polled; raw is the unit's message service; vi bare Virtual Interfaces, which bypass the NIC while its gate
is open; firmware vi with the gate shut; write vi with RDMA writes; message MPI's tagged point-to-point over vi; lanes the same over shared memory alone,
bypassing the NIC; world the same between ranks on nodes (`Node::world`), with --wait await. With --wait poll both processes busy-poll and need a core each.
Other libraries are measured by programs of their packages; a missing one is skipped. libfabric's prints a mean: the median of
five runs counts.

Exit code: 0 it ran; 1 a process was lost; 2 bad input.";

/// The fabric between the two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Fabric {
    /// Shared memory.
    Shm,
    /// UDP over loopback.
    Udp,
}

/// The layer that carries the messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Layer {
    /// The ring slots of shared memory, without NICs.
    Slots,
    /// The unit's message service.
    Raw,
    /// Virtual Interfaces.
    Vi,
    /// Virtual Interfaces whose messages all pass the NIC's firmware.
    Firmware,
    /// RDMA writes over Virtual Interfaces.
    Write,
    /// Messages with tags over Virtual Interfaces.
    Message,
    /// Messages with tags over shared memory, bypassing the NIC.
    Lanes,
    /// Messages with tags between ranks on nodes, awaited.
    World,
}

impl Layer {
    /// The layers that are measured by default: first those that each fabric has.
    const USUAL: [Self; 7] =
        [Self::Raw, Self::Vi, Self::Message, Self::World, Self::Firmware, Self::Write, Self::Lanes];
    const OVER_UDP: usize = 4;
}

/// Way in which a process waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Wait {
    /// Busy-polls.
    Poll,
    /// Awaits.
    Await,
}

/// Another system that is measured in the same run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Kernel {
    /// tokio's TCP over loopback.
    Tcp,
    /// tokio's Unix sockets.
    Unix,
    /// tokio's UDP over loopback.
    Udp,
    /// UCX over shared memory, by its `ucx_perftest`.
    Ucx,
    /// libfabric over shared memory, by its `fi_pingpong`.
    Libfabric,
    /// Open MPI over shared memory, a program for its `mpicc` and `mpirun`.
    Openmpi,
    /// iceoryx2, by the program in `benches/iceoryx2`.
    Iceoryx2,
}

impl Kernel {
    /// Returns whether another project's program measures it.
    pub(crate) const fn is_library(self) -> bool {
        matches!(self, Self::Ucx | Self::Libfabric | Self::Openmpi | Self::Iceoryx2)
    }
}

display!(Fabric, Layer, Wait, Kernel);

/// A contestant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Contest {
    Ours(Fabric, Layer, Wait),
    Kernel(Kernel),
}

impl Contest {
    /// Returns whether lost messages are not retransmitted.
    pub(crate) const fn may_lose(&self) -> bool {
        matches!(self, Self::Kernel(Kernel::Udp) | Self::Ours(Fabric::Udp, Layer::Raw, _))
    }

    /// Returns the names of its fabric, its layer and its way of waiting.
    pub(crate) fn names(&self) -> [String; 3] {
        match self {
            Self::Ours(fabric, layer, wait) => {
                [fabric.to_string(), layer.to_string(), wait.to_string()]
            }
            Self::Kernel(library) if library.is_library() => {
                [library.to_string(), "library".into(), Wait::Poll.to_string()]
            }
            Self::Kernel(kernel) => [kernel.to_string(), "kernel".into(), Wait::Await.to_string()],
        }
    }
}

/// Measure round trips between two processes: ours, the kernel's, other libraries'
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The fabric between the two processes
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm")]
    pub(crate) fabric: Vec<Fabric>,

    /// The layer that carries the messages; default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) layer: Vec<Layer>,

    /// Way in which the processes wait
    #[arg(long, value_enum, value_delimiter = ',', default_value = "poll,await")]
    pub(crate) wait: Vec<Wait>,

    /// Other systems to measure; default: tcp,unix, and tcp between two hosts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) peer: Vec<Kernel>,

    /// Bytes of a message, each from 1 to 1048576
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024,4096,16384,65536")]
    pub(crate) sizes: Vec<usize>,

    /// Rounds, from 1 to 100; each measures everything once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Approximate milliseconds of each measurement, from 10 to 10000
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) milliseconds: u32,

    /// Addresses of this host and of another one, on which --launch starts programs; with --fabric udp
    #[arg(
        long,
        value_name = "OWN,OTHER",
        value_delimiter = ',',
        num_args = 1,
        requires = "launch"
    )]
    pub(crate) between: Vec<IpAddr>,

    /// Command that starts a program on the other host, where this program has the same path: "ssh other", "ip netns
    /// exec other"
    #[arg(long, value_name = "COMMAND", requires = "between")]
    pub(crate) launch: Option<String>,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Address of the waiting process, for the second process of a run
    #[arg(long, hide = true)]
    pub(crate) child: Option<String>,
}

/// Most bytes of a message.
pub(crate) const MAX_BYTES: usize = 1 << 20;

impl Arguments {
    /// Fills in the other systems, if none is named.
    pub(crate) fn fill(&mut self) {
        if self.peer.is_empty() {
            self.peer = vec![Kernel::Tcp];
            self.peer.extend(self.between.is_empty().then_some(Kernel::Unix));
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        // A stream cannot carry an empty message.
        if let Some(bytes) = self.sizes.iter().find(|bytes| !(1..=MAX_BYTES).contains(*bytes)) {
            return Err(format!("--sizes {bytes}: must be from 1 to {MAX_BYTES} bytes"));
        }
        let over_udp = &Layer::USUAL[..Layer::OVER_UDP];
        if self.fabric.contains(&Fabric::Udp)
            && let Some(layer) = self.layer.iter().find(|layer| !over_udp.contains(layer))
        {
            return Err(format!("--layer {layer}: only --fabric shm has it"));
        }
        if self.layer.contains(&Layer::Slots) && self.wait != [Wait::Poll] {
            return Err("--layer slots: both processes poll; add --wait poll".into());
        }
        if self.layer.contains(&Layer::World) && self.wait != [Wait::Await] {
            return Err(
                "--layer world: the tasks of its node need the thread; add --wait await".into()
            );
        }
        self.check_hosts()
    }

    fn check_hosts(&self) -> Result<(), String> {
        if self.between.is_empty() {
            return Ok(());
        }
        let [own, other] = &self.between[..] else {
            return Err("--between: takes two addresses, this host's and the other's".into());
        };
        if own == other || own.is_ipv4() != other.is_ipv4() {
            return Err(format!(
                "--between {own},{other}: two hosts have two addresses, of one family"
            ));
        }
        if self.fabric.contains(&Fabric::Shm) {
            return Err(
                "--fabric shm: two hosts have only udp between them; add --fabric udp".into()
            );
        }
        let reaches = |peer: &&Kernel| !matches!(peer, Kernel::Tcp | Kernel::Udp);
        if let Some(peer) = self.peer.iter().find(reaches) {
            return Err(format!(
                "--peer {peer}: is for one host; between two there are tcp and udp"
            ));
        }
        processes::free_at(*own, 1).map_err(|what| format!("--between {own}: {what}"))?;
        let launcher = self.launcher();
        let first = launcher.first().ok_or("--launch: names no program")?;
        match is_program(first) {
            true => Ok(()),
            false => Err(format!("--launch {first}: there is no such program")),
        }
    }

    /// Returns this host's address.
    pub(crate) fn own_address(&self) -> IpAddr {
        self.between.first().copied().unwrap_or_else(|| Ipv4Addr::LOCALHOST.into())
    }

    /// Returns the command that starts the other process.
    pub(crate) fn launcher(&self) -> Vec<String> {
        let words = self.launch.iter().flat_map(|command| command.split_whitespace());
        words.map(str::to_owned).collect()
    }

    pub(crate) fn contests(&self) -> Vec<Contest> {
        let mut contests = Vec::new();
        for fabric in &self.fabric {
            let usual = match fabric {
                Fabric::Shm => &Layer::USUAL[..],
                Fabric::Udp => &Layer::USUAL[..Layer::OVER_UDP],
            };
            let layers = if self.layer.is_empty() { usual } else { &self.layer[..] };
            for wait in &self.wait {
                let is_there = |layer: &&Layer| **layer != Layer::World || *wait == Wait::Await;
                let layers = layers.iter().filter(is_there);
                contests.extend(layers.map(|layer| Contest::Ours(*fabric, *layer, *wait)));
            }
        }
        contests.extend(self.peer.iter().copied().map(Contest::Kernel));
        contests
    }

    /// Returns the command line of the second process, which answers one contestant.
    pub(crate) fn for_child(&self, contest: &Contest, place: &str) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        let mut words = vec![
            "pingpong".into(),
            format!("--child={place}"),
            format!("--sizes={}", sizes.join(",")),
            format!("--milliseconds={}", self.milliseconds),
        ];
        match contest {
            Contest::Ours(fabric, layer, wait) => words.extend([
                format!("--fabric={fabric}"),
                format!("--layer={layer}"),
                format!("--wait={wait}"),
            ]),
            Contest::Kernel(kernel) => words.push(format!("--peer={kernel}")),
        }
        words
    }
}

/// Returns whether a program of this name is on this machine.
pub(crate) fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    // Joining an absolute path leaves it unchanged.
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}
