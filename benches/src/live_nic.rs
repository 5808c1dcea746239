//! A NIC of a live fabric, over shared memory or UDP.

use std::net::SocketAddr;
use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nic::LiveHost;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};

/// Time limit for the other processes of a run to start.
#[cfg(target_os = "linux")]
const MEET: Duration = Duration::from_secs(10);

/// A running NIC.
#[derive(Debug)]
pub enum LiveNic {
    #[cfg(target_os = "linux")]
    Shm(ShmNic),
    Udp(UdpNic),
}

/// Configures a NIC over UDP on a line faster than any loopback: frames are not paced.
pub fn unpaced(node: NodeId, peers: Vec<SocketAddr>) -> UdpConfig {
    UdpConfig::new(node, peers).line(LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO))
}

impl LiveNic {
    /// Starts a NIC over shared memory, and waits until all others have started.
    ///
    /// # Errors
    /// One line: what the system refused, or that a process is missing.
    #[cfg(target_os = "linux")]
    pub async fn over_shm(config: ShmConfig, unit: Unit) -> Result<Self, String> {
        let nic = ShmNic::start(config, unit).map_err(|error| error.to_string())?;
        let met = tokio::time::timeout(MEET, nic.meet()).await;
        met.map_err(|_| format!("another process did not start within {MEET:?}"))?;
        Ok(Self::Shm(nic))
    }

    /// Starts a NIC over UDP.
    ///
    /// # Errors
    /// One line: what the system refused.
    pub fn over_udp(config: UdpConfig, unit: Unit) -> Result<Self, String> {
        let nic = UdpNic::start(config, unit).map_err(|error| error.to_string())?;
        Ok(Self::Udp(nic))
    }

    /// Returns the NIC's host.
    pub fn host(&self) -> LiveHost {
        match self {
            #[cfg(target_os = "linux")]
            Self::Shm(nic) => nic.host(),
            Self::Udp(nic) => nic.host(),
        }
    }

    /// Stops the NIC.
    pub async fn shutdown(self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Shm(nic) => drop(nic.shutdown().await),
            Self::Udp(nic) => drop(nic.shutdown().await),
        }
    }
}
