//! The files of a run's trace, and their folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::services::{Hosts, Spans};
use midplane_simhw::time::Instant;
use midplane_simhw::topology::Topology;
use midplane_simhw::trace::{Record, Recorder};

use super::{Report, SimError};

/// The environment variable that names a folder for traces of all runs.
const VARIABLE: &str = "MIDPLANE_TRACE";

/// The time before a failure at which its trace begins.
const LAST: Duration = Duration::from_secs(10);

/// The path of a trace, and when it begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The path of the files, without their extensions.
    pub(super) path: PathBuf,
    pub(super) from: Duration,
}

impl Plan {
    /// Returns the plan of a whole run's trace, if one is requested.
    pub(super) fn of_run(seed: u64, folder: Option<&Path>) -> Option<Self> {
        let asked = std::env::var_os(VARIABLE).map(PathBuf::from);
        let folder = asked.as_deref().or(folder)?;
        Some(Self { path: path(folder, seed), from: Duration::ZERO })
    }

    /// Returns the plan of a trace of the end of a run that fails at `fails`.
    pub(super) fn of_failure(seed: u64, fails: Duration) -> Self {
        let folder = std::env::temp_dir().join("midplane-sim");
        Self { path: path(&folder, seed), from: fails.saturating_sub(LAST) }
    }
}

/// Returns the path of the trace of this thread's test and seed.
fn path(folder: &Path, seed: u64) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("sim").replace("::", ".");
    folder.join(format!("{test}-{seed}"))
}

/// A trace that is being written.
pub(super) struct Trace {
    path: PathBuf,
    recorder: Recorder,
    spans: Spans,
}

impl Trace {
    /// Creates the files, and their folder.
    pub(super) fn create(plan: &Plan, topology: &Topology) -> Result<Self, SimError> {
        let [pcapng, perfetto] = files(&plan.path);
        let folder = plan.path.parent().unwrap_or_else(|| Path::new("."));
        let recorder = std::fs::create_dir_all(folder)
            .and_then(|()| Recorder::create(Some(&pcapng), Some(&perfetto), topology))
            .map_err(|error| {
                SimError::SetUp(format!("no trace can be written in {}: {error}", folder.display()))
            })?;
        Ok(Self { path: plan.path.clone(), spans: Spans::new(recorder.clone()), recorder })
    }

    /// Returns the observer of the network's records. A frame that its host's NIC drops is recorded as dropped.
    pub(super) fn observer(&self, hosts: Arc<Hosts>) -> impl FnMut(&Record<'_>) + Send + use<> {
        let recorder = self.recorder.clone();
        // The last drop before the trace is of no frame in it.
        let _ = hosts.take_drop();
        move |record| {
            if let Record::Delivered { at, frame, .. } = *record
                && let Some(cause) = hosts.take_drop()
            {
                return recorder.record(&Record::Dropped { at, cause, link: None, frame });
            }
            recorder.record(record);
        }
    }

    /// Records the spans and events of this thread's code until the guard is dropped.
    pub(super) fn enter(&self) -> tracing::subscriber::DefaultGuard {
        tracing::subscriber::set_default(self.spans.clone())
    }

    /// Completes the files, and returns their path without extensions.
    pub(super) fn finish(self, now: Instant) -> Result<PathBuf, SimError> {
        self.spans.end(now);
        match self.recorder.finish() {
            Ok(()) => Ok(self.path),
            Err(error) => {
                let path = self.path.display();
                Err(SimError::SetUp(format!("the trace {path} is incomplete: {error}")))
            }
        }
    }
}

/// Returns the paths of a trace's files: one for Wireshark, one for Perfetto.
pub(super) fn files(path: &Path) -> [PathBuf; 2] {
    [".pcapng", ".perfetto-trace"].map(|extension| {
        let mut name = path.as_os_str().to_owned();
        name.push(extension);
        name.into()
    })
}

impl SimError {
    /// Runs the failed simulation once more with a trace, and returns the failure with it: later runs may have
    /// overwritten an earlier trace. If the failure does not repeat, returns it unchanged.
    pub(super) fn traced(
        self,
        seed: u64,
        again: impl FnOnce(Plan) -> Result<Report, Self>,
    ) -> Self {
        let fails = match &self {
            Self::Host { time, .. } => *time,
            Self::Time { limit, .. } => *limit,
            _ => return self,
        };
        match again(Plan::of_failure(seed, fails)) {
            Err(error @ (Self::Host { .. } | Self::Time { .. })) => error,
            _ => self,
        }
    }
}
