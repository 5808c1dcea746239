//! Parses the faults of a scenario file.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane::simhw::fault::{Fault, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use midplane::simhw::topology::{LinkId, SwitchId, Topology};
use toml::{Spanned, Value};

use super::scenario::Checker;

/// A fault of a file: its kind, its times, and its parameters.
pub(super) type FaultTable = BTreeMap<Spanned<String>, Spanned<Value>>;

/// Keys of every fault.
const COMMON: [&str; 3] = ["kind", "at_us", "for_us"];

/// Parses a fault with its parameters. Notes its mistakes, and returns `None` if there are some.
pub(super) fn read(
    checker: &mut Checker<'_>,
    table: &Spanned<FaultTable>,
    topology: &Topology,
) -> Option<Incident> {
    let (at, table) = (table.span().start, table.get_ref());
    let names = || FaultKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    let Some(name) = table.get("kind") else {
        checker.note(at, format!("`kind` is missing: one of {}", names()));
        return None;
    };
    let known = |kind: &&FaultKind| Some(kind.name()) == name.get_ref().as_str();
    let Some(kind) = FaultKind::ALL.iter().find(known).copied() else {
        let what = format!("`kind` is {}, not one of {}", name.get_ref(), names());
        checker.note(name.span().start, what);
        return None;
    };
    let before = checker.mistakes.len();
    let keys: Vec<&str> = kind.parameters().iter().map(|name| key_of(name)).collect();
    for key in keys.iter().filter(|key| !table.contains_key(**key)) {
        let allowed = allowed(key, topology);
        checker.note(at, format!("`{key}` is missing: a {kind} needs it, {allowed}"));
    }
    let mut values = BTreeMap::new();
    for (key, value) in table {
        let (name, at) = (key.get_ref().as_str(), value.span().start);
        if !keys.contains(&name) && !COMMON.contains(&name) {
            checker.note(at, format!("`{name}`: a {kind} takes {}", keys.join(", ")));
        } else if let Some(number) = number(name, value.get_ref(), topology) {
            values.insert(name, number);
        } else {
            let (value, allowed) = (value.get_ref(), allowed(name, topology));
            checker.note(at, format!("`{name}` is {value}, not {allowed}"));
        }
    }
    let micros = |key| Duration::from_micros(values.get(key).map_or(0, |us| *us as u64));
    (checker.mistakes.len() == before).then(|| Incident {
        at: Instant::ZERO + micros("at_us"),
        lasts: micros("for_us"),
        fault: fault(kind, |key| values.get(key).copied().unwrap_or_default()),
    })
}

/// Returns the key of a fault's parameter in the file.
fn key_of(parameter: &str) -> &str {
    match parameter {
        "by" => "by_us",
        "period" => "period_us",
        "every" => "every_us",
        "ahead_ns" => "ahead_us",
        other => other,
    }
}

/// Returns the least and the largest value of a key.
fn range(key: &str, topology: &Topology) -> (f64, f64) {
    match key {
        "node" | "from" | "to" => (0.0, f64::from(topology.hosts() - 1)),
        "switch" => (0.0, 0.0),
        "probability" | "enter" | "leave" => (0.0, 1.0),
        "percent" => (0.0, 100.0),
        "most" | "depth" => (0.0, 65_535.0),
        "bytes" => (0.0, 1_073_741_824.0),
        "times" => (1.0, 65_535.0),
        "by_us" | "period_us" | "every_us" => (1.0, 60e6),
        "ahead_us" => (-86_400e6, 86_400e6),
        "ppm" => (-500e3, 500e3),
        _ => (0.0, 1e12),
    }
}

fn link_names(topology: &Topology) -> impl Iterator<Item = (LinkId, String)> {
    topology.links().map(|link| (link, topology.link_name(link)))
}

/// Describes the values of a key.
fn allowed(key: &str, topology: &Topology) -> String {
    if key == "link" {
        let names: Vec<_> = link_names(topology).map(|(_, name)| format!("\"{name}\"")).collect();
        return format!("one of {}", names.join(", "));
    }
    let (least, most) = range(key, topology);
    format!("from {least} to {most}")
}

