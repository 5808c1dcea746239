//! Cuts of running jobs whose processes publish what they wait for, and the verdicts about them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::job::network::Network;
use crate::job::{open, places, world};
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::channel::{Channel, Descriptor, SendError};
use midplane_gang::context::{ChannelContext, NetworkContext};
use midplane_gang::controller::{ContextOptions, Controller};
use midplane_gang::detect::{Deadlock, Verdict};
use midplane_gang::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};
use midplane_gang::process::SuspendHandle;
use midplane_gang::wait::WaitState;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use proptest::prelude::*;

const FIFOS: Geometry = Geometry {
    send: FifoSize { messages: 3, bytes: 256 },
    receive: FifoSize { messages: 3, bytes: 256 },
    message: 8,
};

#[derive(Clone, Copy, Debug)]
enum Act {
    Work(u64),
    Send(u16, u32),
    Receive(Option<u16>, Option<u32>),
}

/// Number of acts that each rank has completed.
type Done = Arc<Mutex<Vec<usize>>>;

/// Runs a rank: performs its acts in order, then only takes messages.
async fn rank(host: SimHost, descriptor: Descriptor, acts: Vec<Act>, done: Done) {
    let mut channel = Channel::attach(&host, descriptor).await.unwrap();
    let own = channel.rank().index();
    let mut held = VecDeque::new();
    for act in acts {
        match act {
            Act::Work(nanos) => host.sleep_until(host.now().plus_nanos(nanos)).await,
            Act::Send(to, tag) => send(&mut channel, Rank(to), tag).await,
            Act::Receive(from, tag) => receive(&mut channel, &mut held, from.map(Rank), tag).await,
        }
        done.lock().unwrap()[own] += 1;
    }
    loop {
        while channel.try_receive().is_some() {}
        channel.wait_as(WaitState::Idle).await.unwrap();
    }
}

async fn send(channel: &mut Channel, to: Rank, tag: u32) {
    while channel.try_send(to, &tag.to_le_bytes()) == Err(SendError::Full) {
        channel.wait_as(WaitState::Send { to }).await.unwrap();
    }
}

async fn receive(
    channel: &mut Channel,
    held: &mut VecDeque<(Rank, u32)>,
    from: Option<Rank>,
    tag: Option<u32>,
) {
    loop {
        while let Some((from, bytes)) = channel.try_receive() {
            held.push_back((from, u32::from_le_bytes(bytes.try_into().unwrap())));
        }
        let meets = |message: &(Rank, u32)| {
            from.is_none_or(|from| from == message.0) && tag.is_none_or(|tag| tag == message.1)
        };
        if let Some(at) = held.iter().position(meets) {
            held.remove(at);
            return;
        }
        channel.wait_as(WaitState::Receive { from, tag }).await.unwrap();
    }
}

/// Takes a cut of the job, and resumes it.
async fn cut(host: &SimHost, network: &mut Network, copy: bool) -> NetworkContext {
    network.freeze(host).await.unwrap();
    let cut = network.save(copy).await.unwrap();
    cut.validate().unwrap();
    if copy {
        network.restore(&cut).await.unwrap();
    }
    network.run(host).await.unwrap();
    cut
}

/// The cuts of a job, each with its verdict and the ranks' progress, and the final progress.
struct Seen {
    cuts: Vec<(Verdict, Vec<usize>)>,
    last: Vec<usize>,
}

