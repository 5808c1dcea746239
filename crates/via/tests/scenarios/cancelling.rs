//! Cancelling: `cancelrecv`, `cancelanysrc`, `scancel*`, `pscancel`, `rcancel`, `issendselfcancel`.

use midplane_via::message::communicator::wait_all;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::{Failure, Load, Mode};

use super::{ANY, ANY_TAG, World, rank, room, tag, text};

const CANCELLED: MessageError = MessageError::Failed(Failure::Cancelled);

/// Of several receives, some are cancelled; the others get their messages.
pub(crate) async fn cancelrecv(world: World) {
    if world.rank().0 == 0 {
        let receives: Vec<_> = (0..5).map(|n| world.ireceive(rank(1), tag(n)).unwrap()).collect();
        receives[1].cancel();
        receives[3].cancel();
        world.send(rank(1), tag(9), vec![]).await.unwrap();
        for (n, got) in (0..).zip(wait_all(receives).await) {
            match n {
                1 | 3 => assert_eq!(got, Err(CANCELLED)),
                _ => assert_eq!(got.unwrap().bytes, text(n, 50)),
            }
        }
        for n in [1, 3] {
            assert_eq!(world.receive(rank(1), tag(n)).await.unwrap().bytes, text(n, 50));
        }
    } else {
        world.receive(rank(0), tag(9)).await.unwrap();
        let sends =
            (0..5).map(|n| world.isend(Mode::Standard, rank(0), tag(n), text(n, 50)).unwrap());
        let sends: Vec<_> = sends.collect();
        wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    }
}

/// A receive from any source, cancelled; its message goes to the next.
pub(crate) async fn cancelanysrc(world: World) {
    if world.rank().0 == 0 {
        let receive = world.ireceive(ANY, ANY_TAG).unwrap();
        receive.cancel();
        assert_eq!(receive.await, Err(CANCELLED));
        world.send(rank(1), tag(0), vec![]).await.unwrap();
        assert_eq!(world.receive(ANY, ANY_TAG).await.unwrap().bytes, text(1, 3));
    } else {
        world.receive(rank(0), tag(0)).await.unwrap();
        world.send(rank(0), tag(1), text(1, 3)).await.unwrap();
    }
}

/// Of four receives, three are cancelled, in another order than they were posted; the fourth gets its message.
/// Cancelling one whose message is here already changes nothing.
pub(crate) async fn rcancel(world: World) {
    if world.rank().0 == 0 {
        world.receive(rank(1), tag(9)).await.unwrap();
        world.send(rank(1), tag(1), text(1, 9)).await.unwrap();
        world.isend(Mode::Standard, rank(1), tag(5), text(5, 9)).unwrap().free();
    } else {
        let receive = |n: u32| world.ireceive_into(rank(0), tag(n), room(10 << n)).unwrap();
        let [first, stays, third, fourth] = [0, 1, 2, 3].map(receive);
        for cancelled in [third, fourth, first] {
            cancelled.cancel();
            assert_eq!(cancelled.await, Err(CANCELLED));
        }
        world.send(rank(0), tag(9), vec![]).await.unwrap();
        assert_eq!(stays.await.unwrap().bytes, text(1, 9));
        world.probe(rank(0), tag(5)).await.unwrap();
        let late = receive(5);
        late.cancel();
        assert_eq!(late.await.unwrap().bytes, text(5, 9));
    }
}

/// In each mode, a send without a receive is either cancelled or done.
pub(crate) async fn scancel(world: World) {
    world.attach(1 << 20);
    for mode in [Mode::Standard, Mode::Buffered, Mode::Synchronous] {
        for size in [0, 100, 50_000] {
            if world.rank().0 == 0 {
                let send = world.isend(mode, rank(1), tag(1), text(1, size)).unwrap();
                send.cancel();
                let cancelled = match send.await {
                    Ok(_) => 0,
                    Err(CANCELLED) => 1,
                    Err(other) => panic!("{other}"),
                };
                world.send(rank(1), tag(2), vec![cancelled]).await.unwrap();
                world.receive(rank(1), tag(3)).await.unwrap();
            } else {
                let cancelled = world.receive(rank(0), tag(2)).await.unwrap().bytes[0] == 1;
                assert_eq!(world.iprobe(rank(0), tag(1)).unwrap().is_none(), cancelled);
                if !cancelled {
                    assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(1, size));
                }
                world.send(rank(0), tag(3), vec![]).await.unwrap();
            }
        }
    }
}

/// A synchronous send without a receive is cancelled; one that was received is not.
pub(crate) async fn scancel2(world: World) {
    if world.rank().0 == 0 {
        let lost = world.isend(Mode::Synchronous, rank(1), tag(1), text(1, 40)).unwrap();
        let met = world.isend(Mode::Synchronous, rank(1), tag(2), text(2, 40)).unwrap();
        world.receive(rank(1), tag(3)).await.unwrap();
        met.cancel();
        lost.cancel();
        assert_eq!(lost.await, Err(CANCELLED));
        met.await.unwrap();
        world.send(rank(1), tag(4), vec![]).await.unwrap();
    } else {
        assert_eq!(world.receive(rank(0), tag(2)).await.unwrap().bytes, text(2, 40));
        world.send(rank(0), tag(3), vec![]).await.unwrap();
        world.receive(rank(0), tag(4)).await.unwrap();
        assert!(world.iprobe(rank(0), tag(1)).unwrap().is_none());
    }
}

/// Many long sends, cancelled in the opposite order; the messages between them arrive.
pub(crate) async fn scancel_unmatch(world: World) {
    if world.rank().0 == 0 {
        let sends: Vec<_> = (0..10)
            .map(|n| world.isend(Mode::Synchronous, rank(1), tag(n), text(n, 9000)).unwrap())
            .collect();
        sends.iter().rev().step_by(2).for_each(|send| send.cancel());
        for (n, sent) in (0..).zip(wait_all(sends).await) {
            assert_eq!(sent.map(drop), if n % 2 == 1 { Err(CANCELLED) } else { Ok(()) });
        }
    } else {
        for n in (0..10).step_by(2) {
            assert_eq!(world.receive(rank(0), tag(n)).await.unwrap().bytes, text(n, 9000));
        }
    }
}

/// Persistent sends are cancelled, and can be started again.
pub(crate) async fn pscancel(world: World) {
    if world.rank().0 == 0 {
        let mut send = world.send_init(Mode::Synchronous, rank(1), tag(1)).unwrap();
        for _ in 0..3 {
            send.start(Load::Copy(&text(1, 30))).unwrap();
            send.cancel();
            assert_eq!(send.wait().await.unwrap().1, Err(Failure::Cancelled));
        }
        world.send(rank(1), tag(2), vec![]).await.unwrap();
        send.start(Load::Copy(&text(2, 30))).unwrap();
        send.wait().await.unwrap().1.unwrap();
        assert!(send.wait().await.is_none(), "it is not under way");
    } else {
        world.receive(rank(0), tag(2)).await.unwrap();
        assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(2, 30));
    }
}

/// A synchronous send to oneself, cancelled.
pub(crate) async fn issendselfcancel(world: World) {
    let send = world.isend(Mode::Synchronous, world.rank(), tag(1), text(1, 3)).unwrap();
    send.cancel();
    assert_eq!(send.await, Err(CANCELLED));
    assert!(world.iprobe(ANY, ANY_TAG).unwrap().is_none());
}
