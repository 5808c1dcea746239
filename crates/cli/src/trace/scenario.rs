//! Parses scenario files, and checks all of a file before the run starts.

use std::time::Duration;

use crate::discard::Discard;
use clap::ValueEnum;
use midplane::simhw::fault::Incident;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;

use super::fault;
use super::table::{File, Table};

/// Longest time of a file in microseconds, and longest delay in nanoseconds.
const LONGEST: u64 = 60_000_000;

/// Constructor of a link.
type Framing = fn(LineRate, Duration) -> LinkProfile;

/// Series of messages from one node to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) at: Instant,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) bytes: u32,
    pub(crate) count: u32,
    pub(crate) every: Duration,
}

/// Content of a file without mistakes.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) until: Instant,
    pub(crate) topology: Topology,
    pub(crate) profile: NicProfile,
    pub(crate) messages: Vec<Messages>,
    pub(crate) faults: Vec<Incident>,
}

/// Parses a scenario.
///
/// # Errors
/// All mistakes in one line, each with its line, its key and the allowed values.
pub(crate) fn parse(text: &str) -> Result<Scenario, String> {
    File::read(text, |file| {
        let seed = file.number("seed", Some(1), 0..=u64::MAX);
        let hosts = file.number("hosts", Some(2), 1..=1_000);
        let until = file.number("until_us", Some(10_000), 1..=LONGEST);
        let topology = topology(file, hosts);
        let profile = profile(&file.table("nic"));
        let tables = file.tables("message");
        let messages = tables.iter().map(|table| messages(table, hosts)).collect();
        let tables = file.tables("fault");
        let faults = tables.iter().filter_map(|table| fault::read(table, &topology)).collect();
        let until = Instant::ZERO + Duration::from_micros(until);
        Scenario { seed, until, topology, profile, messages, faults }
    })
}

fn topology(file: &Table<'_>, hosts: u16) -> Topology {
    let table = file.table("link");
    let rate = LineRate::mbps(table.number("rate_mbps", Some(100), 1..=400_000));
    let propagation = Duration::from_nanos(table.number("propagation_ns", Some(500), 0..=LONGEST));
    let framings: [(_, Framing); 3] = [
        ("ethernet", LinkProfile::ethernet),
        ("atm", LinkProfile::atm),
        ("plain", LinkProfile::plain),
    ];
    let framing = table.choice("framing", Some(framings[0].1), &framings).unwrap_or(framings[0].1);

    let table = file.table("switch");
    let bytes = table.number("buffer_bytes", Some(32_768), 64..=1 << 30);
    let cells = table.number("buffer_cells", Some(0), 0..=1 << 24);
    if cells > 0 && table.has("buffer_bytes") {
        let what = "`buffer_cells` and `buffer_bytes` exclude each other".to_owned();
        table.note("buffer_cells", what);
    }
    let buffer = if cells > 0 { Buffer::Cells(cells) } else { Buffer::Bytes(bytes) };
    let discards = Discard::value_variants().iter().filter_map(|discard| {
        let value = discard.to_possible_value()?;
        Some(value.get_name_and_aliases().map(|name| (name.to_owned(), *discard)).collect())
    });
    let discards = discards.collect::<Vec<Vec<_>>>().concat();
    let discard = table.choice("discard", Some(Discard::Tail), &discards).unwrap_or_default();
    let latency = Duration::from_nanos(table.number("latency_ns", Some(0), 0..=LONGEST));
    let switch = SwitchProfile { latency, discard: discard.into(), ..SwitchProfile::new(buffer) };
    Topology::star(hosts, framing(rate, propagation), switch)
}

fn profile(table: &Table<'_>) -> NicProfile {
    let profiles = [
        ("modern", NicProfile::MODERN),
        ("sba-200e", NicProfile::SBA_200E),
        ("free", NicProfile::FREE),
    ];
    let profile = table.choice("profile", Some(NicProfile::MODERN), &profiles);
    let mtu = table.number("mtu", Some(65_400_u32), 64..=65_400) as usize;
    NicProfile { mtu, ..profile.unwrap_or(NicProfile::MODERN) }
}

fn messages(table: &Table<'_>, hosts: u16) -> Messages {
    let micros = |key| Duration::from_micros(table.number(key, Some(0), 0..=LONGEST));
    let node = |key| NodeId(table.number(key, None, 0..=hosts - 1));
    let (from, to) = (node("from"), node("to"));
    if from == to && table.has("to") {
        let what = format!("`to` is {to}, which is `from`: another node from 0 to {}", hosts - 1);
        table.note("to", what);
    }
    Messages {
        at: Instant::ZERO + micros("at_us"),
        from,
        to,
        bytes: table.number("bytes", Some(1_000), 1..=16 << 20),
        count: table.number("count", Some(1), 1..=100_000),
        every: micros("every_us"),
    }
}
