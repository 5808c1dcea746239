//! Channels between two of the SCore-D paper's hosts.

use midplane::gang::channel::Channel;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::context::ChannelContext;
use midplane::gang::controller::{ContextId, ContextOptions, Controller};
use midplane::gang::firmware::Gang;
use midplane::gang::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};

/// Creates two hosts of the paper, whose NICs have a channel each.
pub fn world() -> World<Unit> {
    let machine = Machine::PM_MYRINET;
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default().channels(1)))
            .expect("its number is free");
        unit
    });
    world.set_hosts(machine.host);
    world
}

/// Measures a channel: the one-way time of 8 bytes in microseconds (PM's least latency), and a stream's MB/s (PM's most
/// bandwidth).
pub fn transfer() -> Option<(f64, f64)> {
    const ROUNDS: u32 = 200;
    const STREAM: u32 = 2_000;
    let mut world = world();
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut contexts, mut channels) = pair(&hosts, Geometry::BULK).await;
        contexts.start().await;
        let mut far = channels.pop().expect("there are two");
        let mut near = channels.pop().expect("there are two");
        hosts[1].spawn(async move {
            for _ in 0..ROUNDS {
                let (from, bytes) = far.receive().await.expect("the channel is open");
                far.send(from, &bytes).await.expect("there is room");
            }
            let mut count = 0;
            while count < STREAM {
                far.receive().await.expect("the channel is open");
                count += 1;
            }
            far.send(Rank(0), &[]).await.expect("there is room");
            while !far.is_flushed() {
                far.room().await.expect("the channel is open");
            }
        });
        let began = hosts[0].now();
        for _ in 0..ROUNDS {
            near.send(Rank(1), &[7; 8]).await.expect("there is room");
            near.receive().await.expect("the channel is open");
        }
        let one_way = hosts[0].now().nanos_since(began) as f64 / f64::from(2 * ROUNDS) / 1e3;
        let began = hosts[0].now();
        for _ in 0..STREAM {
            near.send(Rank(1), &[7; 8192]).await.expect("there is room");
        }
        near.receive().await.expect("the channel is open");
        let nanos = hosts[0].now().nanos_since(began) as f64;
        (one_way, f64::from(STREAM) * 8192.0 / nanos * 1e3)
    })
}

/// The contexts of a channel between two hosts.
pub struct Contexts(Vec<(Controller, ContextId)>);

impl Contexts {
    pub async fn start(&mut self) {
        for (controller, context) in &mut self.0 {
            controller.start(*context, Epoch(1)).await.expect("it is parked");
        }
    }

    /// Stops both, and waits until they are steady.
    pub async fn stop(&mut self) {
        for (controller, context) in &mut self.0 {
            controller.stop(*context).await.expect("the NIC is up");
        }
    }

    /// Saves both, which the NICs forget.
    pub async fn save(&mut self) -> Vec<ChannelContext> {
        let mut saved = Vec::new();
        for (controller, context) in &mut self.0 {
            saved.push(controller.save(*context, true).await.expect("it is steady"));
        }
        saved
    }

    pub async fn restore(&mut self, saved: &[ChannelContext]) {
        for ((controller, context), saved) in self.0.iter_mut().zip(saved) {
            controller.restore(*context, saved).await.expect("it was saved here");
        }
    }
}

/// Opens a channel between the two hosts; returns its contexts, parked, and both ends.
pub async fn pair(hosts: &[SimHost], geometry: Geometry) -> (Contexts, Vec<Channel>) {
    let (job, channel) = (JobId(1), ChannelId(0));
    let places = [0, 1].map(|node| ChannelAddress { node: NodeId(node), channel });
    let (mut contexts, mut channels) = (Vec::new(), Vec::new());
    for (rank, host) in (0..2).map(Rank).zip(hosts) {
        let controller = Controller::open(host, channel, geometry, true);
        let mut controller = controller.expect("the NIC has room");
        let options = ContextOptions { job, rank, places: places.to_vec() };
        let context = controller.open_context(options).await.expect("it is new");
        let descriptor = controller.descriptor(context);
        channels.push(Channel::attach(host, descriptor).await.expect("nobody else has it"));
        contexts.push((controller, context));
    }
    (Contexts(contexts), channels)
}
