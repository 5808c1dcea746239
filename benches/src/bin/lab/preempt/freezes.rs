//! The time of freezing real processes of this host.

use std::process::ExitCode;

use midplane::gang::scheduler_core::{Phases, PreemptWhenAlone};
use serde::Serialize;

use crate::daemons::stage::{Daemons, Stage};
use crate::fleet::Failure;
use crate::report::{self, quantile};

const PROCESSES: u16 = 64;
/// Seconds that each process computes or waits.
const SECONDS: &str = "4";

#[derive(Serialize)]
struct Frozen {
    processes: u16,
    /// True if the processes are blocked, false if they compute.
    blocked: bool,
    freezes: usize,
    median_us: f64,
    p99_us: f64,
}

#[derive(Serialize)]
struct Document {
    freezes: Vec<Frozen>,
}

/// Freezes processes repeatedly, without a network.
fn freeze(blocked: bool) -> Result<Frozen, String> {
    let stage = Stage::start(Daemons {
        hosts: 1,
        slots: PROCESSES,
        slice_ms: 10.0,
        phases: Phases::Four,
        preempt_when_alone: PreemptWhenAlone::Always,
        fabric: "none",
        mode: "resident",
    })?;
    let how = if blocked { "blocked" } else { "spinning" };
    stage.run(PROCESSES, &["--be-idle", how, SECONDS])?;
    let all: Vec<f64> = stage.slices()?.iter().map(|slice| slice.freeze_us).collect();
    Ok(Frozen {
        processes: PROCESSES,
        blocked,
        freezes: all.len(),
        median_us: quantile(all.clone(), 0.5),
        p99_us: quantile(all, 0.99),
    })
}

pub(crate) fn run(json: bool) -> Result<ExitCode, Failure> {
    let document = Document { freezes: vec![freeze(true)?, freeze(false)?] };
    Ok(report::conclude(json, &document, true))
}
