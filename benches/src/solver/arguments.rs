//! Command line of the solver.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::setting::{Control, Hosts, Iteration, Load, Medium, Memory, Setting, Transport};
use crate::nodes::{Fabric, Nodes, among, seconds};
use midplane_kit::command_line::{name_of, within};

/// Buffer sizes of Figure 1.
const BUFFERS: [u16; 6] = [1, 4, 8, 16, 32, 128];
/// The buffer size that the paper discusses in detail.
pub const PAPER_BUFFER: u16 = 4;
/// Share of the network that background traffic takes in the figures.
const BACKGROUND: f64 = 0.5;
/// Default time limit of a run in a comparison, in seconds.
const COMPARISON_LIMIT: f64 = 15.0;
/// Default time limit of a single run, in seconds.
const LIMIT: f64 = 300.0;

/// The controls that send every update, as rounds need them.
const ROUND_CONTROLS: [Control; 2] = [Control::None, Control::Static];

/// The controls of Mermera's slow writes: they are sent at once, or conditionally.
const MEMORY_CONTROLS: [Control; 2] = [Control::None, Control::WarpCsend];

const EXAMPLES: &str = "\
Examples:
  # The paper's figures: every control and buffer size, without and with background, each rank a
  # process of this host behind a switch in software; a table and pictures
  solver

  # The same in virtual time, on the paper's cable and workstations
  solver --fabric sim --plot figures.svg

  # One run: a Trefethen system of 1000 unknowns on 5 ranks under Warp, half of the network taken
  solver --trefethen 1000 --control warp+csend --background 0.5 --json

  # Synchronous Jacobi, whose ranks wait for each other in every round
  solver --fabric sim --iteration jacobi --control static --buffer 128 --background 0.5

  # The paper's stack: slow writes to Mermera's shared memory, as conditional sends on Warp; each rank a process
  solver --memory mermera --control warp+csend --background 0.5

  # On three hosts, with peers.txt holding one host:port a line; rank 0 has the answer
  solver --fabric udp --rank 0 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx
  solver --fabric udp --rank 1 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx
  solver --fabric udp --rank 2 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx

Exit code: 0 every run converged; 1 one did not, or a rank was lost and the rest ended; 2 bad input,
with one line that says which.";

/// Solve linear systems by asynchronous iteration over an overloaded network
///
/// Compares what controls of sending do about the overload: none, static buffers, conditional send and Warp.
#[derive(Clone, Debug, Parser)]
#[command(name = "solver", version, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    pub nodes: Nodes,

    /// In virtual time, the shared medium: one cable of 10 Mb/s with collisions, or a switch with ports of 10 Mb/s
    #[arg(long, value_enum, default_value = "cable")]
    medium: Medium,

    /// A system in Matrix Market format; its right-hand side is that of the solution of all ones
    #[arg(long, value_name = "FILE.mtx", conflicts_with_all = ["trefethen", "random"])]
    pub matrix: Option<PathBuf>,

    /// The Trefethen system of this many unknowns, up to 20000; of 1000 unless given
    #[arg(long, value_name = "N", conflicts_with = "random", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub trefethen: Option<u16>,

    /// A random system of this many unknowns, up to 20000, with a spectral radius of 0.9
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub random: Option<u16>,

    /// Number of ranks; default: 5, or the number of peers
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub ranks: Option<u16>,

    /// The values from which ranks compute: the latest received ones, or all of the last round
    #[arg(long, value_enum, default_value = "asynchronous")]
    iteration: Iteration,

    /// The exchange of values: messages of updates, or Mermera's shared memory, whose slow writes carry --buffer
    /// unknowns each and are sent at once (--control none) or as conditional sends on Warp (warp+csend)
    #[arg(long, value_enum, default_value = "private")]
    memory: Memory,

    /// Control of sending updates; default: every control in turn
    #[arg(long, value_enum)]
    control: Option<Control>,

    /// Updates per message: fixed for static and csend, the initial size for warp; default: 4 with --control, else
    /// several sizes in turn
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=128))]
    buffer: Option<u16>,

    /// Transport of updates: to each rank separately, or one broadcast
    #[arg(long, value_enum, default_value = "unicast")]
    transport: Transport,

    /// Share of the network that background traffic takes, from 0 to 0.9; default: 0 with --control, else 0 and 0.5
    #[arg(long, value_name = "FRACTION", value_parser = within(0.0, 0.9))]
    background: Option<f64>,

    /// Switch the background traffic on and off, each for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds())]
    background_period: Option<f64>,

    /// Largest accepted residual: of any equation, over the largest right-hand side
    #[arg(long, default_value_t = 1e-6, value_parser = within(1e-14, 0.1))]
    tolerance: f64,

    /// Time limit of a run in seconds; default: 15 in a comparison, else 300
    #[arg(long, value_parser = seconds())]
    seconds: Option<f64>,

    /// With --fabric udp: rate limit of each host in 10^6 bit/s, from 1 to 1000
    #[arg(long, value_name = "MBPS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    line_mbps: u16,
}

