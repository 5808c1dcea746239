//! Parses the faults of a scenario file.

use std::time::Duration;

use midplane::simhw::fault::{Fault, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use midplane::simhw::topology::{LinkId, SwitchId, Topology};
use serde::Deserialize;
use toml::Spanned;

use super::Checker;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FaultTable {
    at_us: u64,
    for_us: u64,
    kind: Option<Spanned<String>>,
    link: Option<Spanned<String>>,
    node: Option<Spanned<u16>>,
    from: Option<Spanned<u16>>,
    to: Option<Spanned<u16>>,
    switch: Option<Spanned<u16>>,
    probability: Option<Spanned<f64>>,
    enter: Option<Spanned<f64>>,
    leave: Option<Spanned<f64>>,
    percent: Option<Spanned<u8>>,
    most: Option<Spanned<u16>>,
    bytes: Option<Spanned<u32>>,
    depth: Option<Spanned<u16>>,
    times: Option<Spanned<u16>>,
    by_us: Option<Spanned<u64>>,
    period_us: Option<Spanned<u64>>,
    every_us: Option<Spanned<u64>>,
    ahead_us: Option<Spanned<i64>>,
    ppm: Option<Spanned<i32>>,
}

/// Parses a fault with its parameters. Notes its mistakes, and returns `None` if there are some.
pub(super) fn read(
    checker: &mut Checker<'_>,
    table: &Spanned<FaultTable>,
    topology: &Topology,
) -> Option<Incident> {
    let (at, table) = (table.span().start, table.get_ref());
    let names = || FaultKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    let Some(name) = &table.kind else {
        checker.note(at, format!("`kind` is missing: one of {}", names()));
        return None;
    };
    let kind = FaultKind::ALL.iter().find(|kind| kind.name() == name.get_ref());
    let Some(kind) = kind.copied() else {
        let what = format!("`kind` is \"{}\", not one of {}", name.get_ref(), names());
        checker.note(name.span().start, what);
        return None;
    };
    let before = checker.mistakes.len();
    let mut reader = Reader { checker, table, topology, kind, at };
    let fault = reader.parameters().fault(kind);
    (checker.mistakes.len() == before).then(|| Incident {
        at: Instant::ZERO + Duration::from_micros(table.at_us),
        lasts: Duration::from_micros(table.for_us),
        fault,
    })
}

/// Reader of the parameters of one kind of fault.
struct Reader<'a, 'b> {
    checker: &'a mut Checker<'b>,
    table: &'a FaultTable,
    topology: &'a Topology,
    kind: FaultKind,
    at: usize,
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

impl Reader<'_, '_> {
    /// Returns a parameter, or `usual`. Notes a parameter that is missing, or that this kind of fault does not take.
    fn take<T>(
        &mut self,
        given: Option<&Spanned<T>>,
        key: &str,
        usual: T,
        allowed: std::ops::RangeInclusive<T>,
    ) -> T
    where
        T: Copy + PartialOrd + std::fmt::Display,
    {
        let keys: Vec<&str> = self.kind.parameters().iter().map(|name| key_of(name)).collect();
        match given {
            Some(given) if !keys.contains(&key) => {
                let what = format!("`{key}`: a {} takes {}", self.kind, keys.join(", "));
                self.checker.note(given.span().start, what);
                usual
            }
            None if keys.contains(&key) => {
                let (low, high) = (allowed.start(), allowed.end());
                let what =
                    format!("`{key}` is missing: a {} needs it, from {low} to {high}", self.kind);
                self.checker.note(self.at, what);
                usual
            }
            given => self.checker.number(given, key, usual, allowed),
        }
    }

    fn node(&mut self, given: Option<&Spanned<u16>>, key: &str) -> NodeId {
        NodeId(self.take(given, key, 0, 0..=self.topology.hosts() - 1))
    }

    fn micros(&mut self, given: Option<&Spanned<u64>>, key: &str) -> Duration {
        Duration::from_micros(self.take(given, key, 1, 1..=60_000_000))
    }

    fn link(&mut self) -> LinkId {
        let names: Vec<_> =
            self.topology.links().map(|l| (l, self.topology.link_name(l))).collect();
        let known = || {
            let names: Vec<_> = names.iter().map(|(_, name)| format!("\"{name}\"")).collect();
            names.join(", ")
        };
        let needs = self.kind.parameters().contains(&"link");
        match &self.table.link {
            None if needs => {
                let what = format!("`link` is missing: a {} needs one of {}", self.kind, known());
                self.checker.note(self.at, what);
            }
            Some(given) if !needs => {
                let keys: Vec<&str> = self.kind.parameters().iter().map(|n| key_of(n)).collect();
                let what = format!("`link`: a {} takes {}", self.kind, keys.join(", "));
                self.checker.note(given.span().start, what);
            }
            Some(given) => match names.iter().find(|(_, name)| name == given.get_ref()) {
                Some((link, _)) => return *link,
                None => {
                    let what = format!("`link` is \"{}\", not one of {}", given.get_ref(), known());
                    self.checker.note(given.span().start, what);
                }
            },
            None => {}
        }
        LinkId(0)
    }

    /// Reads the parameters of all kinds of faults. Those that this kind does not take have usual values.
    fn parameters(&mut self) -> Parameters {
        let table = self.table;
        let day = 86_400_000_000;
        Parameters {
            link: self.link(),
            node: self.node(table.node.as_ref(), "node"),
            from: self.node(table.from.as_ref(), "from"),
            to: self.node(table.to.as_ref(), "to"),
            switch: SwitchId(self.take(table.switch.as_ref(), "switch", 0, 0..=0)),
            probability: self.take(table.probability.as_ref(), "probability", 0.0, 0.0..=1.0),
            enter: self.take(table.enter.as_ref(), "enter", 0.0, 0.0..=1.0),
            leave: self.take(table.leave.as_ref(), "leave", 0.0, 0.0..=1.0),
            percent: self.take(table.percent.as_ref(), "percent", 1, 0..=100),
            most: self.take(table.most.as_ref(), "most", 0, 0..=u16::MAX),
            bytes: self.take(table.bytes.as_ref(), "bytes", 0, 0..=1 << 30),
            depth: self.take(table.depth.as_ref(), "depth", 0, 0..=u16::MAX),
            times: self.take(table.times.as_ref(), "times", 1, 1..=u16::MAX),
            by: self.micros(table.by_us.as_ref(), "by_us"),
            period: self.micros(table.period_us.as_ref(), "period_us"),
            every: self.micros(table.every_us.as_ref(), "every_us"),
            ahead_ns: 1_000 * self.take(table.ahead_us.as_ref(), "ahead_us", 0, -day..=day),
            ppm: self.take(table.ppm.as_ref(), "ppm", 0, -500_000..=500_000),
        }
    }
}

/// Parameters of all kinds of faults.
struct Parameters {
    link: LinkId,
    node: NodeId,
    from: NodeId,
    to: NodeId,
    switch: SwitchId,
    probability: f64,
    enter: f64,
    leave: f64,
    percent: u8,
    most: u16,
    bytes: u32,
    depth: u16,
    times: u16,
    by: Duration,
    period: Duration,
    every: Duration,
    ahead_ns: i64,
    ppm: i32,
}

impl Parameters {
    fn fault(self, kind: FaultKind) -> Fault {
        let Self { link, node, from, to, switch, probability, by, percent, .. } = self;
        match kind {
            FaultKind::Loss => Fault::Loss { link, probability },
            FaultKind::BurstLoss => Fault::BurstLoss { link, enter: self.enter, leave: self.leave },
            FaultKind::Corrupt => Fault::Corrupt { link, probability },
            FaultKind::Truncate => Fault::Truncate { link, probability },
            FaultKind::Duplicate => Fault::Duplicate { node, probability },
            FaultKind::Reorder => Fault::Reorder { node, probability, by },
            FaultKind::DelaySpike => Fault::DelaySpike { link, by },
            FaultKind::SlowPair => Fault::SlowPair { from, to, by },
            FaultKind::RateChange => Fault::RateChange { link, percent },
            FaultKind::Flap => Fault::Flap { link, period: self.period },
            FaultKind::OneWay => Fault::OneWay { from, to },
            FaultKind::Partition => Fault::Partition { from, to },
            FaultKind::QueueShrink => Fault::QueueShrink { link, percent },
            FaultKind::PortStuck => Fault::PortStuck { link },
            FaultKind::Misroute => Fault::Misroute { switch, probability },
            FaultKind::CircuitTable => Fault::CircuitTable { switch, most: self.most },
            FaultKind::SwitchReboot => Fault::SwitchReboot { switch },
            FaultKind::NicMemory => Fault::NicMemory { node, bytes: self.bytes },
            FaultKind::DmaStall => Fault::DmaStall { node },
            FaultKind::DmaError => Fault::DmaError { node, probability },
            FaultKind::DoorbellLost => Fault::DoorbellLost { node, probability },
            FaultKind::DoorbellDoubled => Fault::DoorbellDoubled { node, probability },
            FaultKind::DoorbellQueue => Fault::DoorbellQueue { node, depth: self.depth },
            FaultKind::CompletionLost => Fault::CompletionLost { node, probability },
            FaultKind::InterruptLost => Fault::InterruptLost { node, probability },
            FaultKind::InterruptLate => Fault::InterruptLate { node, by },
            FaultKind::InterruptSpurious => Fault::InterruptSpurious { node, every: self.every },
            FaultKind::CommandDamaged => Fault::CommandDamaged { node, probability },
            FaultKind::NicReset => Fault::NicReset { node },
            FaultKind::Trap => Fault::Trap { node },
            FaultKind::Overrun => Fault::Overrun { node, by },
            FaultKind::SlowClock => Fault::SlowClock { node, times: self.times },
            FaultKind::Pause => Fault::Pause { node },
            FaultKind::SlowHost => Fault::SlowHost { node, by },
            FaultKind::Unpinned => Fault::Unpinned { node },
            FaultKind::ProcessExit => Fault::ProcessExit { node },
            FaultKind::ClockSkew => Fault::ClockSkew { node, ahead_ns: self.ahead_ns },
            FaultKind::ClockDrift => Fault::ClockDrift { node, ppm: self.ppm },
            FaultKind::ClockStep => Fault::ClockStep { node, by },
            _ => Fault::Crash { node },
        }
    }
}
