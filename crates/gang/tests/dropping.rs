//! Calls of daemons that are dropped at any poll: the jobs of a dropped daemon end, and all others complete.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::job::{Progress, TIGHT, chatter, message, world};
use midplane_gang::daemon::{Costs, Daemon, DaemonConfig, Mode, Start};
use midplane_gang::schedule::{Request, RoundRobin};
use midplane_gang::scheduler::{Phases, Scheduler, Submission};
use midplane_gang::scheduler_core::{PreemptWhenAlone, SchedulerConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use proptest::prelude::*;

/// Time after a drop within which all other calls end.
const SOON: Duration = Duration::from_secs(5);
const COUNT: u32 = 12;
const SLICE: Duration = Duration::from_micros(150);

/// Polls a future `left` times, then drops it. The output is `None` if the future was dropped.
struct Polls<F> {
    future: Option<Pin<Box<F>>>,
    left: u64,
}

fn polls<F: Future>(future: F, left: u64) -> Polls<F> {
    Polls { future: Some(Box::pin(future)), left }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.left -= 1;
        let future = self.future.as_mut().expect("it is polled until it has ended");
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The future is dropped in a poll of its own.
            Poll::Pending if self.left == 0 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A daemon's node, and the result of its call.
type Ended = (u16, Result<(), String>);
/// The number of a job's ranks, one rank, and its digests.
type Received = (u16, u16, Vec<u64>);

/// The results of the daemons' calls, by node, and the digests of each rank that ended.
#[derive(Clone, Default)]
struct Ends {
    daemons: Arc<Mutex<Vec<Ended>>>,
    ranks: Arc<Mutex<Vec<Received>>>,
}

impl Ends {
    fn daemon(&self, node: u16, end: Result<(), String>) {
        self.daemons.lock().unwrap().push((node, end));
    }

    /// Waits until the calls of this many daemons have ended, which they do soon.
    async fn await_daemons(&self, host: &SimHost, count: usize) {
        let deadline = host.now() + SOON;
        while self.daemons.lock().unwrap().len() < count {
            assert!(host.now() < deadline, "some wait: {:?}", self.daemons.lock().unwrap());
            host.sleep_until(host.now() + Duration::from_millis(1)).await;
        }
    }

    fn start(&self) -> Start<SimHost> {
        let ranks = Arc::clone(&self.ranks);
        Arc::new(move |host, launch, descriptor, _| {
            let ranks = Arc::clone(&ranks);
            Box::pin(async move {
                let rank = descriptor.rank().0;
                let progress = Arc::new(Mutex::new(Progress::new(launch.ranks, rank.into())));
                chatter(host, descriptor, Arc::clone(&progress), launch.program).await;
                let digests = progress.lock().unwrap().digests.clone();
                ranks.lock().unwrap().push((launch.ranks, rank, digests));
            })
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    nodes: u16,
    arity: u16,
    mode: Mode,
    phases: Phases,
    loss: f64,
}

impl Case {
    fn of(seed: u64) -> (Self, Rng) {
        let mut dice = Rng::new(seed, "drops");
        let nodes = dice.between(2, 9) as u16;
        let case = Self {
            seed,
            nodes,
            arity: dice.between(1, 4) as u16,
            mode: if dice.chance(0.5) { Mode::Copy } else { Mode::Resident },
            phases: if dice.chance(0.5) { Phases::Two } else { Phases::Four },
            loss: if dice.chance(0.5) { 0.01 } else { 0.0 },
        };
        (case, dice)
    }

    /// Returns the number of ranks of both jobs.
    fn ranks(self) -> usize {
        (self.nodes + self.nodes.min(3)).into()
    }

    fn config(self) -> DaemonConfig {
        let micros = Duration::from_micros;
        let costs = Costs { stop: micros(5), save: micros(60), ..Costs::default() };
        let Self { nodes, arity, mode, .. } = self;
        DaemonConfig {
            nodes,
            arity,
            mode,
            geometry: TIGHT,
            channels: 2,
            costs,
            local_rings: nodes % 2 == 0,
        }
    }

    /// Returns the scheduler of the root, without jobs.
    fn idle_scheduler(self, root: Daemon<SimHost>) -> Scheduler<SimHost> {
        let (preempt_when_alone, early_wakeup) = (PreemptWhenAlone::Always, Duration::ZERO);
        let scheduler_config =
            SchedulerConfig { slice: SLICE, phases: self.phases, preempt_when_alone, early_wakeup };
        Scheduler::new(root, Box::new(RoundRobin::new(self.nodes)), scheduler_config)
    }

    fn scheduler(self, root: Daemon<SimHost>) -> Scheduler<SimHost> {
        let scheduler = self.idle_scheduler(root);
        for ranks in [self.nodes, self.nodes.min(3)] {
            let request = Request { nodes: ranks, weight: 1 };
            scheduler.client().submit(Submission { request, ranks, program: COUNT });
        }
        scheduler
    }

    /// Runs the case. `drops` lists nodes, each with the number of polls after which its daemon's call is dropped. The
    /// root's call is made again each time; after the last drop, the root itself is dropped if `dies`.
    fn run(self, drops: &[(u16, u64)], dies: bool) -> Ends {
        let faults = Faults { loss: self.loss, ..Faults::NONE };
        let mut world = world(self.nodes, self.seed, faults);
        let (ends, config) = (Ends::default(), self.config());
        let of = |node: u16| drops.iter().filter(move |drop| drop.0 == node).map(|drop| drop.1);
        for node in 1..self.nodes {
            let (host, start, ends) = (world.host(NodeId(node)), ends.start(), ends.clone());
            let after = of(node).next().unwrap_or(u64::MAX);
            world.spawn(NodeId(node), async move {
                let daemon = Daemon::open(host, config, start).await.unwrap();
                let end = polls(daemon.serve(), after).await;
                let dropped = Err("dropped".to_owned());
                ends.daemon(
                    node,
                    end.map_or(dropped, |end| end.map_err(|error| error.to_string())),
                );
            });
        }
        let (host, start, of_root) = (world.host(NodeId(0)), ends.start(), ends.clone());
        let root_drops: Vec<u64> = of(0).collect();
        let task = async move {
            let root = Daemon::open(host.clone(), config, start).await.unwrap();
            let mut scheduler = self.scheduler(root);
            let mut end = None;
            for after in root_drops {
                end = polls(scheduler.run(), after).await;
                if end.is_some() {
                    break;
                }
            }
            if end.is_none() && !dies {
                let deadline = host.now() + SOON;
                let all = pin!(scheduler.run());
                end = Some(within(&host, deadline, all).await.expect("the root's call ends"));
            }
            drop(scheduler);
            let dropped = Err("dropped".to_owned());
            of_root.daemon(0, end.map_or(dropped, |end| end.map_err(|error| error.to_string())));
            of_root.await_daemons(&host, config.nodes.into()).await;
        };
        world.block_on(NodeId(0), task).expect("it comes to its end");
        ends
    }
}

async fn within<T>(
    host: &SimHost,
    deadline: midplane_simhw::time::Instant,
    mut first: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut end = pin!(host.sleep_until(deadline));
    std::future::poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Drops one daemon's call: the daemons below it in the tree end with the error that a daemon is gone; the others
/// continue.
fn a_daemon_is_dropped(seed: u64) {
    let (case, mut dice) = Case::of(seed);
    let node = dice.below(case.nodes.into()) as u16;
    let after = dice.below(200);
    let ends = case.run(&[(node, after)], node == 0);
    let daemons = ends.daemons.lock().unwrap();
    let all_ranks = ends.ranks.lock().unwrap().len() == case.ranks();
    let parent = |node: &u16| (*node != 0).then(|| (node - 1) / case.arity);
    let is_below = |other: u16| std::iter::successors(Some(other), parent).any(|at| at == node);
    for (other, end) in daemons.iter().filter(|end| end.0 != node) {
        match end {
            // The root ends these daemons once no job is left.
            Ok(()) => assert!(!is_below(*other) || all_ranks, "seed {seed}: {other}"),
            Err(error) => {
                assert!(
                    is_below(*other) && error.contains("is gone"),
                    "seed {seed}: {other}: {error}"
                );
            }
        }
    }
    // Every rank that ended has received every message.
    for (of, rank, found) in ends.ranks.lock().unwrap().iter() {
        assert_eq!(*found, digests(*of, *rank), "seed {seed}, rank {rank} of {of}");
    }
}

fn digests(ranks: u16, rank: u16) -> Vec<u64> {
    let digest = |from| {
        let all = (0..COUNT).flat_map(|number| message(from, rank, number, TIGHT.message));
        all.fold(0_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
    };
    (0..ranks).map(digest).collect()
}

/// Drops the root's call repeatedly, and makes it again: every job ends as if no call had been dropped.
fn calls_of_the_root_are_dropped(seed: u64) {
    let (case, mut dice) = Case::of(seed);
    let drops: Vec<(u16, u64)> = (0..dice.between(1, 40)).map(|_| (0, dice.below(25))).collect();
    let ends = case.run(&drops, false);
    let daemons = ends.daemons.lock().unwrap();
    assert!(daemons.iter().all(|(_, end)| *end == Ok(())), "seed {seed}: {daemons:?}");
    let ranks = ends.ranks.lock().unwrap();
    assert_eq!(ranks.len(), case.ranks(), "seed {seed}");
    for (of, rank, found) in ranks.iter() {
        assert_eq!(*found, digests(*of, *rank), "seed {seed}, rank {rank} of {of}");
    }
}

#[test]
fn no_daemon_waits_for_one_whose_call_was_dropped_at_the_pinned_seeds() {
    (0..60).for_each(a_daemon_is_dropped);
}

#[test]
fn orders_whose_calls_are_dropped_are_carried_out_at_the_pinned_seeds() {
    (0..40).for_each(calls_of_the_root_are_dropped);
}

/// The root must not wait for a message if all submissions have been refused.
#[test]
fn a_root_whose_jobs_are_all_refused_ends() {
    a_daemon_is_dropped(6_516_633_697_616_778_173);
}

/// Runs the daemons of all nodes below node 0. Drops that of node 3 after 20 slices.
fn start_daemons_below(world: &mut World<Unit>, case: Case, start: &Start<SimHost>, ends: &Ends) {
    for node in 1..case.nodes {
        let (host, start, ends) = (world.host(NodeId(node)), Arc::clone(start), ends.clone());
        world.spawn(NodeId(node), async move {
            let daemon = Daemon::open(host.clone(), case.config(), start).await.unwrap();
            let deadline = host.now() + if node == 3 { SLICE * 20 } else { SOON };
            let call = pin!(daemon.serve());
            let end = within(&host, deadline, call).await;
            let dropped = Err("dropped".to_owned());
            ends.daemon(node, end.map_or(dropped, |end| end.map_err(|error| error.to_string())));
        });
    }
}

/// Regression: the root sent a message to the closed context of the dropped daemon. The message was sent again for
/// ever, and no later message left the root's send FIFO.
#[test]
fn a_root_sends_on_after_a_daemon_was_dropped() {
    let (mode, phases) = (Mode::Resident, Phases::Two);
    let case = Case { seed: 1, nodes: 4, arity: 3, mode, phases, loss: 0.0 };
    let mut world = world(case.nodes, case.seed, Faults::NONE);
    let ends = Ends::default();
    let start: Start<SimHost> = Arc::new(move |host, _, _, _| {
        Box::pin(async move { host.sleep_until(host.now() + SLICE * 200).await })
    });
    start_daemons_below(&mut world, case, &start, &ends);
    let (host, of_root) = (world.host(NodeId(0)), ends.clone());
    let task = async move {
        let root = Daemon::open(host.clone(), case.config(), start).await.unwrap();
        let mut scheduler = case.idle_scheduler(root);
        let request = Request { nodes: 3, weight: 1 };
        scheduler.client().submit(Submission { request, ranks: 3, program: 0 });
        let deadline = host.now() + SOON;
        {
            let all = pin!(scheduler.run());
            within(&host, deadline, all).await.expect("the root's call ends").unwrap();
        }
        assert!(scheduler.jobs().values().all(|job| job.is_complete), "{:?}", scheduler.jobs());
        assert!(scheduler.switches().count() > 40, "{}", scheduler.switches().count());
        of_root.await_daemons(&host, 3).await;
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
    for (node, end) in ends.daemons.lock().unwrap().iter() {
        assert_eq!(end.is_ok(), *node != 3, "{node}: {end:?}");
    }
}

/// Regression: the root quit before the other daemons had connected, and these ended with an error.
#[test]
fn daemons_without_a_job_end_without_an_error() {
    let (mode, phases) = (Mode::Resident, Phases::Two);
    let case = Case { seed: 1, nodes: 3, arity: 1, mode, phases, loss: 0.0 };
    let mut world = world(case.nodes, case.seed, Faults::NONE);
    let ends = Ends::default();
    let start: Start<SimHost> = Arc::new(|_, _, _, _| Box::pin(async {}));
    start_daemons_below(&mut world, case, &start, &ends);
    let (host, of_root) = (world.host(NodeId(0)), ends.clone());
    let task = async move {
        let root = Daemon::open(host.clone(), case.config(), start).await.unwrap();
        case.idle_scheduler(root).run().await.unwrap();
        of_root.await_daemons(&host, 2).await;
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
    let daemons = ends.daemons.lock().unwrap();
    assert!(daemons.iter().all(|(_, end)| *end == Ok(())), "{daemons:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_daemon_waits_for_one_whose_call_was_dropped(seed: u64) {
        a_daemon_is_dropped(seed);
    }

    #[test]
    fn orders_whose_calls_are_dropped_are_carried_out(seed: u64) {
        calls_of_the_root_are_dropped(seed);
    }
}
