//! Buffered sends: MPICH's `bsend*`.

use midplane_via::message::communicator::wait_all;
use midplane_via::message::process::{BUFFER_OVERHEAD, MessageError};
use midplane_via::message::request::{Load, Mode};

use super::{World, rank, tag, text};

async fn bsend(world: &World, to: u32, number: u32, bytes: Vec<u8>) {
    world.send_as(Mode::Buffered, rank(to), tag(number), bytes).await.unwrap();
}

/// Three messages, received in another order than they were sent.
pub(crate) async fn bsend1(world: World) {
    if world.rank().0 == 0 {
        world.attach(3 * (7 + BUFFER_OVERHEAD));
        for n in 0..3 {
            bsend(&world, 1, n, text(n, 7)).await;
        }
        world.detach().await;
    } else {
        for n in [2, 0, 1] {
            let got = world.receive(rank(0), tag(n)).await.unwrap();
            assert_eq!((got.tag, got.bytes), (tag(n), text(n, 7)));
        }
    }
}

/// Detaching returns the buffer that was attached; another one may then be attached.
pub(crate) async fn bsend2(world: World) {
    for round in 1..4 {
        let bytes = round * 1000;
        world.attach(bytes);
        if world.rank().0 == 0 {
            bsend(&world, 1, 1, text(1, 500)).await;
        } else {
            assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(1, 500));
        }
        assert_eq!(world.detach().await, bytes);
    }
}

/// A persistent buffered send, freed after each round's start and wait.
pub(crate) async fn bsend3(world: World) {
    if world.rank().0 == 0 {
        world.attach(10_000);
        for n in 0..5 {
            let mut send = world.send_init(Mode::Buffered, rank(1), tag(n)).unwrap();
            send.start(Load::Copy(&text(n, 1500))).unwrap();
            send.wait().await.unwrap().1.unwrap();
        }
        world.detach().await;
    } else {
        for n in 0..5 {
            assert_eq!(world.receive(rank(0), tag(n)).await.unwrap().bytes, text(n, 1500));
        }
    }
}

/// Sends to oneself, ten times, with room for one at a time.
pub(crate) async fn bsend4(world: World) {
    world.attach(100 + BUFFER_OVERHEAD);
    for n in 0..10 {
        bsend(&world, world.rank().0, 1, text(n, 100)).await;
        assert_eq!(world.receive(world.rank(), tag(1)).await.unwrap().bytes, text(n, 100));
    }
    world.detach().await;
}

/// Sends from each rank to all others, through a buffer that is just large enough.
pub(crate) async fn bsend5(world: World) {
    let (own, size) = (world.rank().0, world.size());
    world.attach(10 * (size as usize - 1) * (50 + BUFFER_OVERHEAD));
    for n in 0..10 {
        for to in (0..size).filter(|to| *to != own) {
            bsend(&world, to, n, text(own + n, 50)).await;
        }
    }
    for from in (0..size).filter(|from| *from != own) {
        for n in 0..10 {
            assert_eq!(world.receive(rank(from), tag(n)).await.unwrap().bytes, text(from + n, 50));
        }
    }
    world.detach().await;
}

/// A flush: after it, nothing of the buffer is held.
pub(crate) async fn bsend_iflush(world: World) {
    if world.rank().0 == 0 {
        world.attach(2 * (4000 + BUFFER_OVERHEAD));
        for n in 0..2 {
            bsend(&world, 1, n, text(n, 4000)).await;
        }
        world.detach().await;
        assert_eq!(world.with(|process| process.buffer_free()), 0, "nothing is attached");
    } else {
        assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(1, 4000));
        assert_eq!(world.receive(rank(0), tag(0)).await.unwrap().bytes, text(0, 4000));
    }
}

/// Messages of all lengths up to a few words leave the buffer unchanged.
pub(crate) async fn bsendalign(world: World) {
    if world.rank().0 == 0 {
        world.attach(33 * (32 + BUFFER_OVERHEAD));
        for n in 0..33 {
            bsend(&world, 1, n, text(n, n as usize)).await;
        }
        world.detach().await;
    } else {
        for n in (0..33).rev() {
            assert_eq!(world.receive(rank(0), tag(n)).await.unwrap().bytes, text(n, n as usize));
        }
    }
}

/// Room is freed in another order than it was taken, and is used again whole.
pub(crate) async fn bsendfrag(world: World) {
    let sizes = [100, 3000, 10, 600];
    if world.rank().0 == 0 {
        let total: usize = sizes.iter().map(|size| size + BUFFER_OVERHEAD).sum();
        world.attach(total);
        for round in 0..4 {
            for (n, size) in (0..).zip(sizes) {
                bsend(&world, 1, n, text(round + n, size)).await;
            }
            world.receive(rank(1), tag(9)).await.unwrap();
        }
        assert_eq!(world.detach().await, total);
    } else {
        for round in 0..4 {
            for n in [2, 0, 3, 1] {
                let got = world.receive(rank(0), tag(n)).await.unwrap();
                assert_eq!(got.bytes, text(round + n, sizes[n as usize]));
            }
            world.send(rank(0), tag(9), vec![]).await.unwrap();
        }
    }
}

/// A full buffer refuses a message; the messages in it still arrive.
pub(crate) async fn bsendpending(world: World) {
    const LARGE: usize = 100_000;
    if world.rank().0 == 0 {
        world.attach(LARGE + BUFFER_OVERHEAD);
        bsend(&world, 1, 1, text(1, LARGE)).await;
        let refused = world.send_as(Mode::Buffered, rank(1), tag(2), vec![1; 10]).await;
        assert!(matches!(refused, Err(MessageError::Buffer { needed: 74, .. })), "{refused:?}");
        world.send(rank(1), tag(3), vec![]).await.unwrap();
        world.detach().await;
    } else {
        world.receive(rank(0), tag(3)).await.unwrap();
        assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(1, LARGE));
        assert!(world.iprobe(rank(0), tag(2)).unwrap().is_none());
    }
}

/// Non-blocking buffered sends are done at once, without any action of the receiver.
pub(crate) async fn ibsend(world: World) {
    if world.rank().0 == 0 {
        world.attach(1 << 20);
        let sends: Vec<_> = (0..10)
            .map(|n| world.isend(Mode::Buffered, rank(1), tag(n), text(n, 20_000)).unwrap())
            .collect();
        assert!(sends.iter().all(|send| send.is_done()));
        wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
        world.detach().await;
    } else {
        for n in (0..10).rev() {
            assert_eq!(world.receive(rank(0), tag(n)).await.unwrap().bytes, text(n, 20_000));
        }
    }
}
