//! A group whose members are processes, here or on several hosts; each measures its own times.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::collective::Operation as Combine;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nic::LiveHost;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};

use crate::collectives::Rounds;
use crate::collectives::fabrics::unit;
use crate::collectives::member::{Plan, play};
use crate::fleet::Meeting;

/// Time limit of the whole run.
const LOST: Duration = Duration::from_secs(300);
/// First port of the groups, above the numbers that ports get when they are opened.
const PORTS: u16 = 16;
/// Words in one reduction.
const WORDS: usize = 11;

/// Takes this process's part in all plans; every member returns the rounds.
///
/// # Errors
/// One line that says what failed.
pub(crate) fn take_part(
    rank: u16,
    peers: Vec<SocketAddr>,
    plans: &[Plan],
    seed: u64,
) -> Result<Vec<Rounds>, String> {
    let nodes = peers.len() as u16;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
    runtime.block_on(async {
        // A line rate above any loopback's: frames are not paced.
        let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
        let config = UdpConfig::new(NodeId(rank), peers).line(line).seed(seed);
        let nic =
            UdpNic::start(config, unit(nodes)).map_err(|error| format!("--peers: {error}"))?;
        let ended = tokio::select! {
            ended = all(nic.host(), nodes, plans) => ended,
            () = tokio::time::sleep(LOST) => Err(format!("it did not end in {LOST:?}")),
            _ = tokio::signal::ctrl_c() => Err("stopped".into()),
        };
        nic.shutdown().await;
        ended
    })
}

async fn all(host: LiveHost, nodes: u16, plans: &[Plan]) -> Result<Vec<Rounds>, String> {
    let mut meeting = Meeting::new(&host, nodes).await?;
    let mut rounds = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let plan = Plan { port: Some(PortId(PORTS + number as u16)), ..*plan };
        let log = Arc::new(Mutex::new(vec![Vec::new(); plan.rounds as usize]));
        meeting.barrier().await?;
        play(host.clone(), plan, Arc::clone(&log), async {
            // The last posted buffers are still on their way to the NICs.
            tokio::time::sleep(Duration::from_millis(50)).await;
        })
        .await?;
        let log = std::mem::take(&mut *log.lock().expect("nobody panics with it"));
        // This member's times, by its own clock.
        let own = log.iter().flatten().map(|(_, begun, ended)| ended.nanos_since(*begun));
        let mut longest: Vec<u64> = own.collect();
        let mut sum = [longest.iter().sum::<u64>()];
        meeting.sum(&mut sum).await?;
        for part in longest.chunks_mut(WORDS) {
            meeting.combine(Combine::Greatest, part).await?;
        }
        let times = longest.into_iter().map(|nanos| nanos as f64 / 1e3).collect();
        let spent = sum[0] as f64 / 1e3 / (f64::from(nodes) * f64::from(plan.rounds));
        rounds.push(Rounds { times, spent, for_root: None });
    }
    meeting.barrier().await?;
    Ok(rounds)
}
