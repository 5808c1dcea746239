//! `midplane nic node`: a node of a cluster whose extensions `midplane nic install` changes while it runs.

mod builtin;
mod server;

use midplane_kit::{processes, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use midplane::nicvm::install::{INSTALLER, Installer};
use midplane::nicvm::memory::{MEMORY, Memory};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use tokio::net::TcpListener;

const EXAMPLES: &str = "\
Examples:
  # Six nodes on this host; prints their addresses
  midplane nic node --nodes 6

  # One node on each of several hosts, here the one of rank 2 in peers.txt, one host:port a line
  midplane nic node --rank 2 --peers peers.txt

  # In another terminal: the extensions of one of them
  midplane nic list --node HOST:PORT

Exit code: 0 it ended by Ctrl-C or --seconds; 1 a node could not run; 2 bad input.";

/// Run a NIC over UDP whose extensions can be installed from outside.
///
/// Accepts orders over TCP at its NIC's UDP address, from every host that reaches it: keep it within a network that you
/// trust. A build with the feature wasm accepts WebAssembly modules, binary or text. Without, it accepts built-in ones: a
/// file that says "native: counter 1".
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    ranks: ranks::Ranks,

    /// Without --rank: number of nodes to start on this host, from 2 to 64
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,

    /// End after this many seconds; at Ctrl-C unless given
    #[arg(long)]
    seconds: Option<u32>,

    /// End when standard input does: for a node that another process has started
    #[arg(long, hide = true)]
    child: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let place = match arguments.ranks.place() {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let Some(place) = place else { return several(&arguments) };
    if arguments.child {
        processes::end_with_parent();
    }
    let peers = ranks::addresses(&place, Duration::from_secs(5));
    let own = peers.and_then(|peers| Ok((ranks::listen(peers[usize::from(place.rank)])?, peers)));
    let (listener, peers) = match own {
        Ok(own) => own,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let node = NodeId(place.rank);
    let ended = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(node, peers, listener, arguments.seconds)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::fail(&error, report::FAILED),
    }
}

async fn run(
    node: NodeId,
    peers: Vec<SocketAddr>,
    listener: std::net::TcpListener,
    seconds: Option<u32>,
) -> Result<(), String> {
    let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let members = (0..peers.len() as u16).map(NodeId).collect();
    let mut unit = Unit::default();
    let installed = unit
        .install(MESSAGES, Messages::new())
        .and_then(|()| unit.install(MEMORY, Memory::new()))
        .and_then(|()| unit.install(INSTALLER, Installer::new(members, builtin::load)));
    installed.map_err(|error| error.to_string())?;
    let nic =
        UdpNic::start(UdpConfig::new(node, peers), unit).map_err(|error| error.to_string())?;
    let time = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.into())).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        served = server::serve(listener, nic.host()) => served.map_err(|error| error.to_string()),
        () = time => Ok(()),
        () = processes::asked_to_end() => Ok(()),
    };
    nic.shutdown().await;
    ended
}

/// Starts `--nodes` nodes as processes of this host, and ends them at Ctrl-C or after `--seconds`.
fn several(arguments: &Arguments) -> ExitCode {
    let started = processes::free_addresses(arguments.nodes.into()).and_then(|addresses| {
        let nodes: Result<Vec<_>, _> = (0..arguments.nodes)
            .map(|rank| {
                let flags = ["nic", "node", "--rank", &rank.to_string(), "--peers", "-", "--child"];
                processes::Peer::start(&flags.map(String::from), &addresses)
            })
            .collect();
        Ok((addresses, nodes?))
    });
    let (addresses, mut nodes) = match started {
        Ok(started) => started,
        Err(error) => return report::fail(&error, report::FAILED),
    };
    for (rank, address) in addresses.iter().enumerate() {
        report::print(&format!("node {rank} at {address}\n"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Ok(runtime) = runtime {
        runtime.block_on(async {
            let seconds = arguments.seconds.map_or(u64::MAX / 4, u64::from);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                () = processes::asked_to_end() => {}
            }
        });
    }
    nodes.iter_mut().for_each(processes::Peer::close);
    ExitCode::SUCCESS
}