/// Runs these programs, and takes cuts at random times, the last one long after all progress has ended.
fn watch(programs: &[Vec<Act>], seed: u64, faults: Faults) -> Seen {
    let (ranks, nodes) = (programs.len() as u16, 3);
    let mut world = world(nodes, seed, faults);
    let hosts: Vec<SimHost> = (0..nodes).map(|node| world.host(NodeId(node))).collect();
    let places = places(ranks, nodes);
    let programs = programs.to_vec();
    let done: Done = Arc::new(Mutex::new(vec![0; programs.len()]));
    let task = async move {
        let (host, mut dice) = (hosts[0].clone(), Rng::new(seed, "cuts"));
        let copy = dice.chance(0.5);
        let mut network = open(&hosts, JobId(1), &places, FIFOS, copy).await;
        for ((held, place), acts) in network.ranks().iter().zip(&places).zip(programs) {
            let host = hosts[place.node.index()].clone();
            let descriptor = held.controller.descriptor(held.context);
            let program = rank(host.clone(), descriptor, acts, Arc::clone(&done));
            host.spawn(held.suspend_handle.hold(program));
        }
        network.run(&host).await.unwrap();
        let mut cuts = Vec::new();
        for round in 0..12 {
            let pause = if round == 11 { 1_000_000_000 } else { dice.between(1, 60_000) };
            host.sleep_until(host.now().plus_nanos(pause)).await;
            let verdict = cut(&host, &mut network, copy).await.verdict();
            cuts.push((verdict, done.lock().unwrap().clone()));
        }
        host.sleep_until(host.now() + Duration::from_secs(1)).await;
        let last = done.lock().unwrap().clone();
        Seen { cuts, last }
    };
    world.block_on(NodeId(0), task).expect("it comes to its end")
}

#[test]
fn a_cut_names_the_cycle_and_the_unmatched_messages() {
    // Each rank waits for a tag that the next rank sends only after its own receive.
    let program = |next: u16| {
        vec![
            Act::Work(5_000),
            Act::Send(next, 1),
            Act::Receive(Some(next), Some(2)),
            Act::Send(next, 2),
        ]
    };
    let seen = watch(&[program(1), program(2), program(0), vec![]], 1, Faults::NONE);
    let Some((Verdict::Deadlocked(Deadlock { waiting, cycle, unmatched }), _)) = seen.cuts.last()
    else {
        panic!("{:?}", seen.cuts.last())
    };
    let named: Vec<Rank> = waiting.keys().copied().collect();
    assert_eq!((named, cycle), (vec![Rank(0), Rank(1), Rank(2)], &vec![Rank(0), Rank(1), Rank(2)]));
    let wants = WaitState::Receive { from: Some(Rank(2)), tag: Some(2) };
    assert_eq!(waiting[&Rank(1)], wants);
    // The received messages were taken out of the FIFOs, and the processes hold them.
    assert!(unmatched.is_empty(), "{unmatched:?}");
}

#[test]
fn a_process_that_also_waits_for_a_clock_is_not_deadlocked() {
    let alone = vec![Act::Work(900_000_000), Act::Send(1, 1)];
    let seen = watch(&[alone, vec![Act::Receive(Some(0), Some(1))]], 2, Faults::NONE);
    let (last, before) = seen.cuts.split_last().unwrap();
    assert!(before.iter().all(|(verdict, _)| *verdict == Verdict::Live), "{before:?}");
    assert_eq!((&last.0, &seen.last), (&Verdict::Terminated, &vec![2, 1]));
}

/// Publishes one wait state, and waits.
async fn wait_once(host: SimHost, descriptor: Descriptor, state: WaitState) {
    let mut channel = Channel::attach(&host, descriptor).await.unwrap();
    channel.wait_as(state).await.unwrap();
}

