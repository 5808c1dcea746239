//! `midplane nic`: daemons that serve ports to other processes, and nodes whose extensions are installed at run time.

mod builtin;
mod control;
mod demo;
mod orders;
mod serve;
mod server;

use clap::{Args, Subcommand};
use midplane_kit::report::Failure;

pub(crate) use serve::Medium;

const EXAMPLES: &str = "\
Examples:
  # Install, upgrade, roll back and take down an extension on six nodes, which
  # this command starts and ends
  midplane nic demo

  # Start six nodes on this host; prints their addresses
  midplane nic node --nodes 6

  # Install an extension that is built in, under number 16, on all nodes,
  # through one of the printed addresses
  echo 'native: counter 1' > counter
  midplane nic install 16 counter --node HOST:PORT

  # Return all nodes to the previous version
  midplane nic rollback 16 --node HOST:PORT

  # Serve a NIC whose ports other processes of this user map
  midplane nic daemon --rank 0 --peers hosts.txt

Exit code: 0 done; 1 a node refused, was lost, or failed; 2 bad input.";

/// Run NICs, and install extensions on all nodes or on none.
///
/// Any node accepts an order, and coordinates it with the others. Numbers from 16 on are free for your extensions.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Daemon(serve::Daemon),
    Node(serve::Node),
    Demo(demo::Arguments),
    #[command(flatten)]
    Order(control::What),
}

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    match &arguments.what {
        What::Daemon(arguments) => serve::daemon(arguments),
        What::Node(arguments) => serve::node(arguments),
        What::Demo(arguments) => demo::main(arguments),
        What::Order(order) => control::run(order),
    }
}
