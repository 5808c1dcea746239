//! Random submissions, ends, cuts and early wake-ups, against nodes that check all orders.

mod shares;

use super::*;
use crate::schedule::QueueTree;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU32;

#[derive(Clone, Copy, Debug)]
enum Op {
    Submit(u16, u8),
    End(usize),
    Cut(usize),
    Wake(usize),
    /// Advances the time by milliseconds, and carries out orders.
    Pass(u64),
    /// Carries out the outstanding order, and reports that all ranks of a job have ended.
    Ended(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1_u16..9, 1_u8..3).prop_map(|(nodes, weight)| Op::Submit(nodes, weight)),
        1 => (0_usize..9).prop_map(Op::End),
        1 => (0_usize..9).prop_map(Op::Cut),
        2 => (0_usize..9).prop_map(Op::Wake),
        5 => (0_u64..30).prop_map(Op::Pass),
        1 => (0_usize..9).prop_map(Op::Ended),
    ]
}

/// Nodes that carry out orders, and panic at orders that are never valid.
#[derive(Default)]
struct Nodes {
    launched: BTreeMap<JobId, std::ops::Range<u16>>,
    running: BTreeSet<JobId>,
    epochs: BTreeMap<JobId, Epoch>,
}

impl Nodes {
    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Launch(launch) => {
                let nodes = launch.first..launch.first + launch.nodes;
                assert!(self.launched.insert(launch.job, nodes).is_none(), "launched twice");
            }
            Action::Freeze(jobs) | Action::Leave(jobs) => {
                self.running.retain(|job| !jobs.contains(job));
            }
            Action::Run { run, .. } => {
                run.iter().for_each(|(job, epoch)| self.start(*job, *epoch));
            }
            Action::Cut(job) => {
                assert!(self.launched.contains_key(job), "cut, but never launched");
                assert!(!self.running.contains(job), "cut while it runs");
            }
            Action::End(job) => {
                self.running.remove(job);
                assert!(self.launched.remove(job).is_some(), "ended, but never launched");
            }
            Action::Exchange { .. } | Action::Quit => {}
        }
    }

    fn start(&mut self, job: JobId, epoch: Epoch) {
        let nodes = &self.launched[&job];
        for other in &self.running {
            let theirs = &self.launched[other];
            let apart = nodes.end <= theirs.start || theirs.end <= nodes.start;
            assert!(apart, "{job} and {other} run on one node at once");
        }
        assert!(self.epochs.insert(job, epoch).is_none_or(|old| epoch.is_newer_than(old)));
        assert!(self.running.insert(job), "started while it runs");
    }
}

proptest! {
    #[test]
    fn no_node_runs_two_jobs_and_all_are_removed(
        four: bool, preempt_when_alone in 0_u32..4, early_wakeup in 0_u64..12, ops in proptest::collection::vec(any_op(), 1..80),
    ) {
        let phases = if four { Phases::Four } else { Phases::Two };
        let preempt_when_alone = match (preempt_when_alone, NonZeroU32::new(preempt_when_alone / 2)) {
            (0, _) => PreemptWhenAlone::Never,
            (_, None) => PreemptWhenAlone::Always,
            (_, Some(each)) => PreemptWhenAlone::Alternately(each),
        };
        let [slice, early_wakeup] = [10, early_wakeup].map(Duration::from_millis);
        let config = SchedulerConfig { slice, phases, preempt_when_alone, early_wakeup };
        let policy = Box::new(QueueTree::new(8));
        let (mut scheduler_core, mut nodes) = (SchedulerCore::new(policy, config), Nodes::default());
        let (mut now, mut taken, mut gone) = (Instant::ZERO, BTreeSet::new(), BTreeSet::new());
        let mut step = |scheduler_core: &mut SchedulerCore, now, ended: Option<JobId>| {
            while let Some(action) = scheduler_core.poll_order(now) {
                nodes.carry_out(&action);
                scheduler_core.handle_outcome(now);
                // The job's ranks have ended while the order was carried out.
                ended.into_iter().for_each(|job| scheduler_core.end(now, job));
            }
            while let Some(event) = scheduler_core.poll_event() {
                match event {
                    Event::Removed(job) => assert!(gone.insert(job), "gone twice"),
                    Event::Switched(_) | Event::Cut(..) => {}
                }
            }
            let due = scheduler_core.running().iter().copied().collect();
            assert_eq!(nodes.running, due, "the running jobs are not the slice's");
            gone.len()
        };
        for op in ops {
            let nth = |taken: &BTreeSet<JobId>, at| taken.iter().nth(at).copied();
            match op {
                Op::Submit(count, weight) => {
                    let request = Request { nodes: count, weight };
                    let launch = scheduler_core.submit(request, count, Default::default());
                    taken.extend(launch.map(|launch| launch.job));
                }
                Op::End(at) => {
                    if let Some(job) = nth(&taken, at) {
                        scheduler_core.end(now, job);
                    }
                }
                Op::Cut(at) => {
                    if let Some(job) = nth(&taken, at) {
                        scheduler_core.cut(job);
                    }
                }
                Op::Wake(at) => {
                    if let Some(job) = nth(&taken, at) {
                        scheduler_core.wake(job);
                    }
                }
                Op::Pass(time) => {
                    now += Duration::from_millis(time);
                    step(&mut scheduler_core, now, None);
                }
                Op::Ended(at) => {
                    step(&mut scheduler_core, now, nth(&taken, at));
                }
            }
        }
        for job in taken.clone() {
            scheduler_core.end(now, job);
        }
        prop_assert_eq!(step(&mut scheduler_core, now, None), taken.len());
        prop_assert!(scheduler_core.is_idle() && scheduler_core.running().is_empty());
    }
}

