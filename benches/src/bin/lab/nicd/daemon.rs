//! The daemon: a NIC, and its ports for other processes.

use std::net::SocketAddr;
use std::time::Duration;

use midplane::nicvm::memory::{MEMORY, Memory};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nicd::ServerConfig;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};

use crate::nicd::arguments::{Arguments, Fabric};

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

/// Serves until Ctrl-C, or as long as it is asked to; `peers` are everybody's addresses, as many as
/// there are daemons.
///
/// # Errors
/// One line: what could not be had.
pub(crate) async fn serve(
    arguments: &Arguments,
    rank: u16,
    size: u16,
    peers: Vec<SocketAddr>,
) -> Result<(), String> {
    let config = ServerConfig::new(&arguments.name)
        .spin(Duration::from_micros(arguments.spin_us))
        .loan(usize::try_from(arguments.loan_mib << 20).unwrap_or(usize::MAX));
    let node = NodeId(rank);
    match arguments.fabric[0] {
        Fabric::Shm => {
            let config_of_nic = ShmConfig::new(&arguments.name, node, size);
            let nic = ShmNic::start(config_of_nic, unit()?).map_err(text)?;
            let server = nic.serve_ports(config).map_err(text)?;
            stand_by(arguments.milliseconds).await;
            drop(server);
            nic.shutdown().await;
        }
        Fabric::Udp => {
            // Faster than any loopback: nothing is paced.
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

async fn stand_by(milliseconds: Option<u64>) {
    let time = async {
        match milliseconds {
            Some(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time => {}
        // An error means that there is no Ctrl-C here: then nobody can press it either.
        _ = tokio::signal::ctrl_c() => {}
    }
}
