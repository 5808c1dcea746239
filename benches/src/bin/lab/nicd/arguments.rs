//! The command line.

use std::fmt;

use clap::{Parser, ValueEnum};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  lab nicd                       two daemons and two clients on this host
  lab nicd --fabric udp --json   the same over UDP alone, as JSON

Exit code: 0 it ran; 1 a process was lost, or messages did not arrive; 2 bad input.";

/// What joins the daemons' NICs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// Shared memory: daemons of one host
    Shm,
    /// UDP
    Udp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// Measure a NIC in a daemon (`midplane nic daemon`): it continues while its clients are suspended, and outlives them.
///
/// Round trips between processes that have no NIC of their own, messages that a suspended process is sent and finds
/// when it resumes, and how soon a peer gets the event that a process was killed.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What joins the daemons, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    pub(crate) fabric: Vec<Fabric>,

    /// Under which name clients find the daemon, and shared memory meets; from 1 to 48 bytes
    #[arg(long, default_value = "nicd")]
    pub(crate) name: String,

    /// Microseconds that a daemon looks for work, and a client for completions, before it parks
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) spin_us: u64,

    /// Mebibytes of memory that one client's port is lent at most
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) loan_mib: u64,

    /// Bytes of a message, from 8 to 32768
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    pub(crate) bytes: u16,

    /// Milliseconds of round trips
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: Option<u64>,

    /// Prints one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Answers, as a client of the second daemon
    #[arg(long, hide = true)]
    pub(crate) answers: bool,
}

impl Arguments {
    /// # Errors
    /// One line that names the argument.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 48 {
            return Err(format!("--name: has {} bytes; it must have 1 to 48", self.name.len()));
        }
        Ok(())
    }
}
