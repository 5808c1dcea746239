//! Command line of `lab nicd`.

use std::fmt;

use clap::{Parser, ValueEnum};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  lab nicd                       two daemons and two clients on this host
  lab nicd --fabric udp --json   the same over UDP alone, as JSON

Exit code: 0 it ran; 1 a process was lost, or messages did not arrive; 2 bad input.";

/// The fabric between the daemons' NICs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// Shared memory, between daemons of one host
    Shm,
    /// UDP
    Udp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// Measure a NIC in a daemon (midplane nic daemon) with two client processes
///
/// The NIC runs while its clients are suspended, and outlives them.
///
/// The numbers are: round trips between processes without a NIC of their own; messages that a suspended process
/// receives and finds when it resumes; and the time until a killed process's peer gets the event.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The fabric between the daemons, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    pub(crate) fabric: Vec<Fabric>,

    /// Name of the daemon for clients, and of the shared memory; from 1 to 48 bytes
    #[arg(long, default_value = "nicd")]
    pub(crate) name: String,

    /// Microseconds that an idle daemon or client busy-polls before it parks
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) spin_us: u64,

    /// Most memory of one client's port, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) loan_mib: u64,

    /// Bytes of a message, from 8 to 32768
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    pub(crate) bytes: u16,

    /// Milliseconds of measured round trips; default: 500
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: Option<u64>,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Answer, as the client of the second daemon
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