/// Returns a configuration of switches in two phases, for jobs that run all the time while they are alone.
pub(crate) const fn two_phases(slice: Duration) -> SchedulerConfig {
    SchedulerConfig {
        slice,
        phases: Phases::Two,
        preempt_when_alone: PreemptWhenAlone::Never,
        early_wakeup: Duration::ZERO,
    }
}

/// Carries out all orders at once.
fn settle(scheduler_core: &mut SchedulerCore, now: Instant) {
    while scheduler_core.poll_order(now).is_some() {
        scheduler_core.handle_outcome(now);
    }
    while scheduler_core.poll_event().is_some() {}
}

/// Submits `jobs` jobs of all nodes, with slices of 100 ms and early wake-ups of 10 ms; the first job runs.
fn round(jobs: u8) -> (SchedulerCore, Vec<JobId>, Instant) {
    let early_wakeup = Duration::from_millis(10);
    let config = SchedulerConfig { early_wakeup, ..two_phases(Duration::from_millis(100)) };
    let mut scheduler_core =
        SchedulerCore::new(Box::new(crate::schedule::RoundRobin::new(4)), config);
    let request = Request { nodes: 4, weight: 1 };
    let jobs: Vec<JobId> = (0..jobs)
        .map(|_| scheduler_core.submit(request, 4, Default::default()).unwrap().job)
        .collect();
    let now = Instant::from_nanos(1);
    settle(&mut scheduler_core, now);
    assert_eq!(scheduler_core.running(), [jobs[0]]);
    (scheduler_core, jobs, now)
}

#[test]
fn a_job_that_is_alone_is_stopped_in_stretches() {
    let slice = Duration::from_millis(100);
    let preempt_when_alone = PreemptWhenAlone::Alternately(NonZeroU32::new(3).unwrap());
    let config = SchedulerConfig { preempt_when_alone, ..two_phases(slice) };
    let mut scheduler_core =
        SchedulerCore::new(Box::new(crate::schedule::RoundRobin::new(4)), config);
    scheduler_core.submit(Request { nodes: 4, weight: 1 }, 4, Default::default()).unwrap();
    let mut now = Instant::from_nanos(1);
    settle(&mut scheduler_core, now);
    let mut stopped = String::new();
    for _ in 0..13 {
        now += slice;
        let ordered = scheduler_core.poll_order(now);
        stopped.push(if ordered.is_some() { 's' } else { '-' });
        scheduler_core.handle_outcome(now);
        settle(&mut scheduler_core, now);
    }
    // The first of the first three preemptions is the start of the job.
    assert_eq!(stopped, "ss---sss---ss");
}

