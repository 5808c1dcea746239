//! Our side of a contest: two processes, their messages, and what is built on them.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::Peer;
use midplane::via::message::process::Process;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

use crate::arguments::Fabric;
use crate::contest::Site;

/// Messages over Virtual Interfaces.
pub(crate) type Lower = Engine<RdmaCarrier>;
pub(crate) type World = Communicator<Lower>;

/// How long the other process may take to come up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn unit() -> Result<Unit, String> {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default())).map_err(text)?;
    Ok(unit)
}

/// Brings messages up on a fabric, has `work` done with them, and takes them down again.
///
/// # Errors
/// One line: what failed, or that the other process is missing.
pub(crate) async fn over<T>(
    fabric: Fabric,
    site: &Site,
    number: usize,
    work: impl AsyncFnOnce(World) -> Result<T, String>,
) -> Result<T, String> {
    let own = NodeId(site.rank);
    match fabric {
        Fabric::Tcp => unreachable!("TCP has no messages"),
        Fabric::Udp => {
            // Faster than any loopback: nothing is paced.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(own, site.peers.clone()).line(line);
            let nic =
                UdpNic::start(config, unit()?).map_err(|error| format!("--peers: {error}"))?;
            let result = messages(&nic.host(), site, number, work).await;
            nic.shutdown().await;
            result
        }
        #[cfg(target_os = "linux")]
        Fabric::Shm => {
            let name = format!("{}-{number}", site.name);
            let nic = ShmNic::start(ShmConfig::new(&name, own, 2), unit()?).map_err(text)?;
            let met = tokio::time::timeout(PATIENCE, nic.meet()).await;
            met.map_err(|_| format!("the other process did not come up in {PATIENCE:?}"))?;
            let result = messages(&nic.host(), site, number, work).await;
            nic.shutdown().await;
            result
        }
        #[cfg(not(target_os = "linux"))]
        Fabric::Shm => Err("--fabric shm: needs Linux".into()),
    }
}

async fn messages<T>(
    host: &impl Host,
    site: &Site,
    number: usize,
    work: impl AsyncFnOnce(World) -> Result<T, String>,
) -> Result<T, String> {
    let own = Peer(site.rank.into());
    let config = RdmaConfig::default().job(number as u32);
    let carrier = RdmaCarrier::open(host, own, &[NodeId(0), NodeId(1)], config).await;
    let engine = Engine::new(carrier.map_err(text)?, Config::default());
    let (process, scope) = Process::new(engine, 2).map_err(text)?;
    let world = Communicator::world(process, scope);
    let met = tokio::time::timeout(PATIENCE, world.barrier()).await;
    met.map_err(|_| format!("the other process did not come up in {PATIENCE:?}"))?.map_err(text)?;
    let result = work(world.clone()).await?;
    // Both have all answers; whoever is gone already has come to its end.
    let _ = world.barrier().await;
    world.finalize().await;
    Ok(result)
}
