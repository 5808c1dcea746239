//! Parses the faults of a scenario file.

use std::time::Duration;

use midplane::simhw::fault::{Fault, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use midplane::simhw::topology::{SwitchId, Topology};

use super::table::Table;

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;
/// Longest time of a fault, in microseconds.
const LONGEST: u64 = 60_000_000;

/// Reads a fault; `None` if its kind is unknown, which is noted.
pub(super) fn read(table: &Table<'_>, topology: &Topology) -> Option<Incident> {
    let kinds: Vec<_> = FaultKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect();
    let time = |key| Duration::from_micros(table.number(key, Some(0), 0..=u64::MAX));
    let (at, lasts) = (Instant::ZERO + time("at_us"), time("for_us"));
    let Some(kind) = table.choice("kind", None, &kinds) else {
        table.ignore_rest();
        return None;
    };
    Some(Incident { at, lasts, fault: fault(kind, table, topology) })
}

/// Reads the parameters of a kind of fault.
fn fault(kind: FaultKind, table: &Table<'_>, topology: &Topology) -> Fault {
    let link = || {
        let links: Vec<_> = topology.links().map(|link| (topology.link_name(link), link)).collect();
        table.choice("link", None, &links).unwrap_or(links[0].1)
    };
    let node = |key| NodeId(table.number(key, None, 0..=topology.hosts() - 1));
    let switch = || SwitchId(table.number("switch", None, 0..=0));
    let micros = |key| Duration::from_micros(table.number(key, None, 1..=LONGEST));
    let probability = || table.probability("probability");
    let percent = || table.number("percent", None, 0..=100);
    match kind {
        FaultKind::Loss => Fault::Loss { link: link(), probability: probability() },
        FaultKind::BurstLoss => Fault::BurstLoss {
            link: link(),
            enter: table.probability("enter"),
            leave: table.probability("leave"),
        },
        FaultKind::Corrupt => Fault::Corrupt { link: link(), probability: probability() },
        FaultKind::Truncate => Fault::Truncate { link: link(), probability: probability() },
        FaultKind::Duplicate => Fault::Duplicate { node: node("node"), probability: probability() },
        FaultKind::Reorder => {
            Fault::Reorder { node: node("node"), probability: probability(), by: micros("by_us") }
        }
        FaultKind::DelaySpike => Fault::DelaySpike { link: link(), by: micros("by_us") },
        FaultKind::SlowPair => {
            Fault::SlowPair { from: node("from"), to: node("to"), by: micros("by_us") }
        }
        FaultKind::RateChange => Fault::RateChange { link: link(), percent: percent() },
        FaultKind::Flap => Fault::Flap { link: link(), period: micros("period_us") },
        FaultKind::OneWay => Fault::OneWay { from: node("from"), to: node("to") },
        FaultKind::Partition => Fault::Partition { from: node("from"), to: node("to") },
        FaultKind::QueueShrink => Fault::QueueShrink { link: link(), percent: percent() },
        FaultKind::PortStuck => Fault::PortStuck { link: link() },
        FaultKind::Misroute => Fault::Misroute { switch: switch(), probability: probability() },
        FaultKind::CircuitTable => {
            Fault::CircuitTable { switch: switch(), most: table.number("most", None, 0..=u16::MAX) }
        }
        FaultKind::SwitchReboot => Fault::SwitchReboot { switch: switch() },
        FaultKind::NicMemory => {
            Fault::NicMemory { node: node("node"), bytes: table.number("bytes", None, 0..=1 << 30) }
        }
        FaultKind::DmaStall => Fault::DmaStall { node: node("node") },
        FaultKind::DmaError => Fault::DmaError { node: node("node"), probability: probability() },
        FaultKind::DoorbellLost => {
            Fault::DoorbellLost { node: node("node"), probability: probability() }
        }
        FaultKind::DoorbellDoubled => {
            Fault::DoorbellDoubled { node: node("node"), probability: probability() }
        }
        FaultKind::DoorbellQueue => Fault::DoorbellQueue {
            node: node("node"),
            depth: table.number("depth", None, 0..=u16::MAX),
        },
        FaultKind::CompletionLost => {
            Fault::CompletionLost { node: node("node"), probability: probability() }
        }
        FaultKind::InterruptLost => {
            Fault::InterruptLost { node: node("node"), probability: probability() }
        }
        FaultKind::InterruptLate => {
            Fault::InterruptLate { node: node("node"), by: micros("by_us") }
        }
        FaultKind::InterruptSpurious => {
            Fault::InterruptSpurious { node: node("node"), every: micros("every_us") }
        }
        FaultKind::CommandDamaged => {
            Fault::CommandDamaged { node: node("node"), probability: probability() }
        }
        FaultKind::NicReset => Fault::NicReset { node: node("node") },
        FaultKind::Trap => Fault::Trap { node: node("node") },
        FaultKind::Overrun => Fault::Overrun { node: node("node"), by: micros("by_us") },
        FaultKind::SlowClock => Fault::SlowClock {
            node: node("node"),
            times: table.number("times", None, 1..=u16::MAX),
        },
        FaultKind::Pause => Fault::Pause { node: node("node") },
        FaultKind::SlowHost => Fault::SlowHost { node: node("node"), by: micros("by_us") },
        FaultKind::Unpinned => Fault::Unpinned { node: node("node") },
        FaultKind::ProcessExit => Fault::ProcessExit { node: node("node") },
        FaultKind::ClockSkew => Fault::ClockSkew {
            node: node("node"),
            ahead_ns: 1_000 * table.number("ahead_us", None, -DAY_US..=DAY_US),
        },
        FaultKind::ClockDrift => Fault::ClockDrift {
            node: node("node"),
            ppm: table.number("ppm", None, -500_000..=500_000),
        },
        FaultKind::ClockStep => Fault::ClockStep { node: node("node"), by: micros("by_us") },
        _ => Fault::Crash { node: node("node") },
    }
}
