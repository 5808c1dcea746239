//! The parameters of a run, which every result repeats.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::medium::MediumProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::topology::Topology;
use midplane::warp::firmware::WarpConfig;
use midplane::warp::gate::Gate;
use midplane::warp::memory::extension::MermeraConfig;
use serde::Serialize;

use crate::nodes::Fabric;

/// Rate of the cable, or of the switch's ports to the ranks.
pub const RATE: LineRate = LineRate::mbps(10);
/// Rate at which hosts send into a switch, so that queues form at its ports and not at the hosts' NICs.
pub const RATE_IN: LineRate = LineRate::mbps(100);
/// Microseconds that a rank takes to compute one update.
pub const UPDATE_US: u64 = 100;
/// Target queue in bytes: on a cable over all ranks together, at a switch per port. Queued values grow stale; 2 KiB
/// are 1.6 ms.
const CABLE_QUEUE: u32 = 8 << 10;
const PORT_QUEUE: u32 = 2 << 10;
/// Buffer of a switch's port, in bytes.
const PORT_BUFFER: u32 = 32 << 10;

/// The shared medium.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// One cable, one sender at a time.
    Cable,
    /// A switch with a port for each rank.
    Switch,
}

/// The hosts' cost of messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Hosts {
    /// Half a millisecond per message at each end, on the processor that also computes.
    Paper,
    /// No cost.
    Today,
}

/// Transport of updates.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One message to each rank.
    Unicast,
    /// One broadcast to all ranks.
    Broadcast,
}

/// The exchange of values between ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Each rank has its own values, and sends messages of updates.
    Private,
    /// Mermera's shared memory, by slow writes: unpaced, or as conditional sends on Warp.
    Mermera,
}

/// The values from which a rank computes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Iteration {
    /// The latest values that it has received: no rank waits for another.
    Asynchronous,
    /// The values of the last round, for all of which it waits; lost ones are sent again.
    Jacobi,
}

/// Control of sending updates.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// No control: each update at once, in a message of its own.
    None,
    /// No control: a message for a fixed number of updates.
    Static,
    /// A message for a fixed number of updates if the gate is open, else it is dropped.
    Csend,
    /// Messages leave at Warp's rate, and grow as that falls.
    Warp,
    /// The paper's loop as printed: the warp of each arriving message changes Lambda, the size of the messages sent.
    WarpPaper,
    /// The latest values are sent when the gate opens.
    #[value(name = "warp+csend")]
    #[serde(rename = "warp+csend")]
    WarpCsend,
}

/// Load by background traffic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Share of the network's rate.
    #[serde(rename = "background")]
    pub share: f64,
    /// Seconds for which the traffic is on, and then off; `None`: always on.
    #[serde(rename = "background_period")]
    pub period: Option<f64>,
}

/// The parameters of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    pub fabric: Fabric,
    pub medium: Medium,
    pub hosts: Hosts,
    pub iteration: Iteration,
    pub memory: Memory,
    pub control: Control,
    pub buffer: u16,
    pub transport: Transport,
    pub ranks: u16,
    pub unknowns: usize,
    /// Number that identifies the system.
    #[serde(skip)]
    pub system: u64,
    #[serde(flatten)]
    pub load: Load,
    pub tolerance: f64,
    /// Rate limit over sockets without a software switch.
    pub line_mbps: u16,
    pub seed: u64,
    pub limit_seconds: f64,
}

impl Setting {
    /// Returns the same run under another control.
    pub fn with(self, control: Control, buffer: u16) -> Self {
        // Without control each update goes in a message of its own.
        let is_single = control == Control::None && self.memory == Memory::Private;
        let buffer = if is_single { 1 } else { buffer };
        Self { control, buffer, ..self }
    }

    /// Returns whether there is background traffic.
    pub fn is_shared(&self) -> bool {
        self.load.share > 0.0
    }

    /// Returns the number of nodes: the ranks, and the node of background traffic.
    pub fn nodes(&self) -> u16 {
        self.ranks + u16::from(self.is_shared())
    }

