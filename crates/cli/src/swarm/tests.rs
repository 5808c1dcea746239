//! Tests that the first seeds and new ones pass, and that a seed always gives the same run.

use std::sync::atomic::AtomicBool;

use clap::Parser;
use proptest::prelude::*;

use super::{Arguments, all, run};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

#[test]
fn a_run_that_is_stopped_begins_no_seed_and_reports_it() {
    let line = Line::parse_from(["swarm"]);
    let summary = all(&line.arguments, false, &AtomicBool::new(true));
    assert!(summary.is_stopped && summary.seeds == 0);
}

fn check_passes(seed: u64) {
    let outcome = run::run(seed, None);
    assert_eq!(outcome.complaints, Vec::<String>::new(), "seed {seed}");
    assert!(outcome.messages > 0 && outcome.control_messages > 0, "seed {seed} sends nothing");
}

#[test]
fn the_first_seeds_pass() {
    (0..12).for_each(check_passes);
}

/// Runs seeds that once failed: a sender that others had declared dead long before; one whose answer to its witness was
/// lost; alarms on slow clocks; frames that are dropped after the faults have ended; a flood of control messages that
/// delays a holder beyond its lease.
#[test]
fn seeds_that_once_failed_pass() {
    [10_401, 20_181, 15_708, 15_729, 12_862, 28_982].into_iter().for_each(check_passes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn new_seeds_pass(seed: u64) {
        check_passes(seed);
    }
}

#[test]
fn an_observer_does_not_change_the_run_of_a_seed() {
    let digest = run::run(3, None).digest;
    assert_eq!(run::run(3, Some(Box::new(|_| {}))).digest, digest);
}