/// Two contexts take turns with the same FIFOs. The process of one is killed while the other has them.
#[test]
fn a_process_killed_while_suspended_does_not_change_anothers_wait() {
    let mut world = world(1, 3, Faults::NONE);
    let host = world.host(NodeId(0));
    let task = async move {
        let pause = || host.sleep_until(host.now() + Duration::from_micros(50));
        let channel = ChannelId(1);
        let mut controller = Controller::open(&host, channel, FIFOS, true).unwrap();
        let places = vec![ChannelAddress { node: NodeId(0), channel }];
        let for_itself = WaitState::Receive { from: Some(Rank(0)), tag: None };
        let mut held = Vec::new();
        for (job, state) in [(1, WaitState::Idle), (2, for_itself)] {
            let (rank, places) = (Rank(0), places.clone());
            let options = ContextOptions { job: JobId(job), rank, places };
            let context = controller.open_context(options).await.unwrap();
            let fresh = ChannelContext::fresh(rank, FIFOS);
            controller.restore(context, &fresh).await.unwrap();
            controller.start(context, Epoch(1)).await.unwrap();
            let (suspend_handle, descriptor) =
                (SuspendHandle::new(), controller.descriptor(context));
            host.spawn(suspend_handle.hold(wait_once(host.clone(), descriptor, state)));
            pause().await;
            suspend_handle.suspend(host.now());
            controller.stop(context).await.unwrap();
            held.push(suspend_handle);
            if job == 2 {
                held[0].kill();
                pause().await;
            }
            assert_eq!(controller.save(context, true).await.unwrap().wait, state);
        }
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
}

fn programs(seed: u64) -> Vec<Vec<Act>> {
    let mut dice = Rng::new(seed, "programs");
    let ranks = dice.between(2, 5);
    let mut act = |own: u64| {
        let (other, tag) = (dice.below(ranks), dice.below(3) as u32);
        match dice.below(5) {
            0 => Act::Work(dice.below(40_000)),
            1 | 2 if other != own => Act::Send(other as u16, tag),
            3 | 4 if !seed.is_multiple_of(4) => {
                let from = dice.chance(0.7).then_some(other as u16);
                Act::Receive(from, dice.chance(0.7).then_some(tag))
            }
            _ => Act::Work(dice.below(5_000)),
        }
    };
    (0..ranks).map(|own| (0..10).map(|_| act(own)).collect()).collect()
}

/// Checks that no verdict is withdrawn, and that the last one names exactly the ranks that have not ended.
fn verdicts_are_true(seed: u64) -> Verdict {
    let programs = programs(seed);
    let loss = if seed.is_multiple_of(2) { 0.0 } else { 0.02 };
    let seen = watch(&programs, seed, Faults { loss, ..Faults::NONE });
    for (verdict, done) in &seen.cuts {
        match verdict {
            Verdict::Live => {}
            Verdict::Terminated => assert_eq!(*done, seen.last, "seed {seed}: it went on"),
            Verdict::Deadlocked(deadlock) => {
                for rank in deadlock.waiting.keys() {
                    let (then, last) = (done[rank.index()], seen.last[rank.index()]);
                    assert_eq!(then, last, "seed {seed}: rank {rank} went on: {deadlock}");
                }
            }
        }
    }
    let is_stuck = |rank: &Rank| seen.last[rank.index()] < programs[rank.index()].len();
    let stuck: BTreeSet<Rank> = (0..programs.len() as u16).map(Rank).filter(is_stuck).collect();
    let (last, _) = seen.cuts.last().unwrap();
    match last {
        Verdict::Live => panic!("seed {seed}: nothing moves, and {stuck:?} wait"),
        Verdict::Terminated => assert!(stuck.is_empty(), "seed {seed}: {stuck:?} wait"),
        Verdict::Deadlocked(deadlock) => {
            let named: BTreeSet<Rank> = deadlock.waiting.keys().copied().collect();
            assert_eq!(named, stuck, "seed {seed}");
        }
    }
    last.clone()
}

#[test]
fn verdicts_over_jobs_that_run_are_true_at_the_pinned_seeds() {
    let all: Vec<Verdict> = (0..60).map(verdicts_are_true).collect();
    let terminated = all.iter().filter(|verdict| **verdict == Verdict::Terminated).count();
    assert!(terminated > 5 && terminated < 50, "{terminated} of 60 terminated: this shows little");
}

#[test]
#[ignore = "10,000 jobs in virtual time take some seconds"]
fn verdicts_over_10_000_jobs_that_run_are_true() {
    for seed in 100..10_100 {
        verdicts_are_true(seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_over_jobs_that_run_are_true(seed: u64) {
        verdicts_are_true(seed);
    }
}
