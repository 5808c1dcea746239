//! Collective operations, each compared with its expected result.

use bytes::Bytes;
use midplane_via::message::collective::Operation;
use midplane_via::message::request::Failure;
use midplane_via::message::typed::into_bytes;

use super::{World, rank, tag, text};

/// Joins ranges of ranks that follow one another, which is not commutative.
fn join(first: &mut [u32; 2], second: &[u32; 2]) {
    assert_eq!(first[1], second[0]);
    first[1] = second[1];
}

/// Returns a block whose length and bytes depend on its sender and receiver.
fn block(from: u32, to: u32) -> Bytes {
    text(from * 100 + to, (from * 300 + to * 7) as usize).into()
}

pub(crate) async fn broadcasts(world: World) {
    for root in 0..world.size() {
        for size in [0, 5, 30_000] {
            let own = if world.rank().0 == root { text(root, size) } else { vec![9; 3] };
            let got = world.broadcast(rank(root), own).await.unwrap();
            assert!(got == text(root, size));
        }
    }
}

pub(crate) async fn reductions(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let ranges = [[own, own + 1]; 3];
    for root in 0..size {
        let got = world.reduce(rank(root), &ranges, join).await.unwrap();
        assert_eq!(got, (own == root).then(|| vec![[0, size]; 3]));
    }
    for count in [3, 4_000] {
        let all = world.all_reduce(&vec![[own, own + 1]; count], join).await.unwrap();
        assert_eq!(all, vec![[0, size]; count]);
    }
    assert_eq!(world.scan(&ranges, join).await.unwrap(), [[0, own + 1]; 3]);
    let lower = world.exclusive_scan(&ranges, join).await.unwrap();
    assert_eq!(lower, (own > 0).then(|| vec![[0, own]; 3]));
    let counts: Vec<_> = (0..size as usize).collect();
    let ranges = vec![[own, own + 1]; counts.iter().sum()];
    let block = world.reduce_scatter(&ranges, &counts, join).await.unwrap();
    assert_eq!(block, vec![[0, size]; own as usize]);
}

pub(crate) async fn gathers(world: World) {
    let (own, size) = (world.rank().0, world.size());
    for root in 0..size {
        let got = world.gather(rank(root), block(own, root)).await.unwrap();
        let expected: Vec<_> = (0..size).map(|from| block(from, root)).collect();
        assert_eq!(got, (own == root).then_some(expected));
        let blocks: Vec<_> = (0..size).map(|to| block(root, to)).collect();
        let blocks = if own == root { blocks } else { vec![] };
        assert_eq!(world.scatter(rank(root), blocks).await.unwrap(), block(root, own));
    }
    let all = world.all_gather(block(own, 0)).await.unwrap();
    assert_eq!(all, (0..size).map(|from| block(from, 0)).collect::<Vec<_>>());
    let blocks = (0..size).map(|to| block(own, to)).collect();
    let got = world.all_to_all(blocks).await.unwrap();
    assert_eq!(got, (0..size).map(|from| block(from, own)).collect::<Vec<_>>());
}

pub(crate) async fn typed(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let sums = world.all_reduce(&[own, 1, 7 * own], Operation::Sum).await.unwrap();
    let ranks = size * (size - 1) / 2;
    assert_eq!(sums, [ranks, size, 7 * ranks]);
    let value = (own, format!("rank {own}"), vec![Some(1.5_f64), None]);
    let got: (u32, String, Vec<Option<f64>>) =
        world.broadcast_value(rank(size - 1), &value).await.unwrap();
    assert_eq!((got.0, got.1), (size - 1, format!("rank {}", size - 1)));
    let all = world.all_gather_value(&value).await.unwrap();
    assert!((0..).zip(&all).all(|(rank, value)| value.0 == rank));
    if own == 0 && size > 1 {
        world.send_value(rank(1), tag(1), &value).await.unwrap();
        world.send_slice(rank(1), tag(2), &[7_u16, 500]).await.unwrap();
        for n in [1_u32, 5_000] {
            let numbers: Vec<_> = (0..n).collect();
            world.send_slice(rank(1), tag(3), &numbers).await.unwrap();
            world.send(rank(1), tag(4), into_bytes(numbers)).await.unwrap();
        }
    } else if own == 1 {
        let (got, _) = world.receive_value(rank(0), tag(1)).await.unwrap();
        assert_eq!((0, "rank 0".to_owned(), value.2), got);
        let (numbers, from) = world.receive_slice::<u16>(None, tag(2)).await.unwrap();
        assert_eq!((numbers, from), (vec![7, 500], rank(0)));
        for n in [1, 5_000] {
            let expected: Vec<u32> = (0..n).collect();
            let mut into = vec![0; 5_001];
            let got = world.receive_slice_into(rank(0), tag(3), &mut into).await.unwrap();
            assert_eq!((got, &into[..n as usize]), ((n as usize, rank(0)), &expected[..]));
            let cut = world.receive_slice_into(rank(0), tag(4), &mut into[..n as usize - 1]).await;
            let (length, room) = (4 * n as usize, 4 * n as usize - 4);
            assert_eq!(cut, Err(Failure::Truncated { length, room }.into()));
            assert_eq!(into[..n as usize - 1], expected[..n as usize - 1]);
        }
    }
}

pub(crate) async fn barriers(world: World) {
    for _ in 0..10 {
        world.barrier().await.unwrap();
    }
}
