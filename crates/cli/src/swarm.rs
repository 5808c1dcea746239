//! Random clusters in random trouble, against everything that must always hold.
//!
//! ```text
//! midplane swarm --seeds 1000
//! ```
//!
//! Each seed decides a topology, NICs, settings of the firmware, a load, and what goes wrong. While
//! things go wrong nothing may be lost that was promised, doubled, mixed up or early; then everything
//! heals, and all that was begun must come to an end in bounded virtual time, new messages arrive, and
//! nothing be left over. A seed that fails prints the one command that runs it again.

mod firmware;
mod load;
mod oracle;
mod plan;
mod planted;
mod run;
mod summary;
#[cfg(test)]
mod tests;
mod watch;

use midplane_kit::report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use clap::Parser;

use report::{BAD_INPUT, DID_NOT_HOLD, fail};
use run::Outcome;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  # A thousand seeds, from 0
  swarm --seeds 1000

  # One of them again, and what it looks like in Wireshark and in Perfetto
  swarm --seed 17 --pcapng 17.pcapng --perfetto 17.perfetto-trace

  # How many seeds it takes to find each bug that is planted on purpose
  cargo run --release -p midplane-cli --features planted -- swarm --plant all --seeds 1000";

/// Runs random clusters, faults and loads against all invariants: safety while things go wrong,
/// liveness once they have healed, and nothing left over at the end.
#[derive(Debug, Parser)]
#[command(name = "swarm", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// How many seeds
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    seeds: u64,

    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    from: u64,

    /// This one alone
    #[arg(long, conflicts_with_all = ["seeds", "from"], value_name = "SEED")]
    seed: Option<u64>,

    /// Ends after so many seconds, whatever is left
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,

    /// Plants a bug: its name, or "all" for each in turn (with the feature planted)
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,

    /// Writes the frames of the one seed for Wireshark
    #[arg(long, requires = "seed", value_name = "FILE")]
    pcapng: Option<PathBuf>,

    /// Writes the engines, links and queues of the one seed for Perfetto
    #[arg(long, requires = "seed", value_name = "FILE")]
    perfetto: Option<PathBuf>,

    /// Prints what the one seed means, and runs nothing
    #[arg(long, requires = "seed")]
    describe: bool,

    /// Prints one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    // Extensions fail on purpose here; whatever else panics is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if let (Some(seed), true) = (arguments.seed, arguments.describe) {
        report::say(&format!("{:#?}\n", plan::Plan::new(seed)));
        return ExitCode::SUCCESS;
    }
    match &arguments.plant {
        Some(name) => match planted::chosen(name) {
            Ok(bugs) => planted::table(&arguments, &bugs),
            Err(what) => fail(&what, BAD_INPUT),
        },
        None => swarm(&arguments),
    }
}

fn swarm(arguments: &Arguments) -> ExitCode {
    let summary = match arguments.seed {
        Some(seed) => match watch::observer(arguments, seed) {
            Ok(observer) => Summary::of(arguments, run::run(seed, observer)),
            Err(what) => return fail(&what, BAD_INPUT),
        },
        None => all(arguments, false),
    };
    summary.print(arguments.json);
    if summary.failed() { ExitCode::from(DID_NOT_HOLD) } else { ExitCode::SUCCESS }
}

/// Runs all seeds on all cores, or until the first fails.
fn all(arguments: &Arguments, until_first: bool) -> Summary {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sender, outcomes) = mpsc::channel::<Outcome>();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.seeds || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = run::run(arguments.from.wrapping_add(number), None);
                    if sender.send(outcome).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut summary = Summary::begin(arguments);
        for outcome in outcomes {
            summary.add(outcome);
            if until_first && summary.failed() || summary.is_late() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        summary
    })
}
