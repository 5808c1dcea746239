//! Sends and receives of channels that are dropped at any poll, in jobs that take turns: nothing is lost or doubled.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::job::scheduler::{open_scheduler, start_daemons};
use crate::job::{TIGHT, message, world};
use midplane_gang::channel::{Channel, Descriptor};
use midplane_gang::daemon::{Costs, DaemonConfig, Mode, Start};
use midplane_gang::names::Rank;
use midplane_gang::schedule::Request;
use midplane_gang::scheduler::Submission;
use midplane_gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;

const NODES: u16 = 2;
const RANKS: u16 = 4;
/// Messages from each rank to each.
const COUNT: u32 = 40;

/// Polls a future `polls` times, 1 us apart, and drops it. Returns its output if it has completed.
async fn interrupted<F: Future>(host: &SimHost, polls: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        host.sleep_until(host.now() + Duration::from_micros(1)).await;
    }
    None
}

/// Sends numbered messages to all ranks, and receives theirs. Returns the number of messages received from each rank.
async fn exchange(host: &SimHost, descriptor: Descriptor, seed: u64) -> Vec<u32> {
    let mut channel = Channel::attach(host, descriptor).await.unwrap();
    let (own, most) = (channel.rank().0, channel.message_bytes());
    let mut dice = Rng::new(seed, &format!("polls of {own}"));
    let mut sent = vec![0; usize::from(RANKS)];
    let mut received = sent.clone();
    while received.iter().any(|count| *count < COUNT) || sent.iter().any(|count| *count < COUNT) {
        let (to, polls) = (dice.below(RANKS.into()) as u16, dice.below(5));
        let number = sent[usize::from(to)];
        if number < COUNT && dice.chance(0.5) {
            let bytes = message(own, to, number, most);
            if let Some(done) = interrupted(host, polls, channel.send(Rank(to), &bytes)).await {
                done.unwrap();
                sent[usize::from(to)] += 1;
            }
        }
        // Once all messages are sent, some receives are awaited to their end.
        let is_awaited = sent.iter().all(|count| *count == COUNT) && dice.chance(0.3);
        let is_over = received.iter().all(|count| *count == COUNT);
        let came = match is_awaited && !is_over {
            true => Some(channel.receive().await),
            false => interrupted(host, polls, channel.receive()).await,
        };
        if let Some(came) = came {
            let (from, bytes) = came.unwrap();
            let number = &mut received[from.index()];
            assert_eq!(bytes, message(from.0, own, *number, most), "{number} from {from} to {own}");
            *number += 1;
        }
    }
    while !channel.is_flushed() {
        channel.room().await.unwrap();
    }
    assert_eq!(channel.try_receive(), None);
    received
}

/// Runs two jobs that take turns, each with two ranks on each of two nodes.
fn run(seed: u64) {
    let faults = Faults { loss: 0.01, ..Faults::NONE };
    let mut world = world(NODES, seed, faults);
    let config = DaemonConfig {
        nodes: NODES,
        arity: 2,
        mode: if (seed / 2).is_multiple_of(2) { Mode::Copy } else { Mode::Resident },
        geometry: TIGHT,
        channels: 4,
        costs: Costs { save: Duration::from_micros(60), ..Costs::default() },
        local_rings: seed.is_multiple_of(2),
    };
    let ended = Arc::new(Mutex::new(Vec::new()));
    let of_ranks = Arc::clone(&ended);
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, _| {
        let ended = Arc::clone(&of_ranks);
        Box::pin(async move {
            let received = exchange(&host, descriptor, seed + u64::from(launch.program)).await;
            ended.lock().unwrap().push(received);
        })
    });
    start_daemons(&mut world, config, &start);
    let host = world.host(NodeId(0));
    let scheduler_config = SchedulerConfig {
        slice: Duration::from_micros(150),
        phases: Phases::Two,
        preempt_when_alone: PreemptWhenAlone::Always,
        early_wakeup: Duration::ZERO,
    };
    let task = async move {
        let mut scheduler = open_scheduler(host, (config, start), scheduler_config, &[]).await;
        for program in [0, 100] {
            let request = Request { nodes: NODES, weight: 1 };
            scheduler.client().submit(Submission { request, ranks: RANKS, program });
        }
        scheduler.run().await.unwrap();
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
    let all = vec![vec![COUNT; usize::from(RANKS)]; 2 * usize::from(RANKS)];
    assert_eq!(*ended.lock().unwrap(), all, "seed {seed}");
}

#[test]
fn sends_and_receives_that_are_dropped_at_any_poll_lose_and_double_nothing() {
    (0..20).for_each(run);
}
