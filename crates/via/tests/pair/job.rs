//! Processes on nodes of their own, with messages over Virtual Interfaces in virtual time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::{SimHost, World as Fabric};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};

use crate::pair::{Setting, pause, world};
use crate::scenarios::Program;

pub(crate) use crate::scenarios::World;

pub(crate) async fn join(host: &SimHost, own: u16, nodes: u16, config: RdmaConfig) -> World {
    let places: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    join_at(host, own, &places, config).await
}

pub(crate) async fn join_at(
    host: &SimHost,
    own: u16,
    places: &[NodeId],
    config: RdmaConfig,
) -> World {
    let carrier = RdmaCarrier::open(host, Peer(own.into()), places, config).await.unwrap();
    let engine = Engine::new(carrier, Config::default());
    Communicator::world(engine, places.len() as u32).unwrap()
}

/// Runs one program in each of so many processes; returns their results, by rank.
pub(crate) fn run<T, F>(
    setting: Setting,
    config: RdmaConfig,
    program: impl Fn(World, SimHost) -> F + Send + Sync + 'static,
) -> BTreeMap<u16, T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    run_in(&mut world(setting), setting.nodes, config, program)
}

/// Runs the programs in an existing world.
pub(crate) fn run_in<T, F>(
    world: &mut Fabric<Unit>,
    nodes: u16,
    config: RdmaConfig,
    program: impl Fn(World, SimHost) -> F + Send + Sync + 'static,
) -> BTreeMap<u16, T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let results = Arc::new(Mutex::new(BTreeMap::new()));
    let program = Arc::new(program);
    for rank in 0..nodes {
        let (host, results) = (world.host(NodeId(rank)), Arc::clone(&results));
        let program = Arc::clone(&program);
        world.spawn(NodeId(rank), async move {
            let all = join(&host, rank, nodes, config).await;
            let result = program(all.clone(), host.clone()).await;
            all.finalize().await;
            results.lock().unwrap().insert(rank, result);
            // The others may still be working.
            pause(&host, Duration::from_secs(5)).await;
        });
    }
    let limit = world.now() + Duration::from_secs(60);
    while results.lock().unwrap().len() < usize::from(nodes) && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    let mut results = results.lock().unwrap();
    assert_eq!(results.len(), usize::from(nodes), "a process does not end");
    std::mem::take(&mut *results)
}

/// Runs one program in each of so many processes. A process whose program has ended serves the others, because it has
/// not finalised.
pub(crate) fn serve_until_all_are_done(
    setting: Setting,
    config: RdmaConfig,
    program: &'static Program,
) {
    let mut world = world(setting);
    let views = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::new(Mutex::new(Vec::new()));
    for rank in 0..setting.nodes {
        let host = world.host(NodeId(rank));
        let (views, done) = (Arc::clone(&views), Arc::clone(&done));
        world.spawn(NodeId(rank), async move {
            let all = join(&host, rank, setting.nodes, config).await;
            views.lock().unwrap().push(all.clone());
            program(all.clone()).await;
            done.lock().unwrap().push(rank);
            let _ = all.probe(all.rank(), Tag(0xFFFF_0000)).await;
        });
    }
    let limit = world.now() + Duration::from_secs(60);
    while done.lock().unwrap().len() < usize::from(setting.nodes) && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    let (views, done) = (views.lock().unwrap(), done.lock().unwrap());
    let stuck = || views.iter().map(|view| format!("rank {}:\n{}", view.rank(), view.explain()));
    assert!(
        done.len() == usize::from(setting.nodes),
        "not all end\n{}",
        stuck().collect::<String>()
    );
}
