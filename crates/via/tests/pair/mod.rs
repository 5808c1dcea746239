//! Two nodes with Virtual Interfaces in virtual time, and two programs that meet on them.

pub(crate) mod forger;
pub(crate) mod job;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::peer_rings::PeerRings;
use midplane_simhw::port::{Port, PortOptions};
use midplane_simhw::profile::{DmaCost, NicProfile};
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::attributes::{Address, Discriminator, Reliability, ViAttributes};
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::memory::{Memory, MemoryOptions};
use midplane_via::nic::{Nic, ViId};

pub(crate) const CLIENT: NodeId = NodeId(0);
pub(crate) const SERVER: NodeId = NodeId(1);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) mtu: usize,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// The cost of the NICs' transfers into host memory.
    pub(crate) scatter: DmaCost,
    pub(crate) nodes: u16,
    pub(crate) config: ViaConfig,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            mtu: 1500,
            seed: 1,
            faults: Faults::NONE,
            scatter: NicProfile::MODERN.scatter,
            nodes: 2,
            config: ViaConfig::default().dead_after(Duration::from_millis(500)),
        }
    }
}

pub(crate) fn world(setting: Setting) -> World<Unit> {
    world_with(setting, |_, _| ())
}

/// Makes a world whose NICs have what `change` adds, too.
pub(crate) fn world_with(
    setting: Setting,
    change: impl Fn(NodeId, &mut Unit) + Send + 'static,
) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(4 << 20));
    let profile = NicProfile { mtu: setting.mtu, scatter: setting.scatter, ..NicProfile::MODERN };
    let topology = Topology::star(setting.nodes, link, switch);
    let mut world = World::new(&topology, profile, setting.seed, move |node, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(setting.config)).unwrap();
        change(node, &mut unit);
        unit
    });
    world.set_faults(setting.faults);
    world
}

/// Returns the attributes of the most reliable interface, which may be read and written.
pub(crate) fn reliable() -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableReception,
        rdma_write: true,
        rdma_read: true,
        ..ViAttributes::default()
    }
}

pub(crate) fn name(text: &str) -> Discriminator {
    Discriminator::new(text.as_bytes()).unwrap()
}

pub(crate) fn address(node: NodeId, text: &str) -> Address {
    Address::new(node, text.as_bytes()).unwrap()
}

pub(crate) async fn pause(host: &impl Host, time: Duration) {
    host.sleep_until(host.now() + time).await;
}

/// A host that has opened rings to other processes.
#[derive(Clone)]
struct WithRings<H> {
    host: H,
    rings: Arc<Mutex<Option<Box<dyn PeerRings>>>>,
}

impl<H: Host> Host for WithRings<H> {
    fn node(&self) -> NodeId {
        self.host.node()
    }

    fn now(&self) -> Instant {
        self.host.now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.host.sleep_until(at).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.host.spawn(task);
    }

    fn rng(&self, stream: &str) -> Rng {
        self.host.rng(stream)
    }

    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError> {
        self.host.open_port_with(options)
    }

    fn open_peer_rings(&self) -> Option<Box<dyn PeerRings>> {
        self.rings.lock().unwrap().take()
    }
}

/// One end of a connection, with memory of its own.
pub(crate) struct End<H = SimHost> {
    pub(crate) host: H,
    pub(crate) nic: Nic,
    pub(crate) vi: ViId,
    pub(crate) memory: Memory,
}

impl<H: Host> End<H> {
    /// Makes an idle interface with `bytes` of memory that the other end may read and write.
    pub(crate) async fn new(host: H, attributes: ViAttributes, bytes: usize) -> Self {
        Self::over(host, attributes, bytes, None).await
    }

    /// Makes the same, with rings to bypass the NIC.
    pub(crate) async fn over(
        host: H,
        attributes: ViAttributes,
        bytes: usize,
        rings: Option<Box<dyn PeerRings>>,
    ) -> Self {
        let nic = match rings {
            Some(rings) => {
                let host =
                    WithRings { host: host.clone(), rings: Arc::new(Mutex::new(Some(rings))) };
                Nic::open(&host, PortOptions::default()).await
            }
            None => Nic::open(&host, PortOptions::default()).await,
        };
        let mut nic = nic.unwrap();
        let options = MemoryOptions { tag: attributes.tag, rdma_write: true, rdma_read: true };
        let memory = nic.register(bytes, options).unwrap();
        let vi = nic.create_vi(attributes).await.unwrap();
        Self { host, nic, vi, memory }
    }

    /// Waits until messages in both directions bypass the NIC.
    pub(crate) async fn opens(&mut self) {
        let mut polls = 0;
        while !self.nic.is_gate_open(self.vi) || polls < 50 {
            pause(&self.host, Duration::from_micros(20)).await;
            self.nic.poll();
            polls += 1;
        }
    }

    pub(crate) async fn serve(&mut self) {
        let request = self.nic.connect_wait(name("service"), None).await.unwrap();
        self.nic.accept(&request, self.vi).await.unwrap();
    }

    pub(crate) async fn connect(&mut self) {
        loop {
            let to = address(SERVER, "service");
            match self.nic.connect(self.vi, to, Some(Duration::from_millis(200))).await {
                Ok(_) => return,
                Err(_) => pause(&self.host, Duration::from_millis(1)).await,
            }
        }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Runs a client and a server that are connected, until both end; returns their results.
pub(crate) fn connected<C, S, CF, SF>(
    setting: Setting,
    attributes: ViAttributes,
    bytes: usize,
    client: impl FnOnce(End) -> CF + Send + 'static,
    server: impl FnOnce(End) -> SF + Send + 'static,
) -> (C, S)
where
    C: Send + 'static,
    S: Send + 'static,
    CF: Future<Output = C> + Send,
    SF: Future<Output = S> + Send,
{
    connected_over(setting, attributes, bytes, [None, None], client, server)
}

/// Runs them with rings to bypass the NICs.
pub(crate) fn connected_over<C, S, CF, SF>(
    setting: Setting,
    attributes: ViAttributes,
    bytes: usize,
    [client_rings, server_rings]: [Option<Box<dyn PeerRings>>; 2],
    client: impl FnOnce(End) -> CF + Send + 'static,
    server: impl FnOnce(End) -> SF + Send + 'static,
) -> (C, S)
where
    C: Send + 'static,
    S: Send + 'static,
    CF: Future<Output = C> + Send,
    SF: Future<Output = S> + Send,
{
    let mut world = world(setting);
    let (client_host, server_host) = (world.host(CLIENT), world.host(SERVER));
    let result = Arc::new(Mutex::new(None));
    let place = Arc::clone(&result);
    world.spawn(SERVER, async move {
        let mut end = End::over(server_host, attributes, bytes, server_rings).await;
        end.serve().await;
        *place.lock().unwrap() = Some(server(end).await);
    });
    let result_of_client = world
        .block_on(CLIENT, async move {
            let mut end = End::over(client_host, attributes, bytes, client_rings).await;
            end.connect().await;
            client(end).await
        })
        .expect("the client ends");
    let limit = world.now() + Duration::from_secs(20);
    while result.lock().unwrap().is_none() && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    let served = result.lock().unwrap().take().expect("the server ends");
    (result_of_client, served)
}

pub(crate) fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Returns the bytes of message `number`, which differ for each number.
pub(crate) fn pattern(number: u32, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| ((u64::from(number) << 20 ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}
