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
    let fault = of_network(kind, table, topology).unwrap_or_else(|| of_host(kind, table, topology));
    Some(Incident { at, lasts, fault })
}

fn node(table: &Table<'_>, topology: &Topology, key: &'static str) -> NodeId {
    NodeId(table.number(key, None, 0..=topology.hosts() - 1))
}

fn micros(table: &Table<'_>, key: &'static str) -> Duration {
    Duration::from_micros(table.number(key, None, 1..=LONGEST))
}

/// Reads a fault of links or switches; `None` if the kind is another.
fn of_network(kind: FaultKind, table: &Table<'_>, topology: &Topology) -> Option<Fault> {
    let chance = |key| table.probability(key);
    let percent = || table.number("percent", None, 0..=100);
    let micros = |key| micros(table, key);
    let node = |key| node(table, topology, key);
    let switch = || SwitchId(table.number("switch", None, 0..=0));
    let one_of = |links: Vec<LinkId>| {
        let links = links.into_iter().map(|link| (topology.link_name(link), link));
        table.choice("link", None, &links.collect::<Vec<_>>()).unwrap_or(LinkId(0))
    };
    let link = || one_of(topology.links().collect());
    let output = || one_of(topology.outputs().map(|(link, _)| link).collect());
    Some(match kind {
        FaultKind::Loss => Fault::Loss { link: link(), probability: chance("probability") },
        FaultKind::BurstLoss => {
            Fault::BurstLoss { link: link(), enter: chance("enter"), leave: chance("leave") }
        }
        FaultKind::Corrupt => Fault::Corrupt { link: link(), probability: chance("probability") },
        FaultKind::Truncate => Fault::Truncate { link: link(), probability: chance("probability") },
        FaultKind::Duplicate => {
            Fault::Duplicate { node: node("node"), probability: chance("probability") }
        }
        FaultKind::Reorder => {
            let probability = chance("probability");
            Fault::Reorder { node: node("node"), probability, by: micros("by_us") }
        }
        FaultKind::DelaySpike => Fault::DelaySpike { link: link(), by: micros("by_us") },
        FaultKind::SlowPair => {
            Fault::SlowPair { from: node("from"), to: node("to"), by: micros("by_us") }
        }
        FaultKind::RateChange => Fault::RateChange { link: link(), percent: percent() },
        FaultKind::Flap => Fault::Flap { link: link(), period: micros("period_us") },
        FaultKind::OneWay => Fault::OneWay { from: node("from"), to: node("to") },
        FaultKind::Partition => Fault::Partition { from: node("from"), to: node("to") },
        FaultKind::QueueShrink => Fault::QueueShrink { link: output(), percent: percent() },
        FaultKind::PortStuck => Fault::PortStuck { link: output() },
        FaultKind::Misroute => {
            Fault::Misroute { switch: switch(), probability: chance("probability") }
        }
        FaultKind::CircuitTable => {
            Fault::CircuitTable { switch: switch(), most: table.number("most", None, 0..=u16::MAX) }
        }
        FaultKind::SwitchReboot => Fault::SwitchReboot { switch: switch() },
        _ => return None,
    })
}

/// Reads a fault of a NIC or a host.
fn of_host(kind: FaultKind, table: &Table<'_>, topology: &Topology) -> Fault {
    let node = node(table, topology, "node");
    let chance = || table.probability("probability");
    let by = || micros(table, "by_us");
    match kind {
        FaultKind::NicMemory => {
            Fault::NicMemory { node, bytes: table.number("bytes", None, 0..=1 << 30) }
        }
        FaultKind::DmaStall => Fault::DmaStall { node },
        FaultKind::DmaError => Fault::DmaError { node, probability: chance() },
        FaultKind::DoorbellLost => Fault::DoorbellLost { node, probability: chance() },
        FaultKind::DoorbellDoubled => Fault::DoorbellDoubled { node, probability: chance() },
        FaultKind::DoorbellQueue => {
            Fault::DoorbellQueue { node, depth: table.number("depth", None, 0..=u16::MAX) }
        }
        FaultKind::CompletionLost => Fault::CompletionLost { node, probability: chance() },
        FaultKind::InterruptLost => Fault::InterruptLost { node, probability: chance() },
        FaultKind::InterruptLate => Fault::InterruptLate { node, by: by() },
        FaultKind::InterruptSpurious => {
            Fault::InterruptSpurious { node, every: micros(table, "every_us") }
        }
        FaultKind::CommandDamaged => Fault::CommandDamaged { node, probability: chance() },
        FaultKind::NicReset => Fault::NicReset { node },
        FaultKind::Trap => Fault::Trap { node },
        FaultKind::Overrun => Fault::Overrun { node, by: by() },
        FaultKind::SlowClock => {
            Fault::SlowClock { node, times: table.number("times", None, 1..=u16::MAX) }
        }
        FaultKind::Pause => Fault::Pause { node },
        FaultKind::SlowHost => Fault::SlowHost { node, by: by() },
        FaultKind::Unpinned => Fault::Unpinned { node },
        FaultKind::ProcessExit => Fault::ProcessExit { node },
        FaultKind::ClockSkew => {
            let micros: i64 = table.number("ahead_us", None, -DAY_US..=DAY_US);
            Fault::ClockSkew { node, ahead_ns: 1_000 * micros }
        }
        FaultKind::ClockDrift => {
            Fault::ClockDrift { node, ppm: table.number("ppm", None, -500_000..=500_000) }
        }
        FaultKind::ClockStep => Fault::ClockStep { node, by: by() },
        _ => Fault::Crash { node },
    }
}
