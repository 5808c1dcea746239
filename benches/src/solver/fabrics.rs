//! Runs a setting: all nodes in virtual time, or one node over real sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::{Machine, NicProfile};
use midplane::simhw::sim::World;
use midplane::simhw::udp::{Coprocessor, UdpNic};
use midplane::warp::firmware::{WARP, Warp};
use midplane::warp::gate::Gate;
use midplane::warp::memory::extension::{MERMERA, Mermera};

use super::background::disturb;
use super::frames::{FRAMES, Frames};
use super::rank::{COORDINATOR, Job, Outcome, Rank};
use super::setting::{Hosts, Memory, Setting};
use crate::meeting::Meeting;
use crate::nodes::Place;
use midplane_kit::report::Failure;

type Gates = BTreeMap<NodeId, Gate>;

/// Builds a node's firmware; returns it with the gates of its targets.
fn firmware(setting: &Setting, node: NodeId) -> (Unit, Gates) {
    let (warp, gates) = Warp::new(setting.warp(node));
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).expect("it is the first");
    if node != setting.disturber() {
        unit.install(WARP, warp).expect("it is the only one of its number");
        if setting.memory == Memory::Mermera {
            let memory = Mermera::new(setting.mermera(gates.clone()));
            unit.install(MERMERA, memory).expect("it is the only one of its number");
            unit.install(FRAMES, Frames).expect("it is the only one of its number");
        }
    }
    (unit, gates)
}

/// Runs all nodes in virtual time.
pub fn simulate(job: &Job) -> Result<Outcome, Failure> {
    let setting = &job.setting;
    let all_gates: Arc<Mutex<BTreeMap<NodeId, Gates>>> = Arc::default();
    let (for_nics, given) = (Arc::clone(setting), Arc::clone(&all_gates));
    let (nic, host) = match setting.hosts {
        Hosts::Paper => (Machine::WARP_ETHERNET.nic, Some(Machine::WARP_ETHERNET.host)),
        Hosts::Today => (NicProfile::MODERN, None),
    };
    let mut world = World::new(&setting.topology(), nic, setting.seed, move |node, _| {
        let (unit, gates) = firmware(&for_nics, node);
        given.lock().expect("nothing panics while it holds this lock").insert(node, gates);
        unit
    });
    if let Some(host) = host {
        world.set_hosts(host);
    }
    let mut gates = std::mem::take(&mut *all_gates.lock().map_err(Failure::of_run)?);
    let mut rank = |world: &World<Unit>, node: NodeId| {
        Rank::new(world.host(node), job.clone(), gates.remove(&node).unwrap_or_default())
    };
    let mut meetings = Meeting::local(setting.ranks);
    let mut lead = meetings.next().expect("there is a rank");
    for (node, mut meeting) in (1..).map(NodeId).zip(meetings) {
        let rank = rank(&world, node)?;
        // The coordinator reports the failure of a rank.
        world.spawn(node, async move { drop(rank.work(&mut meeting).await) });
    }
    if setting.is_shared() {
        let node = setting.disturber();
        let (targets, load) = (setting.disturbed(), setting.load);
        let host = world.host(node);
        world.spawn(node, async move { drop(disturb(host, targets, load).await) });
    }
    let first = rank(&world, COORDINATOR)?;
    let ended = world.block_on(COORDINATOR, async move { first.work(&mut lead).await });
    ended.ok_or_else(|| Failure::of_run("no event is left"))?
}

/// Runs one node's part of a live run; rank 0 returns the outcome.
pub async fn take_part(
    job: Job,
    place: &Place,
    wait: Duration,
) -> Result<Option<Outcome>, Failure> {
    let setting = Arc::clone(&job.setting);
    let node = NodeId(place.rank);
    let mut config = place.nic(setting.nodes(), setting.line(), setting.seed);
    if setting.memory == Memory::Mermera {
        // A sweep waits for hundreds of accesses in turn. On this thread none of them waits for another thread.
        config = config.coprocessor(Coprocessor::Task);
    }
    let (unit, gates) = firmware(&setting, node);
    let nic = UdpNic::start(config, unit).map_err(|error| format!("--peers: {error}"))?;
    let host = nic.host();
    let outcome = if node == setting.disturber() {
        disturb(host, setting.disturbed(), setting.load).await.map(|()| None)
    } else {
        let ranks = &place.peers[..usize::from(setting.ranks)];
        let work = async {
            let mut meeting = Meeting::start(place.rank, ranks, wait).await?;
            Rank::new(host, job, gates)?.work(&mut meeting).await.map(Some)
        };
        work.await
    };
    nic.shutdown().await;
    outcome.map(|outcome| outcome.filter(|_| node == COORDINATOR))
}
