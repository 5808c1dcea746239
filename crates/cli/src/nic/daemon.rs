//! `midplane nic daemon`: a NIC whose ports other processes map, and which outlives them.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use midplane::nicvm::memory::{MEMORY, Memory};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::launch::Place;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nicd::ServerConfig;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane_kit::ranks::{self, Ranks};
use midplane_kit::{processes, report};

/// Longest wait for the names of peers to resolve.
const RESOLVE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  # The daemon of the first host of hosts.txt, one host:port a line, until Ctrl-C
  midplane nic daemon --rank 0 --peers hosts.txt

  # The second of several daemons on this host, one for each line, joined by shared memory
  midplane nic daemon --fabric shm --rank 1 --peers hosts.txt

A program becomes a client with simhw::nicd::Client::connect(ClientConfig::new(NAME, NodeId(RANK))). It must run as
the daemon's user, on the daemon's host.

Exit code: 0 it ended by Ctrl-C or --milliseconds; 1 it could not serve; 2 bad input.";

/// Medium between the daemons' NICs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Fabric {
    /// Shared memory, between daemons of one host
    Shm,
    /// UDP, between hosts
    Udp,
}

/// Serve a NIC's ports to other processes of this user.
///
/// The NIC continues while its clients are suspended, and outlives them. It runs Virtual Interfaces, messages, and
/// capabilities to memory, for any number of clients.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Choose the medium between the daemons
    #[arg(long, value_enum, default_value = "udp")]
    fabric: Fabric,
    /// Name by which clients find the daemon, and daemons of one host each other; 1 to 48 bytes
    #[arg(long, default_value = "nicd")]
    name: String,
    /// Microseconds of busy-polling before the daemon parks, from 0 to 1000000
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    spin_us: u64,
    /// Most memory of one client's port, in units of 2^20 bytes, from 1 to 65536
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    loan_mib: u64,
    /// End after this many milliseconds; at Ctrl-C unless given
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    milliseconds: Option<u64>,
    #[command(flatten)]
    ranks: Ranks,
    /// End when standard input does: for a daemon that another process has started
    #[arg(long, hide = true)]
    child: bool,
}

impl Arguments {
    /// Returns this daemon's place and all daemons' addresses, which are empty with shared memory.
    fn place(&self) -> Result<(Place, Vec<SocketAddr>), String> {
        if self.name.is_empty() || self.name.len() > 48 {
            return Err(format!("--name: has {} bytes; it must have 1 to 48", self.name.len()));
        }
        let place = self.ranks.place()?;
        let place = place.ok_or("--rank: name this daemon's place among --peers")?;
        let peers = match self.fabric {
            Fabric::Shm => Vec::new(),
            Fabric::Udp => ranks::addresses(&place, RESOLVE)?,
        };
        Ok((place, peers))
    }
}

pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    let (place, peers) = match arguments.place() {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    if arguments.child {
        processes::end_with_parent();
    }
    let size = u16::try_from(place.size()).unwrap_or(u16::MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(text)
        .and_then(|runtime| runtime.block_on(serve(arguments, place.rank, size, peers)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::fail(&error, report::FAILED),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn unit() -> Result<Unit, String> {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).map_err(text)?;
    unit.install(MEMORY, Memory::new()).map_err(text)?;
    unit.install(VIA, Via::new(ViaConfig::default())).map_err(text)?;
    Ok(unit)
}

/// Serves until Ctrl-C or the end of `--milliseconds`. `peers` are the addresses of all daemons.
///
/// # Errors
/// One line that names what the system refused.
async fn serve(
    arguments: &Arguments,
    rank: u16,
    size: u16,
    peers: Vec<SocketAddr>,
) -> Result<(), String> {
    let config = ServerConfig::new(&arguments.name)
        .spin(Duration::from_micros(arguments.spin_us))
        .loan(usize::try_from(arguments.loan_mib << 20).unwrap_or(usize::MAX));
    let node = NodeId(rank);
    match arguments.fabric {
        Fabric::Shm => {
            let config_of_nic = ShmConfig::new(&arguments.name, node, size);
            let nic = ShmNic::start(config_of_nic, unit()?).map_err(text)?;
            let server = nic.serve_ports(config).map_err(text)?;
            stand_by(arguments.milliseconds).await;
            drop(server);
            nic.shutdown().await;
        }
        Fabric::Udp => {
            // A modelled line faster than any loopback paces nothing.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config_of_nic = UdpConfig::new(node, peers).line(line);
            let started = UdpNic::start(config_of_nic, unit()?);
            let nic = started.map_err(|error| format!("--peers: {error}"))?;
            let server = nic.serve_ports(config).map_err(text)?;
            stand_by(arguments.milliseconds).await;
            drop(server);
            nic.shutdown().await;
        }
    }
    Ok(())
}

/// Waits for Ctrl-C or the end of `--milliseconds`.
async fn stand_by(milliseconds: Option<u64>) {
    let time = async {
        match milliseconds {
            Some(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time => {}
        () = processes::asked_to_end() => {}
    }
}
