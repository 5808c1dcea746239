//! `midplane nic daemon` and `midplane nic node`: NICs that serve other processes until they are asked to end.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};
use midplane::nicvm::extension::Extension;
use midplane::nicvm::install::{INSTALLER, Installer};
use midplane::nicvm::memory::{MEMORY, Memory};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nic::StartError;
use midplane::simhw::nicd::{PortServer, ServeError, ServerConfig};
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane_kit::processes::{self, Peer, until_asked};
use midplane_kit::ranks::{self, Ranks};
use midplane_kit::report::{self, Failure};
use tokio::net::TcpListener;

use super::{builtin, server};

/// Longest wait for the names of peers to resolve.
const RESOLVE: Duration = Duration::from_secs(5);
/// Interval at which exits of nodes are checked.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// Port of the first of several nodes on this host, if it and the next ones are free.
const FIRST_PORT: u16 = 24_700;

const DAEMON_EXAMPLES: &str = "\
Examples:
  # The daemon of the first host of hosts.txt, one host:port a line, until
  # Ctrl-C
  midplane nic daemon --rank 0 --peers hosts.txt

  # The second of several daemons on this host, one for each line, joined by
  # shared memory
  midplane nic daemon --fabric shm --rank 1 --peers hosts.txt

A program becomes a client with simhw::nicd::Client::connect(ClientConfig::new(NAME, NodeId(RANK))). It must run as
the daemon's user, on the daemon's host.

Exit code: 0 it ended by Ctrl-C or SIGTERM; 1 it could not serve; 2 bad input.";

const NODE_EXAMPLES: &str = "\
Examples:
  # Six nodes on this host; prints their addresses
  midplane nic node --nodes 6

  # One node on each of several hosts, here the one of rank 2 in peers.txt, one
  # host:port a line
  midplane nic node --rank 2 --peers peers.txt

  # In another terminal: the extensions of one of them
  midplane nic list --node HOST:PORT

Exit code: 0 it ended by Ctrl-C or SIGTERM; 1 a node could not run; 2 bad input.";

/// Medium between daemons' NICs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Medium {
    /// Shared memory, between daemons of one host
    Shm,
    /// UDP, between hosts
    Udp,
}

#[derive(Args, Debug)]
struct Own {
    #[command(flatten)]
    ranks: Ranks,
    /// End when standard input does: for a NIC that another process has started
    #[arg(long, hide = true)]
    child: bool,
}

impl Own {
    /// Returns this NIC's place; `None` if it is alone.
    fn place(&self) -> Result<Option<ProcessGroup>, String> {
        let place = self.ranks.place()?;
        if self.child {
            processes::end_with_parent();
        }
        Ok(place)
    }
}

/// Serve a NIC's ports to other processes of this user.
///
/// The NIC continues while its clients are suspended, and outlives them. It runs Virtual Interfaces, messages, and
/// capabilities to memory, for any number of clients.
#[derive(Args, Debug)]
#[command(after_help = DAEMON_EXAMPLES)]
pub(crate) struct Daemon {
    /// Choose the medium between the daemons
    #[arg(long, value_enum, default_value = "udp")]
    fabric: Medium,
    /// Name by which clients find the daemon, and daemons of one host each other; 1 to 48 bytes
    #[arg(long, default_value = "nicd", value_parser = name)]
    name: String,
    /// Microseconds of busy-polling before the daemon parks, from 0 to 1000000
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    spin_us: u64,
    /// Most memory of one client's port, in units of 2^20 bytes, from 1 to 65536
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    loan_mib: u64,
    #[command(flatten)]
    own: Own,
}

/// Run a NIC over UDP whose extensions can be installed from outside.
///
/// Accepts orders over TCP at its NIC's UDP address, from every host that reaches it: keep it within a network that you
/// trust. A build with the feature wasm accepts WebAssembly modules, binary or text. Without, it accepts built-in ones: a
/// file that says "native: counter 1".
#[derive(Args, Debug)]
#[command(after_help = NODE_EXAMPLES)]
pub(crate) struct Node {
    /// Without --rank: number of nodes to start on this host, from 2 to 64
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    #[command(flatten)]
    own: Own,
}

fn name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=48 => Ok(text.to_owned()),
        bytes => Err(format!("it has {bytes} bytes; it must have 1 to 48")),
    }
}

/// Creates the firmware of a NIC: messages, memory, and one extension more.
fn unit<E: Extension + 'static>(number: ExtensionId, extension: E) -> Result<Unit, Failure> {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new())
        .and_then(|()| unit.install(MEMORY, Memory::new()))
        .and_then(|()| unit.install(number, extension))
        .map_err(Failure::of_run)?;
    Ok(unit)
}

