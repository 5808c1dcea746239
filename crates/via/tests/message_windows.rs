//! Windows over several networks in memory, with dropped futures, lost processes and hostile requests.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::{Communicator, block_on};
use midplane_via::message::engine::{Config, WhenFull};
use midplane_via::message::envelope::{self, Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::{self, Failure, Load, Mode};
use midplane_via::message::window::{Lock, Window, WindowError};

use crate::scenarios::{self, harness};

macro_rules! scenarios {
    ($($name:ident)+) => {$(
        #[test]
        fn $name() {
            for ranks in 1..5 {
                harness::run(ranks, &|world| Box::pin(scenarios::windows::$name(world)));
            }
        }
    )+};
}

scenarios!(numbers_are_drawn_once stripes_are_as_written long_and_many the_lock_keeps_sums errors);

/// Runs each rank's program on a thread.
fn on_threads<F: Future<Output = ()>>(
    ranks: u32,
    program: impl Fn(Communicator) -> F + Copy + Send + 'static,
) {
    let world = harness::world(ranks, MemoryConfig::default(), Config::default());
    let threads: Vec<_> =
        world.into_iter().map(|rank| std::thread::spawn(move || block_on(program(rank)))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Polls a future a number of times; returns whether it has ended.
async fn polled(times: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn futures_may_be_dropped_at_any_poll_and_their_answers_are_discarded() {
    on_threads(2, |world| async move {
        let window = Window::<u64>::create(&world, 4).await.unwrap();
        if world.rank() == Rank(1) {
            let mut least = 0;
            for times in 0..300 {
                let to = Rank(0);
                least += u64::from(polled(times % 4, window.fetch(to, 0, 1, Operation::Sum)).await);
                polled(times % 4, window.get(to, 1, 3)).await;
                polled(times % 4, window.put(to, 1, &[7])).await;
            }
            window.flush(Rank(0)).await.unwrap();
            let sum = window.get(Rank(0), 0, 1).await.unwrap()[0];
            assert!((least..=300).contains(&sum), "{least}, {sum}");
        }
        window.fence().await.unwrap();
    });
}

#[test]
fn a_process_that_only_serves_needs_no_other_call() {
    on_threads(3, |world| async move {
        let window = Window::<u32>::create(&world, 1).await.unwrap();
        if world.rank() == Rank(0) {
            let done = world.receive(Rank(1), Tag(1));
            futures_util::future::select(pin!(done), pin!(window.serve())).await;
        } else {
            for _ in 0..100 {
                window.fetch(Rank(0), 0, 1, Operation::Sum).await.unwrap();
            }
            if world.rank() == Rank(2) {
                world.send(Rank(1), Tag(1), vec![]).await.unwrap();
            } else {
                world.receive(Rank(2), Tag(1)).await.unwrap();
                assert_eq!(window.get(Rank(0), 0, 1).await.unwrap(), [200]);
                world.send(Rank(0), Tag(1), vec![]).await.unwrap();
            }
        }
        window.fence().await.unwrap();
    });
}

#[test]
fn the_lock_of_a_lost_process_is_released() {
    on_threads(3, |world| async move {
        let window = Window::<u32>::create(&world, 1).await.unwrap();
        match world.rank().0 {
            0 => {
                let done = world.receive(Rank(2), Tag(1));
                futures_util::future::select(pin!(done), pin!(window.serve())).await;
            }
            1 => {
                window.lock(Rank(0), Lock::Exclusive).await.unwrap();
                world.send(Rank(2), Tag(1), vec![]).await.unwrap();
                // The process exits without an unlock.
            }
            _ => {
                world.receive(Rank(1), Tag(1)).await.unwrap();
                window.lock(Rank(0), Lock::Exclusive).await.unwrap();
                window.put(Rank(0), 0, &[5]).await.unwrap();
                window.unlock(Rank(0)).await.unwrap();
                world.send(Rank(0), Tag(1), vec![]).await.unwrap();
            }
        }
    });
}

/// Has a process take part in making a window, and then send random requests.
#[test]
fn hostile_requests_change_nothing_and_only_their_sender_is_refused() {
    on_threads(3, |world| async move {
        if world.rank() == Rank(1) {
            let raw = world.duplicate().await.unwrap();
            raw.all_gather(4_u64.to_le_bytes().to_vec()).await.unwrap();
            let mut rng = midplane_simhw::rng::Rng::new(1, "hostile");
            for _ in 0..2_000 {
                let mut bytes: Vec<u8> =
                    (0..rng.below(60)).map(|_| rng.below(4) as u8 * 85).collect();
                if let Some(kind) = bytes.first_mut() {
                    *kind = rng.below(10) as u8;
                }
                raw.isend(Mode::Standard, Rank(0), Tag(0), bytes).unwrap().free();
            }
            world.send(Rank(2), Tag(1), vec![]).await.unwrap();
            world.receive(Rank(2), Tag(1)).await.unwrap();
            return;
        }
        let window = Window::<u64>::create(&world, 4).await.unwrap();
        if world.rank() == Rank(0) {
            let done = world.receive(Rank(2), Tag(2));
            futures_util::future::select(pin!(done), pin!(window.serve())).await;
            window.local(|values| assert_eq!(values[3], 9));
            return;
        }
        window.put(Rank(0), 3, &[9]).await.unwrap();
        window.flush(Rank(0)).await.unwrap();
        world.receive(Rank(1), Tag(1)).await.unwrap();
        for _ in 0..100 {
            assert_eq!(window.get(Rank(0), 3, 1).await.unwrap(), [9]);
        }
        assert_eq!(window.lock(Rank(2), Lock::Exclusive).await, Ok(()));
        assert!(matches!(window.get(Rank(0), 4, 1).await, Err(WindowError::OutOfRange { .. })));
        world.send(Rank(0), Tag(2), vec![]).await.unwrap();
        world.send(Rank(1), Tag(1), vec![]).await.unwrap();
    });
}

/// Sends a put and a get to rank 0, in the contexts of the first 20 communicators.
fn send_requests_in_all_contexts(world: &Communicator) {
    for (kind, reply, values) in [(0, 0, 9_u64.to_le_bytes().to_vec()), (1, 7_u32, vec![])] {
        let mut bytes = vec![kind, 0, 8, 0];
        bytes.extend(reply.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend(values);
        for context in (0..20).map(|number| envelope::Context(4 * number)) {
            let (mode, to, tag) = (Mode::Standard, Peer(0), Tag(0));
            world.with(|process| {
                let engine = process.engine_mut();
                let send = engine.build(request::Operation::Send { mode, to, context, tag });
                let send = send.unwrap();
                engine.start(send, Load::Copy(&bytes)).unwrap();
                engine.destroy(send, false);
            });
        }
    }
}

#[test]
fn requests_of_strangers_are_ignored() {
    on_threads(3, |world| async move {
        let color = (world.rank() != Rank(2)).then_some(0);
        let Some(pair) = world.split(color, 0).await.unwrap() else {
            send_requests_in_all_contexts(&world);
            return world.send(Rank(0), Tag(1), vec![]).await.unwrap();
        };
        let window = Window::<u64>::create(&pair, 1).await.unwrap();
        if world.rank() == Rank(0) {
            // All requests of the stranger have arrived.
            world.receive(Rank(2), Tag(1)).await.unwrap();
        }
        window.fence().await.unwrap();
        if world.rank() == Rank(1) {
            assert_eq!(window.get(Rank(0), 0, 1).await, Ok(vec![0]));
        }
        window.fence().await.unwrap();
    });
}

#[test]
fn two_tasks_of_a_process_share_a_window() {
    on_threads(2, |world| async move {
        let window = Window::<u64>::create(&world, 1).await.unwrap();
        let other = Rank(1 - world.rank().0);
        let many = |count| {
            let window = window.clone();
            async move {
                for _ in 0..count {
                    window.fetch(other, 0, 1, Operation::Sum).await.unwrap();
                }
            }
        };
        futures_util::future::join(many(100), many(250)).await;
        window.fence().await.unwrap();
        window.local(|values| assert_eq!(values, [350]));
    });
}

#[test]
fn a_process_that_was_lost_before_its_request_was_served_gets_no_lock() {
    on_threads(3, |world| async move {
        let window = Window::<u32>::create(&world, 1).await.unwrap();
        match world.rank().0 {
            0 => {
                // The request and the loss arrive before any request is served.
                assert!(world.receive(Rank(1), Tag(1)).await.is_err());
                let done = world.receive(Rank(2), Tag(1));
                futures_util::future::select(pin!(done), pin!(window.serve())).await;
            }
            1 => assert!(!polled(1, window.lock(Rank(0), Lock::Exclusive)).await),
            _ => {
                assert!(world.receive(Rank(1), Tag(1)).await.is_err());
                window.lock(Rank(0), Lock::Exclusive).await.unwrap();
                window.unlock(Rank(0)).await.unwrap();
                world.send(Rank(0), Tag(1), vec![]).await.unwrap();
            }
        }
    });
}

#[test]
fn a_get_after_many_dropped_ones_is_woken_although_another_task_polls_last() {
    const LONG: usize = 30_000;
    on_threads(2, |world| async move {
        let window = Window::<u64>::create(&world, LONG).await.unwrap();
        if world.rank() == Rank(0) {
            world.receive(Rank(1), Tag(3)).await.unwrap();
            let done = world.receive(Rank(1), Tag(1));
            futures_util::future::select(pin!(done), pin!(window.serve())).await;
            world.send(Rank(1), Tag(2), vec![]).await.unwrap();
            return;
        }
        for _ in 0..100 {
            polled(1, window.get(Rank(0), 0, LONG)).await;
        }
        // Each future has a waker of its own.
        let mut tasks = FuturesUnordered::<Pin<Box<dyn Future<Output = ()>>>>::new();
        tasks.push(Box::pin(async {
            window.get(Rank(0), 0, LONG).await.unwrap();
            world.send(Rank(0), Tag(1), vec![]).await.unwrap();
        }));
        tasks.push(Box::pin(async {
            let mut is_second = false;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut is_second, true) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            world.send(Rank(0), Tag(3), vec![]).await.unwrap();
            world.receive(Rank(0), Tag(2)).await.unwrap();
        }));
        while tasks.next().await.is_some() {}
    });
}

#[test]
fn a_task_that_serves_many_requests_yields_to_others() {
    on_threads(2, |world| async move {
        let window = Window::<u32>::create(&world, 1).await.unwrap();
        if world.rank() == Rank(1) {
            for _ in 0..500 {
                window.accumulate(Rank(0), 0, &[1], Operation::Sum).await.unwrap();
            }
            world.send(Rank(0), Tag(1), vec![]).await.unwrap();
        } else {
            // All requests have arrived; none was served.
            world.receive(Rank(1), Tag(1)).await.unwrap();
            let served = |window: &Window<u32>| window.local(|values| values[0]);
            assert_eq!(served(&window), 0);
            assert!(!polled(1, window.serve()).await);
            assert!((1..=128).contains(&served(&window)), "{}", served(&window));
        }
        window.fence().await.unwrap();
        assert_eq!(window.get(Rank(0), 0, 1).await.unwrap(), [500]);
        window.fence().await.unwrap();
    });
}

#[test]
fn a_read_longer_than_a_message_is_refused_and_fails_no_other_access() {
    // Zeroed pages that are never touched, so they take no memory.
    const LONG: usize = 1 << 30;
    on_threads(2, |world| async move {
        if world.rank() == Rank(1) {
            let raw = world.duplicate().await.unwrap();
            raw.all_gather(0_u64.to_le_bytes().to_vec()).await.unwrap();
            let mut request = vec![1, 0, 1, 0];
            request.extend(7_u32.to_le_bytes());
            request.extend(0_u64.to_le_bytes());
            request.extend((LONG as u64).to_le_bytes());
            raw.send(Rank(0), Tag(0), request).await.unwrap();
            let answer = raw.receive(Rank(0), Tag(7)).await.unwrap();
            assert_eq!(answer.bytes, 1_u32.to_le_bytes());
            world.send(Rank(0), Tag(1), vec![]).await.unwrap();
            return;
        }
        let window = Window::<u8>::create(&world, LONG).await.unwrap();
        assert!(matches!(window.get(Rank(0), 0, LONG).await, Err(WindowError::Message(_))));
        let (done, serving) = (pin!(world.receive(Rank(1), Tag(1))), pin!(window.serve()));
        let ended = futures_util::future::select(done, serving).await;
        assert!(matches!(ended, futures_util::future::Either::Left((Ok(_), _))));
    });
}

/// Runs both ranks with narrow windows that refuse messages once they are full.
fn refusing<F: Future<Output = ()> + Send + 'static>(program: impl Fn(Communicator) -> F) {
    let config = Config::default().window(4096).eager(64).when_full(WhenFull::Refuse);
    let views = harness::world(2, MemoryConfig::default(), config);
    harness::turns(views.clone().into_iter().map(program).collect(), &views);
}

/// Sends messages over two communicators until the receiver's window is full; returns how many over each.
async fn fill(both: [&Communicator; 2], to: Rank) -> [usize; 2] {
    let mut sent = [0; 2];
    for (all, sent) in both.into_iter().zip(&mut sent) {
        while all.send(to, Tag(1), vec![]).await.is_ok() {
            *sent += 1;
        }
    }
    sent
}

/// Serves the window until the other process has sent its last message.
async fn serve(world: &Communicator, window: &Window<u64>, other: Rank) {
    let done = world.receive(other, Tag(2));
    futures_util::future::select(pin!(done), pin!(window.serve())).await;
}

#[test]
fn a_process_whose_window_is_full_gets_the_answers_that_it_waits_for() {
    refusing(|world| async move {
        let other = world.duplicate().await.unwrap();
        let window = Window::<u64>::create(&world, 1).await.unwrap();
        if world.rank() == Rank(0) {
            fill([&world, &other], Rank(1)).await;
            return serve(&world, &window, Rank(1)).await;
        }
        for number in 0..100 {
            assert_eq!(window.fetch(Rank(0), 0, 1, Operation::Sum).await, Ok(number));
        }
        world.send(Rank(0), Tag(2), vec![]).await.unwrap();
    });
}

#[test]
fn refused_requests_hold_back_no_later_one() {
    let (filled, full) = tokio::sync::watch::channel(None);
    refusing(|world| {
        let (filled, mut full) = (filled.clone(), full.clone());
        async move {
            let other = world.duplicate().await.unwrap();
            let window = Window::<u64>::create(&world, 1).await.unwrap();
            if world.rank() == Rank(0) {
                let sent = *full.wait_for(Option::is_some).await.unwrap();
                for (all, sent) in [&world, &other].into_iter().zip(sent.unwrap()) {
                    for _ in 0..sent {
                        all.receive(Rank(1), Tag(1)).await.unwrap();
                    }
                }
                world.send(Rank(1), Tag(3), vec![]).await.unwrap();
                return serve(&world, &window, Rank(1)).await;
            }
            let sent = fill([&world, &other], Rank(0)).await;
            let refused = WindowError::Message(MessageError::Failed(Failure::Refused(Peer(0))));
            for _ in 0..100 {
                let mut dropped = pin!(window.fetch(Rank(0), 0, 1, Operation::Sum));
                poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await;
                assert_eq!(window.fetch(Rank(0), 0, 1, Operation::Sum).await, Err(refused));
            }
            filled.send(Some(sent)).unwrap();
            world.receive(Rank(0), Tag(3)).await.unwrap();
            assert_eq!(window.fetch(Rank(0), 0, 1, Operation::Sum).await, Ok(0));
            world.send(Rank(0), Tag(2), vec![]).await.unwrap();
        }
    });
}