impl Arguments {
    /// Returns whether several runs are compared.
    pub const fn is_comparison(&self) -> bool {
        self.control.is_none()
    }

    /// Returns the number of ranks, if nothing else determines it.
    pub fn ranks(&self) -> u16 {
        self.ranks.unwrap_or(5)
    }

    /// Returns the number of ranks among `peers` nodes.
    ///
    /// # Errors
    /// One line, if they are fewer than requested, or none.
    pub fn ranks_among(&self, peers: usize) -> Result<u16, String> {
        let others = usize::from(self.background.is_some_and(|share| share > 0.0));
        among(peers, others, "--ranks", self.ranks, 64)
    }

    /// Checks flags that depend on each other.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn check(&self) -> Result<(), String> {
        let leaves_out = |control: &Control| !ROUND_CONTROLS.contains(control);
        if self.iteration == Iteration::Jacobi && self.control.as_ref().is_some_and(leaves_out) {
            return Err("--iteration jacobi: use --control none or static; the others leave updates out, and a round \
                        needs all"
                .into());
        }
        let is_other = |control: &Control| !MEMORY_CONTROLS.contains(control);
        let is_mermera = self.memory == Memory::Mermera;
        if is_mermera && self.control.as_ref().is_some_and(is_other) {
            return Err("--memory mermera: use --control none or warp+csend; a slow write is sent at once or \
                        conditionally"
                .into());
        }
        if is_mermera && self.iteration == Iteration::Jacobi {
            return Err("--memory mermera: leave --iteration jacobi out; a slow write may be skipped, and a round needs \
                        all values"
                .into());
        }
        Ok(())
    }

    /// Returns the requested runs on a system of `unknowns`, with `ranks` ranks.
    pub fn settings(&self, ranks: u16, unknowns: usize, system: u64) -> Vec<Setting> {
        let base = self.setting(ranks, unknowns, system);
        let all = match (self.iteration, self.memory) {
            (Iteration::Jacobi, _) => &ROUND_CONTROLS,
            (Iteration::Asynchronous, Memory::Mermera) => &MEMORY_CONTROLS,
            (Iteration::Asynchronous, Memory::Private) => Control::value_variants(),
        };
        let controls = self.control.map_or_else(|| all.to_vec(), |control| vec![control]);
        let one = self.control.is_some();
        let buffers = match self.buffer {
            Some(buffer) => vec![buffer],
            None if one => vec![PAPER_BUFFER],
            None => BUFFERS.to_vec(),
        };
        let backgrounds = match self.background {
            Some(share) => vec![share],
            None if one => vec![0.0],
            None => vec![0.0, BACKGROUND],
        };
        let mut settings = Vec::new();
        for &share in &backgrounds {
            for &control in &controls {
                for &buffer in &buffers {
                    // Without control each update goes in a message of its own, regardless of the buffer.
                    if control == Control::None
                        && self.memory == Memory::Private
                        && buffer != buffers[0]
                    {
                        continue;
                    }
                    let load = Load { share, period: self.background_period };
                    settings.push(Setting { load, ..base.clone().with(control, buffer) });
                }
            }
        }
        settings
    }

    fn setting(&self, ranks: u16, unknowns: usize, system: u64) -> Setting {
        let is_cable = self.nodes.fabric == Fabric::Sim && self.medium == Medium::Cable;
        let limit = if self.is_comparison() { COMPARISON_LIMIT } else { LIMIT };
        Setting {
            fabric: self.nodes.fabric,
            medium: if is_cable { Medium::Cable } else { Medium::Switch },
            hosts: if is_cable { Hosts::Paper } else { Hosts::Today },
            iteration: self.iteration,
            memory: self.memory,
            control: Control::None,
            buffer: 1,
            transport: self.transport,
            ranks,
            unknowns,
            system,
            load: Load { share: 0.0, period: None },
            tolerance: self.tolerance,
            line_mbps: self.line_mbps,
            seed: self.nodes.seed,
            limit_seconds: self.seconds.unwrap_or(limit),
        }
    }

    /// Returns the arguments of a process that plays one part of `setting`.
    pub fn for_child(&self, setting: &Setting) -> Vec<String> {
        let mut words = self.nodes.for_child();
        let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        add("--iteration", name_of(&setting.iteration));
        add("--memory", name_of(&setting.memory));
        add("--control", name_of(&setting.control));
        add("--buffer", setting.buffer.to_string());
        add("--transport", name_of(&setting.transport));
        add("--ranks", setting.ranks.to_string());
        add("--background", setting.load.share.to_string());
        if let Some(period) = setting.load.period {
            add("--background-period", period.to_string());
        }
        add("--tolerance", setting.tolerance.to_string());
        add("--seconds", setting.limit_seconds.to_string());
        add("--line-mbps", setting.line_mbps.to_string());
        match (&self.matrix, self.random, self.trefethen) {
            (Some(path), ..) => add("--matrix", path.display().to_string()),
            (None, Some(n), _) => add("--random", n.to_string()),
            (None, None, Some(n)) => add("--trefethen", n.to_string()),
            (None, None, None) => {}
        }
        words
    }
}