/// Serves a NIC's ports to other processes.
pub(crate) fn daemon(arguments: &Daemon) -> Result<u8, Failure> {
    let place = arguments.own.place()?;
    let place = place.ok_or_else(|| "--rank: name this daemon's place among --peers".to_owned())?;
    let (name, node) = (&arguments.name, NodeId(place.rank));
    let ports = ServerConfig::new(name)
        .spin(Duration::from_micros(arguments.spin_us))
        .loan(usize::try_from(arguments.loan_mib << 20).unwrap_or(usize::MAX));
    let peers = match arguments.fabric {
        Medium::Shm => Vec::new(),
        Medium::Udp => place.addresses(RESOLVE).map_err(ranks::unresolved)?,
    };
    let unit = unit(VIA, Via::new(ViaConfig::default()))?;
    processes::run(async {
        match arguments.fabric {
            Medium::Shm => {
                let size = u16::try_from(place.size()).unwrap_or(u16::MAX);
                let nic = ShmNic::start(ShmConfig::new(name, node, size), unit);
                let nic = nic.map_err(Failure::of_run)?;
                serve_ports(nic.serve_ports(ports)).await?;
                nic.shutdown().await;
            }
            Medium::Udp => {
                // A modelled line faster than any loopback paces nothing.
                let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
                let nic = UdpNic::start(UdpConfig::new(node, peers).line(line), unit);
                let nic = nic.map_err(|error| {
                    let what = format!("--peers: {error}");
                    match error {
                        StartError::PortInUse(_) | StartError::Denied(_) => Failure::from(what),
                        _ => Failure::of_run(what),
                    }
                })?;
                serve_ports(nic.serve_ports(ports)).await?;
                nic.shutdown().await;
            }
        }
        Ok(0)
    })
}

async fn serve_ports(server: Result<PortServer, ServeError>) -> Result<(), Failure> {
    let _server = server.map_err(Failure::of_run)?;
    until_asked(None).await;
    Ok(())
}

/// Runs a node that carries out orders; without `--rank`, several.
pub(crate) fn node(arguments: &Node) -> Result<u8, Failure> {
    let Some(place) = arguments.own.place()? else { return several(arguments.nodes) };
    let peers = ranks::addresses(&place, RESOLVE)?;
    let listener = ranks::listen(peers[usize::from(place.rank)])?;
    let members = (0..peers.len() as u16).map(NodeId).collect();
    let unit = unit(INSTALLER, Installer::new(members, builtin::load))?;
    processes::run(async {
        let listener = TcpListener::from_std(listener).map_err(Failure::of_run)?;
        let config = UdpConfig::new(NodeId(place.rank), peers);
        let nic = UdpNic::start(config, unit).map_err(Failure::of_run)?;
        let ended = tokio::select! {
            never = server::serve(listener, nic.host()) => match never {},
            () = until_asked(None) => Ok(()),
        };
        nic.shutdown().await;
        ended.map(|()| 0)
    })
}

/// Starts a node as a process of this host. It exits with this process, and is killed when its handle is dropped.
///
/// # Errors
/// One line, if the system refuses.
pub(crate) fn start(rank: usize, addresses: &[SocketAddr]) -> Result<Peer, Failure> {
    let flags = ["nic", "node", "--rank", &rank.to_string(), "--peers", "-", "--child"];
    Peer::start(&flags.map(String::from), addresses).map_err(Failure::of_run)
}

/// Starts nodes as processes of this host, and ends them when this process is asked to end.
fn several(nodes: u16) -> Result<u8, Failure> {
    let preferred: Vec<SocketAddr> =
        (FIRST_PORT..).take(nodes.into()).map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect();
    let addresses = match preferred.iter().all(processes::is_free) {
        true => preferred,
        false => processes::free_addresses(nodes.into()).map_err(Failure::of_run)?,
    };
    let started = (0..addresses.len()).map(|rank| start(rank, &addresses));
    let mut nodes = started.collect::<Result<Vec<_>, _>>()?;
    for (rank, address) in addresses.iter().enumerate() {
        report::print(&format!("node {rank} at {address}\n"));
    }
    let ended = processes::run(async {
        tokio::select! {
            () = until_asked(None) => Ok(()),
            why = first_end(&mut nodes) => Err(Failure::of_run(why)),
        }
    });
    nodes.iter_mut().for_each(Peer::close);
    ended.map(|()| 0)
}

/// Waits until a node has ended; returns which, and why.
async fn first_end(nodes: &mut [Peer]) -> String {
    loop {
        for (rank, node) in nodes.iter_mut().enumerate() {
            if let Some(why) = node.complaint() {
                return format!("node {rank}: {why}");
            }
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