    /// Returns the node of background traffic.
    pub const fn disturber(&self) -> NodeId {
        NodeId(self.ranks)
    }

    /// Returns the targets of background traffic: every rank's port of a switch; on a cable an unused address, whose
    /// frames all nodes see.
    pub fn disturbed(&self) -> Vec<NodeId> {
        match self.medium {
            Medium::Cable => vec![NodeId(self.ranks + 1)],
            Medium::Switch => (0..self.ranks).map(NodeId).collect(),
        }
    }

    /// Returns the ranks except `node`.
    pub fn others(&self, node: NodeId) -> Vec<NodeId> {
        (0..self.ranks).map(NodeId).filter(|rank| *rank != node).collect()
    }

    /// Returns the targets of updates of `node`.
    pub fn targets(&self, node: NodeId) -> Vec<NodeId> {
        match self.transport {
            Transport::Unicast => self.others(node),
            Transport::Broadcast if self.ranks > 1 => vec![NodeId::BROADCAST],
            Transport::Broadcast => Vec::new(),
        }
    }

    /// Returns the line of every host.
    pub const fn line(&self) -> LinkProfile {
        let rate = match self.fabric {
            Fabric::Udp => LineRate::mbps(self.line_mbps as u64),
            Fabric::Sim | Fabric::Switch => RATE_IN,
        };
        LinkProfile::ethernet(rate, Duration::from_micros(1))
    }

    /// Returns the links between the switch's ports and the hosts.
    pub const fn link(&self) -> LinkProfile {
        LinkProfile::ethernet(RATE, Duration::from_micros(1))
    }

    pub const fn switch(&self) -> SwitchProfile {
        SwitchProfile::new(Buffer::Bytes(PORT_BUFFER))
    }

    pub fn topology(&self) -> Topology {
        if self.medium == Medium::Cable {
            return Topology::shared(self.nodes(), MediumProfile::ETHERNET_10);
        }
        let mut topology = Topology::new();
        let centre = topology.add_switch(self.switch());
        for _ in 0..self.nodes() {
            topology.add_asymmetric_host(centre, self.line(), self.link());
        }
        topology
    }

    /// Returns Warp's configuration for `node`.
    pub fn warp(&self, node: NodeId) -> WarpConfig {
        let others = self.others(node);
        let peers = self.ranks.saturating_sub(1);
        // Each path is paced separately. On a cable all paths share one queue; at a switch's port, those to that
        // port.
        let (queue, ways) = match (self.medium, self.transport) {
            (Medium::Cable, Transport::Unicast) => (CABLE_QUEUE, self.ranks * peers),
            (Medium::Cable, Transport::Broadcast) => (CABLE_QUEUE, self.ranks),
            (Medium::Switch, _) => (PORT_QUEUE, peers),
        };
        let mut config = WarpConfig::new(&others, RATE, queue, ways.max(1));
        if self.medium == Medium::Switch {
            // Such a line carries few messages, so a group spans several. The floor reserves an eighth of the line.
            let span = Duration::from_nanos(RATE.nanos_for(queue.into()));
            config = config.span(span).floor(0.125 / f64::from(ways.max(1)));
        }
        // Warp stamps no frames of the memory, so it paces and probes for them.
        config = config.paces_others(self.memory == Memory::Mermera);
        config.broadcast(self.transport == Transport::Broadcast)
    }

    /// Returns the configuration of Mermera's memory, which sends through `gates` if there is a control.
    pub fn mermera(&self, gates: BTreeMap<NodeId, Gate>) -> MermeraConfig {
        let queue = if self.medium == Medium::Cable { CABLE_QUEUE } else { PORT_QUEUE };
        // The target queue's delay, there and back.
        let delay = Duration::from_nanos(2 * RATE.nanos_for(queue.into()));
        let nodes: Vec<NodeId> = (0..self.ranks).map(NodeId).collect();
        let config = MermeraConfig::new(&nodes, delay);
        if self.control == Control::None { config } else { config.gates(gates) }
    }
}
