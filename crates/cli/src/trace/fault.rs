//! Parses the faults of a scenario file.

use std::time::Duration;

use midplane::simhw::fault::{Fault, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use midplane::simhw::topology::{LinkId, SwitchId, Topology};

use super::table::Table;

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;
/// Longest time of a fault, in microseconds.
const LONGEST: u64 = 60_000_000;

/// Reads a fault; `None` if its kind is unknown, which is noted.
pub(super) fn read(table: &Table<'_>, topology: &Topology) -> Option<Incident> {
    let kinds: Vec<_> = FaultKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect();
    let time = |key| Duration::from_micros(table.number(key, Some(0), 0..=DAY_US as u64));
    let (at, lasts) = (Instant::ZERO + time("at_us"), time("for_us"));
    let Some(kind) = table.choice("kind", None, &kinds) else {
        table.ignore_rest();
        return None;
    };
    let reader = Reader { table, topology };
    let fault = reader.network_fault(kind).unwrap_or_else(|| reader.host_fault(kind));
    Some(Incident { at, lasts, fault })
}

/// Reader of the parameters of a fault.
struct Reader<'a> {
    table: &'a Table<'a>,
    topology: &'a Topology,
}

impl Reader<'_> {
    fn link(&self) -> LinkId {
        let links = self.topology.links().map(|link| (self.topology.link_name(link), link));
        let links: Vec<_> = links.collect();
        self.table.choice("link", None, &links).unwrap_or(LinkId(0))
    }

    fn node(&self, key: &'static str) -> NodeId {
        NodeId(self.table.number(key, None, 0..=self.topology.hosts() - 1))
    }

    fn switch(&self) -> SwitchId {
        SwitchId(self.table.number("switch", None, 0..=0))
    }

    fn micros(&self, key: &'static str) -> Duration {
        Duration::from_micros(self.table.number(key, None, 1..=LONGEST))
    }

    fn probability(&self) -> f64 {
        self.table.probability("probability")
    }

    fn percent(&self) -> u8 {
        self.table.number("percent", None, 0..=100)
    }

    /// Reads a fault of links or switches; `None` if the kind is another.
    fn network_fault(&self, kind: FaultKind) -> Option<Fault> {
        Some(match kind {
            FaultKind::Loss => Fault::Loss { link: self.link(), probability: self.probability() },
            FaultKind::BurstLoss => Fault::BurstLoss {
                link: self.link(),
                enter: self.table.probability("enter"),
                leave: self.table.probability("leave"),
            },
            FaultKind::Corrupt => {
                Fault::Corrupt { link: self.link(), probability: self.probability() }
            }
            FaultKind::Truncate => {
                Fault::Truncate { link: self.link(), probability: self.probability() }
            }
            FaultKind::Duplicate => {
                Fault::Duplicate { node: self.node("node"), probability: self.probability() }
            }
            FaultKind::Reorder => Fault::Reorder {
                node: self.node("node"),
                probability: self.probability(),
                by: self.micros("by_us"),
            },
            FaultKind::DelaySpike => {
                Fault::DelaySpike { link: self.link(), by: self.micros("by_us") }
            }
            FaultKind::SlowPair => Fault::SlowPair {
                from: self.node("from"),
                to: self.node("to"),
                by: self.micros("by_us"),
            },
            FaultKind::RateChange => {
                Fault::RateChange { link: self.link(), percent: self.percent() }
            }
            FaultKind::Flap => Fault::Flap { link: self.link(), period: self.micros("period_us") },
            FaultKind::OneWay => Fault::OneWay { from: self.node("from"), to: self.node("to") },
            FaultKind::Partition => {
                Fault::Partition { from: self.node("from"), to: self.node("to") }
            }
            FaultKind::QueueShrink => {
                Fault::QueueShrink { link: self.link(), percent: self.percent() }
            }
            FaultKind::PortStuck => Fault::PortStuck { link: self.link() },
            FaultKind::Misroute => {
                Fault::Misroute { switch: self.switch(), probability: self.probability() }
            }
            FaultKind::CircuitTable => Fault::CircuitTable {
                switch: self.switch(),
                most: self.table.number("most", None, 0..=u16::MAX),
            },
            FaultKind::SwitchReboot => Fault::SwitchReboot { switch: self.switch() },
            _ => return None,
        })
    }

    /// Reads a fault of a NIC or a host.
    fn host_fault(&self, kind: FaultKind) -> Fault {
        let node = self.node("node");
        match kind {
            FaultKind::NicMemory => {
                Fault::NicMemory { node, bytes: self.table.number("bytes", None, 0..=1 << 30) }
            }
            FaultKind::DmaStall => Fault::DmaStall { node },
            FaultKind::DmaError => Fault::DmaError { node, probability: self.probability() },
            FaultKind::DoorbellLost => {
                Fault::DoorbellLost { node, probability: self.probability() }
            }
            FaultKind::DoorbellDoubled => {
                Fault::DoorbellDoubled { node, probability: self.probability() }
            }
            FaultKind::DoorbellQueue => {
                Fault::DoorbellQueue { node, depth: self.table.number("depth", None, 0..=u16::MAX) }
            }
            FaultKind::CompletionLost => {
                Fault::CompletionLost { node, probability: self.probability() }
            }
            FaultKind::InterruptLost => {
                Fault::InterruptLost { node, probability: self.probability() }
            }
            FaultKind::InterruptLate => Fault::InterruptLate { node, by: self.micros("by_us") },
            FaultKind::InterruptSpurious => {
                Fault::InterruptSpurious { node, every: self.micros("every_us") }
            }
            FaultKind::CommandDamaged => {
                Fault::CommandDamaged { node, probability: self.probability() }
            }
            FaultKind::NicReset => Fault::NicReset { node },
            FaultKind::Trap => Fault::Trap { node },
            FaultKind::Overrun => Fault::Overrun { node, by: self.micros("by_us") },
            FaultKind::SlowClock => {
                Fault::SlowClock { node, times: self.table.number("times", None, 1..=u16::MAX) }
            }
            FaultKind::Pause => Fault::Pause { node },
            FaultKind::SlowHost => Fault::SlowHost { node, by: self.micros("by_us") },
            FaultKind::Unpinned => Fault::Unpinned { node },
            FaultKind::ProcessExit => Fault::ProcessExit { node },
            FaultKind::ClockSkew => Fault::ClockSkew {
                node,
                ahead_ns: 1_000 * self.table.number("ahead_us", None, -DAY_US..=DAY_US),
            },
            FaultKind::ClockDrift => {
                Fault::ClockDrift { node, ppm: self.table.number("ppm", None, -500_000..=500_000) }
            }
            FaultKind::ClockStep => Fault::ClockStep { node, by: self.micros("by_us") },
            _ => Fault::Crash { node },
        }
    }
}
