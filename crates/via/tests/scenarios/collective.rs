//! Collective operations, each against what it should give.

use bytes::Bytes;

use super::{World, rank, tag, text};

/// Joins in the order of ranks: not commutative.
fn join(first: &mut Vec<u8>, second: &[u8]) {
    first.extend_from_slice(second);
}

fn letters(ranks: impl Iterator<Item = u32>) -> Vec<u8> {
    ranks.map(|rank| b'a' + rank as u8).collect()
}

/// A block whose length says who it is from and for.
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
    for root in 0..size {
        let got = world.reduce(rank(root), letters(own..own + 1), join).await.unwrap();
        assert_eq!(got, (own == root).then(|| letters(0..size)));
    }
    let all = world.all_reduce(letters(own..own + 1), join).await.unwrap();
    assert_eq!(all, letters(0..size));
    let up_to = world.scan(letters(own..own + 1), join).await.unwrap();
    assert_eq!(up_to, letters(0..own + 1));
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
    let sums = world.all_reduce_slice(&[own, 1, 7 * own], |a, b| *a += b).await.unwrap();
    let ranks = size * (size - 1) / 2;
    assert_eq!(sums, [ranks, size, 7 * ranks]);
    let value = (own, format!("rank {own}"), vec![Some(1.5_f64), None]);
    let got: (u32, String, Vec<Option<f64>>) =
        world.broadcast_value(rank(size - 1), &value).await.unwrap();
    assert_eq!((got.0, got.1), (size - 1, format!("rank {}", size - 1)));
    let all = world.all_gather_value(&value).await.unwrap();
    assert!((0..).zip(&all).all(|(rank, value)| value.0 == rank));
    let odd = vec![1_u8; own as usize + 1];
    assert!(world.all_reduce_slice(&odd, |_, _| ()).await.is_err() || size == 1);
    if own == 0 && size > 1 {
        world.send_value(rank(1), tag(1), &value).await.unwrap();
        world.send_slice(rank(1), tag(2), &[7_u16, 500]).await.unwrap();
    } else if own == 1 {
        let (got, _) = world.receive_value(rank(0), tag(1)).await.unwrap();
        assert_eq!((0, "rank 0".to_owned(), value.2), got);
        let (numbers, from) = world.receive_slice::<u16>(None, tag(2)).await.unwrap();
        assert_eq!((numbers, from), (vec![7, 500], rank(0)));
    }
}

pub(crate) async fn barriers(world: World) {
    for _ in 0..10 {
        world.barrier().await.unwrap();
    }
}
