//! What is measured: every rank takes its part, and rank 0 has a number at the end.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{DEFAULT_SWITCH_LINK, UdpConfig, UdpNic};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::now;
use crate::control::Cluster;
use crate::incast::setting::Mode;
#[cfg(target_os = "linux")]
use crate::job;
use crate::{bulk, fan_in, fresh, latency, together};

/// Longest that a contest may take beyond what it measures.
const LIMIT: Duration = Duration::from_secs(10);
/// How long ranks wait for each other within a contest.
const MEET: Duration = Duration::from_secs(5);

/// One way of doing one thing.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Contest {
    Latency(Side),
    FanIn(Side),
    /// The same, each sender at the rate that Warp finds.
    FanInWarp,
    /// The same over plain UDP sockets.
    FanInUdp,
    /// Both ways of cutting in one.
    Bulk,
    Fresh(Side),
    Barrier(Side),
    Sum(Side),
    /// Both ways of ending a preempted job in one.
    #[cfg(target_os = "linux")]
    Job,
}

/// Whose way it is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Side {
    Ours,
    /// Over TCP.
    Theirs,
}

/// Where a rank is.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) rank: u16,
    pub(crate) cluster: &'a Cluster,
    pub(crate) listener: &'a TcpListener,
}

impl Contest {
    /// Takes this rank's part; what was measured is rank 0's to know.
    ///
    /// # Errors
    /// One line.
    pub(crate) async fn take_part(self, site: &Site<'_>, number: u32) -> Result<Vec<f64>, String> {
        let part = async {
            match self {
                Self::Latency(side) => latency::measure(site, side, number).await,
                Self::FanIn(Side::Ours) => fan_in::ours(site, number, Mode::TokenEtr).await,
                Self::FanIn(Side::Theirs) => fan_in::over_tcp(site).await,
                Self::FanInWarp => fan_in::ours(site, number, Mode::Warp).await,
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
        ended.map_err(|_| format!("it did not end within {limit:?}"))?
    }
}

/// What joins the ranks of a contest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fabric {
    /// Shared memory on one host, else UDP.
    Close,
    /// The switch.
    Switch,
}

/// What is done with a NIC, whatever its fabric.
pub(crate) trait Work {
    async fn work<H: Host>(self, site: &Site<'_>, host: H) -> Result<Vec<f64>, String>;
}

impl Site<'_> {
    pub(crate) fn ranks(&self) -> u16 {
        self.cluster.peers.len() as u16
    }

    /// What a measurement takes.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.cluster.milliseconds)
    }

    /// Has work done with a NIC that is there for as long, among the first so many ranks.
    ///
    /// # Errors
    /// One line: the work's own, or why there is no NIC.
    pub(crate) async fn with_nic(
        &self,
        (fabric, ranks): (Fabric, u16),
        number: u32,
        unit: Unit,
        work: impl Work,
    ) -> Result<Vec<f64>, String> {
        let own = NodeId(self.rank);
        #[cfg(target_os = "linux")]
        if fabric == Fabric::Close && self.cluster.is_one_host {
            let name = format!("{}-{number}", self.cluster.name);
            let nic = ShmNic::start(ShmConfig::new(&name, own, ranks), unit);
            let nic = nic.map_err(|error| error.to_string())?;
            let met = tokio::time::timeout(MEET, nic.meet()).await;
            met.map_err(|_| "a rank did not come".to_owned())?;
            let done = work.work(self, nic.host()).await;
            nic.shutdown().await;
            return done;
        }
        let _ = number;
        let config = UdpConfig::new(own, self.cluster.peers[..usize::from(ranks)].to_vec())
            .seed(self.cluster.seed);
        let config = match fabric {
            // Faster than any loopback: nothing is paced.
            Fabric::Close => {
                config.line(LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO))
            }
            Fabric::Switch => config.line(DEFAULT_SWITCH_LINK).via(self.cluster.switch),
        };
        let nic = UdpNic::start(config, unit).map_err(|error| error.to_string())?;
        let done = work.work(self, nic.host()).await;
        nic.shutdown().await;
        done
    }

    /// A connection to another rank, or to what stands in for it.
    ///
    /// # Errors
    /// One line.
    pub(crate) async fn connect(&self, at: std::net::SocketAddr) -> Result<TcpStream, String> {
        let until = now() + MEET;
        loop {
            match TcpStream::connect(at).await {
                Ok(stream) => return without_delay(stream),
                Err(error) if now() > until => return Err(format!("{at}: {error}")),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// The next connection that somebody else has made.
    ///
    /// # Errors
    /// One line: nobody did.
    pub(crate) async fn accept(&self) -> Result<TcpStream, String> {
        let came = tokio::time::timeout(MEET, self.listener.accept()).await;
        let (stream, _) =
            came.map_err(|_| "nobody connects".to_owned())?.map_err(|error| error.to_string())?;
        without_delay(stream)
    }
}

fn without_delay(stream: TcpStream) -> Result<TcpStream, String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}
