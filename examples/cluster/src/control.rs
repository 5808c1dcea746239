//! Controls the other ranks from rank 0, which starts contests; every rank reports how each contest ended.

use std::net::SocketAddr;
use std::time::Duration;

use midplane_benches::meeting::{Meeting, lost};
use midplane_kit::report::Failure;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::contest::{Contest, Site};

/// Longest time between two orders: no contest and no pause of rank 0 takes as long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Description of the cluster, the same at all ranks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cluster {
    /// Name under which NICs over shared memory find each other.
    pub(crate) name: String,
    /// Address of each rank.
    pub(crate) peers: Vec<SocketAddr>,
    /// Address at which each rank accepts connections of contests.
    pub(crate) listeners: Vec<SocketAddr>,
    /// Address of the switch over UDP, and of the relay over TCP.
    pub(crate) switch: SocketAddr,
    /// True if all ranks are on one host.
    pub(crate) is_one_host: bool,
    pub(crate) seed: u64,
    pub(crate) milliseconds: u64,
}

/// Order of rank 0: the next contest and its number; `None` ends the cluster.
type Order = Option<(Contest, u32)>;

/// Listens at a rank's address for connections of contests; returns the address as well.
///
/// # Errors
/// Bad input: the address is another host's.
pub(crate) async fn listen(peer: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let ip = peer.ip();
    let failed = |error| Failure::from(format!("--peers {ip}: {error}"));
    let listener = TcpListener::bind((ip, 0)).await.map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener, at))
}

/// Has all ranks take part in a contest; returns rank 0's numbers, or the error of a rank that failed.
///
/// # Errors
/// A rank is lost.
pub(crate) async fn contest(
    meeting: &mut Meeting,
    site: &Site<'_>,
    contest: Contest,
    number: u32,
) -> Result<Result<Vec<f64>, String>, Failure> {
    meeting.gather_all::<Order>(&Some((contest, number)), PATIENCE).await?;
    let numbers = contest.take_part(site, number).await;
    let ended = meeting.gather_all::<Option<String>>(&None, PATIENCE).await?;
    // The error of the rank that failed explains more than the time-out of those that wait for it.
    let named = (0..).zip(ended).find_map(|(rank, why)| Some(format!("rank {rank}: {}", why?)));
    Ok(named.map_or(numbers, Err))
}

/// Carries out rank 0's orders until it has all rows.
///
/// # Errors
/// Rank 0 is not reached.
pub(crate) async fn follow(own: u16, peers: &[SocketAddr], wait: Duration) -> Result<(), Failure> {
    let mut meeting = Meeting::start(own, peers, wait).await?;
    let (listener, at) = listen(peers[usize::from(own)]).await?;
    meeting.gather(&at, PATIENCE).await?;
    let received = meeting.gather::<Option<Cluster>>(&None, PATIENCE).await?;
    let cluster = received.into_iter().next().flatten().flatten().ok_or_else(|| lost(&[0]))?;
    let site = Site { rank: own, cluster: &cluster, listener: &listener };
    // Rank 0 closes the connection when it has all rows.
    while let Ok(orders) = meeting.gather::<Order>(&None, PATIENCE).await
        && let Some(Some(Some((contest, number)))) = orders.into_iter().next()
    {
        let ended = contest.take_part(&site, number).await.err();
        meeting.gather(&ended, PATIENCE).await?;
    }
    Ok(())
}
