//! A node of a cluster whose extensions are installed while it runs, by `midplane nic install`.

mod builtin;
mod desk;

use midplane_kit::{processes, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::nicvm::install::{INSTALLER, Installer};
use midplane::nicvm::memory::{MEMORY, Memory};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use tokio::net::TcpListener;

const EXAMPLES: &str = "\
Examples:
  # Six nodes on this host; the addresses are printed
  node --nodes 6

  # One of several hosts: node 2 of those in peers.txt, one host:port a line
  node --rank 2 --peers peers.txt

Then: nicctl --node HOST:PORT list

Exit code: 0 it was ended; 1 a node was lost; 2 bad input.";

/// A NIC over UDP, which runs extensions that nicctl installs across the cluster.
///
/// It takes orders over TCP, at the address that its NIC has for UDP, from whoever reaches that: keep
/// it within a network that you trust. Built with the feature wasm it takes WebAssembly modules, in
/// binary or in text; without, those that are built in: a file that says "native: counter 1".
#[derive(Debug, Parser)]
#[command(name = "node", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    ranks: ranks::Ranks,

    /// Without --rank: so many nodes on this host, from 2 to 64
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,

    /// Ends after so many seconds; at Ctrl-C, unless given
    #[arg(long)]
    seconds: Option<u32>,

    /// Ends with standard input, as the nodes do that another process has started
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
        Err(error) => report::fail(&error, report::DID_NOT_HOLD),
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
        served = desk::serve(listener, nic.host()) => served.map_err(|error| error.to_string()),
        () = time => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    nic.shutdown().await;
    ended
}

/// So many nodes as processes of this host.
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
        Err(error) => return report::fail(&error, report::DID_NOT_HOLD),
    };
    for (rank, address) in addresses.iter().enumerate() {
        report::say(&format!("node {rank} at {address}\n"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Ok(runtime) = runtime {
        runtime.block_on(async {
            let seconds = arguments.seconds.map_or(u64::MAX / 4, u64::from);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        });
    }
    nodes.iter_mut().for_each(processes::Peer::close);
    ExitCode::SUCCESS
}
