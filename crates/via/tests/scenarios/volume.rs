//! Many messages and long ones: `sendflood`, `many_isend`, `manylmt`, `huge_*`, `large_message`.

use midplane_via::message::communicator::wait_all;
use midplane_via::message::request::Mode;

use super::{ANY, World, rank, room, tag, text};

/// Stands for sizes beyond 2^31: longer than every queue and window.
const HUGE: usize = 300_000;

/// All other ranks flood rank 0, which is slow: it receives from one after the other.
pub(crate) async fn sendflood(world: World) {
    if world.rank().0 == 0 {
        for from in 1..world.size() {
            for n in 0..200 {
                assert_eq!(world.receive(rank(from), tag(1)).await.unwrap().bytes, text(n, 40));
            }
        }
    } else {
        for n in 0..200 {
            world.send(rank(0), tag(1), text(n, 40)).await.unwrap();
        }
    }
}

/// Many sends under way at once.
pub(crate) async fn many_isend(world: World) {
    let other = rank(1 - world.rank().0);
    let sends: Vec<_> = (0..300)
        .map(|n| world.isend(Mode::Standard, other, tag(n), text(n, 64)).unwrap())
        .collect();
    let receives: Vec<_> = (0..300).map(|n| world.ireceive(other, tag(n)).unwrap()).collect();
    for (n, got) in (0..).zip(wait_all(receives).await) {
        assert_eq!(got.unwrap().bytes, text(n, 64));
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// Many long messages between all pairs at once.
pub(crate) async fn manylmt(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let others: Vec<_> = (0..size).filter(|n| *n != own).collect();
    let mut receives = vec![];
    let mut sends = vec![];
    for other in &others {
        for n in 0..6 {
            receives.push(world.ireceive(rank(*other), tag(n)).unwrap());
            let bytes = text(own + n, 12_000);
            sends.push(world.isend(Mode::Standard, rank(*other), tag(n), bytes).unwrap());
        }
    }
    for (index, got) in wait_all(receives).await.into_iter().enumerate() {
        let from = others[index / 6];
        assert_eq!(got.unwrap().bytes, text(from + index as u32 % 6, 12_000));
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// One long message, to a receive from any source.
pub(crate) async fn huge_anysrc(world: World) {
    if world.rank().0 == 0 {
        world.send(rank(1), tag(1), text(1, HUGE)).await.unwrap();
    } else {
        let got = world.receive(ANY, tag(1)).await.unwrap();
        assert_eq!((got.source, got.bytes == text(1, HUGE)), (rank(0), true));
    }
}

/// One long synchronous message.
pub(crate) async fn huge_ssend(world: World) {
    if world.rank().0 == 0 {
        world.send_as(Mode::Synchronous, rank(1), tag(1), text(1, HUGE)).await.unwrap();
    } else {
        assert!(world.receive(rank(0), tag(1)).await.unwrap().bytes == text(1, HUGE));
    }
}

/// Short messages into long receives.
pub(crate) async fn huge_underflow(world: World) {
    if world.rank().0 == 0 {
        for size in [0, 1, 5000] {
            world.send(rank(1), tag(1), text(1, size)).await.unwrap();
        }
    } else {
        for size in [0, 1, 5000] {
            let receive = world.ireceive_into(rank(0), tag(1), room(HUGE)).unwrap();
            assert_eq!(receive.await.unwrap().bytes, text(1, size));
        }
    }
}

/// A long message and short ones around it, in both directions.
pub(crate) async fn large_message(world: World) {
    let other = rank(1 - world.rank().0);
    let sizes = [3, HUGE, 4];
    let sends: Vec<_> = sizes
        .map(|size| world.isend(Mode::Standard, other, tag(1), text(2, size)).unwrap())
        .into_iter()
        .collect();
    for size in sizes {
        assert!(world.receive(other, tag(1)).await.unwrap().bytes == text(2, size));
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// Sizes around the powers of two, one after another.
pub(crate) async fn pt2pt_large(world: World) {
    let sizes = (4..17).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]);
    for size in sizes {
        if world.rank().0 == 0 {
            world.send(rank(1), tag(1), text(1, size)).await.unwrap();
        } else {
            assert!(world.receive(rank(0), tag(1)).await.unwrap().bytes == text(1, size));
        }
    }
}