#[test]
fn a_woken_job_runs_within_one_visit_time_and_the_slice_continues() {
    let (mut scheduler_core, jobs, began) = round(3);
    let at = |ms: u64| began + Duration::from_millis(ms);
    scheduler_core.wake(jobs[2]);
    settle(&mut scheduler_core, at(4));
    assert_eq!(
        (scheduler_core.running(), scheduler_core.poll_timeout()),
        (&jobs[..1], Some(at(10)))
    );
    settle(&mut scheduler_core, at(10));
    assert_eq!(
        (scheduler_core.running(), scheduler_core.poll_timeout()),
        (&jobs[2..], Some(at(20)))
    );
    settle(&mut scheduler_core, at(20));
    // 90 ms of the slice remain, and the order of slices is unchanged.
    assert_eq!(
        (scheduler_core.running(), scheduler_core.poll_timeout()),
        (&jobs[..1], Some(at(110)))
    );
    for (time, turn) in [(110, 1), (210, 2), (310, 0)] {
        settle(&mut scheduler_core, at(time));
        assert_eq!(scheduler_core.running(), [jobs[turn]]);
    }
}

#[test]
fn early_wakeups_end_with_their_job_and_skip_ended_jobs() {
    let (mut scheduler_core, jobs, began) = round(2);
    let at = |ms: u64| began + Duration::from_millis(ms);
    scheduler_core.wake(jobs[1]);
    settle(&mut scheduler_core, at(50));
    assert_eq!(scheduler_core.running(), [jobs[1]]);
    scheduler_core.end(at(52), jobs[1]);
    settle(&mut scheduler_core, at(52));
    assert_eq!(
        (scheduler_core.running(), scheduler_core.poll_timeout()),
        (&jobs[..1], Some(at(102)))
    );
    scheduler_core.end(at(53), jobs[0]);
    scheduler_core.wake(jobs[1]);
    settle(&mut scheduler_core, at(53));
    assert!(scheduler_core.is_idle() && scheduler_core.running().is_empty());
}

/// If a woken job ends before it has started, the interrupted slice resumes at once.
#[test]
fn a_woken_job_that_ends_before_it_starts_returns_the_slice() {
    let (mut scheduler_core, jobs, began) = round(3);
    let now = began + Duration::from_millis(50);
    scheduler_core.wake(jobs[1]);
    assert_eq!(scheduler_core.poll_order(now), Some(Action::Leave(vec![jobs[0]])));
    scheduler_core.end(now, jobs[1]);
    scheduler_core.handle_outcome(now);
    settle(&mut scheduler_core, now);
    assert_eq!(scheduler_core.running(), [jobs[0]]);
    assert_eq!(scheduler_core.poll_timeout(), Some(began + Duration::from_millis(100)));
}

/// The hosts don't restore a job that ends after the first order of the switch that starts it.
#[test]
fn a_job_that_ends_before_it_is_restored_stays_suspended() {
    let config = SchedulerConfig { phases: Phases::Four, ..two_phases(Duration::from_millis(100)) };
    let mut scheduler_core =
        SchedulerCore::new(Box::new(crate::schedule::RoundRobin::new(4)), config);
    let request = Request { nodes: 4, weight: 1 };
    let [first, second] =
        [1, 2].map(|_| scheduler_core.submit(request, 4, Default::default()).unwrap().job);
    let mut nodes = Nodes::default();
    let mut turn = |time, ended: Option<JobId>| {
        let now = Instant::ZERO + Duration::from_millis(time);
        let mut orders = Vec::new();
        while let Some(action) = scheduler_core.poll_order(now) {
            nodes.carry_out(&action);
            scheduler_core.handle_outcome(now);
            ended.into_iter().for_each(|job| scheduler_core.end(now, job));
            orders.push(action);
        }
        orders
    };
    let restores =
        |order: &Action| matches!(order, Action::Exchange { start, .. } if start.contains(&second));
    turn(1, None);
    turn(101, None);
    assert!(
        turn(201, None)
            .iter()
            .any(|order| matches!(order, Action::Run { run, .. } if run[0].0 == first))
    );
    assert!(!turn(301, Some(second)).iter().any(restores));
}

/// A woken job that ends never repays its time, and others are woken all the same.
#[test]
fn jobs_that_end_when_they_are_woken_leave_early_wakeups_to_others() {
    let [early, slice] = [10, 100].map(Duration::from_millis);
    let mut wakeups = EarlyWakeups::new(early, slice);
    let mut now = Instant::ZERO;
    for job in (2..50).map(JobId) {
        wakeups.wake(job);
        let change = wakeups.begin(now, slice, &[JobId(1)], |_| Some(0..4)).expect("it is allowed");
        assert_eq!(change.start, [job]);
        wakeups.on_slice_start(now);
        now += early;
        assert!(wakeups.forget(job));
        wakeups.end(now, &[]);
        wakeups.on_slice_start(now);
        now += early;
    }
}
