//! Tests tasks in virtual time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use midplane_simhw::host::Host;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

use crate::sim::harness::{A, B, Log, Probe, at, star};

fn idle_world() -> World<Probe> {
    World::new(&star(2), NicProfile::FREE, 1, |_, _| Probe::idle())
}

/// Polls `future` once and drops it; returns whether it completed.
async fn is_over(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

proptest! {
    #[test]
    fn sleepers_wake_at_their_instant_in_the_order_they_fell_asleep(
        naps in proptest::collection::vec(0_u64..100, 1..50),
    ) {
        let mut world = idle_world();
        let log = Log::new();
        for (number, nap) in naps.iter().copied().enumerate() {
            let (host, log) = (world.host(A), log.clone());
            world.spawn(A, async move {
                host.sleep_until(at(nap)).await;
                log.add((host.now().as_nanos(), number));
            });
        }
        world.run();
        let mut expected: Vec<_> = naps.into_iter().zip(0..).collect();
        expected.sort_unstable();
        prop_assert_eq!(log.entries(), expected);
        prop_assert_eq!(world.tasks(), 0);
    }
}

#[test]
fn a_dropped_sleep_leaves_no_trace() {
    let run = |drops: bool| {
        let mut world = idle_world();
        let host = world.host(A);
        world.spawn(A, async move {
            for step in 1..100 {
                if drops {
                    assert!(!is_over(host.sleep_until(at(1_000_000))).await);
                }
                host.sleep_until(at(step * 10)).await;
            }
            if drops {
                let mut far = pin!(host.sleep_until(at(5_000_000)));
                let near = host.sleep_until(at(2_000));
                let mut near = pin!(near);
                poll_fn(|context| {
                    assert!(far.as_mut().poll(context).is_pending());
                    near.as_mut().poll(context)
                })
                .await;
            } else {
                host.sleep_until(at(2_000)).await;
            }
        });
        world.run();
        (world.now(), world.events())
    };
    assert_eq!(run(true), run(false));
    assert_eq!(run(true).0, at(2_000));
}

#[test]
fn a_sleep_until_a_past_instant_ends_at_once_and_until_the_far_future_never() {
    let mut world = idle_world();
    world.run_until(at(50));
    let host = world.host(A);
    let over = {
        let host = host.clone();
        world.block_on(A, async move {
            [is_over(host.sleep_until(at(50))).await, is_over(host.sleep_until(at(51))).await]
        })
    };
    assert_eq!(over, Some([true, false]));
    let never = world.block_on(A, async move { host.sleep_until(Instant::FAR_FUTURE).await });
    assert_eq!(never, None);
    assert_eq!(world.now(), at(50));
}

#[test]
fn a_task_spawns_others_and_the_world_counts_them() {
    let mut world = idle_world();
    let (a, b) = (world.host(A), world.host(B));
    let log = Log::new();
    let out = log.clone();
    world.spawn(A, async move {
        for number in 0..3 {
            let (host, log) = (b.clone(), log.clone());
            b.spawn(async move {
                host.sleep_until(at(10 - number)).await;
                log.add(number);
            });
        }
        a.sleep_until(at(5)).await;
        log.add(100);
    });
    world.run_until(at(1));
    assert_eq!(world.tasks(), 4);
    world.run();
    assert_eq!(world.tasks(), 0);
    assert_eq!(out.entries(), [100, 2, 1, 0]);
}

#[test]
fn running_until_an_instant_stops_there() {
    let mut world = idle_world();
    let host = world.host(A);
    let log = Log::new();
    let out = log.clone();
    world.spawn(A, async move {
        loop {
            log.add(host.now().as_nanos());
            host.sleep_until(host.now().plus_nanos(30)).await;
        }
    });
    world.run_until(at(60));
    assert_eq!((world.now(), out.entries()), (at(60), vec![0, 30, 60]));
    world.run_until(at(10));
    assert_eq!(world.now(), at(60));
    world.run_until(at(89));
    assert_eq!((world.now(), out.entries().len()), (at(89), 3));
}

#[test]
#[should_panic(expected = "livelock")]
fn tasks_that_never_let_time_pass_are_an_error() {
    let mut world = idle_world();
    world.spawn(
        A,
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        }),
    );
    world.run();
}

#[test]
fn a_world_that_a_task_runs_leaves_the_outer_one_as_it_was() {
    let mut outer = idle_world();
    let (host, log) = (outer.host(A), Log::new());
    let out = log.clone();
    outer.spawn(A, async move {
        host.sleep_until(at(10)).await;
        let mut inner = idle_world();
        let (near, far) = (inner.host(A), host.clone());
        inner.spawn(A, async move {
            near.sleep_until(at(1_000)).await;
            // A request to the outer world, which waits meanwhile.
            let host = far.clone();
            far.spawn(async move {
                host.sleep_until(at(20)).await;
                log.add(("spawned", host.now().as_nanos()));
            });
        });
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        inner.spawn(B, async move { waker.wake() });
        inner.run();
        assert_eq!((inner.now(), inner.tasks()), (at(1_000), 0));
        host.sleep_until(at(30)).await;
    });
    outer.run();
    assert_eq!(out.entries(), [("spawned", 20)]);
    assert_eq!((outer.now(), outer.tasks()), (at(30), 0));
}

#[test]
fn a_task_that_panics_leaves_its_thread_to_other_worlds() {
    let mut world = idle_world();
    let host = world.host(A);
    let spawns = host.clone();
    world.spawn(B, async move {
        host.sleep_until(at(10)).await;
        panic!("of the task");
    });
    let run = std::panic::AssertUnwindSafe(|| world.run());
    assert!(std::panic::catch_unwind(run).is_err());
    spawns.spawn(async {});
    let mut other = idle_world();
    let host = other.host(A);
    other.block_on(A, async move { host.sleep_until(at(50)).await }).unwrap();
    assert_eq!(other.now(), at(50));
    drop(world);
}

#[test]
fn a_world_moves_between_threads_and_takes_requests_from_them() {
    let mut world = idle_world();
    let (host, log) = (world.host(A), Log::new());
    let (out, wakers) = (log.clone(), Log::new());
    let waker = wakers.clone();
    world.spawn(A, async move {
        let mut turns = 0;
        poll_fn(|context| {
            turns += 1;
            waker.add(context.waker().clone());
            if turns == 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        host.sleep_until(at(100)).await;
        log.add(host.now().as_nanos());
    });
    let mut world = std::thread::spawn(move || {
        world.run_until(at(10));
        world
    })
    .join()
    .unwrap();
    let waker = wakers.entries().remove(0);
    std::thread::spawn(move || (0..1_000).for_each(|_| waker.wake_by_ref())).join().unwrap();
    world.run_until(at(50));
    assert_eq!((world.tasks(), wakers.entries().len()), (1, 2));
    std::thread::spawn(move || world.run()).join().unwrap();
    assert_eq!(out.entries(), [100]);
}
