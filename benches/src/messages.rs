//! Messages over any carrier: opened, used and closed.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::carrier::Carrier;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::Peer;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

/// Messages over any carrier.
pub type World = Communicator;

/// Time limit for another process to start.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Builds the firmware that carries messages over Virtual Interfaces.
pub fn unit() -> Result<Unit, String> {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default())).map_err(text)?;
    Ok(unit)
}

/// Opens the carrier on a host's NIC for `own`, one of `ranks` ranks that all take part in job `job`; messages of up
/// to `eager` bytes can leave whole.
///
/// # Errors
/// One line: what the NIC lacks.
pub async fn interfaces(
    host: &impl Host,
    (own, ranks): (u16, u16),
    job: u32,
    eager: usize,
) -> Result<RdmaCarrier, String> {
    let config = RdmaConfig::default().job(job).eager(eager);
    let nodes: Vec<NodeId> = (0..ranks).map(NodeId).collect();
    RdmaCarrier::open(host, Peer(own.into()), &nodes, config).await.map_err(text)
}

/// Runs `work` over a carrier of `ranks` ranks; messages of up to `eager` bytes leave whole.
///
/// # Errors
/// One line: what failed, or that a process is missing.
pub async fn over<T>(
    carrier: impl Carrier + 'static,
    ranks: u16,
    eager: usize,
    work: impl AsyncFnOnce(World) -> Result<T, String>,
) -> Result<T, String> {
    let engine = Engine::new(carrier, Config::default().eager(eager));
    let world = Communicator::world(engine, ranks.into()).map_err(text)?;
    let met = tokio::time::timeout(PATIENCE, world.barrier()).await;
    met.map_err(|_| format!("a process did not come up in {PATIENCE:?}"))?.map_err(text)?;
    let result = work(world.clone()).await?;
    // All answers have arrived; a rank that has disconnected is done.
    let _ = world.barrier().await;
    world.finalize().await;
    Ok(result)
}
