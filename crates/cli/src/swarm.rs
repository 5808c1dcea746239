//! `midplane swarm`: runs random simulated clusters with random faults, and checks their invariants.
//!
//! A seed decides a topology, NICs, settings of the firmware, a load, and faults. Safety is checked during the faults: no
//! promised message is lost, and none is doubled, mixed up or early. Then all faults end, and liveness is checked: all
//! commands complete within bounded virtual time, and new messages arrive. At the end nothing may leak. A seed that fails
//! prints the command that runs it again.

mod firmware;
mod load;
mod oracle;
mod plan;
#[cfg(feature = "planted")]
mod planted;
mod run;
mod summary;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::Args;
use midplane::simhw::trace::Recorder;
use midplane_kit::processes::{self, until_asked};
use midplane_kit::report::{self, FAILED, Failure};

use run::Outcome;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  # A thousand seeds, from 0
  midplane swarm --seeds 1000

  # Other seeds, for ten minutes
  midplane swarm --first 1000 --seeds 100000000 --seconds 600

  # One of them again, with files for Wireshark and Perfetto
  midplane swarm --seed 17 --pcapng 17.pcapng --perfetto 17.perfetto-trace

  # The number of seeds that find each of the planted bugs; needs a build with
  # the feature planted
  cargo run --release -p midplane-cli --features planted -- \\
    swarm --plant all --seeds 1000

Ctrl-C and SIGTERM begin no more seeds, and print the results so far. A second one ends the command at once.

Exit code: 0 all seeds passed; 1 a seed failed, a planted bug was not found, a file could not be written, or the command
was stopped; 2 bad input.";

#[cfg(not(feature = "planted"))]
const NO_BUGS: &str = "--plant needs a build with bugs: cargo run --release -p midplane-cli --features planted -- \
                       swarm --plant all";

/// Run random simulated clusters with random faults against their invariants.
///
/// Checks safety during the faults, liveness after they have ended, and leaks at the end. A seed that fails prints the
/// command that runs it again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    seeds: u64,

    /// The first of the seeds
    #[arg(long, default_value_t = 0, value_name = "SEED", value_parser = clap::value_parser!(u64).range(..=1 << 62))]
    first: u64,

    /// Begin no more seeds after this time, however many --seeds there are
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,

    /// Run this seed alone
    #[arg(long, conflicts_with_all = ["seeds", "first", "seconds"], value_name = "SEED")]
    seed: Option<u64>,

    /// Plant a bug by name, or "all" in turn: needs a build with the feature planted
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,

    /// Write the frames of --seed for Wireshark
    #[arg(long, requires = "seed", value_name = "FILE")]
    pcapng: Option<PathBuf>,

    /// Write the engines, links and queues of --seed for Perfetto
    #[arg(long, requires = "seed", value_name = "FILE")]
    perfetto: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    // Extensions panic on purpose here: the hook prints nothing. Other panics are reported with their seeds.
    std::panic::set_hook(Box::new(|_| {}));
    #[cfg(feature = "planted")]
    if let Some(name) = &arguments.plant {
        return planted::table(arguments, &planted::chosen(name)?);
    }
    #[cfg(not(feature = "planted"))]
    if arguments.plant.is_some() {
        return Err(NO_BUGS.to_owned().into());
    }
    let summary = match arguments.seed {
        Some(seed) => one(arguments, seed)?,
        None => all(arguments, false, &at_signal()),
    };
    summary.print(arguments.json);
    Ok(if summary.failed() || summary.is_stopped { FAILED } else { 0 })
}

/// Runs one seed, and records it in the files of `--pcapng` and `--perfetto`.
fn one(arguments: &Arguments, seed: u64) -> Result<Summary, Failure> {
    let (pcapng, perfetto) = (arguments.pcapng.as_deref(), arguments.perfetto.as_deref());
    let mut summary = Summary::begin(1, None);
    if pcapng.is_none() && perfetto.is_none() {
        summary.add(run::run(seed, None));
        return Ok(summary);
    }
    let topology = &plan::Plan::new(seed).topology;
    let recorder = Recorder::create(pcapng, perfetto, topology)
        .map_err(|error| Failure::of_write(error.kind(), error))?;
    let sink = recorder.clone();
    summary.add(run::run(seed, Some(Box::new(move |record| sink.record(record)))));
    recorder.finish().map_err(|error| Failure::of_run(format!("the files of {seed}: {error}")))?;
    Ok(summary)
}

/// Returns a flag that the first Ctrl-C or SIGTERM sets. The second one ends this process.
fn at_signal() -> Arc<AtomicBool> {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    std::thread::spawn(move || {
        let signals = processes::run(async {
            until_asked(None).await;
            flag.store(true, Ordering::Relaxed);
            report::note("waits for the seeds that run; Ctrl-C again loses the results");
            // `timeout` sends its signal twice.
            tokio::time::sleep(Duration::from_secs(1)).await;
            until_asked(None).await;
            Ok(())
        });
        if signals.is_ok() {
            std::process::exit(FAILED.into());
        }
    });
    stopped
}

/// Runs all seeds on all processors, or those that the time and `stopped` allow; with `until_first`, stops at the first
/// failure.
#[expect(clippy::disallowed_methods, reason = "its own time is limited")]
fn all(arguments: &Arguments, until_first: bool, stopped: &AtomicBool) -> Summary {
    let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (next, has_found) = (AtomicU64::new(0), AtomicBool::new(false));
    let is_over = || {
        let is_late = end.is_some_and(|end| Instant::now() >= end);
        is_late || [&has_found, stopped].iter().any(|flag| flag.load(Ordering::Relaxed))
    };
    let (sender, outcomes) = mpsc::channel::<Outcome>();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, is_over) = (sender.clone(), &next, &is_over);
            scope.spawn(move || {
                loop {
                    if is_over() {
                        return;
                    }
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.seeds {
                        return;
                    }
                    let outcome = run::run(arguments.first + number, None);
                    if sender.send(outcome).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut summary = Summary::begin(arguments.seeds, arguments.seconds);
        for outcome in outcomes {
            summary.add(outcome);
            if until_first && summary.failed() {
                has_found.store(true, Ordering::Relaxed);
            }
        }
        summary.is_stopped = stopped.load(Ordering::Relaxed);
        summary
    })
}
