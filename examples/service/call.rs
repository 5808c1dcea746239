//! Our side of a contest: two processes, their messages, and what is built on them.

use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{Coprocessor, UdpConfig, UdpNic};

use crate::arguments::Fabric;
use crate::contest::Site;
use crate::messages::{self, unit};
pub(crate) use crate::messages::{Lower, PATIENCE, World};

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
            let line = LinkProfile::plain(LineRate::mbps(400_000), std::time::Duration::ZERO);
            // One thread for everything, as the kernel's side has it: nothing is handed over.
            let config = UdpConfig::new(own, site.peers.clone()).line(line);
            let config = config.coprocessor(Coprocessor::Task);
            let nic =
                UdpNic::start(config, unit()?).map_err(|error| format!("--peers: {error}"))?;
            let result = messages::over(&nic.host(), (site.rank, 2), number as u32, work).await;
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
            let result = messages::over(&nic.host(), (site.rank, 2), number as u32, work).await;
            nic.shutdown().await;
            result
        }
        #[cfg(not(target_os = "linux"))]
        Fabric::Shm => Err("--fabric shm: needs Linux".into()),
    }
}
