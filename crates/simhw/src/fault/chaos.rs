//! Draws incidents from a seed.

use std::time::Duration;

use super::{Fault, FaultKind, Incident};
use crate::id::NodeId;
use crate::rng::Rng;
use crate::time::{Instant, nanos};
use crate::topology::{End, LinkId, SwitchId, Topology};

/// The parameters from which a random script is drawn.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// Kinds that may occur.
    pub kinds: Vec<FaultKind>,
    /// Number of incidents.
    pub incidents: usize,
    /// All incidents begin before this time.
    pub within: Duration,
    /// Longest duration of an incident; most are much shorter.
    pub longest: Duration,
    /// Longest extra time of a delay, a stall of a turn, or a wake-up.
    pub delay: Duration,
    /// Largest error of a clock, in millionths.
    pub ppm: u32,
}

impl Chaos {
    /// Draws incidents in `topology`, sorted by their begin. The same seed gives the same script. Kinds of faults of
    /// switches are left out if there is no switch.
    ///
    /// # Panics
    /// If no kind is left, or the topology has no hosts.
    #[must_use]
    pub fn script(&self, topology: &Topology, seed: u64) -> Vec<Incident> {
        let mut kinds = self.kinds.clone();
        if topology.outputs().next().is_none() {
            kinds.retain(|kind| !is_of_switch(*kind));
        }
        assert!(
            !kinds.is_empty() && topology.hosts() > 0,
            "chaos needs a host, and a kind of fault that the topology can have"
        );
        let mut draw = Draw { rng: Rng::new(seed, "chaos"), chaos: self, kinds, topology };
        let mut script: Vec<_> = (0..self.incidents).map(|_| draw.incident()).collect();
        script.sort_by_key(|incident| incident.at);
        script
    }
}

/// Returns whether such a fault occurs at a switch or one of its outputs.
const fn is_of_switch(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::QueueShrink
            | FaultKind::PortStuck
            | FaultKind::Misroute
            | FaultKind::CircuitTable
            | FaultKind::SwitchReboot
    )
}

struct Draw<'a> {
    rng: Rng,
    chaos: &'a Chaos,
    kinds: Vec<FaultKind>,
    topology: &'a Topology,
}

