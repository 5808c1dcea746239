//! The fabrics, each with the same nodes and the same firmware.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::coordination::{COORDINATION, Coordination, CoordinationConfig};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::Faults;
use midplane::simhw::host::Host;
use midplane::simhw::id::{Incarnation, NodeId, PortId};
use midplane::simhw::link::LinkProfile;
use midplane::simhw::nic::custom::{CustomConfig, CustomNic};
use midplane::simhw::nic::{FaultInjector, LiveHost, StartError};
#[cfg(target_os = "linux")]
use midplane::simhw::nicd::{Client, ClientConfig, PortServer, ServerConfig};
use midplane::simhw::profile::NicProfile;
#[cfg(target_os = "linux")]
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use midplane::simhw::udp::{UdpConfig, UdpNic};
#[cfg(target_os = "linux")]
use midplane_ofi::endpoint::{Config, Endpoint};
#[cfg(target_os = "linux")]
use midplane_ofi::link::{OfiLink, frame_bytes};
#[cfg(target_os = "linux")]
use midplane_ofi::provider::{Choice, OpenError};
use tokio::sync::Barrier;

use super::guide_fabric::ChannelLink;

/// Number of nodes of every fabric.
pub(crate) const NODES: u16 = 3;
/// The receiver of coordinated messages; all other nodes send.
pub(crate) const CENTRE: NodeId = NodeId(0);
/// Most payload bytes of one frame.
pub(crate) const MTU: usize = 1_400;
const SEED: u64 = 7;
/// Limit of virtual time: longer than any lease or timeout.
const VIRTUAL_LIMIT: Instant = Instant::from_nanos(60_000_000_000);
/// Limit on the machine's clock, after which a test fails as hung.
const REAL_LIMIT: Duration = Duration::from_secs(120);
/// Virtual time between two checks whether all nodes have ended.
const SLICE: Duration = Duration::from_millis(1);

/// One node of a fabric, as a case uses it.
#[derive(Debug)]
pub(crate) struct Site<H> {
    pub(crate) host: H,
    exchange: Arc<Exchange>,
}

/// A case on one node. A function pointer and a boxed future: each fabric is compiled once, not once a case.
pub(crate) type Case<H> = fn(Site<H>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// State that nodes share outside the fabric.
#[derive(Debug)]
struct Exchange {
    barrier: Barrier,
    ports: Mutex<[PortId; NODES as usize]>,
}

impl Exchange {
    fn new() -> Arc<Self> {
        let barrier = Barrier::new(usize::from(NODES));
        Arc::new(Self { barrier, ports: Mutex::default() })
    }
}

impl<H: Host> Site<H> {
    pub(crate) fn is(&self, node: u16) -> bool {
        self.host.node() == NodeId(node)
    }

    /// Waits for all other nodes.
    pub(crate) async fn meet(&self) {
        self.exchange.barrier.wait().await;
    }

    /// Waits for all other nodes; returns the port numbers that they passed.
    pub(crate) async fn learn_ports(&self, own: PortId) -> [PortId; NODES as usize] {
        self.exchange.ports.lock().unwrap()[self.host.node().index()] = own;
        self.meet().await;
        let ports = *self.exchange.ports.lock().unwrap();
        self.meet().await;
        ports
    }
}

fn firmware() -> Unit {
    let senders: Vec<NodeId> = (1..NODES).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&[CENTRE], &senders);
    config = config.genesis(true);
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).unwrap();
    unit.install(COORDINATION, Coordination::new(config).unwrap()).unwrap();
    unit
}

