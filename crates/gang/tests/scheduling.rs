//! Daemons, trees and slices in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::job::{Progress, chatter, message, world};
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::daemon::{Costs, Daemon, DaemonConfig, Mode, Start};
use midplane_gang::names::JobId;
use midplane_gang::schedule::{Policy, QueueTree, Request, RoundRobin};
use midplane_gang::scheduler::{JobRecord, Phases, Scheduler, Submission, Switch};
use midplane_gang::scheduler_core::{PreemptWhenAlone, SchedulerConfig};
use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;

const GEOMETRY: Geometry = Geometry {
    send: FifoSize { messages: 7, bytes: 512 },
    receive: FifoSize { messages: 5, bytes: 512 },
    message: 200,
};

fn config(nodes: u16, arity: u16, mode: Mode) -> DaemonConfig {
    DaemonConfig {
        nodes,
        arity,
        mode,
        geometry: GEOMETRY,
        channels: 2,
        costs: Costs::default(),
        local_rings: true,
    }
}

struct Outcome {
    switches: Vec<Switch>,
    jobs: BTreeMap<JobId, JobRecord>,
    refused: usize,
    /// Job, rank and digests of every rank that ended.
    ended: Vec<(JobId, u16, Vec<u64>)>,
}

/// Runs jobs in which every rank sends every other one a number of messages.
fn schedule(
    config: DaemonConfig,
    policy: Box<dyn Policy>,
    slice: Duration,
    phases: Phases,
    faults: Faults,
    submissions: Vec<Submission>,
) -> Outcome {
    let mut world = world(config.nodes, 5, faults);
    let ended = Arc::new(Mutex::new(Vec::new()));
    let results = Arc::clone(&ended);
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, _| {
        let results = Arc::clone(&results);
        Box::pin(async move {
            let rank = descriptor.rank().0;
            let progress = Arc::new(Mutex::new(Progress::new(launch.ranks, rank.into())));
            chatter(host, descriptor, Arc::clone(&progress), launch.program).await;
            let digests = progress.lock().unwrap().digests.clone();
            results.lock().unwrap().push((launch.job, rank, digests));
        })
    });
    for node in 1..config.nodes {
        let (host, start) = (world.host(NodeId(node)), Arc::clone(&start));
        world.spawn(NodeId(node), async move {
            Daemon::open(host, config, start).await.unwrap().serve().await.unwrap();
        });
    }
    let host = world.host(NodeId(0));
    let (preempt_when_alone, early_wakeup) = (PreemptWhenAlone::Always, Duration::ZERO);
    let scheduler_config = SchedulerConfig { slice, phases, preempt_when_alone, early_wakeup };
    let task = async move {
        let root = Daemon::open(host, config, start).await.unwrap();
        let mut scheduler = Scheduler::new(root, policy, scheduler_config);
        for submission in submissions {
            scheduler.client().submit(submission);
        }
        scheduler.run().await.unwrap();
        let switches = scheduler.switches().cloned().collect();
        (switches, scheduler.jobs().clone(), scheduler.refused().len())
    };
    let (switches, jobs, refused) = world.block_on(NodeId(0), task).expect("it comes to its end");
    let ended = ended.lock().unwrap().clone();
    Outcome { switches, jobs, refused, ended }
}

