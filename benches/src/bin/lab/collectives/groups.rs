//! Groups of members: simulated, in one process, or of processes here or on several hosts.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::collective::{COLLECTIVES, Collectives};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::nic::LiveHost;
use midplane::simhw::profile::Machine;
use midplane::simhw::shm::ShmConfig;
use midplane::simhw::sim::World;
use midplane::simhw::time::Instant;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane_benches::live_nic::{LiveNic, unpaced};
use midplane_benches::meeting::Meeting;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Rounds;
use super::member::{Plan, Times, play};
use crate::fabric::Fabric;
use crate::processes;
use crate::report::text;

/// Time limit for processes to start, and for resolving names.
pub(crate) const COME_UP: Duration = Duration::from_secs(20);
/// Time limits of a run in one process, and of one across processes; only a lost message makes a run last longer.
const LOST: Duration = Duration::from_secs(60);
const LOST_ACROSS: Duration = Duration::from_secs(300);
/// Time by which all simulated members have opened their ports.
const ALL_THERE: Instant = Instant::from_nanos(10_000_000);
/// Time for the last posted buffers to reach the NICs.
const POSTED: Duration = Duration::from_millis(20);
/// First port of the groups across processes, above the numbers that ports get when they are opened.
const PORTS: u16 = 16;
/// Seed of all random numbers.
const SEED: u64 = 1;

/// Builds the unit of a member's NIC.
fn unit(members: u16) -> Unit {
    let mut unit = Unit::default();
    let members = (0..members).map(NodeId).collect();
    unit.install(MESSAGES, Messages::new()).expect("the number is free");
    unit.install(COLLECTIVES, Collectives::new(members)).expect("the number is free");
    unit.install(VIA, Via::new(ViaConfig::default())).expect("the number is free");
    unit
}

/// Runs all rounds of all members in this process; returns the times of each member.
pub(crate) fn run(fabric: Fabric, plan: Plan) -> Result<Vec<Vec<Times>>, String> {
    if fabric == Fabric::Sim {
        return simulate(plan);
    }
    live(LOST, async {
        let peers = processes::free_addresses(plan.nodes.into())?;
        let gate = Arc::new(Barrier::new(plan.nodes.into()));
        let mut members = JoinSet::new();
        for rank in 0..plan.nodes {
            let (peers, gate) = (peers.clone(), Arc::clone(&gate));
            members.spawn(async move {
                let nic = start(fabric, rank, peers).await?;
                let times = together(&nic.host(), plan, &gate).await;
                nic.shutdown().await;
                times
            });
        }
        let mut times = Vec::new();
        while let Some(ended) = members.join_next().await {
            times.push(ended.map_err(text)??);
        }
        Ok(times)
    })
}

fn simulate(plan: Plan) -> Result<Vec<Vec<Times>>, String> {
    let (machine, nodes) = (Machine::DVCM_ATM, plan.nodes);
    let mut world =
        World::new(&machine.topology(nodes), machine.nic, SEED, move |_, _| unit(nodes));
    world.set_hosts(machine.host);
    let all = Arc::new(Mutex::new(Vec::new()));
    for node in (0..nodes).map(NodeId) {
        let (host, all) = (world.host(node), Arc::clone(&all));
        world.spawn(node, async move {
            let times = play(&host, plan, host.sleep_until(ALL_THERE)).await;
            all.lock().expect("no task panics with it locked").push(times);
        });
    }
    world.run();
    let all = std::mem::take(&mut *all.lock().expect("all tasks have ended"));
    if all.len() < usize::from(nodes) {
        return Err("no event is left, and a node is not done".into());
    }
    all.into_iter().collect()
}

async fn start(fabric: Fabric, rank: u16, peers: Vec<SocketAddr>) -> Result<LiveNic, String> {
    let members = peers.len() as u16;
    if fabric == Fabric::Shm {
        let name = format!("midplane-collectives-{}", std::process::id());
        let config = ShmConfig::new(name, NodeId(rank), members).seed(SEED);
        return LiveNic::over_shm(config, unit(members)).await;
    }
    LiveNic::over_udp(unpaced(NodeId(rank), peers).seed(SEED), unit(members))
}

/// Runs one live member's rounds, which begin and end with those of the others.
async fn together(host: &LiveHost, plan: Plan, gate: &Barrier) -> Result<Vec<Times>, String> {
    let ready = async {
        gate.wait().await;
        host.sleep_until(host.now() + POSTED).await;
    };
    let times = play(host, plan, ready).await?;
    gate.wait().await;
    Ok(times)
}

/// Takes this process's part in all plans; every member returns the rounds, in times by its own clock.
pub(crate) fn run_across(
    rank: u16,
    peers: Vec<SocketAddr>,
    plans: Vec<Plan>,
) -> Result<Vec<Rounds>, String> {
    live(LOST_ACROSS, async {
        let nic = start(Fabric::Udp, rank, peers.clone()).await?;
        let meeting = Meeting::start(rank, &peers, COME_UP).await;
        let mut meeting = meeting.map_err(text)?;
        let mut rounds = Vec::new();
        for (plan, port) in plans.into_iter().zip(PORTS..) {
            rounds.push(
                across(&nic.host(), Plan { port: Some(PortId(port)), ..plan }, &mut meeting)
                    .await?,
            );
        }
        meeting.gather_all(&(), LOST).await.map_err(text)?;
        nic.shutdown().await;
        Ok(rounds)
    })
}

async fn across(host: &LiveHost, plan: Plan, meeting: &mut Meeting) -> Result<Rounds, String> {
    meeting.gather_all(&(), LOST).await.map_err(text)?;
    let times = play(host, plan, host.sleep_until(host.now() + 3 * POSTED)).await?;
    let own: Vec<u64> = times.iter().map(|(begun, ended)| ended.nanos_since(*begun)).collect();
    let all = meeting.gather_numbers(&own, plan.nodes, LOST).await.map_err(text)?;
    let longest = |round| {
        all.iter().filter_map(|times| times.get(round)).max().copied().unwrap_or(0) as f64 / 1e3
    };
    let sum = all.iter().flatten().sum::<u64>() as f64;
    let spent = sum / 1e3 / (f64::from(plan.nodes) * f64::from(plan.rounds));
    Ok(Rounds { times: (0..own.len()).map(longest).collect(), spent })
}

/// Runs `work` on a runtime of two threads, for at most `limit`.
fn live<T>(limit: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.map_err(|error| format!("starting a runtime: {error}"))?.block_on(async {
        tokio::select! {
            ended = work => ended,
            () = tokio::time::sleep(limit) => Err(format!("it did not end in {limit:?}")),
            _ = tokio::signal::ctrl_c() => Err("stopped".into()),
        }
    })
}
