//! What one run is: the parameters that every result repeats.

use std::time::Duration;

use clap::ValueEnum;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::medium::MediumProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::topology::Topology;
use midplane::warp::firmware::WarpConfig;
use serde::Serialize;

/// Rate of the cable, or of the ports before the ranks.
pub const RATE: LineRate = LineRate::mbps(10);
/// Rate at which hosts send into a switch: they meet at its ports, not at their own NIC.
pub const RATE_IN: LineRate = LineRate::mbps(100);
/// Bytes that are to wait for a cable, of all ranks together, or for a switch's port: what waits grows
/// old, and 2 KiB are 1.6 ms.
const CABLE_QUEUE: u32 = 8 << 10;
const PORT_QUEUE: u32 = 2 << 10;
/// Bytes that a switch's port holds.
const PORT_BUFFER: u32 = 32 << 10;

/// What joins the ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Virtual time.
    Sim,
    /// Real sockets, straight from process to process.
    Udp,
    /// Real sockets, through a switch in software.
    Switch,
}

/// What the ranks share.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// One cable, one sender at a time.
    Cable,
    /// A port for each of a switch.
    Switch,
}

/// What messages cost the hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Hosts {
    /// Half a millisecond a message at each end, on a processor that computes, too.
    Paper,
    /// Nothing to speak of.
    Today,
}

/// How updates travel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// To each rank by itself.
    Unicast,
    /// Once to all.
    Broadcast,
}

/// Who decides when updates are sent.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nobody: each update at once, in a message of its own.
    None,
    /// Nobody: a message for so many updates.
    Static,
    /// A message for so many updates, if the gate is open; if not, none.
    Csend,
    /// Messages leave at Warp's rate, and grow as it falls.
    Warp,
    /// The latest values go when the gate opens.
    #[value(name = "warp+csend")]
    #[serde(rename = "warp+csend")]
    WarpCsend,
}

/// What the rest does when a rank is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// Says so and ends.
    End,
    /// Goes on: rank 0 computes what the lost one did.
    GoOn,
}

/// What others ask of the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// The share of its rate.
    #[serde(rename = "background")]
    pub share: f64,
    /// Seconds that they are there, and then away; always there without.
    #[serde(rename = "background_period")]
    pub period: Option<f64>,
}

/// The parameters of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    pub fabric: Fabric,
    pub medium: Medium,
    pub hosts: Hosts,
    pub control: Control,
    pub buffer: u16,
    pub transport: Transport,
    pub trigger: f64,
    pub ranks: u16,
    pub unknowns: usize,
    /// A number by which systems are told apart.
    #[serde(skip)]
    pub system: u64,
    #[serde(flatten)]
    pub load: Load,
    pub tolerance: f64,
    pub update_us: u32,
    pub on_loss: OnLoss,
    /// Over sockets without a switch in software.
    pub line_mbps: u16,
    pub seed: u64,
    pub limit_seconds: f64,
}

impl Setting {
    /// The same run under another control.
    pub fn with(self, control: Control, buffer: u16) -> Self {
        // Without control each update goes by itself.
        let buffer = if control == Control::None { 1 } else { buffer };
        Self { control, buffer, ..self }
    }

    /// Whether others use the network, too.
    pub fn is_shared(&self) -> bool {
        self.load.share > 0.0
    }

    /// Ranks, and the node that makes the background.
    pub fn nodes(&self) -> u16 {
        self.ranks + u16::from(self.is_shared())
    }

    /// The node that makes the background.
    pub const fn disturber(&self) -> NodeId {
        NodeId(self.ranks)
    }

    /// Where it sends: past every rank's port; on a cable to nobody, whom all hear.
    pub fn disturbed(&self) -> Vec<NodeId> {
        match self.medium {
            Medium::Cable => vec![NodeId(self.ranks + 1)],
            Medium::Switch => (0..self.ranks).map(NodeId).collect(),
        }
    }

    /// The ranks but `node`.
    pub fn others(&self, node: NodeId) -> Vec<NodeId> {
        (0..self.ranks).map(NodeId).filter(|rank| *rank != node).collect()
    }

    /// Where updates of `node` are sent.
    pub fn targets(&self, node: NodeId) -> Vec<NodeId> {
        match self.transport {
            Transport::Unicast => self.others(node),
            Transport::Broadcast if self.ranks > 1 => vec![NodeId::EVERYBODY],
            Transport::Broadcast => Vec::new(),
        }
    }

    /// The line of every host.
    pub const fn line(&self) -> LinkProfile {
        let rate = match self.fabric {
            Fabric::Udp => LineRate::mbps(self.line_mbps as u64),
            Fabric::Sim | Fabric::Switch => RATE_IN,
        };
        LinkProfile::ethernet(rate, Duration::from_micros(1))
    }

    /// The links between the switch's ports and the hosts.
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
            topology.add_lopsided_host(centre, self.line(), self.link());
        }
        topology
    }

    /// How the firmware of `node` finds its rates.
    pub fn warp(&self, node: NodeId) -> WarpConfig {
        let others = self.others(node);
        let peers = self.ranks.saturating_sub(1);
        // Each way is paced by itself; on a cable all of them share one queue, at a port those to it.
        let (queue, ways) = match (self.medium, self.transport) {
            (Medium::Cable, Transport::Unicast) => (CABLE_QUEUE, self.ranks * peers),
            (Medium::Cable, Transport::Broadcast) => (CABLE_QUEUE, self.ranks),
            (Medium::Switch, _) => (PORT_QUEUE, peers),
        };
        let mut config = WarpConfig::new(&others, RATE, queue, ways.max(1));
        if self.medium == Medium::Switch {
            // Messages are few on such a line: a group holds some. An eighth of it is theirs.
            let span = Duration::from_nanos(RATE.nanos_for(queue.into()));
            config.span(span).floor(0.125 / f64::from(ways.max(1)));
        }
        config.broadcast(self.transport == Transport::Broadcast);
        config
    }

    /// A number by which ranks tell whether they were started for the same run.
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_string(self).expect("plain data");
        text.bytes().chain(self.system.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}