fn digests(ranks: u16, rank: u16, count: u32) -> Vec<u64> {
    let digest = |from| {
        let all = (0..count).flat_map(|number| message(from, rank, number, GEOMETRY.message));
        all.fold(0_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
    };
    (0..ranks).map(digest).collect()
}

fn job(nodes: u16, ranks: u16, count: u32) -> Submission {
    Submission { request: Request { nodes, weight: 1 }, ranks, program: count }
}

#[test]
fn jobs_that_share_a_cluster_end_as_if_alone() {
    for (mode, phases) in [
        (Mode::Copy, Phases::Four),
        (Mode::Resident, Phases::Four),
        (Mode::Copy, Phases::Two),
        (Mode::Resident, Phases::Two),
    ] {
        let faults = Faults { loss: 0.005, duplicate: 0.01, reorder: 0.02, ..Faults::NONE };
        let outcome = schedule(
            config(5, 2, mode),
            Box::new(RoundRobin::new(5)),
            Duration::from_micros(100),
            phases,
            faults,
            vec![job(5, 5, 40), job(4, 8, 25), job(9, 9, 1), job(1, 1, 10)],
        );
        assert_eq!((outcome.refused, outcome.jobs.len()), (1, 3));
        assert!(outcome.jobs.values().all(|job| job.ended.is_some() && job.is_complete));
        assert_eq!(outcome.ended.len(), 5 + 8 + 1);
        assert!(outcome.switches.len() > 10, "{}", outcome.switches.len());
        for (job, rank, found) in outcome.ended {
            let of = outcome.jobs[&job].submission;
            assert_eq!(found, digests(of.ranks, rank, of.program), "job {job}, rank {rank}");
        }
    }
}

/// Costs with slow copies of contexts.
const SLOW: Costs = Costs {
    stop: Duration::from_micros(5),
    resume: Duration::from_micros(5),
    save: Duration::from_micros(300),
    restore: Duration::from_micros(100),
    byte_ps: 20_000,
};

#[test]
fn contexts_saved_while_others_freeze_are_complete() {
    for micros in [70, 110, 190] {
        let faults = Faults { loss: 0.005, duplicate: 0.01, reorder: 0.02, ..Faults::NONE };
        let outcome = schedule(
            DaemonConfig { costs: SLOW, ..config(7, 2, Mode::Copy) },
            Box::new(RoundRobin::new(7)),
            Duration::from_micros(micros),
            Phases::Two,
            faults,
            vec![job(7, 7, 40), job(5, 9, 30), job(1, 2, 10)],
        );
        assert_eq!(outcome.ended.len(), 7 + 9 + 2);
        assert!(outcome.switches.len() > 10, "{}", outcome.switches.len());
        for (job, rank, found) in outcome.ended {
            let of = outcome.jobs[&job].submission;
            assert_eq!(found, digests(of.ranks, rank, of.program));
        }
    }
}

/// Returns the median times of a switch, until the freeze and after it, of a job with one rank a node and few messages.
fn switch_of(costs: Costs) -> [Duration; 2] {
    let outcome = schedule(
        DaemonConfig { costs, ..config(63, 2, Mode::Copy) },
        Box::new(RoundRobin::new(63)),
        Duration::from_millis(2),
        Phases::Two,
        Faults::NONE,
        vec![job(63, 2, 2000)],
    );
    let of = |part: fn(&Switch) -> Duration| {
        let mut all: Vec<Duration> = outcome.switches.iter().skip(1).map(part).collect();
        all.sort();
        all[all.len() / 2]
    };
    [of(|switch| switch.freeze), of(|switch| switch.run)]
}

#[test]
fn daemons_save_without_waiting_for_the_tree() {
    let [_, bare] = switch_of(Costs::default());
    let save = Duration::from_micros(400);
    let [freeze, copying] = switch_of(Costs { save, ..Costs::default() });
    println!(
        "frozen in {freeze:?}; the rest {bare:?}, and {copying:?} where saving takes {save:?}"
    );
    // The copies overlapped the reports of the freeze and the next order.
    assert!(copying < save, "{copying:?}");
    assert!(copying + freeze > save, "{copying:?} {freeze:?}: it takes as long as it takes");
}

#[test]
fn halves_of_a_cluster_run_different_jobs_at_once() {
    let outcome = schedule(
        config(8, 4, Mode::Copy),
        Box::new(QueueTree::new(8)),
        Duration::from_micros(150),
        Phases::Two,
        Faults::NONE,
        vec![job(8, 8, 15), job(4, 4, 60), job(3, 3, 60), job(2, 2, 60)],
    );
    assert_eq!(outcome.ended.len(), 8 + 4 + 3 + 2);
    assert!(outcome.switches.iter().any(|switch| switch.started.len() > 1));
    for (job, rank, found) in outcome.ended {
        let of = outcome.jobs[&job].submission;
        assert_eq!(found, digests(of.ranks, rank, of.program));
    }
}

/// Returns the median freeze of a job with one rank a node and few messages.
fn freeze_of(nodes: u16, arity: u16) -> Duration {
    let outcome = schedule(
        config(nodes, arity, Mode::Resident),
        Box::new(RoundRobin::new(nodes)),
        Duration::from_millis(1),
        Phases::Two,
        Faults::NONE,
        vec![job(nodes, 2, 300)],
    );
    let mut freezes: Vec<Duration> =
        outcome.switches.iter().skip(1).map(|switch| switch.freeze).collect();
    freezes.sort();
    freezes[freezes.len() / 2]
}

#[test]
fn a_freeze_grows_with_the_depth_of_the_tree() {
    let [small, middle, large] = [17, 257, 1_000].map(|nodes| freeze_of(nodes, 16));
    assert!(middle > small && middle < small * 3, "{small:?} {middle:?}");
    assert!(large < small * 4, "{small:?} {large:?}");
}