/// Returns the number of a value, or of the link that it names; `None` if it is not allowed.
fn number(key: &str, value: &Value, topology: &Topology) -> Option<f64> {
    let (least, most) = range(key, topology);
    let number = match value {
        Value::String(name) if key == "link" => {
            return link_names(topology).find(|(_, n)| n == name).map(|(link, _)| link.0.into());
        }
        Value::String(_) if key == "kind" => 0.0,
        Value::Integer(number) if key != "link" => *number as f64,
        Value::Float(number) if most == 1.0 => *number,
        _ => return None,
    };
    (least..=most).contains(&number).then_some(number)
}

/// Creates a fault of a kind, with the values of its keys.
fn fault(kind: FaultKind, value: impl Fn(&str) -> f64) -> Fault {
    let node = |key| NodeId(value(key) as u16);
    let micros = |key| Duration::from_micros(value(key) as u64);
    let link = LinkId(value("link") as _);
    let switch = SwitchId(value("switch") as _);
    let (from, to, by, probability) =
        (node("from"), node("to"), micros("by_us"), value("probability"));
    let (node, percent) = (node("node"), value("percent") as u8);
    match kind {
        FaultKind::Loss => Fault::Loss { link, probability },
        FaultKind::BurstLoss => {
            Fault::BurstLoss { link, enter: value("enter"), leave: value("leave") }
        }
        FaultKind::Corrupt => Fault::Corrupt { link, probability },
        FaultKind::Truncate => Fault::Truncate { link, probability },
        FaultKind::Duplicate => Fault::Duplicate { node, probability },
        FaultKind::Reorder => Fault::Reorder { node, probability, by },
        FaultKind::DelaySpike => Fault::DelaySpike { link, by },
        FaultKind::SlowPair => Fault::SlowPair { from, to, by },
        FaultKind::RateChange => Fault::RateChange { link, percent },
        FaultKind::Flap => Fault::Flap { link, period: micros("period_us") },
        FaultKind::OneWay => Fault::OneWay { from, to },
        FaultKind::Partition => Fault::Partition { from, to },
        FaultKind::QueueShrink => Fault::QueueShrink { link, percent },
        FaultKind::PortStuck => Fault::PortStuck { link },
        FaultKind::Misroute => Fault::Misroute { switch, probability },
        FaultKind::CircuitTable => Fault::CircuitTable { switch, most: value("most") as u16 },
        FaultKind::SwitchReboot => Fault::SwitchReboot { switch },
        FaultKind::NicMemory => Fault::NicMemory { node, bytes: value("bytes") as u32 },
        FaultKind::DmaStall => Fault::DmaStall { node },
        FaultKind::DmaError => Fault::DmaError { node, probability },
        FaultKind::DoorbellLost => Fault::DoorbellLost { node, probability },
        FaultKind::DoorbellDoubled => Fault::DoorbellDoubled { node, probability },
        FaultKind::DoorbellQueue => Fault::DoorbellQueue { node, depth: value("depth") as u16 },
        FaultKind::CompletionLost => Fault::CompletionLost { node, probability },
        FaultKind::InterruptLost => Fault::InterruptLost { node, probability },
        FaultKind::InterruptLate => Fault::InterruptLate { node, by },
        FaultKind::InterruptSpurious => {
            Fault::InterruptSpurious { node, every: micros("every_us") }
        }
        FaultKind::CommandDamaged => Fault::CommandDamaged { node, probability },
        FaultKind::NicReset => Fault::NicReset { node },
        FaultKind::Trap => Fault::Trap { node },
        FaultKind::Overrun => Fault::Overrun { node, by },
        FaultKind::SlowClock => Fault::SlowClock { node, times: value("times") as u16 },
        FaultKind::Pause => Fault::Pause { node },
        FaultKind::SlowHost => Fault::SlowHost { node, by },
        FaultKind::Unpinned => Fault::Unpinned { node },
        FaultKind::ProcessExit => Fault::ProcessExit { node },
        FaultKind::ClockSkew => {
            Fault::ClockSkew { node, ahead_ns: 1_000 * value("ahead_us") as i64 }
        }
        FaultKind::ClockDrift => Fault::ClockDrift { node, ppm: value("ppm") as i32 },
        FaultKind::ClockStep => Fault::ClockStep { node, by },
        _ => Fault::Crash { node },
    }
}
