//! The end of a program: communicator, NIC, host and runtime are dropped in any order, and nothing blocks.

use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::rng::Rng;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::udp::{Coprocessor, UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;

/// Time after which a step counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of orders of drops for each fabric.
const ORDERS: u64 = 100;

type World = Communicator;

fn unit() -> Unit {
    // Longer than a busy machine keeps a process from running.
    let timeout = Duration::from_secs(30);
    let mut control = ControlConfig::default();
    control = control.dead_after(timeout);
    let mut unit = Unit::new(control);
    unit.install(VIA, Via::new(ViaConfig::default().dead_after(timeout))).unwrap();
    unit
}

async fn join(host: &impl Host) -> World {
    let own = Peer(host.node().0.into());
    let nodes = [NodeId(0), NodeId(1)];
    let carrier = RdmaCarrier::open(host, own, &nodes, RdmaConfig::default()).await.unwrap();
    Communicator::world(Engine::new(carrier, Config::default()), 2).unwrap()
}

/// Exchanges some messages. Afterwards, messages may still be in flight, and tasks may wait.
async fn talk(world: &World, rng: &mut Rng) {
    let other = Rank(1 - world.rank().0);
    for length in [10, 100_000] {
        world.send_receive((other, Tag(101)), vec![1; length], other, Tag(101)).await.unwrap();
    }
    if rng.below(2) == 0 {
        let all = world.clone();
        tokio::spawn(async move { drop(all.receive(None, Tag(107)).await) });
    }
    if rng.below(2) == 0 {
        let all = world.clone();
        tokio::spawn(async move { all.send(other, Tag(108), vec![1; 1 << 20]).await });
    }
    exchange(world, rng.below(4));
    for _ in 0..4 {
        // The tasks run meanwhile.
        world.send_receive((other, Tag(103)), vec![1], other, Tag(103)).await.unwrap();
    }
}

/// Starts tasks that send and receive until they are dropped, as those of a server do.
fn exchange(world: &World, senders: u64) {
    let other = Rank(1 - world.rank().0);
    let all = world.clone();
    // Receives the other process's messages as long as this one exists: unread messages would block all others.
    tokio::spawn(async move { while all.receive(other, Tag(109)).await.is_ok() {} });
    for _ in 0..senders {
        let all = world.clone();
        tokio::spawn(
            async move { while all.send(other, Tag(109), vec![2; 5_000]).await.is_ok() {} },
        );
    }
}

/// Drops all in a random order: each within the runtime, while that exists, or outside of it.
fn drop_all(mut things: Vec<(&'static str, Box<dyn Any>)>, rng: &mut Rng, at: &Sender<String>) {
    while !things.is_empty() {
        let next = rng.below(things.len() as u64) as usize;
        let (name, thing) = things.swap_remove(next);
        let is_within = rng.below(2) == 0;
        let runtime = things.iter().find_map(|(_, thing)| thing.downcast_ref::<Runtime>());
        let _ = at.send(format!("{name} {is_within}"));
        match runtime.filter(|_| is_within) {
            Some(runtime) => runtime.block_on(async { drop(thing) }),
            None => drop(thing),
        }
    }
}

/// One process: a runtime of one thread, a NIC, a communicator.
fn process<N: 'static, H: Host + Clone + 'static>(
    start: impl FnOnce() -> (N, H),
    seed: u64,
    both_talked: &Barrier,
    at: &Sender<String>,
) {
    let mut rng = Rng::new(seed, "dropping");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (nic, host, world) = runtime.block_on(async {
        let (nic, host) = start();
        let world = join(&host).await;
        talk(&world, &mut rng).await;
        both_talked.wait().await;
        (nic, host, world)
    });
    let things: Vec<(&'static str, Box<dyn Any>)> = vec![
        ("runtime", Box::new(runtime)),
        ("nic", Box::new(nic)),
        ("host", Box::new(host)),
        ("world", Box::new(world)),
    ];
    drop_all(things, &mut rng, at);
}

/// Runs two processes as threads; panics with the steps before one that hangs.
fn both(run: impl Fn(u16, &Barrier, &Sender<String>) + Clone + Send + 'static, seed: u64) {
    let both_talked = Arc::new(Barrier::new(2));
    let ends: Vec<_> = [0, 1]
        .map(|node| {
            let (sender, steps) = channel();
            let (run, both_talked) = (run.clone(), Arc::clone(&both_talked));
            std::thread::spawn(move || {
                run(node, &both_talked, &sender);
                let _ = sender.send("end".into());
            });
            steps
        })
        .into_iter()
        .collect();
    for (node, reported) in ends.iter().enumerate() {
        let mut steps = Vec::new();
        while steps.last().is_none_or(|last| last != "end") {
            match reported.recv_timeout(LIMIT) {
                Ok(step) => steps.push(step),
                Err(error) => panic!("order {seed}: process {node} after {steps:?}: {error}"),
            }
        }
    }
}

#[test]
fn programs_over_shared_memory_end_in_any_order_of_drops() {
    for seed in 0..ORDERS {
        let name = format!("midplane-dropping-{}-{seed}", std::process::id());
        let run = move |node: u16, both_talked: &Barrier, at: &Sender<String>| {
            let start = || {
                let nic = ShmNic::start(ShmConfig::new(&name, NodeId(node), 2), unit()).unwrap();
                let host = nic.host();
                (nic, host)
            };
            process(start, 2 * seed + u64::from(node), both_talked, at);
        };
        both(run, seed);
    }
}

#[test]
fn programs_over_udp_end_in_any_order_of_drops() {
    for seed in 0..ORDERS {
        // The system chooses free ports; they stay free unless another process binds them.
        let sockets = [0, 1].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let peers: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        drop(sockets);
        let run = move |node: u16, both_talked: &Barrier, at: &Sender<String>| {
            let how = [Coprocessor::Thread, Coprocessor::Task][(seed % 2) as usize];
            let start = || loop {
                let config = UdpConfig::new(NodeId(node), peers.clone()).coprocessor(how);
                match UdpNic::start(config, unit()) {
                    Ok(nic) => {
                        let host = nic.host();
                        break (nic, host);
                    }
                    // Another test has bound the port for a moment.
                    Err(StartError::PortInUse(_)) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            };
            process(start, 2 * seed + u64::from(node), both_talked, at);
        };
        both(run, seed);
    }
}
