//! Collective operations on random numbers of ranks and values. Each result is compared with that of one process that
//! has all contributions.

use std::future::Future;
use std::pin::Pin;

use futures_util::future::join_all;
use midplane_simhw::rng::Rng;
use midplane_via::message::collective::{Operation, Reduction, max_location};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::Config;
use midplane_via::message::group::Rank;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::typed::Plain;
use proptest::prelude::*;

use crate::scenarios::harness::{turns, world};
use crate::scenarios::text;

/// A function x -> ax + b, modulo 2^32: composing them is associative and not commutative.
type Affine = [u32; 2];

fn compose(first: &mut Affine, second: &Affine) {
    let [a, b] = *first;
    *first = [a.wrapping_mul(second[0]), b.wrapping_mul(second[0]).wrapping_add(second[1])];
}

fn affine(rank: u32, count: usize) -> Vec<Affine> {
    (0..count as u32).map(|at| [at.wrapping_mul(7) + 2 * rank + 1, at ^ rank]).collect()
}

fn words(rank: u32, count: usize) -> Vec<i64> {
    let word = |at: u64| (u64::from(rank) * 7 + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..count as u64).map(|at| word(at).cast_signed()).collect()
}

/// Combines the values of some ranks, one after another.
fn combined<T: Plain, R: Reduction<T>>(
    ranks: impl Iterator<Item = u32>,
    of: impl Fn(u32) -> Vec<T>,
    mut by: R,
) -> Option<Vec<T>> {
    ranks.map(of).reduce(|mut first, second| {
        by.join(&mut first, &second);
        first
    })
}

/// Checks all reductions of `count` values by an operation whose result may depend on the order of the ranks.
async fn reductions<T: Plain + PartialEq + std::fmt::Debug, R: Reduction<T> + Copy>(
    world: &Communicator,
    count: usize,
    of: impl Fn(u32) -> Vec<T> + Copy,
    by: R,
) {
    let (own, size) = (world.rank().0, world.size());
    let whole = combined(0..size, of, by);
    assert_eq!(Some(world.all_reduce(&of(own), by).await.unwrap()), whole, "all_reduce");
    let root = Rank(count as u32 % size);
    let at_root = world.reduce(root, &of(own), by).await.unwrap();
    assert_eq!(at_root, whole.clone().filter(|_| world.rank() == root), "reduce");
    let up_to = combined(0..own + 1, of, by);
    assert_eq!(Some(world.scan(&of(own), by).await.unwrap()), up_to, "scan");
    let below = combined(0..own, of, by);
    assert_eq!(world.exclusive_scan(&of(own), by).await.unwrap(), below, "exclusive_scan");
    let mut counts: Vec<_> =
        (1..size as usize).map(|rank| count * rank % (count + 1) / 9).collect();
    counts.insert(0, count - counts.iter().sum::<usize>().min(count));
    let short = counts.iter().sum::<usize>() == count;
    let block = world.reduce_scatter(&of(own), &counts, by).await;
    if short {
        let start = counts[..own as usize].iter().sum::<usize>();
        let whole = whole.expect("there are ranks");
        assert_eq!(block.unwrap(), whole[start..start + counts[own as usize]], "reduce_scatter");
    } else {
        assert!(block.is_err());
    }
}

async fn spreading(world: &Communicator, length: usize) {
    let (own, size) = (world.rank().0, world.size());
    let root = length as u32 % size;
    let bytes = if own == root { text(root, length) } else { vec![9; 3] };
    assert!(world.broadcast(Rank(root), bytes).await.unwrap() == text(root, length));
    let block = |rank: u32| text(rank, length * rank as usize % (2 * length + 1));
    let all = world.all_gather(block(own)).await.unwrap();
    assert!(all.len() == size as usize && (0..).zip(&all).all(|(rank, got)| *got == block(rank)));
}

/// Runs one program over a network in memory, whose limits `seed` decides.
fn on_ranks<F: Future<Output = ()> + Send + 'static>(
    size: u32,
    seed: u64,
    program: impl Fn(Communicator) -> F,
) {
    let mut rng = Rng::new(seed, "network");
    let room = [64, 700, 8192][rng.below(3) as usize];
    let memory = MemoryConfig::default().room(room).depth(1 + rng.below(8) as usize).seed(seed);
    let config = Config::default().eager(16 << rng.below(9));
    let views = world(size, memory, config);
    turns(views.clone().into_iter().map(program).collect(), &views);
}

