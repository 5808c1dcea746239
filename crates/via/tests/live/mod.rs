//! Processes on NICs of their own over a live fabric, all of them in this process.
#![allow(dead_code, reason = "each test uses its own part")]

mod relay;

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
#[cfg(target_os = "linux")]
use midplane_simhw::shm::ShmHost;
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{StartError, UdpConfig, UdpHost, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::process::Process;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use relay::Relay;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

pub(crate) type World = Communicator<Engine<RdmaCarrier>>;
/// What each process runs: one type for all, for each further one costs a compilation.
pub(crate) type Program = dyn Fn(World) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// On the machine's clock: only what hangs takes so long.
const LIMIT: Duration = Duration::from_secs(60);

/// Most payload bytes of a datagram between NICs.
const MTU: usize = 1_400;

fn unit() -> Unit {
    let mut unit = Unit::default();
    // Longer than a busy machine lets a process stand still.
    let config = ViaConfig::default().dead_after(Duration::from_secs(30));
    unit.install(VIA, Via::new(config)).unwrap();
    unit
}

async fn join(host: &impl Host, nodes: &[NodeId], config: RdmaConfig) -> World {
    let own = Peer(host.node().0.into());
    let carrier = RdmaCarrier::open(host, own, nodes, config).await.unwrap();
    let engine = Engine::new(carrier, Config::default());
    let (process, scope) = Process::new(engine, nodes.len() as u32).unwrap();
    Communicator::world(process, scope)
}

/// Runs one program in each process; one that has come to its end serves the others, as one does
/// that has not finalised.
async fn play(hosts: Vec<impl Host>, config: RdmaConfig, program: &Program) {
    let nodes: Vec<NodeId> = hosts.iter().map(|host| host.node()).collect();
    let at_the_end = Arc::new(Barrier::new(hosts.len()));
    let (mut tasks, mut views) = (JoinSet::new(), Vec::new());
    for host in &hosts {
        let world = join(host, &nodes, config).await;
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

/// Messages over shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn shm(ranks: u16, config: RdmaConfig, program: &Program) {
    over_shm(ranks, async |hosts| play(hosts, config, program).await);
}

/// Messages over sockets, through a relay with these faults; how many datagrams met one.
pub(crate) fn udp(ranks: u16, config: RdmaConfig, faults: Faults, program: &Program) -> u64 {
    over_udp(ranks, faults, async |hosts| play(hosts, config, program).await)
}

/// Hosts whose NICs are joined by shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn over_shm(ranks: u16, work: impl AsyncFnOnce(Vec<ShmHost>)) {
    use midplane_simhw::shm::{ShmConfig, ShmNic};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static FABRICS: AtomicUsize = AtomicUsize::new(0);
    let number = FABRICS.fetch_add(1, Ordering::Relaxed);
    let name = format!("midplane-scenarios-{}-{number}", std::process::id());
    live(async {
        let nics: Vec<_> = (0..ranks)
            .map(|node| ShmNic::start(ShmConfig::new(&name, NodeId(node), ranks), unit()).unwrap())
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

/// Hosts whose NICs are joined by a relay with these faults; how many datagrams met one.
pub(crate) fn over_udp(ranks: u16, faults: Faults, work: impl AsyncFnOnce(Vec<UdpHost>)) -> u64 {
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
            UdpNic::start(config.via(relay.address()).line(line).mtu(MTU), unit())
        };
        // The addresses were free a moment ago: another process may have taken one since.
        match (0..ranks).map(start).collect() {
            Ok(nics) => return (nics, relay),
            Err(StartError::PortInUse(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
