//! Disk to network to disk: a file sent whole, in 64 KiB fragments, in every power of two, and by plan, in paired
//! runs.
//!
//! Alone, it starts its receiver as a process on this host. With `--rank` and `--peers` sender and receiver run on
//! two hosts.

mod compare;
mod peer;

use crate::{claims, ranks, report};
use midplane_benches::transfer;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use report::{BAD_INPUT, FAILED, fail};
use transfer::Fault;
use transfer::pace::{Limit, Limits};

/// A volume of 3,000 operations and 125 MB a second, as the cheapest general volumes of clouds promise.
const DISK: Limit = Limit { op_us: 333.0, mbps: 1000.0 };

/// A gigabit link; a fragment costs a system call, an interrupt and a wake-up on each side.
const LINK: Limit = Limit { op_us: 100.0, mbps: 1000.0 };

/// Measure a file's transfer from disk to disk, in planned and other fragments
///
/// The path is first observed: messages in random fragments, timed in every stage, and whole messages. The plan
/// follows from that alone. Then the whole file, fixed sizes and the plan are timed in alternating rounds, and their
/// medians compared.
///
/// Disks and link have the rates of a small cloud machine, set by the options below; the planner does not know them.
/// With --unlimited they run at the machine's speed: from page cache to page cache.
#[derive(Clone, Debug, Parser)]
#[command(after_long_help = HELP)]
pub(crate) struct Arguments {
    /// Rank 0 sends, rank 1 receives
    #[command(flatten)]
    ranks: ranks::Ranks,
    /// Rounds of paired runs
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Stop measuring after so many seconds, even if rounds are left
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Make every message durable before it counts as arrived
    #[arg(long)]
    sync: bool,
    /// Rate of a disk in 10^6 bit/s; 0: unlimited
    #[arg(long, value_name = "MBPS", default_value_t = DISK.mbps, value_parser = rate)]
    disk_mbps: f64,
    /// Microseconds of a disk operation
    #[arg(long, value_name = "US", default_value_t = DISK.op_us, value_parser = rate)]
    disk_us: f64,
    /// Rate of the link in 10^6 bit/s; 0: unlimited
    #[arg(long, value_name = "MBPS", default_value_t = LINK.mbps, value_parser = rate)]
    link_mbps: f64,
    /// Microseconds of a fragment on the link
    #[arg(long, value_name = "US", default_value_t = LINK.op_us, value_parser = rate)]
    link_us: f64,
    /// No rates: as fast as the machine's page cache and sockets
    #[arg(long, conflicts_with_all = ["disk_mbps", "disk_us", "link_mbps", "link_us"])]
    unlimited: bool,
    /// Directory of the two temporary files
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
    /// Draw the measured and the predicted Gantt chart of a planned 1 MiB message; a trace for Perfetto if the name
    /// ends in .json
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Run as the receiver of the process that started this one
    #[arg(long, hide = true)]
    child: bool,
}

impl Arguments {
    /// Returns the rates of this process's stages.
    fn limits(&self) -> Limits {
        let limit = |op_us, mbps| {
            if self.unlimited { Limit { op_us: 0.0, mbps: 0.0 } } else { Limit { op_us, mbps } }
        };
        Limits {
            disk: limit(self.disk_us, self.disk_mbps),
            link: limit(self.link_us, self.link_mbps),
        }
    }
}

/// Parses a rate or a cost: 0 to a million.
fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1e6).contains(&value) { Ok(value) } else { Err("must be from 0 to 1000000".into()) }
}

const HELP: &str = "Two hosts: put their host:port into a file, one a line, then run
  host A: lab transfer --rank 0 --peers FILE
  host B: lab transfer --rank 1 --peers FILE
Each host's command line sets the rates of its own disk; the sender's sets those of the link.

Columns: the plan's fragments and family; its median time, the time it predicted, and the error of that; the median
times of the whole file, of 64 KiB fragments, and of the fastest fixed size; the plan's time over the latter's.

Exit code: 0 the plan was faster than the whole file, its mean prediction error was below 5.9 %, and it took at most 2 %
longer than the fastest fixed size; also 0 with fewer than 3 rounds or without optimization, which are not judged;
1 one of these failed, or the peer was lost; 2 bad input; 3 one failed, and the machine was too busy to judge it.";

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    // One thread per process: on two processors the two processes are the parallel stages, and no stage waits for
    // another thread to wake.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(problem) => {
            return fail(&format!("starting a runtime: {problem}"), FAILED);
        }
    };
    let watch = claims::Watch::start();
    let outcome = peer::run(&runtime, &arguments);
    // A blocked read from a lost peer must not keep the process alive.
    runtime.shutdown_background();
    match outcome {
        Ok(Some(verdict)) => claims::exit(&[verdict], &watch),
        Ok(None) => ExitCode::SUCCESS,
        Err(Fault::Input(problem)) => fail(&problem, BAD_INPUT),
        Err(Fault::Lost(problem)) => fail(&problem, FAILED),
    }
}
