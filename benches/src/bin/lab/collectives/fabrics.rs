//! Runs a group on one of the fabrics.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::collective::{COLLECTIVES, Collectives};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::Machine;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::sim::World;
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use tokio::sync::Barrier;

use crate::collectives::arguments::Fabric;
use crate::collectives::member::{Log, Plan, Times, play};
use crate::processes;

/// Time limit of a run; only a lost message makes a run last longer.
const LOST: Duration = Duration::from_secs(60);

/// Runs all rounds of all members; returns their times.
///
/// # Errors
/// One line that says what failed.
pub(crate) fn run(fabric: Fabric, plan: Plan, seed: u64) -> Result<Vec<Vec<Times>>, String> {
    let log: Log = Arc::new(Mutex::new(vec![Vec::new(); plan.rounds as usize]));
    match fabric {
        Fabric::Sim => simulate(plan, seed, &log)?,
        Fabric::Udp => live(udp(plan, Arc::clone(&log)))?,
        #[cfg(target_os = "linux")]
        Fabric::Shm => live(shm(plan, Arc::clone(&log)))?,
        #[cfg(not(target_os = "linux"))]
        Fabric::Shm => return Err("--fabric shm: needs Linux".into()),
    }
    let log = std::mem::take(&mut *log.lock().expect("all members have ended"));
    if log.iter().any(|round| round.len() != usize::from(plan.nodes)) {
        return Err("a message was lost: not all members came to the end".into());
    }
    Ok(log)
}

/// Builds the unit of a member's NIC.
pub(crate) fn unit(nodes: u16) -> Unit {
    let mut unit = Unit::default();
    let members = (0..nodes).map(NodeId).collect();
    unit.install(MESSAGES, Messages::new()).expect("the number is free");
    unit.install(COLLECTIVES, Collectives::new(members)).expect("the number is free");
    unit.install(VIA, Via::new(ViaConfig::default())).expect("the number is free");
    unit
}

fn simulate(plan: Plan, seed: u64, log: &Log) -> Result<(), String> {
    let machine = Machine::DVCM_ATM;
    let make = move |_, _| unit(plan.nodes);
    let mut world = World::new(&machine.topology(plan.nodes), machine.nic, seed, make);
    world.set_hosts(machine.host);
    let failure = Arc::new(Mutex::new(None));
    for node in (0..plan.nodes).map(NodeId) {
        let (host, log, failure) = (world.host(node), Arc::clone(log), Arc::clone(&failure));
        world.spawn(node, async move {
            let all_there = host.clone();
            let ready = async move { all_there.sleep_until(Instant::from_nanos(10_000_000)).await };
            if let Err(error) = play(host, plan, log, ready).await {
                *failure.lock().expect("one line") = Some(error);
            }
        });
    }
    world.run();
    let failure = failure.lock().expect("all tasks have ended").take();
    failure.map_or(Ok(()), Err)
}

fn live(group: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
    runtime.block_on(async {
        let ended = tokio::time::timeout(LOST, group).await;
        ended.map_err(|_| "a message was lost: the members wait for ever".to_owned())?
    })
}

async fn all<H: Host>(hosts: Vec<H>, plan: Plan, log: Log) -> Result<(), String> {
    let gate = Arc::new(Barrier::new(hosts.len()));
    let members = hosts.into_iter().map(|host| {
        let (gate, log) = (Arc::clone(&gate), Arc::clone(&log));
        tokio::spawn(play(host, plan, log, async move {
            gate.wait().await;
            // The last posted buffers are still on their way to the NICs.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }))
    });
    for member in members.collect::<Vec<_>>() {
        member.await.map_err(|error| error.to_string())??;
    }
    Ok(())
}

async fn udp(plan: Plan, log: Log) -> Result<(), String> {
    let addresses = processes::free_addresses(plan.nodes.into())?;
    // A line rate above any loopback's: frames are not paced.
    let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
    let mut nics = Vec::new();
    for node in (0..plan.nodes).map(NodeId) {
        let config = UdpConfig::new(node, addresses.clone()).line(line);
        nics.push(UdpNic::start(config, unit(plan.nodes)).map_err(|error| error.to_string())?);
    }
    let ended = all(nics.iter().map(UdpNic::host).collect(), plan, log).await;
    for nic in nics {
        nic.shutdown().await;
    }
    ended
}

#[cfg(target_os = "linux")]
async fn shm(plan: Plan, log: Log) -> Result<(), String> {
    let name = format!("midplane-collectives-{}", std::process::id());
    let mut nics = Vec::new();
    for node in (0..plan.nodes).map(NodeId) {
        let config = ShmConfig::new(&name, node, plan.nodes);
        nics.push(ShmNic::start(config, unit(plan.nodes)).map_err(|error| error.to_string())?);
    }
    for nic in &nics {
        nic.meet().await;
    }
    let ended = all(nics.iter().map(ShmNic::host).collect(), plan, log).await;
    for nic in nics {
        nic.shutdown().await;
    }
    ended
}
