//! Command line of `lab service`.

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::ranks::Ranks;
use crate::stream::MAX_BYTES;

const EXAMPLES: &str = "\
Examples:
  lab service                                  shared memory and UDP compared with TCP, on this host
  lab service --bytes 64,4096 --concurrency 1  one request at a time
  lab service --fabric udp --rank 0 --peers hosts.txt   and --rank 1 on the other host: it serves

Every connection or caller has one request in flight; each answer is checked. The service returns the bytes of a
request in reverse order, so that both sides touch each byte. The ratio is the median of the rounds' ratios; above
1 ours is faster. Across hosts, give both ranks the same flags; the file has the client's host:port and the
server's. Shared memory works on one host only.

Exit code: 0 it ran; 1 an answer was wrong or a process was lost; 2 bad input.";

/// The fabric that carries requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// The kernel's TCP, through tokio
    Tcp,
    /// Shared memory (Linux), through NICs
    Shm,
    /// Shared memory (Linux), bypassing the NICs
    Lanes,
    /// UDP
    Udp,
}

/// Form in which requests travel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// In streams of bytes, each request after its length
    Stream,
    /// Each request as a message
    Call,
}

display!(Fabric, Way);

/// Measure one service over tokio's TCP and over our fabrics
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Fabrics to compare with TCP, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,lanes,udp")]
    pub(crate) fabric: Vec<Fabric>,

    /// Forms of our requests, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "stream,call")]
    pub(crate) way: Vec<Way>,

    /// Bytes of a request and of its answer, separated by commas, each up to 1048576
    #[arg(long, value_delimiter = ',', default_value = "64,4096,65536")]
    pub(crate) bytes: Vec<usize>,

    /// Connections or callers, each with one request in flight, from 1 to 256
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) concurrency: u16,

    /// Rounds, from 1 to 100; each measures everything once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Milliseconds of each measurement, from 10 to 60000
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) milliseconds: u64,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ranks: Ranks,

    /// Name of the shared memory, for the server that a process alone starts
    #[arg(long, hide = true)]
    pub(crate) name: Option<String>,
}

impl Arguments {
    /// # Errors
    /// One line that names the argument.
    pub(crate) fn check(&self, starts_server: bool) -> Result<(), String> {
        if let Some(bytes) = self.bytes.iter().find(|bytes| **bytes > MAX_BYTES) {
            return Err(format!("--bytes {bytes}: must be at most {MAX_BYTES}"));
        }
        let alone = self.name.is_some() || starts_server;
        let shared = |fabric: &&Fabric| matches!(fabric, Fabric::Shm | Fabric::Lanes);
        let shared = self.fabric.iter().find(shared);
        if let Some(fabric) = shared.filter(|_| !alone) {
            return Err(format!("--fabric {fabric}: two hosts share no memory; say --fabric udp"));
        }
        if let Some(fabric) = shared.filter(|_| cfg!(not(target_os = "linux"))) {
            return Err(format!("--fabric {fabric}: needs Linux"));
        }
        Ok(())
    }

    /// Returns the contests of a round: TCP first.
    pub(crate) fn contests(&self) -> Vec<(Fabric, Way)> {
        let ours = self.fabric.iter().filter(|fabric| **fabric != Fabric::Tcp);
        let ours = ours.flat_map(|fabric| self.way.iter().map(|way| (*fabric, *way)));
        [(Fabric::Tcp, Way::Stream)].into_iter().chain(ours).collect()
    }

    /// Returns the command line of the server that a process alone starts.
    pub(crate) fn for_server(&self, name: &str) -> Vec<String> {
        let list = |words: Vec<String>| words.join(",");
        let fabrics = list(self.fabric.iter().map(Fabric::to_string).collect());
        let ways = list(self.way.iter().map(Way::to_string).collect());
        let bytes = list(self.bytes.iter().map(usize::to_string).collect());
        vec![
            "service".into(),
            format!("--fabric={fabrics}"),
            format!("--way={ways}"),
            format!("--bytes={bytes}"),
            format!("--concurrency={}", self.concurrency),
            format!("--rounds={}", self.rounds),
            format!("--milliseconds={}", self.milliseconds),
            format!("--name={name}"),
            "--rank=1".into(),
            "--peers=-".into(),
        ]
    }
}
