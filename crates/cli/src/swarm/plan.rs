//! Draws a topology, settings of the firmware, a load and faults from a seed.

use std::time::Duration;

use midplane::nicvm::control::ControlConfig;
use midplane::nicvm::coordination::{CoordinationConfig, Hold, Lead};
use midplane::simhw::fault::{Chaos, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::rng::Rng;
use midplane::simhw::switch::{Buffer, DiscardPolicy, Forwarding, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::topology::Topology;

/// Receiver of coordinated messages, and witness of its link.
pub(crate) const CENTRE: NodeId = NodeId(0);

/// Everything that a seed decides.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) topology: Topology,
    pub(crate) profile: NicProfile,
    pub(crate) control: ControlConfig,
    pub(crate) coordination: Option<CoordinationConfig>,
    /// Bytes of the longest message.
    pub(crate) longest: u64,
    /// Longest pause of a sender between two commands.
    pub(crate) pause: Duration,
    /// Time from the start to the end of all faults.
    pub(crate) trouble: Duration,
    pub(crate) script: Vec<Incident>,
    /// True if accesses to memory may fail, and commands may be damaged.
    pub(crate) damages: bool,
}

/// Returns the kinds of faults that firmware, extensions and applications must survive.
fn survivable(coordinated: bool) -> Vec<FaultKind> {
    let all = FaultKind::ALL.iter().copied();
    all.filter(|kind| match kind {
        // Nothing above the hardware can recover a completion that was not written.
        FaultKind::CompletionLost => false,
        // Leases tolerate clocks that drift, but not clocks that step.
        FaultKind::ClockStep => !coordinated,
        _ => true,
    })
    .collect()
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "swarm");
        let topology = topology(&mut rng);
        let coordinated = rng.chance(0.6);
        let trouble = Duration::from_millis(rng.between(40, 200));
        let mut kinds = survivable(coordinated);
        // A run with few kinds of faults reaches deeper states than one with all kinds.
        for _ in 0..kinds.len() - rng.between(1, 12) as usize {
            kinds.swap_remove(rng.below(kinds.len() as u64) as usize);
        }
        let damages = [FaultKind::DmaError, FaultKind::Unpinned, FaultKind::CommandDamaged];
        let damages = damages.iter().any(|kind| kinds.contains(kind));
        let chaos = Chaos {
            kinds,
            incidents: rng.between(0, 25) as usize,
            within: trouble,
            longest: Duration::from_millis(rng.between(1, 80)),
            delay: Duration::from_micros([10, 200, 3_000][rng.below(3) as usize]),
            ppm: 400,
        };
        let mut control = ControlConfig::default();
        control = control.dead_after(Duration::from_millis(rng.between(30, 120)));
        control = control.window(rng.between(1, 32) as u16).queue(rng.between(4, 200) as usize);
        let profiles =
            [NicProfile::FREE, NicProfile::MODERN, NicProfile::MODERN, NicProfile::SBA_200E];
        let mtu = [800, 1_424, 65_400][rng.below(3) as usize];
        let profile = NicProfile { mtu, ..profiles[rng.below(4) as usize] };
        let coordination = coordinated.then(|| coordination(&mut rng, topology.hosts()));
        Self {
            seed,
            profile,
            control,
            coordination,
            longest: [64, 2_000, 9_000][rng.below(3) as usize],
            pause: Duration::from_micros([30, 300, 2_000][rng.below(3) as usize]),
            trouble,
            script: chaos.script(&topology, seed),
            damages,
            topology,
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.topology.hosts()).map(NodeId)
    }
}

fn topology(rng: &mut Rng) -> Topology {
    let rate = LineRate::mbps([100, 150, 1_000][rng.below(3) as usize]);
    let propagation = Duration::from_nanos(rng.between(0, 20_000));
    let atm = rng.chance(0.3);
    let link = if atm {
        LinkProfile::atm(rate, propagation)
    } else {
        LinkProfile::ethernet(rate, propagation)
    };
    let buffer = if atm {
        Buffer::Cells(rng.between(300, 2_000) as u32)
    } else {
        Buffer::Bytes(rng.between(16 << 10, 128 << 10) as u32)
    };
    let discards = [DiscardPolicy::Tail, DiscardPolicy::Partial, DiscardPolicy::EARLY];
    let forwarding = if rng.chance(0.3) {
        Forwarding::CutThrough { header: 32 }
    } else {
        Forwarding::StoreAndForward
    };
    let profile = SwitchProfile {
        latency: Duration::from_nanos(rng.between(0, 5_000)),
        forwarding,
        discard: discards[rng.below(3) as usize],
        ..SwitchProfile::new(buffer)
    };
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..rng.between(1, 2)).map(|_| topology.add_switch(profile)).collect();
    if let [a, b] = switches[..] {
        topology.add_trunk(a, b, link);
    }
    for _ in 0..rng.between(2, 6) {
        topology.add_host(switches[rng.below(switches.len() as u64) as usize], link);
    }
    topology
}

fn coordination(rng: &mut Rng, hosts: u16) -> CoordinationConfig {
    let senders: Vec<NodeId> = (1..hosts).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&[CENTRE], &senders);
    config = config.lease(Duration::from_millis(rng.between(5, 30)));
    config = config.genesis(rng.chance(0.7)).buffers(rng.chance(0.3));
    config = config.hold([Hold::Message, Hold::Auto, Hold::Bytes(20_000)][rng.below(3) as usize]);
    if rng.chance(0.3) {
        config = config.lead(Lead::Off);
    }
    config
}
