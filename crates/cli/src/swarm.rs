//! `midplane swarm`: runs random simulated clusters with random faults, and checks their invariants.
//!
//! ```text
//! midplane swarm --seeds 1000
//! ```
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
mod watch;

use midplane_kit::report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use clap::Args;

use report::{BAD_INPUT, DID_NOT_HOLD, fail};
use run::Outcome;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  # A thousand seeds, from 0
  midplane swarm --seeds 1000

  # One of them again, with files for Wireshark and Perfetto
  midplane swarm --seed 17 --pcapng 17.pcapng --perfetto 17.perfetto-trace

  # The number of seeds that find each of the planted bugs; needs a build with the feature planted
  cargo run --release -p midplane-cli --features planted -- swarm --plant all --seeds 1000

Exit code: 0 all seeds passed; 1 a seed failed, or a planted bug was not found; 2 bad input.";

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

    /// First seed
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    from: u64,

    /// Run this seed alone
    #[arg(long, conflicts_with_all = ["seeds", "from"], value_name = "SEED")]
    seed: Option<u64>,

    /// End after this many seconds, even if seeds are left
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,

    /// Plant a bug by name, or "all" in turn: needs a build with the feature planted
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,

    /// Write the frames of --seed for Wireshark
    #[arg(long, requires = "seed", value_name = "FILE")]
    pcapng: Option<PathBuf>,

    /// Write the engines, links and queues of --seed for Perfetto
    #[arg(long, requires = "seed", value_name = "FILE")]
    perfetto: Option<PathBuf>,

    /// Print the cluster, load and faults of --seed, and run nothing
    #[arg(long, requires = "seed")]
    describe: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    // Extensions panic on purpose here: the hook prints nothing. Other panics are reported with their seeds.
    std::panic::set_hook(Box::new(|_| {}));
    if let (Some(seed), true) = (arguments.seed, arguments.describe) {
        report::say(&format!("{:#?}\n", plan::Plan::new(seed)));
        return ExitCode::SUCCESS;
    }
    match &arguments.plant {
        #[cfg(feature = "planted")]
        Some(name) => match planted::chosen(name) {
            Ok(bugs) => planted::table(&arguments, &bugs),
            Err(what) => fail(&what, BAD_INPUT),
        },
        #[cfg(not(feature = "planted"))]
        Some(_) => fail(NO_BUGS, BAD_INPUT),
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

/// Runs all seeds on all processors; with `until_first`, stops at the first failure.
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