fn check(size: u32, count: usize, seed: u64) {
    on_ranks(size, seed, move |world| async move {
        reductions(&world, count, |rank| affine(rank, count), compose).await;
        reductions(&world, count, |rank| words(rank, count), Operation::Sum).await;
        spreading(&world, count * 8).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn results_are_those_of_one_process_that_has_all_contributions(
        size in 1_u32..10,
        count in prop_oneof![0_usize..20, 0_usize..3_000, 0_usize..30_000],
        seed in any::<u64>(),
    ) {
        check(size, count, seed);
    }
}

/// Uses every algorithm: the longest values are reduced in blocks, the shortest by doubling or a tree.
#[test]
fn results_are_right_for_long_and_short_values_of_few_and_many_ranks() {
    for size in [1, 2, 5, 8, 9] {
        for count in [0, 1, 11, 1_000, 40_000] {
            check(size, count, u64::from(size));
        }
    }
    for size in [64, 70] {
        on_ranks(size, 3, |world| async move {
            let by = compose;
            for count in [3, 9_000] {
                let of = |rank| affine(rank, count);
                let whole = combined(0..world.size(), of, by);
                assert_eq!(Some(world.all_reduce(&of(world.rank().0), by).await.unwrap()), whole);
            }
        });
    }
}

#[test]
fn each_type_of_number_and_the_location_of_the_maximum_are_reduced() {
    on_ranks(5, 1, |world| async move {
        let own = world.rank().0;
        let sum = world.all_reduce(&[own as i32 - 2, 1], Operation::Sum).await.unwrap();
        assert_eq!(sum, [0, 5]);
        let product = world.all_reduce(&[f64::from(own) + 0.5], Operation::Product).await.unwrap();
        assert_eq!(product, [0.5 * 1.5 * 2.5 * 3.5 * 4.5]);
        let bits = world.all_reduce(&[1_u8 << own], Operation::Xor).await.unwrap();
        assert_eq!(bits, [31]);
        let some = world.all_reduce(&[own as u16 / 4, 0], Operation::LogicalOr).await.unwrap();
        assert_eq!(some, [1, 0]);
        let heights = [3.0, 9.0, 9.0, -1.0, 8.0];
        let pair = [heights[own as usize], f64::from(own)];
        assert_eq!(world.all_reduce(&[pair], max_location).await.unwrap(), [[9.0, 1.0]]);
    });
}

/// Has one process pass another count: all get an error, at once or once another process has left the operation.
/// Transfers in progress are then no violations of the protocol: no process counts as lost.
#[test]
fn reductions_of_different_counts_end_with_errors() {
    for (count, seed) in [2, 3_000, 200_000].into_iter().flat_map(|c| (0..12).map(move |s| (c, s)))
    {
        on_ranks(4, seed, move |world| async move {
            let other = world.duplicate().await.unwrap();
            let odd = usize::from(world.rank() == Rank(1));
            let values = vec![1_u32; count + odd];
            assert!(other.all_reduce(&values, Operation::Sum).await.is_err());
            assert!(other.barrier().await.is_err());
            let sum = world.all_reduce(&vec![1_u32; count], Operation::Sum).await.unwrap();
            assert_eq!(sum, vec![4; count]);
            world.with(|process| assert_eq!(process.engine().counters().malformed, 0));
        });
    }
}

/// Starts operations in the same order on all ranks; each rank polls them in an order of its own.
#[test]
fn operations_of_one_communicator_run_concurrently() {
    for seed in 0..20 {
        on_ranks(4, seed, move |world| async move {
            let mut started: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
            for at in 0..12_u32 {
                let (own, size) = (world.rank().0, world.size());
                let count = [3, 20_000][at as usize % 2];
                started.push(match at % 3 {
                    0 => {
                        let sum = world.all_reduce(&vec![own + at; count], Operation::Sum);
                        let total = size * (size - 1) / 2 + at * size;
                        Box::pin(async move { assert_eq!(sum.await.unwrap(), vec![total; count]) })
                    }
                    1 => {
                        let bytes = world.broadcast(Rank(at % size), text(own + at, count));
                        let expected = text(at % size + at, count);
                        Box::pin(async move { assert!(bytes.await.unwrap() == expected) })
                    }
                    _ => {
                        let barrier = world.barrier();
                        Box::pin(async move { barrier.await.unwrap() })
                    }
                });
            }
            let mut rng = Rng::new(seed, &format!("order {}", world.rank()));
            for last in (1..started.len()).rev() {
                started.swap(last, rng.below(last as u64 + 1) as usize);
            }
            drop(world);
            join_all(started).await;
        });
    }
}

#[test]
fn operations_can_be_spawned_as_tasks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let views = world(3, MemoryConfig::default(), Config::default());
        let spawn = |world: &Communicator| {
            let (first, second) = (world.barrier(), world.all_reduce(&[2_u64], Operation::Sum));
            let (first, second) = (tokio::spawn(first), tokio::spawn(second));
            async move {
                assert_eq!(second.await.unwrap().unwrap(), [6]);
                first.await.unwrap().unwrap();
            }
        };
        join_all(views.iter().map(spawn)).await;
    });
}
