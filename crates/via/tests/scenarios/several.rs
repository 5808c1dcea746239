//! Several requests at once, wildcards, several communicators: `anyall`, `sendall`,
//! `huge_dupcomm`, ...

use midplane_via::message::communicator::{wait_all, wait_some};
use midplane_via::message::request::Mode;

use super::{ANY, ANY_TAG, World, rank, tag, text};

/// Receives with and without wildcards, mixed; every message meets the first receive that fits.
pub(crate) async fn anyall(world: World) {
    if world.rank().0 == 0 {
        let receives = vec![
            world.ireceive(rank(1), tag(1)).unwrap(),
            world.ireceive(ANY, tag(1)).unwrap(),
            world.ireceive(rank(2), ANY_TAG).unwrap(),
            world.ireceive(ANY, ANY_TAG).unwrap(),
        ];
        world.send(rank(1), tag(9), vec![]).await.unwrap();
        let got: Vec<_> = wait_all(receives).await.into_iter().map(Result::unwrap).collect();
        let from: Vec<_> = got.iter().map(|got| (got.source.0, got.tag.0)).collect();
        assert_eq!(from, [(1, 1), (1, 1), (2, 1), (2, 2)]);
        assert_eq!(got[1].bytes, text(2, 30));
    } else if world.rank().0 == 1 {
        world.receive(rank(0), tag(9)).await.unwrap();
        world.send_as(Mode::Synchronous, rank(0), tag(1), text(1, 30)).await.unwrap();
        world.send_as(Mode::Synchronous, rank(0), tag(1), text(2, 30)).await.unwrap();
        world.send(rank(2), tag(9), vec![]).await.unwrap();
    } else {
        world.receive(rank(1), tag(9)).await.unwrap();
        world.send(rank(0), tag(1), text(3, 30)).await.unwrap();
        world.send(rank(0), tag(2), text(4, 30)).await.unwrap();
    }
}

/// From all ranks to all ranks, all at once, waited for in any order.
pub(crate) async fn sendall(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let mut receives: Vec<_> =
        (0..size).map(|from| world.ireceive(rank(from), tag(0)).unwrap()).collect();
    let sends: Vec<_> = (0..size)
        .map(|to| world.isend(Mode::Standard, rank(to), tag(0), text(own * 10 + to, 900)).unwrap())
        .collect();
    let mut left = size;
    while left > 0 {
        let done = wait_some(&mut receives).await;
        assert!(!done.is_empty());
        for (from, got) in done {
            assert_eq!(got.unwrap().bytes, text(from as u32 * 10 + own, 900));
            left -= 1;
        }
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// The same tag in several communicators at once.
pub(crate) async fn huge_dupcomm(world: World) {
    let mut worlds = vec![world];
    for _ in 0..4 {
        let next = worlds[worlds.len() - 1].duplicate().await.unwrap();
        worlds.push(next);
    }
    let other = rank(1 - worlds[0].rank().0);
    let sends: Vec<_> = (0..)
        .zip(&worlds)
        .map(|(n, world)| world.isend(Mode::Standard, other, tag(0), text(n, 30_000)).unwrap())
        .collect();
    for (n, world) in (0..5).zip(&worlds).rev() {
        assert_eq!(world.receive(ANY, ANY_TAG).await.unwrap().bytes, text(n, 30_000));
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// Halves of the world, in reverse order, and a communicator of some ranks.
pub(crate) async fn comm_split(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let half = world.split(Some(own % 2), -(own as i32)).await.unwrap().unwrap();
    let expected = (0..size).filter(|n| n % 2 == own % 2).rev().position(|n| n == own);
    assert_eq!(half.rank(), rank(expected.unwrap() as u32));
    let all = half.all_gather(own.to_le_bytes().to_vec()).await.unwrap();
    let named: Vec<_> = all.iter().map(|n| u32::from(n[0])).collect();
    assert_eq!(named, (0..size).filter(|n| n % 2 == own % 2).rev().collect::<Vec<_>>());
    assert!(world.split(None, 0).await.unwrap().is_none());
    let some = world.handle().group().include(&[rank(2), rank(0)]).unwrap();
    let some = world.create(&some).await.unwrap();
    let here = world.split_shared().await.unwrap();
    assert_eq!((here.size(), here.rank()), (world.size(), world.rank()));
    let expected = [Some(1), None, Some(0)].get(own as usize).copied().flatten();
    assert_eq!(some.as_ref().map(|some| some.rank().0), expected);
    if let Some(some) = some {
        let other = rank(1 - some.rank().0);
        let got = some.send_receive((other, tag(1)), vec![own as u8], other, tag(1)).await.unwrap();
        assert_eq!(got.source, other);
        assert_eq!(got.bytes, [2 - own as u8]);
    }
}

/// Two tasks of each rank talk at the same time: the waits of one never block the other.
pub(crate) async fn threaded_sr(world: World) {
    let other = rank(1 - world.rank().0);
    let task = |number: u32| {
        let world = world.clone();
        async move {
            for n in 0..30 {
                let bytes = text(number + n, (n * 40) as usize);
                let to = (other, tag(number));
                let got = world.send_receive(to, bytes.clone(), other, tag(number)).await.unwrap();
                assert_eq!(got.bytes, bytes);
            }
        }
    };
    both(task(1), task(2)).await;
}

/// Polls two futures until both are done.
pub(crate) async fn both(one: impl Future<Output = ()>, two: impl Future<Output = ()>) {
    let (mut one, mut two) = (std::pin::pin!(one), std::pin::pin!(two));
    let (mut first, mut second) = (false, false);
    std::future::poll_fn(|context| {
        first = first || one.as_mut().poll(context).is_ready();
        second = second || two.as_mut().poll(context).is_ready();
        if first && second { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
