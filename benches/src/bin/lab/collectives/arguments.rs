//! The command line.

use std::fmt;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::ranks::Ranks;

/// What members do together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// Wait for all
    Barrier,
    /// Bring the first member's bytes to all
    Broadcast,
    /// Add all members' words up at the first
    Reduce,
    /// Add all members' words up everywhere
    AllReduce,
    /// Collect all members' parts everywhere
    AllGather,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("none is hidden");
        f.write_str(value.get_name())
    }
}

/// Who does the work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Where {
    Nic,
    Host,
}

/// What joins the members.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// The paper's machines, in virtual time
    Sim,
    /// UDP over loopback, in real time
    Udp,
    /// Shared memory, in real time (Linux)
    Shm,
}

/// Measures collective operations run by NICs, and the same ones run by hosts.
///
/// Both use the same algorithms. A round takes from when its first member begins until its last one
/// ends; host time is what members spend in it on the average. The simulated machines are those of
/// the DVCM paper: 18 us from coprocessor to coprocessor, 60 us from application to application. With
/// h for the way between host and NIC, c between NICs and L rounds a barrier takes L (2h + c) by hosts
/// and 2h + L c by NICs: the model that barriers are held against. Members of a broadcast that begin at
/// random within S wait S/6 for a late root on the average, whoever carries it; by hosts one with k others
/// above it in the tree waits S k / (2 (k + 2)): with 16 members and S large hosts spend 1.48 times what
/// they do with NICs, and no more; what they do beside waiting for the root is told apart. On live fabrics all members are
/// tasks of this process, each with a NIC of its own. With --rank and --peers each is a process, here or
/// on another host, over UDP: then a round takes what it takes its slowest member by that one's own clock.
#[derive(Clone, Debug, Parser)]
#[command(
    after_help = "Exit code: 0 it ran, and simulated barriers are within 10 % of the model; 1 they are not, or a \
                  message was lost; 2 bad input.\n\nExamples:\n  lab collectives --operation barrier --nodes 8,64 --plot barrier.svg\n  \
                  lab collectives --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the other hosts, same flags"
)]
pub(crate) struct Arguments {
    /// What joins the members
    #[arg(long, value_enum, default_value_t = Fabric::Sim)]
    pub(crate) fabric: Fabric,
    /// Operations to measure, with commas between; all, unless given
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) operation: Vec<Operation>,
    /// Sizes of groups, with commas between: from 2 to 1,024 (up to 64 on live fabrics); with --communicator 8, 16 and 32
    /// unless given
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(2..=1024),
        default_values_t = [8, 16, 64],
        default_value_if("communicator", "true", "8,16,32")
    )]
    pub(crate) nodes: Vec<u16>,
    /// Bytes of a broadcast, and of a member's words or part: of these no more than 88, in words of 8
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=65_536), default_value_t = 8)]
    pub(crate) bytes: u32,
    /// Measure a communicator's operations: hosts run them by messages over Virtual Interfaces; up to 32
    /// members, in one process
    #[arg(long)]
    pub(crate) communicator: bool,
    /// Rounds that are measured
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000), default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Members begin each round late by up to so many microseconds, at random
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(0..=1_000_000), default_value_t = 0)]
    pub(crate) skew_us: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) ranks: Ranks,
    /// Draw the latencies over the sizes
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
