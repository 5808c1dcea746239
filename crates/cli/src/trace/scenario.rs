//! Parses scenario files, which are TOML, and checks all of a file before the run starts.
//!
//! Reports every mistake, not only the first, with its line, its key and the allowed values: a line that serde refuses is
//! noted and blanked, and the file is parsed again.

use std::time::Duration;

use midplane::simhw::fault::Incident;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use midplane_kit::discard::Discard;
use serde::Deserialize;
use toml::Spanned;

use super::fault::{self, FaultTable};

/// Most mistakes that are reported.
const MOST: usize = 20;

/// One mistake in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mistake {
    /// Line number, from 1.
    pub(crate) line: usize,
    /// Description, with the key and the allowed values.
    pub(crate) what: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    seed: Option<u64>,
    hosts: Option<Spanned<u16>>,
    until_us: Option<Spanned<u64>>,
    link: LinkTable,
    switch: SwitchTable,
    nic: NicTable,
    message: Vec<Spanned<MessageTable>>,
    fault: Vec<Spanned<FaultTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LinkTable {
    rate_mbps: Option<Spanned<u64>>,
    propagation_ns: Option<u64>,
    framing: FramingName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FramingName {
    #[default]
    Ethernet,
    Atm,
    Plain,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SwitchTable {
    buffer_bytes: Option<Spanned<u32>>,
    buffer_cells: Option<Spanned<u32>>,
    latency_ns: Option<u64>,
    discard: Discard,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NicTable {
    profile: ProfileName,
    mtu: Option<Spanned<usize>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProfileName {
    #[default]
    Modern,
    #[serde(rename = "sba-200e")]
    Sba200e,
    Free,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MessageTable {
    at_us: u64,
    from: Option<Spanned<u16>>,
    to: Option<Spanned<u16>>,
    bytes: Option<Spanned<u32>>,
    count: Option<Spanned<u32>>,
    every_us: u64,
    coordinated: bool,
}

/// Series of messages from one node to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) at: Instant,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) bytes: u32,
    pub(crate) count: u32,
    pub(crate) every: Duration,
    pub(crate) coordinated: bool,
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
/// Up to [`MOST`] mistakes, in the order of their lines.
pub(crate) fn parse(text: &str) -> Result<Scenario, Vec<Mistake>> {
    let mut checker = Checker { text, mistakes: Vec::new() };
    let document = checker.read();
    let scenario = document.and_then(|document| checker.scenario(&document));
    checker.mistakes.sort_by_key(|mistake| mistake.line);
    checker.mistakes.truncate(MOST);
    match scenario {
        Some(scenario) if checker.mistakes.is_empty() => Ok(scenario),
        _ => Err(checker.mistakes),
    }
}

/// Formats all mistakes as one line.
pub(crate) fn in_one_line(mistakes: &[Mistake]) -> String {
    let lines = mistakes.iter().map(|mistake| format!("line {}: {}", mistake.line, mistake.what));
    lines.collect::<Vec<_>>().join("; ")
}

/// Notes the mistakes of a file.
pub(super) struct Checker<'a> {
    text: &'a str,
    pub(super) mistakes: Vec<Mistake>,
}

impl Checker<'_> {
    /// Notes a mistake at a position of the file.
    pub(super) fn note(&mut self, at: usize, what: String) {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        self.mistakes.push(Mistake { line, what });
    }

    /// Parses the file again and again, each time without the lines that were refused.
    fn read(&mut self) -> Option<Document> {
        let mut text = self.text.to_owned();
        for _ in 0..MOST {
            let error = match toml::from_str::<Document>(&text) {
                Ok(document) => return Some(document),
                Err(error) => error,
            };
            let at = error.span().map_or(0, |span| span.start);
            let begins = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let ends = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
            let line = text[begins..ends].trim().to_owned();
            let key = line.split('=').next().unwrap_or_default().trim();
            let message = error.message().trim().replace('\n', ", ");
            self.note(at, format!("`{key}`: {message}"));
            if line.is_empty() || text.parse::<toml::Table>().is_err() {
                // The file is not TOML: later lines cannot be checked.
                return None;
            }
            text.replace_range(begins..ends, &" ".repeat(ends - begins));
        }
        None
    }

    fn scenario(&mut self, document: &Document) -> Option<Scenario> {
        let hosts = self.number(document.hosts.as_ref(), "hosts", 2, 1..=1_000);
        let until = self.number(document.until_us.as_ref(), "until_us", 10_000, 1..=60_000_000);
        let topology = self.topology(document, hosts);
        let mtu = self.number(document.nic.mtu.as_ref(), "mtu", 65_400, 64..=65_400);
        let profile = match document.nic.profile {
            ProfileName::Modern => NicProfile::MODERN,
            ProfileName::Sba200e => NicProfile::SBA_200E,
            ProfileName::Free => NicProfile::FREE,
        };
        let messages = document.message.iter().filter_map(|table| self.messages(table, hosts));
        let messages: Vec<_> = messages.collect();
        let faults = document.fault.iter().filter_map(|table| fault::read(self, table, &topology));
        let faults: Vec<_> = faults.collect();
        Some(Scenario {
            seed: document.seed.unwrap_or(1),
            until: Instant::ZERO + Duration::from_micros(until),
            topology,
            profile: NicProfile { mtu, ..profile },
            messages,
            faults,
        })
    }

    /// Returns a number, or `usual` if it is missing or outside `allowed`, which is noted.
    fn number<T>(
        &mut self,
        given: Option<&Spanned<T>>,
        key: &str,
        usual: T,
        allowed: std::ops::RangeInclusive<T>,
    ) -> T
    where
        T: Copy + PartialOrd + std::fmt::Display,
    {
        let Some(given) = given else { return usual };
        let value = *given.get_ref();
        if !allowed.contains(&value) {
            let (low, high) = (allowed.start(), allowed.end());
            self.note(given.span().start, format!("`{key}` is {value}, not from {low} to {high}"));
            return usual;
        }
        value
    }

    fn topology(&mut self, document: &Document, hosts: u16) -> Topology {
        let rate = self.number(document.link.rate_mbps.as_ref(), "rate_mbps", 100, 1..=400_000);
        let rate = LineRate::mbps(rate);
        let propagation = Duration::from_nanos(document.link.propagation_ns.unwrap_or(500));
        let link = match document.link.framing {
            FramingName::Ethernet => LinkProfile::ethernet(rate, propagation),
            FramingName::Atm => LinkProfile::atm(rate, propagation),
            FramingName::Plain => LinkProfile::plain(rate, propagation),
        };
        let table = &document.switch;
        let bytes = self.number(table.buffer_bytes.as_ref(), "buffer_bytes", 32_768, 64..=1 << 30);
        let cells = self.number(table.buffer_cells.as_ref(), "buffer_cells", 0, 0..=1 << 24);
        if let (Some(_), Some(cells)) = (&table.buffer_bytes, &table.buffer_cells) {
            let what = "`buffer_cells` and `buffer_bytes` exclude each other".to_owned();
            self.note(cells.span().start, what);
        }
        let buffer = if cells > 0 { Buffer::Cells(cells) } else { Buffer::Bytes(bytes) };
        let latency = Duration::from_nanos(table.latency_ns.unwrap_or(0));
        let switch =
            SwitchProfile { latency, discard: table.discard.into(), ..SwitchProfile::new(buffer) };
        Topology::star(hosts, link, switch)
    }

    fn node(&mut self, given: Option<&Spanned<u16>>, key: &str, hosts: u16, at: usize) -> NodeId {
        if given.is_none() {
            self.note(at, format!("`{key}` is missing: a node from 0 to {}", hosts - 1));
        }
        NodeId(self.number(given, key, 0, 0..=hosts - 1))
    }

    fn messages(&mut self, table: &Spanned<MessageTable>, hosts: u16) -> Option<Messages> {
        let (at, table) = (table.span().start, table.get_ref());
        let from = self.node(table.from.as_ref(), "from", hosts, at);
        let to = self.node(table.to.as_ref(), "to", hosts, at);
        if let (Some(given), true) = (&table.to, from == to) {
            let what =
                format!("`to` is {to}, which is `from`: another node from 0 to {}", hosts - 1);
            self.note(given.span().start, what);
        }
        let bytes = self.number(table.bytes.as_ref(), "bytes", 1_000, 1..=16 << 20);
        let count = self.number(table.count.as_ref(), "count", 1, 1..=100_000);
        let (every, coordinated) = (Duration::from_micros(table.every_us), table.coordinated);
        let at = Instant::ZERO + Duration::from_micros(table.at_us);
        Some(Messages { at, from, to, bytes, count, every, coordinated })
    }
}
