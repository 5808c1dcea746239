//! The paper's numbers, and ours on its machine, for `lab figures`.

use midplane::gang::daemon::Mode;
use midplane::gang::scheduler::Phases;
use midplane_benches::anchors::measure::{self, Anchor};
use midplane_benches::anchors::pm::{self, mpi};
use midplane_nas::Class;

use super::slowdown::{self, Case, Run};
use crate::nas_rank::Name;
use crate::report::progress;

/// Measures Tables 2 and 3.
pub(crate) fn tables() -> Vec<Anchor> {
    [measure::score_d(), mpi::table_2(), pm::table_3()].concat()
}

/// Runs the jobs of Figures 5 and 6, with the paper's four barriers: by kernel, ranks and slice.
pub(crate) fn figures() -> Vec<Run> {
    let (class, mode, phases, seed) = (Class::S, Mode::Copy, Phases::Four, 1);
    let mut cases = Vec::new();
    for kernel in [Name::Ep, Name::Ft, Name::Cg] {
        for ranks in [8, 16, 32] {
            cases.extend([50.0, 100.0, 200.0].map(|slice_ms| Case {
                kernel,
                class,
                ranks,
                slice_ms,
                mode,
                phases,
                seed,
            }));
        }
    }
    let bar = progress(cases.len(), slowdown::PROGRESS);
    cases.iter().map(|case| slowdown::measure(1, case)).inspect(|_| bar.inc(1)).collect()
}
