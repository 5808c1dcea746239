//! The command line, and the rows of the table.

use std::net::IpAddr;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use midplane_kit::command_line::{name_of, within};
use serde::{Serialize, Serializer};

const EXAMPLES: &str = "\
Examples:
  services                                     all rows of answers, half a second each in 5 alternating rounds
  services --what axum_hello --connections 8   one kind of row
  services --what call_64 --transport udp --placement two_cores    one row
  services --threads multi --json              plain `#[tokio::main]` on both sides, as one JSON document
  services --idle --placement any --rounds 3   processor time of nodes that have little to do
  services --transport udp --namespaces a@10.0.0.1,b@10.0.0.2      between two hosts
  services --transport udp,tcp --what axum_hello,axum_4mib --sealed    nodes with a key, and TLS
  services --memory --rounds 1                 memory of 1,000 connections that are idle
  services --restart --rounds 3                how soon a service is usable, its crash noticed, its restart reached

Each row is a service in a process of its own and a client in another one, over a node and over TCP with TCP_NODELAY;
what differs between ours and theirs is the listener and the connector alone, except for calls: theirs are requests and
answers with a length before them, one connection a caller, which is what one writes by hand.

ours and theirs are medians of the rounds. The ratio is ours over theirs, the median of the rounds' ratios, and the
spread their range over it. A ratio above 1 is ours ahead for answers, and behind for processor time and memory.

Exit code: 0 it ran; 1 an answer was wrong or a process was lost; 2 bad input.";

/// The subject of a measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum What {
    /// GET requests of five bytes to an axum service, one connection a caller
    AxumHello,
    /// GET requests of 4 MiB that the service does not copy and the client throws away
    #[value(name = "axum_4mib")]
    Axum4mib,
    /// Unary tonic calls of 64 bytes that are echoed; all callers share one channel
    #[value(name = "tonic_64")]
    Tonic64,
    /// Unary tonic calls of 4 KiB that are echoed; all callers share one channel
    #[value(name = "tonic_4096")]
    Tonic4096,
    /// Calls of `node.client` with 64 bytes that are echoed
    #[value(name = "call_64")]
    Call64,
    /// Calls of `node.client` with 4 KiB that are echoed
    #[value(name = "call_4096")]
    Call4096,
    /// Calls of `node.client` with 64 KiB that are echoed
    #[value(name = "call_65536")]
    Call65536,
    /// Processor time of a service's process that has one idle connection
    Idle,
    /// Processor time of both processes, with one request to an axum service each 3 ms
    Paced,
    /// Memory of both processes, of connections that carried 1 MiB each and are idle
    Memory,
    /// Time from the start of a service's process until it has answered a client that was there before
    Joined,
    /// Time from a service's `kill -9` until a stream to it fails
    Noticed,
    /// Time from the start of a killed service's next process until it has answered
    Reached,
}

/// The unit of the numbers of a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    AnswersPerS,
    /// Processor time over time
    OfACore,
    Bytes,
    Seconds,
}

impl What {
    /// The rows that count answers.
    const ANSWERS: [Self; 7] = [
        Self::AxumHello,
        Self::Axum4mib,
        Self::Tonic64,
        Self::Tonic4096,
        Self::Call64,
        Self::Call4096,
        Self::Call65536,
    ];

    pub const fn unit(self) -> Unit {
        match self {
            Self::Idle | Self::Paced => Unit::OfACore,
            Self::Memory => Unit::Bytes,
            Self::Joined | Self::Noticed | Self::Reached => Unit::Seconds,
            _ => Unit::AnswersPerS,
        }
    }

    /// The callers or connections of the rows of the table.
    const fn connections(self) -> &'static [u16] {
        match self {
            Self::AxumHello | Self::Axum4mib => &[1, 8],
            Self::Tonic64 | Self::Tonic4096 => &[1, 8, 64],
            Self::Call64 | Self::Call4096 | Self::Call65536 => &[8],
            Self::Idle | Self::Paced | Self::Joined | Self::Noticed | Self::Reached => &[1],
            Self::Memory => &[1_000],
        }
    }
}

/// The processors that the two processes may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Placement {
    /// Any processor
    Any,
    /// One processor for both
    OneCore,
    /// A processor each
    TwoCores,
}

/// The transport of the requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Transport {
    /// Midplane's streams over shared memory
    Shm,
    /// Midplane's streams over UDP on loopback
    Udp,
    /// Midplane's streams over TCP on loopback, as where UDP is blocked
    Tcp,
    /// Midplane's streams between hosts by default, here on loopback: over UDP, long ones over TCP
    Net,
    /// Tokio's TCP on loopback
    #[value(hide = true)]
    Tokio,
    /// TLS 1.3 over tokio's TCP on loopback
    #[value(hide = true)]
    Tls,
}

impl Transport {
    /// Returns the transports that the nodes may use.
    pub fn of_nodes(self) -> String {
        match self {
            Self::Net => "udp,tcp".into(),
            one => name_of(&one),
        }
    }
}

/// The runtime of both processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Threads {
    /// `#[tokio::main(flavor = "current_thread")]`
    Single,
    /// `#[tokio::main]`
    Multi,
}

/// A host that is a network namespace of this one.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub name: String,
    pub address: IpAddr,
}