/// Runs `case` on every node of a simulated star.
pub(crate) fn sim(case: Case<SimHost>) {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(NODES, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let profile = NicProfile { mtu: MTU, ..NicProfile::MODERN };
    let mut world = World::new(&topology, profile, SEED, |_, _| firmware());
    let exchange = Exchange::new();
    let running = Arc::new(AtomicUsize::new(usize::from(NODES)));
    for node in (0..NODES).map(NodeId) {
        let task = case(Site { host: world.host(node), exchange: Arc::clone(&exchange) });
        let running = Arc::clone(&running);
        world.spawn(node, async move {
            task.await;
            running.fetch_sub(1, Ordering::Relaxed);
        });
    }
    while running.load(Ordering::Relaxed) > 0 {
        assert!(world.now() < VIRTUAL_LIMIT, "nodes that have not ended: {running:?}");
        world.run_until(world.now() + SLICE);
    }
}

/// Runs `case` on every node of a fabric over loopback.
pub(crate) fn udp(case: Case<LiveHost>) {
    udp_with(None, case);
}

/// Runs `case` on a fabric over loopback whose links delay each datagram.
pub(crate) fn delayed_udp(case: Case<LiveHost>) {
    udp_with(Some(&jitter()), case);
}

/// Returns faults that the cases must not notice: each frame is delayed, and handled in its order.
fn jitter() -> FaultInjector {
    let injector = FaultInjector::new(SEED);
    let jitter = Duration::from_micros(100);
    injector.set(Faults { jitter, ..Faults::NONE }).unwrap();
    injector
}

fn udp_with(faults: Option<&FaultInjector>, case: Case<LiveHost>) {
    live(async |exchange| {
        let nics = start_nics(faults);
        run_all(
            nics.iter().map(|nic| case(Site { host: nic.host(), exchange: Arc::clone(&exchange) })),
        )
        .await;
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Runs `case` on every node of a fabric over shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn shm(case: Case<LiveHost>) {
    shm_with(None, case);
}

/// Runs `case` on a fabric over shared memory whose links delay each frame.
#[cfg(target_os = "linux")]
pub(crate) fn delayed_shm(case: Case<LiveHost>) {
    shm_with(Some(&jitter()), case);
}

#[cfg(target_os = "linux")]
fn shm_with(faults: Option<&FaultInjector>, case: Case<LiveHost>) {
    live(async |exchange| {
        let nics = start_shm_nics(&fabric_name(), faults).await;
        run_all(
            nics.iter().map(|nic| case(Site { host: nic.host(), exchange: Arc::clone(&exchange) })),
        )
        .await;
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Runs `case` on clients of daemons whose NICs are joined over shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn mapped_shm(case: Case<LiveHost>) {
    live(async |exchange| {
        let name = fabric_name();
        let nics = start_shm_nics(&name, None).await;
        let serve =
            |nic: &ShmNic| nic.serve_ports(ServerConfig::new(&name).connections(2_048)).unwrap();
        let servers: Vec<PortServer> = nics.iter().map(serve).collect();
        run_all(clients(&name).map(|host| case(Site { host, exchange: Arc::clone(&exchange) })))
            .await;
        drop(servers);
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Runs `case` on clients of daemons whose NICs are joined over loopback.
#[cfg(target_os = "linux")]
pub(crate) fn mapped_udp(case: Case<LiveHost>) {
    live(async |exchange| {
        let name = fabric_name();
        let nics = start_nics(None);
        let serve =
            |nic: &UdpNic| nic.serve_ports(ServerConfig::new(&name).connections(2_048)).unwrap();
        let servers: Vec<PortServer> = nics.iter().map(serve).collect();
        run_all(clients(&name).map(|host| case(Site { host, exchange: Arc::clone(&exchange) })))
            .await;
        drop(servers);
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Runs `case` on every node of the guide's fabric of channels.
pub(crate) fn channel(case: Case<LiveHost>) {
    channel_with(None, case);
}

/// Runs `case` on a fabric of channels that delay each frame.
pub(crate) fn delayed_channel(case: Case<LiveHost>) {
    channel_with(Some(&jitter()), case);
}

fn channel_with(faults: Option<&FaultInjector>, case: Case<LiveHost>) {
    live(async |exchange| {
        let start = |(node, link): (u16, ChannelLink)| {
            let config = CustomConfig::new(NodeId(node)).seed(SEED).mtu(MTU);
            let config = faults.into_iter().fold(config, CustomConfig::faults);
            CustomNic::start(config.incarnation(Incarnation::FIRST), firmware(), link).unwrap()
        };
        let nics: Vec<_> = (0..).zip(ChannelLink::connect(NODES)).map(start).collect();
        run_all(
            nics.iter().map(|nic| case(Site { host: nic.host(), exchange: Arc::clone(&exchange) })),
        )
        .await;
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Runs `case` over libfabric's tcp.
#[cfg(target_os = "linux")]
pub(crate) fn ofi_tcp(case: Case<LiveHost>) {
    ofi("tcp@127.0.0.1", case);
}

/// Runs `case` over libfabric's tcp with a layer for reliable datagrams.
#[cfg(target_os = "linux")]
pub(crate) fn ofi_rxm(case: Case<LiveHost>) {
    ofi("tcp;ofi_rxm@127.0.0.1", case);
}

/// Runs `case` over libfabric's shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn ofi_shm(case: Case<LiveHost>) {
    ofi("shm", case);
}

/// Runs `case` over libfabric's udp with a layer that makes it reliable.
#[cfg(target_os = "linux")]
pub(crate) fn ofi_rxd(case: Case<LiveHost>) {
    ofi("udp;ofi_rxd@127.0.0.1", case);
}

/// Runs `case` over `midplane-fi`, if `FI_PROVIDER_PATH` names its folder.
#[cfg(target_os = "linux")]
pub(crate) fn ofi_midplane(case: Case<LiveHost>) {
    ofi("midplane", case);
}

/// Runs `case` on NICs whose links cross libfabric, if libfabric and the provider are installed.
#[cfg(target_os = "linux")]
#[expect(clippy::print_stderr, reason = "says what is skipped")]
fn ofi(provider: &str, case: Case<LiveHost>) {
    let choice: Choice = provider.parse().unwrap();
    let config = Config::new(frame_bytes(MTU)).sends(64).receives(64);
    live(async |exchange| {
        let open = |_| Endpoint::open(&choice, &config);
        let endpoints: Vec<Endpoint> = match (0..NODES).map(open).collect() {
            Ok(endpoints) => endpoints,
            Err(error @ (OpenError::Unavailable(_) | OpenError::NoProvider(_))) => {
                assert!(std::env::var_os("MIDPLANE_LIBFABRIC_TESTS").is_none(), "{error}");
                eprintln!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let names: Vec<Vec<u8>> =
            endpoints.iter().map(|endpoint| endpoint.name().to_vec()).collect();
        let start = |(node, endpoint)| {
            let link = OfiLink::new(endpoint, NodeId(node), &names).unwrap();
            let config = CustomConfig::new(NodeId(node)).seed(SEED).mtu(MTU);
            CustomNic::start(config.incarnation(Incarnation::FIRST), firmware(), link).unwrap()
        };
        let nics: Vec<_> = (0..).zip(endpoints).map(start).collect();
        run_all(
            nics.iter().map(|nic| case(Site { host: nic.host(), exchange: Arc::clone(&exchange) })),
        )
        .await;
        run_all(nics.into_iter().map(async |nic| _ = nic.shutdown().await)).await;
    });
}

/// Returns a name that no other fabric of this host has.
#[cfg(target_os = "linux")]
fn fabric_name() -> String {
    static FABRICS: AtomicUsize = AtomicUsize::new(0);
    let number = FABRICS.fetch_add(1, Ordering::Relaxed);
    format!("conformance {} {number}", std::process::id())
}

#[cfg(target_os = "linux")]
async fn start_shm_nics(name: &str, faults: Option<&FaultInjector>) -> Vec<ShmNic> {
    let start = |node| {
        let config = ShmConfig::new(name, NodeId(node), NODES);
        let config = config.seed(SEED).mtu(MTU).incarnation(Incarnation::FIRST);
        let config = faults.into_iter().fold(config, ShmConfig::faults);
        ShmNic::start(config, firmware()).unwrap()
    };
    let nics: Vec<ShmNic> = (0..NODES).map(start).collect();
    for nic in &nics {
        nic.meet().await;
    }
    nics
}

#[cfg(target_os = "linux")]
fn clients(name: &str) -> impl Iterator<Item = LiveHost> {
    (0..NODES).map(move |node| {
        let config = ClientConfig::new(name, NodeId(node)).seed(SEED);
        Client::connect(config).unwrap().host()
    })
}

/// Runs a fabric on a runtime of its own.
fn live(run: impl AsyncFnOnce(Arc<Exchange>)) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(Exchange::new()));
}

/// Runs the tasks of all nodes to completion.
async fn run_all(nodes: impl Iterator<Item: Future<Output = ()> + Send + 'static>) {
    let mut tasks = tokio::task::JoinSet::new();
    for node in nodes {
        tasks.spawn(node);
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(panicked) = ended {
                std::panic::resume_unwind(panicked.into_panic());
            }
        }
    };
    tokio::time::timeout(REAL_LIMIT, all).await.expect("every node ends");
}

fn start_nics(faults: Option<&FaultInjector>) -> Vec<UdpNic> {
    loop {
        // The addresses were free a moment ago; another process may have bound one since.
        match try_start_nics(&free_addresses(), faults) {
            Ok(nics) => return nics,
            Err(StartError::PortInUse(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

fn try_start_nics(
    peers: &[SocketAddr],
    faults: Option<&FaultInjector>,
) -> Result<Vec<UdpNic>, StartError> {
    let start = |node| {
        let config = UdpConfig::new(NodeId(node), peers.to_vec());
        let config = config.seed(SEED).mtu(MTU).incarnation(Incarnation::FIRST);
        let config = faults.into_iter().fold(config, UdpConfig::faults);
        UdpNic::start(config, firmware())
    };
    (0..NODES).map(start).collect()
}

fn free_addresses() -> Vec<SocketAddr> {
    let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sockets: Vec<UdpSocket> = (0..NODES).map(bind).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
}
