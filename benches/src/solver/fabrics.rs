//! Runs a setting: all nodes in virtual time, or one node over real sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::{Machine, NicProfile};
use midplane::simhw::sim::World;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::warp::firmware::{WARP, Warp};
use midplane::warp::gate::Gate;

use super::background::disturb;
use super::rank::{COORDINATOR, Job, Outcome, Rank};
use super::setting::{Hosts, Setting};
use crate::nodes::{Failure, Place};

type Gates = BTreeMap<NodeId, Gate>;

/// Builds a node's firmware; returns it with the gates of its targets.
fn firmware(setting: &Setting, node: NodeId) -> (Unit, Gates) {
    let (warp, gates) = Warp::new(setting.warp(node));
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).expect("it is the first");
    if node != setting.disturber() {
        unit.install(WARP, warp).expect("it is the only one of its number");
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
    let mut gates = std::mem::take(&mut *all_gates.lock().map_err(Failure::stopped)?);
    let mut rank = |world: &World<Unit>, node: NodeId| {
        Rank::new(world.host(node), job.clone(), gates.remove(&node).unwrap_or_default())
    };
    for node in (1..setting.ranks).map(NodeId) {
        let rank = rank(&world, node)?;
        // The coordinator reports the failure of a rank.
        world.spawn(node, async move { drop(rank.work().await) });
    }
    if setting.is_shared() {
        let node = setting.disturber();
        let (targets, load) = (setting.disturbed(), setting.load);
        let host = world.host(node);
        world.spawn(node, async move { drop(disturb(host, targets, load).await) });
    }
    let first = rank(&world, COORDINATOR)?;
    let ended = world.block_on(COORDINATOR, first.work());
    ended.ok_or_else(|| Failure::Stopped("nothing is left to happen".into()))?
}

/// Runs one node's part of a live run; rank 0 returns the outcome.
pub async fn take_part(job: Job, place: &Place) -> Result<Option<Outcome>, Failure> {
    let setting = Arc::clone(&job.setting);
    let node = NodeId(place.rank);
    let peers = place.peers[..usize::from(setting.nodes())].to_vec();
    let mut config = UdpConfig::new(node, peers).line(setting.line()).seed(setting.seed);
    if let Some(switch) = place.switch {
        config = config.via(switch);
    }
    let (unit, gates) = firmware(&setting, node);
    let nic =
        UdpNic::start(config, unit).map_err(|error| Failure::Input(format!("--peers: {error}")))?;
    let host = nic.host();
    let outcome = if node == setting.disturber() {
        disturb(host, setting.disturbed(), setting.load).await.map(|()| None)
    } else {
        match Rank::new(host, job, gates) {
            Ok(rank) => rank.work().await.map(Some),
            Err(failure) => Err(failure),
        }
    };
    nic.shutdown().await;
    outcome.map(|outcome| outcome.filter(|_| node == COORDINATOR))
}
