//! Whole clusters in virtual time under faults: daemons crash and return, connections break or go silent, ranks and
//! front ends vanish, steps hang. Nothing is left running, nothing is lost, no job is stuck.

mod cluster;
mod network;
mod node;
mod scenario;

use scenario::run;

/// Seeds that failed once, or that are cheap to keep.
#[test]
fn clusters_survive_their_faults_at_the_pinned_seeds() {
    for seed in 0..400 {
        let _ = run(seed);
    }
}

/// When a job of other hosts was abandoned, a host forgot to stop the jobs that were to be stopped with it.
#[test]
fn a_job_that_is_abandoned_elsewhere_leaves_others_to_be_stopped() {
    let _ = run(5039);
}

/// The number of seeds is `GANG_SEEDS`, from `GANG_SEED` on.
#[test]
#[ignore = "many seeds; a few seconds for ten thousand"]
fn clusters_survive_their_faults() {
    let number = |name, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (number("GANG_SEED", 0_u64), number("GANG_SEEDS", 10_000_u64));
    let mut totals = scenario::Report::default();
    for seed in first..first + count {
        totals.add(&run(seed));
    }
    println!("{count} seeds from {first}: {totals:?}");
}
