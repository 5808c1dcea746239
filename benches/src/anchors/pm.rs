//! Channels between two of the SCore-D paper's hosts.

use midplane::gang::channel::Channel;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::controller::Controller;
use midplane::gang::firmware::Gang;
use midplane::gang::names::{ChannelAddress, ChannelId, JobId, Rank};
use midplane::gang::network::Network;
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
        let (mut network, mut channels) = pair(&hosts, Geometry::BULK).await;
        network.run(&hosts[0]).await.expect("both are parked");
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

/// Opens a channel between the two hosts; returns its network and both ends, parked.
pub async fn pair(hosts: &[SimHost], geometry: Geometry) -> (Network, Vec<Channel>) {
    let channel = ChannelId(0);
    let places = [0, 1].map(|node| ChannelAddress { node: NodeId(node), channel });
    let controllers = hosts
        .iter()
        .map(|host| Controller::open(host, channel, geometry, true).expect("the NIC has room"));
    let network = Network::open(JobId(1), &places, controllers.collect()).await.expect("it is new");
    let mut channels = Vec::new();
    for (held, host) in network.ranks().iter().zip(hosts) {
        let descriptor = held.controller.descriptor(held.context);
        channels.push(Channel::attach(host, descriptor).await.expect("nobody else has it"));
    }
    (network, channels)
}
