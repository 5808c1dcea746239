//! The command line.

use clap::{Parser, ValueEnum};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  services                                     all rows, half a second each in 5 alternating rounds
  services --what axum-hello --connections 8   one kind of row
  services --threads multi --json              plain `#[tokio::main]` on both sides, as one JSON document

Each row is one axum service in a process of its own and one hyper client; what differs between ours and theirs is the
listener and the connector alone. A ratio above 1 is ours ahead: the median of the rounds' ratios.

Exit code: 0 it ran; 1 an answer was wrong or a process was lost; 2 bad input.";

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// GET requests of five bytes
    AxumHello,
    /// GET requests of 4 MiB that are not copied by the service, and thrown away by the client
    Axum4mib,
}

/// Which processors the two processes may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Any
    Any,
    /// Both the same one
    OneCore,
    /// One each
    TwoCores,
}

/// What carries the requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// The kernel's TCP on loopback
    Tcp,
    /// Midplane's streams over shared memory
    Shm,
    /// Midplane's streams over UDP on loopback
    Udp,
}

/// The runtime of both processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Threads {
    /// `#[tokio::main(flavor = "current_thread")]`
    Single,
    /// `#[tokio::main]`
    Multi,
}

/// Measures unmodified axum services over midplane's streams, compared with tokio's TCP in alternating rounds.
#[derive(Clone, Debug, Parser)]
#[command(name = "services", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// What carries ours, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    pub transport: Vec<Transport>,

    /// What is asked for, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "axum-hello,axum4mib")]
    pub what: Vec<What>,

    /// Connections that each have one request under way, from 1 to 256, with commas between
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: Vec<u16>,

    /// Which processors the two processes may use, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "any,one-core,two-cores")]
    pub placement: Vec<Placement>,

    /// The runtime of both processes; with several threads they run on any processor
    #[arg(long, value_enum, default_value = "single")]
    pub threads: Threads,

    /// Rounds, in each of which both are measured, from 1 to 100
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,

    /// Seconds of each measurement, from 0.05 to 60
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,

    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,

    /// Serves over this transport, in a cluster or at a port that the first line of the output names
    #[arg(long, value_enum, hide = true)]
    pub serve: Option<Transport>,

    /// The processor to run on
    #[arg(long, hide = true)]
    pub processor: Option<usize>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.05..=60.0).contains(&seconds) { Ok(seconds) } else { Err("not from 0.05 to 60".into()) }
}
