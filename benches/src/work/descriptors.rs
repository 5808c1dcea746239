//! Posts and reaps descriptors by their hosts. The NICs' work in between is not counted and takes virtual time only.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::port::PortOptions;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::topology::Topology;
use midplane::via::VIA;
use midplane::via::attributes::{Address, Reliability, ViAttributes};
use midplane::via::descriptor::Descriptor;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::memory::{Memory, MemoryOptions};
use midplane::via::nic::{Nic, ViId, WorkQueue};
use midplane_kit::clock::now;

/// Descriptors posted before any of them is reaped.
const BATCH: usize = 240;
/// Bytes of a message.
pub(super) const BYTES: usize = 64;

struct Interface {
    nic: Nic,
    vi: ViId,
    memory: Memory,
    spare: Vec<Descriptor>,
}

/// Creates a reliable interface, posts `receives` receives, and connects it with the other node's. Also returns memory
/// for `messages` messages of [`BYTES`]; receives fill the first one.
pub(super) async fn connect(
    host: &impl Host,
    messages: usize,
    receives: usize,
) -> (Nic, ViId, Memory) {
    let mut nic = Nic::open(host, PortOptions::default()).await.expect("it runs");
    let reliability = Reliability::ReliableDelivery;
    let attributes = ViAttributes { reliability, ..ViAttributes::default() };
    let vi = nic.create_vi(attributes).await.expect("the first");
    let memory = nic.register(messages * BYTES, MemoryOptions::default()).expect("room");
    for _ in 0..receives {
        let segment = memory.segment(0, BYTES).expect("a part of it");
        nic.post_receive(vi, Descriptor::of(segment)).expect("room");
    }
    let own = nic.node();
    let other = Address::new(NodeId(1 - own.0), b"bench").expect("five bytes");
    let name = Address::new(own, b"bench").expect("five bytes").discriminator;
    let ticket = nic.connect_peer(vi, other, name, None).expect("it is idle");
    nic.finish(&ticket).await.expect("both connect");
    (nic, vi, memory)
}

impl Interface {
    async fn connect(host: &SimHost) -> Self {
        let (nic, vi, memory) = connect(host, BATCH, 0).await;
        let segment = |at| memory.segment(at * BYTES, BYTES).expect("a part of it");
        let spare = (0..BATCH).map(|at| Descriptor::of(segment(at))).collect();
        Self { nic, vi, memory, spare }
    }

    fn post(&mut self, queue: WorkQueue) {
        for descriptor in self.spare.drain(..) {
            let posted = match queue {
                WorkQueue::Send => self.nic.post_send(self.vi, descriptor),
                WorkQueue::Receive => self.nic.post_receive(self.vi, descriptor),
            };
            posted.expect("room");
        }
    }

    fn reap(&mut self, queue: WorkQueue) {
        for _ in 0..BATCH {
            let done = self.nic.done(self.vi, queue).expect("connected").expect("it had the time");
            self.spare.push(done.descriptor);
        }
    }
}

fn world() -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(100_000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(4 << 20));
    World::new(&Topology::star(2, link, switch), NicProfile::MODERN, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default())).expect("the unit is empty");
        unit
    })
}

/// Returns the hosts' time to post and reap `descriptors` descriptors, a batch at a time, half of them sends and half
/// receives.
pub fn posted_and_reaped(descriptors: u64) -> Duration {
    let mut world = world();
    let hosts = [world.host(NodeId(0)), world.host(NodeId(1))];
    world
        .block_on(NodeId(0), async move {
            let (mut from, mut to) =
                tokio::join!(Interface::connect(&hosts[0]), Interface::connect(&hosts[1]));
            let mut taken = Duration::ZERO;
            for _ in 0..descriptors.div_ceil(2 * BATCH as u64) {
                let start = now();
                to.post(WorkQueue::Receive);
                from.post(WorkQueue::Send);
                taken += start.elapsed();
                hosts[0].sleep_until(hosts[0].now() + Duration::from_millis(1)).await;
                let start = now();
                from.reap(WorkQueue::Send);
                to.reap(WorkQueue::Receive);
                taken += start.elapsed();
            }
            drop((from.memory, to.memory));
            taken
        })
        .expect("it ends")
}
