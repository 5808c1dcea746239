//! Contests: all ranks take part in a measurement, and rank 0 has its numbers.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::nic::LiveHost;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::ShmConfig;
use midplane::simhw::udp::DEFAULT_SWITCH_LINK;
use midplane_benches::live_nic::{LiveNic, unpaced};
use midplane_benches::meeting::reach;
use midplane_kit::report::text;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};

use crate::control::Cluster;
use crate::incast::setting::Mode;
#[cfg(target_os = "linux")]
use crate::job;
use crate::{bulk, fan_in, fresh, latency, together};

/// Longest time of a contest beyond its measurement.
const LIMIT: Duration = Duration::from_secs(10);
/// Time that ranks wait for each other within a contest.
pub(crate) const MEET: Duration = Duration::from_secs(5);

/// Measurement of one side, or of both.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Contest {
    Latency(Side),
    FanIn(Side),
    /// Fan-in with each sender at the rate that Warp finds.
    FanInWarp,
    /// Fan-in over plain UDP sockets.
    FanInUdp,
    /// Both sides: pieces by plan, and pieces of 64 KiB.
    Bulk,
    Fresh(Side),
    Barrier(Side),
    Sum(Side),
    /// Both sides: a preempted job moved, and begun anew.
    #[cfg(target_os = "linux")]
    Job,
}

/// Side of a comparison.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Side {
    /// Midplane.
    Ours,
    /// Plain TCP.
    Theirs,
}

/// Place of a rank in the cluster.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) rank: u16,
    pub(crate) cluster: &'a Cluster,
    pub(crate) listener: &'a TcpListener,
}

impl Contest {
    /// Takes this rank's part; only rank 0 returns numbers.
    ///
    /// # Errors
    /// One line, if this rank's part failed or took too long.
    pub(crate) async fn take_part(self, site: &Site<'_>, number: u32) -> Result<Vec<f64>, String> {
        let part = async {
            match self {
                Self::Latency(side) => latency::measure(site, side, number).await,
                Self::FanIn(Side::Ours) => fan_in::ours(site, Mode::TokenEtr).await,
                Self::FanIn(Side::Theirs) => fan_in::over_tcp(site).await,
                Self::FanInWarp => fan_in::ours(site, Mode::Warp).await,
                Self::FanInUdp => fan_in::over_udp(site).await,
                Self::Bulk => bulk::measure(site).await,
                Self::Fresh(side) => fresh::measure(site, side, number).await,
                Self::Barrier(side) => together::measure(site, side, number, false).await,
                Self::Sum(side) => together::measure(site, side, number, true).await,
                #[cfg(target_os = "linux")]
                Self::Job => job::contest(site).await,
            }
        };
        let limit = match self {
            #[cfg(target_os = "linux")]
            Self::Job => job::LIMIT,
            _ => LIMIT + 2 * site.time(),
        };
        let ended = tokio::time::timeout(limit, part).await;
        ended.map_err(|_| format!("the contest did not end within {limit:?}"))?
    }
}

/// Network between the ranks of a contest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fabric {
    /// Shared memory on one host, else UDP.
    Close,
    /// UDP through the switch.
    Switch,
}

impl Site<'_> {
    pub(crate) fn ranks(&self) -> u16 {
        self.cluster.peers.len() as u16
    }

    /// Returns the length of a measurement.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.cluster.milliseconds)
    }

    /// Starts a NIC among the first `ranks` ranks, runs `work` on it, and stops it.
    ///
    /// # Errors
    /// One line: the error of the work or of the NIC's start.
    pub(crate) async fn with_nic(
        &self,
        (fabric, ranks): (Fabric, u16),
        number: u32,
        unit: Unit,
        work: impl AsyncFnOnce(LiveHost) -> Result<Vec<f64>, String>,
    ) -> Result<Vec<f64>, String> {
        let own = NodeId(self.rank);
        let nic = match fabric {
            #[cfg(target_os = "linux")]
            Fabric::Close if self.cluster.is_one_host => {
                let name = format!("{}-{number}", self.cluster.name);
                LiveNic::over_shm(ShmConfig::new(name, own, ranks), unit).await?
            }
            _ => {
                let config = unpaced(own, self.cluster.peers[..usize::from(ranks)].to_vec());
                let config = config.seed(self.cluster.seed);
                LiveNic::over_udp(
                    match fabric {
                        Fabric::Close => config,
                        Fabric::Switch => config.line(DEFAULT_SWITCH_LINK).via(self.cluster.switch),
                    },
                    unit,
                )?
            }
        };
        let done = work(nic.host()).await;
        nic.shutdown().await;
        done
    }

    /// Connects to another rank or to the relay, and tries again for [`MEET`].
    ///
    /// # Errors
    /// One line that names the address.
    pub(crate) async fn connect(&self, at: std::net::SocketAddr) -> Result<TcpStream, String> {
        reach(at, MEET).await.map_err(|error| format!("{at}: {error}"))
    }

    /// Accepts the next connection of another rank, within [`MEET`].
    ///
    /// # Errors
    /// One line, if no rank connects.
    pub(crate) async fn accept(&self) -> Result<TcpStream, String> {
        let accepted = tokio::time::timeout(MEET, self.listener.accept()).await;
        let (stream, _) = accepted.map_err(|_| "no rank connects".to_owned())?.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        Ok(stream)
    }
}
