//! Command line of `lab preempt`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use midplane::gang::daemon;
use midplane_kit::command_line::within;
use midplane_nas::Class;
use serde::Serialize;

use crate::fabric::Fabric;
use crate::nas_rank::Name;

/// Ways to switch contexts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Kept on the NIC
    Resident,
    /// Copied out and in
    Copy,
}

impl From<Mode> for daemon::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Resident => Self::Resident,
            Mode::Copy => Self::Copy,
        }
    }
}

/// Measure the cost of preemption for a parallel job: NAS kernels, gang scheduling
///
/// As in the SCore-D paper, one job is switched with itself at the end of every slice: all its processes are stopped;
/// its channels are quiesced, saved, restored and started in the next epoch. The slowdown is (T_gang - T_alone) /
/// T_alone of the job's own run, stopped time included.
///
/// In `sim` times are virtual: the cluster and its arithmetic take the times of the machine's profile, on every
/// computer. On the other fabrics ranks are processes, stopped by signals, in real time. Real runs differ by more than
/// preemption costs; so a run is preempted in some slices and not in others, and rank 0's laps between two reports of
/// work are compared. Results are computed and checked against the official ones.
#[derive(Clone, Debug, Parser)]
#[command(
    after_help = "Examples:\n  lab preempt                                     every kernel, class S, 8 ranks, 100 ms\n  \
    lab preempt --fabric shm --ranks 2 --class W    real processes on this host, real time\n  \
    lab preempt --fabric udp --ranks 2              the same over UDP, a daemon a rank\n\n\
    Exit code: 0 all results are the official ones, with the same bits preempted or not; 1 some are not; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Kernels, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ep,cg,ft")]
    pub(crate) kernel: Vec<Name>,
    /// Classes: S, W, A
    #[arg(long, value_delimiter = ',', default_value = "S")]
    pub(crate) class: Vec<Class>,
    /// Ranks, one a node: a power of two, up to 64
    #[arg(long, value_delimiter = ',', value_parser = ranks, default_value = "8")]
    pub(crate) ranks: Vec<u16>,
    /// Lengths of a slice in milliseconds, from 1 to 10,000
    #[arg(long, value_delimiter = ',', value_parser = within(1.0, 10_000.0), default_value = "100")]
    pub(crate) slice_ms: Vec<f64>,
    /// Switching of contexts: copied out and in (copy; in virtual time alone), or kept on the NIC (resident). All that
    /// the fabric has, if not given
    #[arg(long, value_enum, value_delimiter = ',')]
    mode: Vec<Mode>,
    /// Runs of each, from different seeds, for the confidence interval
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value = "3")]
    pub(crate) repeat: u32,
    /// Fabric: virtual time, or processes of this host, under one daemon whose NIC joins them by shared
    /// memory, or under a daemon a rank (8 at most), whose NICs are joined by UDP
    #[arg(long, value_enum, default_value = "sim")]
    pub(crate) fabric: Fabric,
    /// Real processes: run under these daemons, which may be on several hosts, instead of this run's own. ALONE is a
    /// socket of daemons that let a job run for ever (--slice-ms 3600000); PREEMPTING one of daemons that stop even a
    /// job that is alone, in some slices and not in others (--with-itself 10)
    #[arg(long, value_parser = two_sockets, value_name = "ALONE,PREEMPTING")]
    pub(crate) daemons: Option<[PathBuf; 2]>,
    /// The first seed
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Report when jobs ran under each scheduler, from the records of their ranks in this folder; a rank writes them as
    /// `lab --be-ticker FOLDER SCHEDULER.JOB.RANK SECONDS`
    #[arg(long, value_name = "FOLDER")]
    pub(crate) turns: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

impl Arguments {
    /// Returns the ways of switching contexts.
    ///
    /// # Errors
    /// Contexts are to be copied in real time.
    pub(crate) fn modes(&self) -> Result<&[Mode], String> {
        let is_live = self.fabric != Fabric::Sim;
        if is_live && self.mode.contains(&Mode::Copy) {
            return Err("--mode copy: daemons of real processes keep contexts on the NIC; copies are in virtual time (--fabric sim)".to_owned());
        }
        let modes: &[Mode] = match (&self.mode[..], is_live) {
            ([], true) => &[Mode::Resident],
            ([], false) => &[Mode::Resident, Mode::Copy],
            (given, _) => given,
        };
        Ok(modes)
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
