//! Shares of processor time with early wake-ups: those without wake-ups, to within one slice.

use super::settle;
use crate::names::JobId;
use crate::schedule::{Policy, QueueTree, Request, RoundRobin};
use crate::scheduler_core::tests::two_phases;
use crate::scheduler_core::{SchedulerConfig, SchedulerCore};
use midplane_simhw::time::Instant;
use proptest::prelude::*;
use std::time::Duration;

const NODES: u16 = 8;
/// Length of a slice, in milliseconds, like all times here.
const SLICE: usize = 20;
const WINDOW: usize = 16 * SLICE;
const LENGTH: usize = 100 * SLICE;

/// For each job, the time for which it has run, after each millisecond.
type Runs = Vec<Vec<usize>>;

/// Runs jobs of these sizes and weights, with switches that take no time. `wakes` has the times and jobs of wake-ups.
fn run(
    policy: Box<dyn Policy>,
    jobs: &[(u16, u8)],
    wakes: &[(usize, usize)],
    early: usize,
) -> Runs {
    let early_wakeup = Duration::from_millis(early as u64);
    let slice = Duration::from_millis(SLICE as u64);
    let config = SchedulerConfig { early_wakeup, ..two_phases(slice) };
    let mut core = SchedulerCore::new(policy, config);
    let submit = |(nodes, weight): &(u16, u8)| {
        let request = Request { nodes: *nodes, weight: *weight };
        core.submit(request, *nodes, Default::default()).unwrap().job
    };
    let jobs: Vec<JobId> = jobs.iter().map(submit).collect();
    let mut runs = vec![vec![0]; jobs.len()];
    for time in 0..LENGTH {
        let now = Instant::from_nanos(1) + Duration::from_millis(time as u64);
        for (_, job) in wakes.iter().filter(|(at, _)| *at == time) {
            core.wake(jobs[job % jobs.len()]);
        }
        settle(&mut core, now);
        for (job, runs) in jobs.iter().zip(&mut runs) {
            let ran = runs[time] + usize::from(core.running().contains(job));
            runs.push(ran);
        }
    }
    runs
}

/// Returns the time for which a job runs in each window of this length.
fn windows(runs: &[usize], length: usize) -> impl Iterator<Item = usize> {
    runs.iter().zip(&runs[length..]).map(|(before, after)| after - before)
}

/// Returns the least and the most time for which a job runs in windows of this length.
fn range(runs: &[usize], length: usize) -> (usize, usize) {
    (windows(runs, length).min().unwrap(), windows(runs, length).max().unwrap())
}

fn wakes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let scattered = proptest::collection::vec((0..LENGTH, 0_usize..4), 0..200);
    let steady = (1_usize..12, 0_usize..4, 1_usize..4).prop_map(|(every, first, jobs)| {
        (0..LENGTH).step_by(every).map(|at| (at, first + at / every % jobs)).collect()
    });
    prop_oneof![scattered, steady]
}

proptest! {
    /// In every window, each job gets at least its time without wake-ups in a window one slice shorter. A job that
    /// runs early gets less by the time that it has run ahead, at most one slice.
    #[test]
    fn no_job_loses_more_than_a_slice_to_jobs_that_are_woken(
        jobs in proptest::collection::vec(1_u8..5, 2..6), wakes in wakes(), early in 1..SLICE + 1,
    ) {
        let jobs: Vec<(u16, u8)> = jobs.into_iter().map(|weight| (NODES, weight)).collect();
        let policy = || Box::new(RoundRobin::new(NODES));
        let fixed = run(policy(), &jobs, &[], early);
        let woken = run(policy(), &jobs, &wakes, early);
        for (job, (fixed, runs)) in fixed.iter().zip(&woken).enumerate() {
            let is_woken = wakes.iter().any(|(_, of)| of % jobs.len() == job);
            let own = if is_woken { SLICE } else { 0 };
            let (least, _) = range(fixed, WINDOW - SLICE);
            let (_, most) = range(fixed, WINDOW + SLICE);
            let (fewest, greatest) = range(runs, WINDOW);
            prop_assert!(fewest + own >= least, "job {}: {} of at least {}", job, fewest, least);
            prop_assert!(greatest <= most + own, "job {}: {} of at most {}", job, greatest, most);
        }
    }

    #[test]
    fn jobs_side_by_side_lose_no_more_than_a_slice_either(
        jobs in proptest::collection::vec((1..NODES + 1, 1_u8..3), 2..7), wakes in wakes(), early in 1..SLICE + 1,
    ) {
        let policy = || Box::new(QueueTree::new(NODES));
        let fixed = run(policy(), &jobs, &[], early);
        let woken = run(policy(), &jobs, &wakes, early);
        for (job, (fixed, runs)) in fixed.iter().zip(&woken).enumerate() {
            let (least, _) = range(fixed, WINDOW - SLICE);
            let (fewest, _) = range(runs, WINDOW);
            prop_assert!(fewest + SLICE >= least, "job {}: {} of at least {}", job, fewest, least);
        }
    }
}

/// A job that is woken all the time gets its share and no more, because its own slices get shorter.
#[test]
fn a_job_woken_again_and_again_takes_its_share() {
    let always: Vec<(usize, usize)> = (0..LENGTH).map(|at| (at, 2)).collect();
    let policy = Box::new(RoundRobin::new(NODES));
    let runs = run(policy, &[(NODES, 1); 3], &always, SLICE / 10);
    let ran: Vec<usize> = runs.iter().map(|runs| runs[LENGTH]).collect();
    assert!(ran.iter().all(|ran| ran.abs_diff(LENGTH / 3) <= SLICE), "{ran:?}");
    // The job never waits long for a slice, because it also runs within the slices of other jobs.
    let longest = windows(&runs[2], SLICE).filter(|ran| *ran == 0).count();
    assert!(longest < LENGTH / 4, "{longest}");
}

/// Jobs that share their slices run early together. Otherwise their slice could not be shortened, and a woken job
/// could use up its advance only once.
#[test]
fn a_job_that_shares_its_slices_is_woken_again_after_it_has_paid() {
    let jobs = [(NODES, 1), (NODES / 2, 1), (NODES / 2, 1)];
    let always: Vec<(usize, usize)> = (0..LENGTH).map(|at| (at, 1)).collect();
    let policy = Box::new(QueueTree::new(NODES));
    let runs = run(policy, &jobs, &always, SLICE / 10);
    // In the last quarter, the job still runs for a part of each of the other job's slices.
    let end = &runs[1][3 * LENGTH / 4..];
    let (fewest, _) = range(end, SLICE);
    assert!(fewest > 0, "it waits for its turn: {:?}", end.last());
    let ran: Vec<usize> = runs.iter().map(|runs| runs[LENGTH]).collect();
    assert!(ran.iter().all(|ran| ran.abs_diff(LENGTH / 2) <= SLICE), "{ran:?}");
}
