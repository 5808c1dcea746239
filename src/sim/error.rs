//! The reasons why a run has failed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::trace::files;

/// The reason why a run has failed. `Debug` shows the same text as `Display`, for tests that return the error.
#[derive(Error)]
#[non_exhaustive]
pub enum SimError {
    /// A host's code has returned an error, has panicked, or is not deterministic.
    #[error("{host} at {time:?}: {why}{}", traced(trace.as_deref()))]
    Host {
        /// The name of the host.
        host: String,
        /// The virtual time of the failure.
        time: Duration,
        /// The reason, with the place of a panic.
        why: String,
        /// The path of the run's trace, without extensions.
        trace: Option<PathBuf>,
    },
    /// Clients have not ended in time: they may wait for each other, or for lost data.
    #[error(
        "the time of {limit:?} is over, and {} still waits: look for a wait without a timeout, or raise `SimBuilder::limit`{}",
        waiting.join(", "),
        traced(trace.as_deref())
    )]
    Time {
        /// The limit of virtual time.
        limit: Duration,
        /// Clients whose code has not ended.
        waiting: Vec<String>,
        /// The path of the run's trace, without extensions.
        trace: Option<PathBuf>,
    },
    /// Two runs of one seed differ.
    #[error(
        "two runs of seed {seed} differ: the code depends on more than the seed, such as state outside `set_up`, a \
         `tokio::select!` without `biased;`, or, without the feature `deterministic`, the order of a `HashMap`, the wall clock, or \
         the system's random numbers"
    )]
    Nondeterministic {
        /// The seed of the run.
        seed: u64,
    },
    /// The simulation is not set up correctly.
    #[error("{0}")]
    SetUp(String),
    /// A seed of a swarm has failed.
    #[error("seed {seed} fails: {error}\n{}\nreplay it with MIDPLANE_SEED={seed}", needed(script))]
    Swarm {
        /// The seed of the run.
        seed: u64,
        /// The faults of the seed that the failure needs, one in each line.
        script: Vec<String>,
        /// The failure with these faults.
        error: Box<Self>,
    },
}

impl fmt::Debug for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Lists the faults that a failure needs.
fn needed(script: &[String]) -> String {
    match script {
        [] => "it needs no fault to fail".to_owned(),
        script => format!("it needs these faults to fail:\n    {}", script.join("\n    ")),
    }
}

/// Names the files of a trace.
fn traced(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| {
        let [pcapng, perfetto] = files(path);
        let (pcapng, perfetto) = (pcapng.display(), perfetto.display());
        format!("\ntrace: {perfetto} for ui.perfetto.dev, {pcapng} for Wireshark")
    })
}
