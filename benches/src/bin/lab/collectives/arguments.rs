//! Command line of `lab collectives`.

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::fabric::Fabric;
use crate::ranks::Ranks;

/// A collective operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// Wait for all members
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

display!(Operation);

/// Place where the operation runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Where {
    Nic,
    Host,
}

/// Measure collective operations run by NICs, and the same run by hosts
///
/// Both use the same algorithms. A round lasts from its first member's begin to its last one's end; host time is the
/// mean time of a member in it.
///
/// The simulated machines are the DVCM paper's: 18 us from coprocessor to coprocessor (c), 60 us from application to
/// application (2h + c, with h between host and NIC). A barrier of L rounds then takes L (2h + c) by hosts and 2h + L
/// c by NICs: simulated barriers must be within 10 % of this model.
///
/// On live fabrics all members are tasks of this process, each with a NIC of its own. With --rank and --peers each
/// member is a process, here or on another host, over UDP: a round's time is then its slowest member's, by that
/// member's own clock.
#[derive(Clone, Debug, Parser)]
#[command(
    after_help = "Exit code: 0 it ran, and simulated barriers are within 10 % of the model; 1 they are not, or a \
                  message was lost; 2 bad input.\n\nExamples:\n  lab collectives --operation barrier --nodes 8,64\n  \
                  lab collectives --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the other hosts, same flags"
)]
pub(crate) struct Arguments {
    /// The fabric between the members; in virtual time the paper's machines
    #[arg(long, value_enum, default_value_t = Fabric::Sim)]
    pub(crate) fabric: Fabric,
    /// Operations to measure, separated by commas; default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) operation: Vec<Operation>,
    /// Sizes of groups, separated by commas: from 2 to 1,024 (up to 64 on live fabrics); with --communicator the
    /// default is 8,16,32
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(2..=1024),
        default_values_t = [8, 16, 64],
        default_value_if("communicator", "true", "8,16,32")
    )]
    pub(crate) nodes: Vec<u16>,
    /// Measure a communicator's operations: hosts run them by messages over Virtual Interfaces; up to 32 members, in
    /// one process
    #[arg(long)]
    pub(crate) communicator: bool,
    /// Bytes of each member's words or part, or of a broadcast; more than 8 with --communicator only
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=1 << 26), default_value_t = 8)]
    pub(crate) bytes: u32,
    /// Measured rounds
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000), default_value_t = 50)]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) ranks: Ranks,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
