//! Our fabrics: two processes with messages, for streams and calls.

use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{Coprocessor, UdpConfig, UdpNic};
#[cfg(target_os = "linux")]
use midplane::via::lanes::LaneCarrier;
use midplane::via::message::engine::{DEFAULT_EAGER, SOCKET_EAGER};

use crate::messages::{self, interfaces, unit};
pub(crate) use crate::messages::{Lower, PATIENCE, World};
use crate::service::arguments::Fabric;
use crate::service::contest::Site;

/// Opens messages on a fabric, runs `work` with them, and closes them.
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
            // A line rate above any loopback's: frames are not paced.
            let line = LinkProfile::plain(LineRate::mbps(400_000), std::time::Duration::ZERO);
            // One thread runs everything, as on the kernel's side: no hand-over between threads.
            let config = UdpConfig::new(own, site.peers.clone()).line(line);
            let config = config.coprocessor(Coprocessor::Task);
            let nic =
                UdpNic::start(config, unit()?).map_err(|error| format!("--peers: {error}"))?;
            let carrier =
                interfaces(&nic.host(), (site.rank, 2), number as u32, SOCKET_EAGER).await?;
            let result = messages::over(carrier, 2, SOCKET_EAGER, work).await;
            nic.shutdown().await;
            result
        }
        #[cfg(target_os = "linux")]
        Fabric::Shm => {
            let name = format!("{}-{number}", site.name);
            let nic = ShmNic::start(ShmConfig::new(&name, own, 2), unit()?)
                .map_err(|error| error.to_string())?;
            let met = tokio::time::timeout(PATIENCE, nic.meet()).await;
            met.map_err(|_| format!("the other process did not come up in {PATIENCE:?}"))?;
            let carrier =
                interfaces(&nic.host(), (site.rank, 2), number as u32, DEFAULT_EAGER).await?;
            let result = messages::over(carrier, 2, DEFAULT_EAGER, work).await;
            nic.shutdown().await;
            result
        }
        #[cfg(target_os = "linux")]
        Fabric::Lanes => {
            let config = ShmConfig::new(format!("{}-{number}", site.name), own, 2);
            let carrier = LaneCarrier::open(&config).map_err(|error| error.to_string())?;
            messages::over(Box::new(carrier), 2, DEFAULT_EAGER, work).await
        }
        #[cfg(not(target_os = "linux"))]
        Fabric::Shm | Fabric::Lanes => Err(format!("--fabric {fabric}: needs Linux")),
    }
}
