//! The paper's numbers, and ours on its machine, for `lab figures`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use midplane::gang::scheduler::Phases;
use midplane_benches::anchors::measure::{self, Anchor};
use midplane_benches::anchors::pm::{self, mpi};
use midplane_nas::Class;

use super::arguments::Mode;
use super::slowdown::{self, Case, Run};
use crate::nas_rank::Name;
use crate::report::progress;

/// Measures Tables 2 and 3.
pub(crate) fn tables() -> Vec<Anchor> {
    [measure::score_d(), mpi::table_2(), pm::table_3()].concat()
}

/// Processors of Figures 5 and 6.
pub(crate) const RANKS: [u16; 4] = [8, 16, 32, 64];
/// Slices of Figure 6, in milliseconds.
const SLICES_MS: [f64; 3] = [50.0, 100.0, 200.0];

/// The seed of the jobs.
pub(crate) const SEED: u64 = 1;

/// Runs the jobs of Figures 5 and 6, class A, with the paper's four barriers: by kernel, ranks and slice.
pub(crate) fn figures() -> Vec<Run> {
    let (mode, phases, slice_ms) = (Mode::Copy, Phases::Four, 100.0);
    let mut cases = Vec::new();
    for kernel in [Name::Ep, Name::Ft, Name::Cg] {
        // The arithmetic of the other two would take minutes.
        let (class, computes) = (Class::A, kernel == Name::Cg);
        cases.extend(RANKS.map(|ranks| Case {
            kernel,
            class,
            ranks,
            slice_ms,
            mode,
            phases,
            seed: SEED,
            computes,
        }));
    }
    let bar = progress(cases.len(), slowdown::PROGRESS);
    let of_slices = |case: &Case| {
        let alone = slowdown::run_alone(case);
        let runs =
            SLICES_MS.map(|slice_ms| slowdown::measure(1, &Case { slice_ms, ..*case }, &alone));
        bar.inc(1);
        runs
    };
    on_all_processors(&cases, of_slices).concat()
}

/// Applies `work` to each item, on as many threads as there are processors; returns the results in the items' order.
fn on_all_processors<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some((at, item)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, item))
        } {
            let result = work(item);
            results.lock().expect("no thread panics with it locked").push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let mut results = results.into_inner().expect("no thread panics with it locked");
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