impl Draw<'_> {
    fn incident(&mut self) -> Incident {
        let kind = self.kinds[self.rng.below(self.kinds.len() as u64) as usize];
        let at = Instant::from_nanos(self.rng.below(nanos(self.chaos.within)));
        let lasts = self.short(self.chaos.longest);
        Incident { at, lasts, fault: self.fault(kind) }
    }

    /// Draws a duration of at most `longest`; each order of magnitude is equally likely.
    fn short(&mut self, longest: Duration) -> Duration {
        let longest = nanos(longest).max(2);
        let magnitude = self.rng.below(u64::from(longest.ilog2()).min(12));
        Duration::from_nanos(self.rng.between(1, longest >> magnitude))
    }

    fn delay(&mut self) -> Duration {
        self.short(self.chaos.delay)
    }

    fn probability(&mut self) -> f64 {
        [0.01, 0.1, 0.5, 1.0][self.rng.below(4) as usize]
    }

    fn node(&mut self) -> NodeId {
        NodeId(self.rng.below(u64::from(self.topology.hosts())) as u16)
    }

    fn pair(&mut self) -> (NodeId, NodeId) {
        (self.node(), self.node())
    }

    fn link(&mut self) -> LinkId {
        LinkId(self.rng.below(self.topology.links.len() as u64) as u32)
    }

    /// Draws a link that begins at a switch.
    fn output(&mut self) -> LinkId {
        let from_switch =
            |link: &LinkId| matches!(self.topology.links[link.0 as usize].from, End::Switch(_));
        let links = (0..self.topology.links.len() as u32).map(LinkId).filter(from_switch);
        let links: Vec<_> = links.collect();
        links[self.rng.below(links.len() as u64) as usize]
    }

    fn switch(&mut self) -> SwitchId {
        SwitchId(self.rng.below(self.topology.switches.len() as u64) as u16)
    }

    fn ppm(&mut self) -> i32 {
        let most = self.chaos.ppm.min(500_000);
        self.rng.between(0, 2 * u64::from(most)) as i32 - most as i32
    }

    fn fault(&mut self, kind: FaultKind) -> Fault {
        match kind {
            FaultKind::Loss => Fault::Loss { link: self.link(), probability: self.probability() },
            FaultKind::BurstLoss => {
                let (enter, leave) = (self.probability() / 10.0, self.probability());
                Fault::BurstLoss { link: self.link(), enter, leave }
            }
            FaultKind::Corrupt => {
                Fault::Corrupt { link: self.link(), probability: self.probability() }
            }
            FaultKind::Truncate => {
                Fault::Truncate { link: self.link(), probability: self.probability() }
            }
            FaultKind::DelaySpike => Fault::DelaySpike { link: self.link(), by: self.delay() },
            FaultKind::RateChange => {
                Fault::RateChange { link: self.link(), percent: self.rng.between(5, 90) as u8 }
            }
            FaultKind::Flap => Fault::Flap { link: self.link(), period: self.delay() },
            FaultKind::Duplicate => {
                Fault::Duplicate { node: self.node(), probability: self.probability() }
            }
            FaultKind::Reorder => {
                let by = self.delay();
                Fault::Reorder { node: self.node(), probability: self.probability(), by }
            }
            FaultKind::SlowPair => {
                let (from, to) = self.pair();
                Fault::SlowPair { from, to, by: self.delay() }
            }
            FaultKind::OneWay => {
                let (from, to) = self.pair();
                Fault::OneWay { from, to }
            }
            FaultKind::Partition => {
                let (from, to) = self.pair();
                Fault::Partition { from, to }
            }
            _ => self.switch_fault(kind),
        }
    }

    fn switch_fault(&mut self, kind: FaultKind) -> Fault {
        match kind {
            FaultKind::QueueShrink => {
                Fault::QueueShrink { link: self.output(), percent: self.rng.below(60) as u8 }
            }
            FaultKind::PortStuck => Fault::PortStuck { link: self.output() },
            FaultKind::Misroute => {
                Fault::Misroute { switch: self.switch(), probability: self.probability() }
            }
            FaultKind::CircuitTable => {
                Fault::CircuitTable { switch: self.switch(), most: self.rng.below(8) as u16 }
            }
            FaultKind::SwitchReboot => Fault::SwitchReboot { switch: self.switch() },
            _ => self.nic_fault(kind),
        }
    }

    fn nic_fault(&mut self, kind: FaultKind) -> Fault {
        let (node, probability) = (self.node(), self.probability());
        match kind {
            FaultKind::NicMemory => Fault::NicMemory { node, bytes: self.rng.below(4_000) as u32 },
            FaultKind::DmaStall => Fault::DmaStall { node },
            FaultKind::DmaError => Fault::DmaError { node, probability },
            FaultKind::DoorbellLost => Fault::DoorbellLost { node, probability },
            FaultKind::DoorbellDoubled => Fault::DoorbellDoubled { node, probability },
            FaultKind::DoorbellQueue => {
                Fault::DoorbellQueue { node, depth: self.rng.below(2) as u16 }
            }
            FaultKind::CompletionLost => Fault::CompletionLost { node, probability },
            FaultKind::InterruptLost => Fault::InterruptLost { node, probability },
            FaultKind::InterruptLate => Fault::InterruptLate { node, by: self.delay() },
            FaultKind::InterruptSpurious => {
                let every = self.delay().max(Duration::from_micros(1));
                Fault::InterruptSpurious { node, every }
            }
            FaultKind::CommandDamaged => Fault::CommandDamaged { node, probability },
            FaultKind::NicReset => Fault::NicReset { node },
            FaultKind::Trap => Fault::Trap { node },
            FaultKind::Overrun => Fault::Overrun { node, by: self.delay() },
            FaultKind::SlowClock => {
                Fault::SlowClock { node, times: self.rng.between(2, 100) as u16 }
            }
            _ => self.host_fault(kind, node),
        }
    }

    fn host_fault(&mut self, kind: FaultKind, node: NodeId) -> Fault {
        match kind {
            FaultKind::Pause => Fault::Pause { node },
            FaultKind::SlowHost => Fault::SlowHost { node, by: self.delay() },
            FaultKind::Unpinned => Fault::Unpinned { node },
            FaultKind::ProcessExit => Fault::ProcessExit { node },
            FaultKind::ClockSkew => {
                let ahead_ns = self.rng.below(20_000_000_000) as i64;
                Fault::ClockSkew { node, ahead_ns }
            }
            FaultKind::ClockDrift => Fault::ClockDrift { node, ppm: self.ppm() },
            FaultKind::ClockStep => Fault::ClockStep { node, by: self.delay() },
            _ => Fault::Crash { node },
        }
    }
}
