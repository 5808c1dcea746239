//! Helpers that run several ranks over a live fabric, each with its own NIC, all in this process.
#![allow(dead_code, reason = "each test uses its own part")]

mod relay;

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use midplane_nicvm::collective::{COLLECTIVES, Collectives};
use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nic::{LiveHost, StartError};
#[cfg(target_os = "linux")]
use midplane_simhw::shm::ShmConfig;
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
#[cfg(target_os = "linux")]
use midplane_via::lanes::LaneCarrier;
use midplane_via::message::carrier::Carrier;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use relay::Relay;

pub(crate) use crate::scenarios::{Program, World};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Real time after which a program counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);

/// Most payload bytes of a datagram between NICs.
const MTU: usize = 1_400;

fn unit(ranks: u16) -> Unit {
    // Longer than a busy machine keeps a process from running.
    let timeout = Duration::from_secs(30);
    let mut control = ControlConfig::default();
    control = control.dead_after(timeout);
    let mut unit = Unit::new(control);
    unit.install(VIA, Via::new(ViaConfig::default().dead_after(timeout))).unwrap();
    unit.install(COLLECTIVES, Collectives::new((0..ranks).map(NodeId).collect())).unwrap();
    unit
}

/// Makes a rank for each host.
pub(crate) async fn worlds(hosts: &[impl Host], config: RdmaConfig) -> Vec<World> {
    let carriers = carriers(hosts, config).await.into_iter();
    let worlds = carriers.map(|carrier| {
        Communicator::world(Engine::new(carrier, Config::default()), hosts.len() as u32).unwrap()
    });
    worlds.collect()
}

/// Makes a carrier for each host.
async fn carriers(hosts: &[impl Host], config: RdmaConfig) -> Vec<RdmaCarrier> {
    let nodes: Vec<NodeId> = hosts.iter().map(Host::node).collect();
    let mut carriers = Vec::new();
    for host in hosts {
        let own = Peer(host.node().0.into());
        carriers.push(RdmaCarrier::open(host, own, &nodes, config).await.unwrap());
    }
    carriers
}

/// Runs one program on each rank. A rank whose program has ended continues to serve the others, because it has not
/// finalised.
async fn play(carriers: Vec<impl Carrier + 'static>, program: &Program) {
    let ranks = carriers.len();
    let at_the_end = Arc::new(Barrier::new(ranks));
    let (mut tasks, mut views) = (JoinSet::new(), Vec::new());
    for carrier in carriers {
        let engine = Engine::new(carrier, Config::default());
        let world = Communicator::world(engine, ranks as u32).unwrap();
        views.push(world.clone());
        let (program, at_the_end) = (program(world.clone()), Arc::clone(&at_the_end));
        tasks.spawn(async move {
            program.await;
            let serving = pin!(async {
                let _ = world.probe(world.rank(), Tag(0xFFFF_0000)).await;
                pending::<()>().await;
            });
            select(pin!(at_the_end.wait()), serving).await;
        });
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(panicked) = ended {
                std::panic::resume_unwind(panicked.into_panic());
            }
        }
    };
    if tokio::time::timeout(LIMIT, all).await.is_err() {
        let stuck = views.iter().map(|view| format!("rank {}:\n{}", view.rank(), view.explain()));
        panic!("not all end\n{}", stuck.collect::<String>());
    }
}

fn live<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(run)
}

/// Runs a program over NICs in shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn shm(ranks: u16, config: RdmaConfig, program: &Program) {
    over_shm(ranks, async |hosts| play(carriers(&hosts, config).await, program).await);
}

/// Runs a program over sockets, through a relay with these faults; returns how many datagrams met one.
pub(crate) fn udp(ranks: u16, config: RdmaConfig, faults: Faults, program: &Program) -> u64 {
    over_udp(ranks, faults, async |hosts| play(carriers(&hosts, config).await, program).await)
}

/// Runs a program over lanes, whose configuration `change` restricts.
#[cfg(target_os = "linux")]
pub(crate) fn lanes(ranks: u16, change: impl Fn(ShmConfig) -> ShmConfig, program: &Program) {
    let name = fabric_name();
    live(async {
        let open = |node| {
            let config = ShmConfig::new(&name, NodeId(node), ranks);
            LaneCarrier::open(&change(config)).unwrap()
        };
        play((0..ranks).map(open).collect(), program).await;
    });
}

/// Runs the first of two ranks over lanes. It waits `within` for the second one, which never starts.
#[cfg(target_os = "linux")]
pub(crate) fn alone(within: Duration, program: &Program) {
    live(async {
        let config = ShmConfig::new(fabric_name(), NodeId(0), 2).join_timeout(within);
        let engine = Engine::new(LaneCarrier::open(&config).unwrap(), Config::default());
        let program = program(Communicator::world(engine, 2).unwrap());
        tokio::time::timeout(LIMIT, program).await.expect("it ends");
    });
}

/// Returns a new name for a fabric.
#[cfg(target_os = "linux")]
fn fabric_name() -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static FABRICS: AtomicUsize = AtomicUsize::new(0);
    let number = FABRICS.fetch_add(1, Ordering::Relaxed);
    format!("midplane-scenarios-{}-{number}", std::process::id())
}

/// Runs `work` on hosts whose NICs are connected by shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn over_shm(ranks: u16, work: impl AsyncFnOnce(Vec<LiveHost>)) {
    use midplane_simhw::shm::ShmNic;

    let name = fabric_name();
    live(async {
        let nics: Vec<_> = (0..ranks)
            .map(|node| {
                ShmNic::start(ShmConfig::new(&name, NodeId(node), ranks), unit(ranks)).unwrap()
            })
            .collect();
        for nic in &nics {
            nic.meet().await;
        }
        work(nics.iter().map(ShmNic::host).collect()).await;
        for nic in nics {
            nic.shutdown().await;
        }
    });
}

/// Runs `work` on hosts whose NICs are connected by a relay with these faults; returns how many datagrams met one.
pub(crate) fn over_udp(ranks: u16, faults: Faults, work: impl AsyncFnOnce(Vec<LiveHost>)) -> u64 {
    live(async {
        let (nics, relay) = start_nics(ranks, faults);
        work(nics.iter().map(UdpNic::host).collect()).await;
        for nic in nics {
            nic.shutdown().await;
        }
        relay.end()
    })
}

fn start_nics(ranks: u16, faults: Faults) -> (Vec<UdpNic>, Relay) {
    loop {
        let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sockets: Vec<UdpSocket> = (0..ranks).map(bind).collect();
        let peers: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        drop(sockets);
        let relay = Relay::start(peers.clone(), faults);
        let line = LinkProfile::plain(LineRate::mbps(100_000), Duration::ZERO);
        let start = |node| {
            let config = UdpConfig::new(NodeId(node), peers.clone());
            UdpNic::start(config.via(relay.address()).line(line).mtu(MTU), unit(ranks))
        };
        // The addresses were free a moment ago: another process may have taken one since.
        match (0..ranks).map(start).collect() {
            Ok(nics) => return (nics, relay),
            Err(StartError::PortInUse(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