impl FromStr for Namespace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = text.split_once('@').ok_or("not NAME@ADDRESS")?;
        let address = address.parse().map_err(|_| format!("{address} is no IP address"))?;
        Ok(Self { name: name.to_owned(), address })
    }
}

/// A process of a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Part {
    Service,
    Client,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    #[serde(serialize_with = "serialize")]
    pub transport: Transport,
    #[serde(serialize_with = "serialize")]
    pub what: What,
    #[serde(serialize_with = "serialize")]
    pub placement: Placement,
    pub connections: u16,
}

impl Row {
    /// Returns whether the row can be compared with TLS.
    pub const fn can_be_sealed(&self) -> bool {
        matches!(self.transport, Transport::Udp | Transport::Tcp | Transport::Net)
            && matches!(self.what, What::AxumHello | What::Axum4mib)
    }
}

fn serialize<S: Serializer>(value: &impl ValueEnum, into: S) -> Result<S::Ok, S::Error> {
    into.serialize_str(&name_of(value))
}

/// Measures axum and tonic services and calls over midplane's nodes, compared with tokio's TCP in alternating rounds.
#[derive(Clone, Debug, Parser)]
#[command(name = "services", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// The transports of ours, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    pub transport: Vec<Transport>,

    /// The measurements to run, with commas between [default: all that count answers]
    #[arg(long, value_enum, value_delimiter = ',')]
    what: Vec<What>,

    /// Measures processor time: the same as `--what idle,paced`
    #[arg(long, conflicts_with = "what")]
    idle: bool,

    /// Measures memory: the same as `--what memory --placement any`
    #[arg(long, conflicts_with_all = ["what", "idle"])]
    memory: bool,

    /// Measures how soon services are there: the same as `--what joined,noticed,reached --placement any`
    #[arg(long, conflicts_with_all = ["what", "idle", "memory"])]
    restart: bool,

    /// Callers that each have one request under way, or connections, from 1 to 4096, with commas between [default: those
    /// of the table in docs/services.md]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: Vec<u16>,

    /// The processors that the two processes may use, with commas between [default: all three, or any and one_core on one processor; any with `--memory`, with
    /// `--threads multi`, and for joined, noticed and reached]
    #[arg(long, value_enum, value_delimiter = ',')]
    placement: Vec<Placement>,

    /// The runtime of both processes; with several threads they run on any processor
    #[arg(long, value_enum, default_value = "single")]
    pub threads: Threads,

    /// Rounds, in each of which both are measured, from 1 to 100
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,

    /// Seconds of each measurement, from 0.05 to 60 [default: 0.5; 5 for processor time]
    #[arg(long, value_parser = within(0.05, 60.0))]
    seconds: Option<f64>,

    /// The network namespaces of the service and of the client, as `ip netns` has them, and the address of each there. Needs
    /// root, and `--transport udp` or `tcp`
    #[arg(long, value_delimiter = ',', value_name = "NAME@ADDRESS,NAME@ADDRESS")]
    pub namespaces: Vec<Namespace>,

    /// Compares nodes with a key, which seal what they send, with TLS 1.3 (rustls and `ring`, a certificate made for the run)
    #[arg(long)]
    pub sealed: bool,

    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,

    /// The process of one row that this is
    #[arg(long, value_enum, hide = true)]
    pub part: Option<Part>,

    /// The address of the service
    #[arg(long, hide = true, default_value = "")]
    pub at: String,

    /// The address of the host that this process runs on
    #[arg(long, hide = true, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The processor to run on
    #[arg(long, hide = true)]
    pub processor: Option<usize>,
}

impl Arguments {
    /// Returns the requested rows, in the order of the table.
    pub fn rows(&self) -> Vec<Row> {
        let subjects: &[What] = match &self.what[..] {
            _ if self.idle => &[What::Idle, What::Paced],
            _ if self.memory => &[What::Memory],
            _ if self.restart => &[What::Joined, What::Noticed, What::Reached],
            [] => &What::ANSWERS,
            what => what,
        };
        let mut rows = Vec::new();
        for &transport in &self.transport {
            for &what in subjects {
                let connections = match &self.connections[..] {
                    [] => what.connections(),
                    connections => connections,
                };
                let placements: &[Placement] = match &self.placement[..] {
                    [] if self.memory || self.runs_anywhere(what) => &[Placement::Any],
                    [] if std::thread::available_parallelism()
                        .is_ok_and(|count| count.get() < 2) =>
                    {
                        &[Placement::Any, Placement::OneCore]
                    }
                    [] => Placement::value_variants(),
                    placements => placements,
                };
                for &placement in placements {
                    let row = |&connections| Row { transport, what, placement, connections };
                    rows.extend(connections.iter().map(row));
                }
            }
        }
        rows
    }

    /// Returns whether the processes of a row run on any processor, and no other placement can be measured.
    pub fn runs_anywhere(&self, what: What) -> bool {
        self.threads == Threads::Multi || what.unit() == Unit::Seconds
    }

    /// Returns how long a measurement takes.
    pub fn seconds(&self, what: What) -> f64 {
        self.seconds.unwrap_or(if what.unit() == Unit::OfACore { 5.0 } else { 0.5 })
    }
}
