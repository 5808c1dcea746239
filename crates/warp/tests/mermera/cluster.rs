//! A star of simulated hosts that share a memory, on links of 100 Mb/s unless set otherwise.

use std::time::Duration;

use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Command;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_warp::firmware::{CONTROLLER_STATE, WARP, Warp, WarpConfig};
use midplane_warp::memory::extension::{MERMERA, Mermera, MermeraConfig};
use midplane_warp::memory::{Location, MemoryHandle, Origin};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The links between the nodes, and their queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrowness {
    pub(crate) rate: LineRate,
    /// Target queue before a switch port in bytes; the port's buffer holds twice as many.
    pub(crate) queue: u32,
}

impl Narrowness {
    const WIDE: Self = Self { rate: LineRate::mbps(100), queue: 16 << 10 };
}

/// The destinations of a frame of slow writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    /// One frame to each node.
    Each,
    /// One broadcast to all nodes.
    All,
}

/// Values in a node's copy, with their origins.
pub(crate) type Seen<V> = Vec<Option<(V, Origin)>>;

pub(crate) struct Cluster {
    pub(crate) world: World<Unit>,
    nodes: u16,
}

impl Cluster {
    pub(crate) fn new(nodes: u16, delivery: Delivery, seed: u64) -> Self {
        Self::with(nodes, delivery, seed, Narrowness::WIDE)
    }

    pub(crate) fn with(nodes: u16, delivery: Delivery, seed: u64, between: Narrowness) -> Self {
        let Narrowness { rate, queue } = between;
        let link = LinkProfile::ethernet(rate, Duration::from_micros(1));
        let topology = Topology::star(nodes, link, SwitchProfile::new(Buffer::Bytes(2 * queue)));
        let world = World::new(&topology, NicProfile::MODERN, seed, move |node, _| {
            let all: Vec<NodeId> = (0..nodes).map(NodeId).collect();
            let others: Vec<NodeId> = all.iter().copied().filter(|other| *other != node).collect();
            let mut config = WarpConfig::new(&others, rate, queue, nodes - 1);
            config = config.paces_others(true).broadcast(delivery == Delivery::All);
            let (warp, gates) = Warp::new(config);
            let mut config = MermeraConfig::new(&all, DELAY);
            config = config.gates(gates);
            let mut unit = Unit::default();
            unit.install(MESSAGES, Messages::new()).unwrap();
            unit.install(WARP, warp).unwrap();
            unit.install(MERMERA, Mermera::new(config)).unwrap();
            unit
        });
        Self { world, nodes }
    }

    /// Returns the feedback delay that Warp has measured from node 0 to node 1 at `then`.
    pub(crate) fn feedback_delay(&mut self, then: Instant) -> Duration {
        self.world.run_until(then);
        let host = self.world.host(NodeId(0));
        let work = async move {
            let mut port = host.open_port().unwrap();
            let ask = Command {
                extension: WARP,
                opcode: CONTROLLER_STATE,
                node: NodeId(1),
                ..Command::default()
            };
            port.submit(&ask).unwrap();
            let done = port.completion().await.unwrap();
            Duration::from_nanos(done.args[3])
        };
        self.world.block_on(NodeId(0), work).expect("it answers")
    }

    /// Returns the values in each live node's copy at `locations`.
    pub(crate) fn read_all<V>(&mut self, locations: &[Location]) -> Vec<(NodeId, Seen<V>)>
    where
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let up: Vec<NodeId> =
            (0..self.nodes).map(NodeId).filter(|node| self.world.is_up(*node)).collect();
        let read = |node: NodeId| {
            let (host, locations) = (self.world.host(node), locations.to_vec());
            let work = async move {
                let mut memory = MemoryHandle::<V>::open(&host).unwrap();
                let mut values = Vec::new();
                for location in locations {
                    values.push(memory.read_origin(location).await.unwrap());
                }
                values
            };
            (node, self.world.block_on(node, work).expect("reads end"))
        };
        up.into_iter().map(read).collect()
    }
}

/// Returns the expected feedback delay: the target queue's delay, there and back.
pub(crate) const DELAY: Duration = Duration::from_micros(1_500);
