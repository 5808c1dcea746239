//! The command line.

use std::fmt;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::ranks::Ranks;

const EXAMPLES: &str = "\
Examples:
  nicd                                     two daemons and two clients on this host, and what they see
  nicd --fabric udp --json                 the same over UDP alone, as JSON
  nicd --fabric udp --rank 0 --peers hosts.txt   the daemon of the first host of hosts.txt, until Ctrl-C
  nicd --fabric shm --rank 1 --peers hosts.txt   one of as many daemons on this host as there are lines

A program becomes a client with simhw::nicd::Client::connect(ClientConfig::new(NAME, NodeId(RANK))).
It must run as the daemon's user, on the daemon's host. NAME is what --name says.

Exit code: 0 it ran; 1 a process was lost, or what was sent did not arrive; 2 bad input.";

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

/// A NIC in a daemon: it goes on while the processes that use it are stopped, and outlives them.
///
/// With --rank this is the daemon: it runs Virtual Interfaces, messages, and capabilities to memory, for
/// any number of processes. Alone it shows what that is good for: round trips between processes that have
/// no NIC of their own, messages that a stopped process is sent and finds when it goes on, and how soon a
/// peer hears of a process that was killed.
#[derive(Clone, Debug, Parser)]
#[command(name = "nicd", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What joins the daemons, with commas between; a daemon takes one
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

    /// Alone: bytes of a message, from 8 to 32768
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    pub(crate) bytes: u16,

    /// Alone: milliseconds of round trips; a daemon: it ends after so many, at Ctrl-C unless given
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: Option<u64>,

    /// Prints one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ranks: Ranks,

    /// Answers, as a client of the second daemon
    #[arg(long, hide = true)]
    pub(crate) answers: bool,

    /// Ends with standard input, as processes do that another has started
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}

impl Arguments {
    /// # Errors
    /// One line that names the argument.
    pub(crate) fn check(&self, is_daemon: bool) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 48 {
            return Err(format!("--name: has {} bytes; it must have 1 to 48", self.name.len()));
        }
        if is_daemon && self.fabric.len() != 1 {
            return Err("--fabric: say which one the daemon's NIC is of, shm or udp".into());
        }
        Ok(())
    }

    /// The command line of a process that this one starts.
    pub(crate) fn for_child(&self, fabric: Fabric, name: &str, role: &[&str]) -> Vec<String> {
        let mut arguments = vec![
            "nicd".into(),
            "--child".into(),
            format!("--fabric={fabric}"),
            format!("--name={name}"),
            format!("--spin-us={}", self.spin_us),
            format!("--loan-mib={}", self.loan_mib),
            format!("--bytes={}", self.bytes),
        ];
        arguments.extend(role.iter().map(ToString::to_string));
        arguments
    }
}
