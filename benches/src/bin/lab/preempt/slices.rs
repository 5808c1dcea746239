//! The slices of two jobs that share a cluster, as a Gantt chart.

use std::path::Path;
use std::time::Duration;

use midplane::gang::names::JobId;
use midplane::gang::tree::DEFAULT_ARITY;
use midplane::pipeline::timing::Row;
use midplane::simhw::time::Instant;

use super::arguments::Arguments;
use super::cluster::{self, Program, Setting};
use midplane_kit::gantt;

/// Number of drawn slices.
const SHOWN: usize = 24;

pub(crate) fn draw(file: &Path, arguments: &Arguments) -> std::io::Result<()> {
    let (ranks, class) = (arguments.ranks[0], arguments.class[0]);
    let setting = Setting {
        machine: arguments.machine,
        nodes: ranks,
        arity: DEFAULT_ARITY,
        mode: arguments.mode[0].mode(),
        phases: arguments.phases(),
        slice: Duration::from_secs_f64(arguments.slice_ms[0] / 1e3),
        seed: arguments.seed,
    };
    let first = arguments.kernel[0];
    let second = arguments.kernel.get(1).copied().unwrap_or(first);
    let programs = [first, second].map(|kernel| (Program::Kernel(kernel, class), ranks, ranks));
    let outcome = cluster::run(setting, &programs);
    let switches = &outcome.switches[..outcome.switches.len().min(SHOWN)];
    let origin = switches.first().map_or(Instant::ZERO, |switch| switch.at);
    let micros = |at: Instant| at.nanos_since(origin) as f64 / 1e3;
    let mut rows = Vec::new();
    for (number, pair) in switches.windows(2).enumerate() {
        let (from, to) = (pair[0].end(), pair[1].at);
        for job in &pair[0].started {
            rows.extend(Row::new(stage(*job), number, 0.0, micros(from)..micros(to)));
        }
        rows.extend(Row::new(2, number, 0.0, micros(pair[1].at)..micros(pair[1].end())));
    }
    let names = [first.name(), second.name(), "switch"];
    gantt::write(file, &[("slices of two jobs", &rows)], &names)
}

const fn stage(job: JobId) -> usize {
    job.0 as usize - 1
}
