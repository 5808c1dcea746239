//! Command line of `lab preempt`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use midplane::gang::daemon::Mode;
use midplane::gang::nas::Class;
use midplane::gang::scheduler::Phases;
use midplane::simhw::profile::Machine;

/// Measure the cost of preemption for a parallel job: NAS kernels, gang scheduling
///
/// As in the SCore-D paper, one job is switched with itself at the end of every slice: all its processes are stopped;
/// its channels are quiesced, saved, restored and started in the next epoch. The slowdown is (T_gang - T_alone) /
/// T_alone of the job's own run, stopped time included.
///
/// In `sim` times are virtual: the cluster and its arithmetic take what the machine's profile says, whatever computer
/// this runs on. On the other fabrics ranks are processes, stopped by signals, in real time. Real runs differ by more
/// than preemption costs; so a run is preempted in some slices and not in others, and rank 0's laps between two
/// reports of work are compared. Results are computed and checked against the official ones.
#[derive(Clone, Debug, Parser)]
#[command(
    after_help = "Examples:\n  lab preempt                                     every kernel, class S, 8 ranks, 100 ms\n  \
    lab preempt --slice-ms 5,10,20,40,50,100,200    and the fitted power of the slice; -1: halves when the slice doubles\n  \
    lab preempt --mode resident --machine today     contexts stay on the NIC\n  \
    lab preempt --paper                             the paper's Tables 2 and 3, and its statements on Figures 5 and 6\n  \
    lab preempt --freeze                            freezing 2 to 4,096 nodes, trees of every arity\n  \
    lab preempt --freeze --plot freeze.svg          the same, with a picture\n  \
    lab preempt --soak 1000000                      check messages over a million preemptions\n  \
    lab preempt --fabric shm --ranks 2 --class W    real processes on this host, real time\n  \
    lab preempt --fabric udp --ranks 2              the same over UDP, a daemon a rank\n  \
    lab preempt --fabric shm --freeze               freezing 64 processes, blocked and spinning\n  \
    lab preempt --channel                           saving and restoring a real channel\n\n\
    Exit code: 0 all results are the official ones, with the same bits preempted or not; 1 some are not; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Kernels, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ep,cg,ft")]
    pub(crate) kernel: Vec<KernelName>,
    /// Classes: S, W, A; arithmetic is real, so A takes minutes
    #[arg(long, value_delimiter = ',', default_value = "S")]
    pub(crate) class: Vec<Class>,
    /// Ranks, one a node: a power of two, up to 64.
    #[arg(long, value_delimiter = ',', value_parser = ranks, default_value = "8")]
    pub(crate) ranks: Vec<u16>,
    /// Lengths of a slice in milliseconds, from 1 to 10,000.
    #[arg(long, value_delimiter = ',', value_parser = slice, default_value = "100")]
    pub(crate) slice_ms: Vec<f64>,
    /// Switching of contexts: copied out and in, or kept on the NIC
    #[arg(long, value_enum, value_delimiter = ',', default_value = "resident,copy")]
    pub(crate) mode: Vec<ModeName>,
    /// Barriers of a switch: 2, as midplane's daemons use, where contexts are saved while others freeze; or the
    /// paper's 4, one after each phase, which --paper uses by default
    #[arg(long, value_parser = phases, value_name = "2|4")]
    pub(crate) barriers: Option<Phases>,
    /// The cluster: PentiumPros on Myrinet with PM, or servers of today on 25 Gb/s.
    #[arg(long, value_enum, default_value = "pm")]
    pub(crate) machine: MachineName,
    /// Runs of each, from different seeds, for the confidence interval.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value = "3")]
    pub(crate) repeat: u32,
    /// Fabric: virtual time, or processes of this host, under one daemon whose NIC joins them by shared
    /// memory, or under a daemon a rank (8 at most), whose NICs are joined by UDP.
    #[arg(long, value_enum, default_value = "sim")]
    pub(crate) fabric: FabricName,
    /// Real processes: run under these daemons, which may be on several hosts, instead of this run's own. ALONE is a
    /// socket of daemons that let a job run for ever (--slice-ms 3600000); PREEMPTING one of daemons that stop even a
    /// job that is alone, in some slices and not in others (--with-itself 10)
    #[arg(long, value_parser = two_sockets, value_name = "ALONE,PREEMPTING")]
    pub(crate) daemons: Option<[PathBuf; 2]>,
    /// Real processes: continue after --repeat runs until there were so many preemptions
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub(crate) preemptions: usize,
    /// The first seed.
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Print the paper's numbers and ours.
    #[arg(long, conflicts_with = "freeze")]
    pub(crate) paper: bool,
    /// Measure the time of a freeze over numbers of nodes and arities of the tree; on another fabric, of 64 processes
    /// of this host
    #[arg(long)]
    pub(crate) freeze: bool,
    /// Draw freezes over the nodes, a panel per arity, with the fitted lines; with --freeze, in `sim`
    #[arg(long, value_name = "FILE.svg", requires = "freeze")]
    pub(crate) plot: Option<PathBuf>,
    /// Measure saving and restoring one real channel, both of its FIFOs full
    #[arg(long, conflicts_with_all = ["freeze", "paper"])]
    pub(crate) channel: bool,
    /// Preempt jobs in random clusters so often (default: 20,000), in virtual time, and count lost, duplicated and
    /// reordered messages
    #[arg(
        long,
        value_name = "COUNT",
        num_args = 0..=1,
        default_missing_value = "20000",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
        conflicts_with_all = ["freeze", "paper", "channel"]
    )]
    pub(crate) soak: Option<u64>,
    /// Measure a channel on the paper's machine with FIFOs of 8 to 256 KiB, and with up to 15 other open channels
    #[arg(long, conflicts_with_all = ["freeze", "paper", "channel", "soak"])]
    pub(crate) sweep: bool,
    /// Report when jobs ran under each scheduler, from the notes of their ranks in this folder; a rank writes them as
    /// `lab --be-ticker FOLDER SCHEDULER.JOB.RANK SECONDS`
    #[arg(long, value_name = "FOLDER")]
    pub(crate) turns: Option<PathBuf>,
    /// Draw the slices of two jobs that share the cluster: SVG, or a trace for Perfetto if the name ends in .json.
    #[arg(long, value_name = "FILE")]
    pub(crate) gantt: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Arguments {
    pub(crate) fn phases(&self) -> Phases {
        let usual = if self.paper { Phases::Four } else { Phases::Two };
        self.barriers.unwrap_or(usual)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum FabricName {
    Sim,
    Shm,
    Udp,
}

impl FabricName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Shm => "shm",
            Self::Udp => "udp",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum KernelName {
    Ep,
    Cg,
    Ft,
}

impl KernelName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ep => "ep",
            Self::Cg => "cg",
            Self::Ft => "ft",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ModeName {
    Resident,
    Copy,
}

impl ModeName {
    pub(crate) const fn mode(self) -> Mode {
        match self {
            Self::Resident => Mode::Resident,
            Self::Copy => Mode::Copy,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Copy => "copy",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum MachineName {
    Pm,
    Today,
}

impl MachineName {
    pub(crate) const fn machine(self) -> Machine {
        match self {
            Self::Pm => Machine::PM_MYRINET,
            Self::Today => Machine::ETHERNET_25G,
        }
    }

    /// Returns the estimated floating-point operations per second of one processor.
    pub(crate) const fn per_second(self) -> f64 {
        match self {
            Self::Pm => 50e6,
            Self::Today => 4e9,
        }
    }
}

fn ranks(text: &str) -> Result<u16, String> {
    let ranks: u16 = text.parse().map_err(|_| format!("{text} is not a number of ranks"))?;
    match ranks.is_power_of_two() && ranks <= 64 {
        true => Ok(ranks),
        false => Err("ranks are 1, 2, 4, 8, 16, 32 or 64".to_owned()),
    }
}

fn two_sockets(text: &str) -> Result<[PathBuf; 2], String> {
    let (alone, preempting) =
        text.split_once(',').ok_or("name two sockets, separated by a comma")?;
    Ok([alone, preempting].map(PathBuf::from))
}

fn slice(text: &str) -> Result<f64, String> {
    let slice: f64 = text.parse().map_err(|_| format!("{text} is not a number of milliseconds"))?;
    match (1.0..=10_000.0).contains(&slice) {
        true => Ok(slice),
        false => Err("a slice lasts 1 to 10,000 ms".to_owned()),
    }
}

fn phases(text: &str) -> Result<Phases, String> {
    match text {
        "2" => Ok(Phases::Two),
        "4" => Ok(Phases::Four),
        _ => Err("a switch has 2 or 4 barriers".to_owned()),
    }
}
