//! Collective operations whose futures are polled in an order other than that of the calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::{Communicator, block_on};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryConfig, network};

type World = Communicator;
type Step<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

const RANKS: u32 = 3;

fn on_each_rank(program: impl Fn(&World) + Clone + Send + 'static) {
    let ranks = network(RANKS as usize, MemoryConfig::default()).into_iter().map(|carrier| {
        let program = program.clone();
        std::thread::spawn(move || {
            let engine = Engine::new(carrier, Config::default());
            program(&Communicator::world(engine, RANKS).expect("all ranks exist"));
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.join().expect("each operation has its own result");
    }
}

/// Calls each operation once, in this order. Each returned future checks its operation's result.
fn every_operation(world: &World) -> Vec<Step<'_>> {
    let own = world.rank().0;
    let letter = |what: u8| Bytes::from(vec![what, own as u8]);
    let letters = move |what: u8| (0..RANKS as u8).map(|r| Bytes::from(vec![what, r])).collect();
    let blocks = |what: u8| (0..RANKS as u8).map(|to| Bytes::from(vec![what, to])).collect();
    let sum = (0..RANKS as u8).sum::<u8>();
    let (gather, all_gather) = (world.gather(Rank(0), letter(1)), world.all_gather(letter(2)));
    let (broadcast, barrier) = (world.broadcast(Rank(1), letter(3)), world.barrier());
    let (scatter, exchange) = (world.scatter(Rank(2), blocks(4)), world.all_to_all(blocks(5)));
    let reduce = world.reduce(Rank(0), &[own as u8], Operation::Sum);
    let all_reduce = world.all_reduce(&[own as u8], Operation::Sum);
    let scan = world.scan(&[own as u8], Operation::Sum);
    let lower = world.exclusive_scan(&[1_u8], Operation::Sum);
    let block = world.reduce_scatter(&[1_u32, 2, 3], &[1; 3], Operation::Sum);
    let value = world.broadcast_value(Rank(0), &7_u64);
    let values = world.all_gather_value(&7_u64);
    let expected: Vec<Bytes> = letters(1);
    vec![
        Box::pin(async move {
            assert_eq!(gather.await.unwrap(), (own == 0).then_some(expected));
        }),
        Box::pin(async move { assert_eq!(all_gather.await.unwrap(), letters(2)) }),
        Box::pin(async move { assert_eq!(broadcast.await.unwrap(), vec![3, 1]) }),
        Box::pin(async move { barrier.await.unwrap() }),
        Box::pin(async move { assert_eq!(scatter.await.unwrap(), vec![4, own as u8]) }),
        Box::pin(async move {
            assert_eq!(exchange.await.unwrap(), vec![vec![5, own as u8]; RANKS as usize]);
        }),
        Box::pin(async move {
            assert_eq!(reduce.await.unwrap(), (own == 0).then(|| vec![sum]));
        }),
        Box::pin(async move { assert_eq!(all_reduce.await.unwrap(), vec![sum]) }),
        Box::pin(async move { assert_eq!(scan.await.unwrap(), vec![(0..=own as u8).sum()]) }),
        Box::pin(async move {
            assert_eq!(lower.await.unwrap(), (own > 0).then(|| vec![own as u8]));
        }),
        Box::pin(async move { assert_eq!(block.await.unwrap(), [RANKS * (own + 1)]) }),
        Box::pin(async move { assert_eq!(value.await.unwrap(), 7) }),
        Box::pin(async move { assert_eq!(values.await.unwrap(), [7; RANKS as usize]) }),
    ]
}

#[test]
fn operations_match_by_call_order_in_any_order_of_polls() {
    on_each_rank(|world| {
        let mut steps = every_operation(world);
        // Each rank polls in another order.
        let turn = 5 * world.rank().0 as usize % steps.len();
        steps.rotate_left(turn);
        if world.rank().0 == 1 {
            steps.reverse();
        }
        block_on(join_all(steps));
    });
}

/// Checks that communicators made at the same time differ, and are the same on all ranks.
#[test]
fn communicators_made_at_the_same_time_share_no_messages() {
    on_each_rank(|world| {
        let (first, second) = (world.duplicate(), world.split(Some(0), 0));
        let (first, second) = if world.rank().0 == 1 {
            let (second, first) = block_on(futures_util::future::join(second, first));
            (first, second)
        } else {
            block_on(futures_util::future::join(first, second))
        };
        let (first, second) = (first.unwrap(), second.unwrap().expect("it passed a color"));
        let next = Rank((world.rank().0 + 1) % RANKS);
        block_on(async {
            first.send(next, Tag(0), &b"first"[..]).await.unwrap();
            second.send(next, Tag(0), &b"second"[..]).await.unwrap();
            assert_eq!(second.receive(None, None).await.unwrap().bytes, b"second");
            assert_eq!(first.receive(None, None).await.unwrap().bytes, b"first");
            world.barrier().await.unwrap();
        });
    });
}

/// Two communicators of the same processes may be copied in another order by each process.
#[test]
fn communicators_made_of_different_ones_at_the_same_time_share_no_messages() {
    on_each_rank(|world| {
        let (one, other) = block_on(async {
            (world.duplicate().await.unwrap(), world.duplicate().await.unwrap())
        });
        let copies = async {
            if world.rank().0 == 0 {
                let (first, second) = (one.duplicate(), other.duplicate());
                futures_util::future::join(first, second).await
            } else {
                let (second, first) = (other.duplicate(), one.duplicate());
                futures_util::future::join(first, second).await
            }
        };
        let (first, second) = block_on(copies);
        let (first, second) = (first.unwrap(), second.unwrap());
        let next = Rank((world.rank().0 + 1) % RANKS);
        block_on(async {
            first.send(next, Tag(0), &b"first"[..]).await.unwrap();
            second.send(next, Tag(0), &b"second"[..]).await.unwrap();
            assert_eq!(second.receive(None, None).await.unwrap().bytes, b"second");
            assert_eq!(first.receive(None, None).await.unwrap().bytes, b"first");
            world.barrier().await.unwrap();
        });
    });
}

#[test]
fn an_operation_dropped_before_its_first_poll_abandons_its_communicator() {
    let polled = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&polled);
    on_each_rank(move |world| {
        drop(world.barrier());
        let next = block_on(world.barrier());
        assert!(next.is_err(), "the other ranks can't know that this one does not take part");
        seen.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(polled.load(Ordering::Relaxed), RANKS as usize);
}
