//! Whole clusters in virtual time under faults: daemons crash and return, connections break or go silent, ranks and
//! clients disappear, steps hang. At the end, no process remains, no job is lost, and none is stuck.

mod bounds;
mod cluster;
mod network;
mod node;
mod restores;
mod scenario;
mod takeover;

use std::time::Duration;

use scenario::run;

use crate::node_core::RootConfig;
use crate::schedule::RoundRobin;
use crate::scheduler_core::tests::two_phases;

/// Returns the configuration of a root that places jobs on so many nodes in turn, and holds no checkpoint.
pub(crate) fn root_config(nodes: u16) -> RootConfig {
    RootConfig {
        policy: Box::new(RoundRobin::new(nodes)),
        scheduler: two_phases(Duration::from_millis(10)),
        geometry: None,
        most_saved: 0,
        check_every: Duration::from_secs(5),
        names: Vec::new(),
        has_streams: false,
    }
}

/// Returns the first seed and the number of seeds.
fn seeds() -> (u64, u64) {
    let number = |name, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    (number("GANG_SEED", 0), number("GANG_SEEDS", 10_000))
}

/// Seeds that once failed, and others that run fast.
#[test]
fn clusters_survive_their_faults_at_the_pinned_seeds() {
    for seed in 0..400 {
        let _ = run(seed);
    }
}

/// Regression: when a job of other hosts was abandoned, a host forgot to suspend the jobs of the same order.
#[test]
fn a_job_that_is_abandoned_elsewhere_leaves_others_to_be_stopped() {
    let _ = run(5039);
}

/// Regression: a rank that saved of its own accord let ranks continue whose states were in a checkpoint.
#[test]
fn a_checkpoint_survives_ranks_that_save_of_their_own_accord() {
    let _ = run(7522);
}

#[test]
fn jobs_survive_their_root_at_the_pinned_seeds() {
    for seed in 0..400 {
        let _ = takeover::run_with_one_death(seed);
    }
}

/// Regression: a host whose report was longer than a message could not join the next root, and its jobs ended.
#[test]
fn twelve_mebibytes_of_pmi_values_on_a_host_survive_its_root() {
    let longest = (0..3).map(takeover::run_with_long_reports).min();
    assert!(longest.is_some_and(|bytes| bytes > 12 << 20), "{longest:?}");
}

#[test]
fn roots_that_die_return_and_are_cut_off_lose_no_job_at_the_pinned_seeds() {
    for seed in 0..400 {
        let _ = takeover::run(seed);
    }
}

/// Runs `GANG_SEEDS` seeds, beginning with `GANG_SEED`.
#[test]
#[ignore = "many seeds; a few seconds for ten thousand"]
fn clusters_survive_their_faults() {
    let (first, count) = seeds();
    let mut totals = scenario::Report::default();
    for seed in first..first + count {
        totals.add(&run(seed));
    }
    println!("{count} seeds from {first}: {totals:?}");
}

/// Runs as many seeds as [`clusters_survive_their_faults`].
#[test]
#[ignore = "many seeds; six minutes for ten thousand without optimisation"]
fn roots_that_die_return_and_are_cut_off_lose_no_job() {
    let (first, count) = seeds();
    let mut totals = takeover::Report::default();
    for seed in first..first + count {
        totals.add(&takeover::run(seed));
        totals.add(&takeover::run_with_one_death(seed));
    }
    println!("{count} seeds from {first}: {totals:?}");
}
