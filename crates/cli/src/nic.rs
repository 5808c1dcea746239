//! NICs: daemons that lend ports to other processes, and nodes whose extensions are installed while they run.

mod control;
mod daemon;
mod demo;
mod node;
mod orders;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  # Six nodes on this host; then a module under number 16, everywhere at once
  midplane nic node --nodes 6
  midplane nic install 16 limiter.wat --policy roll-back --node 127.0.0.1:24700

  # The version before, everywhere at once
  midplane nic rollback 16 --node 127.0.0.1:24700

  # A NIC whose ports other processes of this user map
  midplane nic daemon --rank 0 --peers hosts.txt

  # Installed, upgraded, rolled back, refused and failed, on six nodes that it starts and ends
  midplane nic demo

Exit code: 0 done; 1 a node refused, was lost, or did not do what it should; 2 bad input.";

/// Run NICs, and install extensions on them: on all nodes or on none.
///
/// Any node takes the order and coordinates. Numbers from 16 on are free for extensions of yours.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Daemon(daemon::Arguments),
    Node(node::Arguments),
    Demo(demo::Arguments),
    #[command(flatten)]
    Order(control::What),
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    match arguments.what {
        What::Daemon(arguments) => daemon::main(&arguments),
        What::Node(arguments) => node::main(arguments),
        What::Demo(arguments) => demo::main(&arguments),
        What::Order(order) => control::run(&order),
    }
}
