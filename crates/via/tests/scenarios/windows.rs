//! One-sided accesses, each compared with its expected result.

use futures_util::future::join_all;
use midplane_simhw::rng::Rng;
use midplane_via::message::collective::Operation;
use midplane_via::message::group::Rank;
use midplane_via::message::window::{Lock, Window, WindowError};

use super::{World, rank};

/// Each rank draws numbers from a counter at the last rank: together, they draw each number once.
pub(crate) async fn numbers_are_drawn_once(world: World) {
    const EACH: u64 = 20;
    let last = rank(world.size() - 1);
    let window = Window::<u64>::create(&world, usize::from(world.rank() == last)).await.unwrap();
    let mut drawn = Vec::new();
    for _ in 0..EACH {
        drawn.push(window.fetch(last, 0, 1, Operation::Sum).await.unwrap());
    }
    window.fence().await.unwrap();
    assert!(drawn.is_sorted());
    let all = world.all_reduce(&[drawn.iter().sum::<u64>()], Operation::Sum).await.unwrap();
    let count = EACH * u64::from(world.size());
    assert_eq!(all, [count * (count - 1) / 2]);
}

/// Each rank writes its own stripe at every rank by random accesses; the stripes then have the expected values.
pub(crate) async fn stripes_are_as_written(world: World) {
    const STRIPE: usize = 40;
    let (own, size) = (world.rank().0, world.size());
    let window = Window::<i64>::create(&world, STRIPE * size as usize).await.unwrap();
    let mut model = vec![vec![0_i64; STRIPE]; size as usize];
    let mut rng = Rng::new(u64::from(own), "stripes");
    for step in 0..150 {
        let (to, at) = (rng.below(size.into()) as usize, rng.below(STRIPE as u64) as usize);
        let count = 1 + rng.below((STRIPE - at) as u64) as usize;
        let (place, offset) = (at..at + count, own as usize * STRIPE + at);
        let values: Vec<i64> = (0..count as i64).map(|value| value + step).collect();
        let to_rank = rank(to as u32);
        match rng.below(5) {
            0 => {
                window.put(to_rank, offset, &values).await.unwrap();
                model[to][place].copy_from_slice(&values);
            }
            1 => {
                window.accumulate(to_rank, offset, &values, Operation::Max).await.unwrap();
                let places = model[to][place].iter_mut().zip(values);
                places.for_each(|(old, new)| *old = new.max(*old));
            }
            2 => assert_eq!(window.get(to_rank, offset, count).await.unwrap(), model[to][place]),
            3 => {
                let former = window.fetch(to_rank, offset, step, Operation::Sum).await.unwrap();
                assert_eq!(former, model[to][at]);
                model[to][at] += step;
            }
            _ => {
                let expected = model[to][at] + (step & 1);
                let found = window.compare_and_swap(to_rank, offset, expected, -step).await;
                assert_eq!(found.unwrap(), model[to][at]);
                if step & 1 == 0 {
                    model[to][at] = -step;
                }
            }
        }
    }
    window.fence().await.unwrap();
    let stripes = join_all((0..size).map(|to| window.get(rank(to), own as usize * STRIPE, STRIPE)));
    let stripes: Vec<_> = stripes.await.into_iter().map(Result::unwrap).collect();
    assert_eq!(stripes, model);
    window.fence().await.unwrap();
}

/// Long accesses, and many at once.
pub(crate) async fn long_and_many(world: World) {
    const LONG: usize = 30_000;
    let (own, next) = (world.rank().0, rank((world.rank().0 + 1) % world.size()));
    let window = Window::<u32>::create(&world, LONG).await.unwrap();
    window.put(next, 0, &vec![own; LONG]).await.unwrap();
    window.fence().await.unwrap();
    let before = (own + world.size() - 1) % world.size();
    window.local(|values| assert!(values.iter().all(|value| *value == before)));
    assert_eq!(window.get(next, 0, LONG).await.unwrap(), vec![own; LONG]);
    let many = join_all((0..200).map(|at| window.get(next, at, 1))).await;
    assert!(many.into_iter().all(|values| values.unwrap() == [own]));
    window.fence().await.unwrap();
}

/// Reads, adds and writes under the lock: no sum is lost.
pub(crate) async fn the_lock_keeps_sums(world: World) {
    let window = Window::<f64>::create(&world, 2).await.unwrap();
    for _ in 0..10 {
        window.lock(rank(0), Lock::Exclusive).await.unwrap();
        let sum = window.get(rank(0), 1, 1).await.unwrap()[0];
        window.put(rank(0), 1, &[sum + 1.0]).await.unwrap();
        window.unlock(rank(0)).await.unwrap();
        window.lock(rank(0), Lock::Shared).await.unwrap();
        assert!(window.get(rank(0), 1, 1).await.unwrap()[0] > sum);
        window.unlock(rank(0)).await.unwrap();
    }
    window.fence().await.unwrap();
    assert_eq!(window.get(rank(0), 1, 1).await.unwrap(), [f64::from(world.size()) * 10.0]);
    window.fence().await.unwrap();
}

/// An access out of range is an error, and affects no other access.
pub(crate) async fn errors(world: World) {
    let own = world.rank();
    let window = Window::<u16>::create(&world, own.0 as usize).await.unwrap();
    let length = 0;
    let outside = WindowError::OutOfRange { rank: Rank(0), offset: 0, count: 1, length };
    assert_eq!(window.put(rank(0), 0, &[1]).await, Err(outside));
    assert_eq!(window.get(rank(0), 0, 1).await, Err(outside));
    assert!(matches!(window.flush(rank(99)).await, Err(WindowError::Message(_))));
    assert!(matches!(window.get(rank(99), 0, 0).await, Err(WindowError::Message(_))));
    window.fence().await.unwrap();
    // If this rank takes the same lock twice, that rank refuses all its later accesses; other ranks do not.
    if own != Rank(0) {
        window.lock(rank(0), Lock::Shared).await.unwrap();
        assert_eq!(window.lock(rank(0), Lock::Shared).await, Err(WindowError::Refused(rank(0))));
        assert_eq!(window.flush(rank(0)).await, Err(WindowError::Refused(rank(0))));
        window.flush(own).await.unwrap();
        assert_eq!(window.unlock(own).await, Err(WindowError::Refused(own)));
    }
    window.fence().await.unwrap();
}
