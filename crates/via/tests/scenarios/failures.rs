//! Errors: `truncmsg*`, `errinstat*`, `proberank`; and processes that end, as in MPICH's `ft`.

use midplane_via::message::communicator::{wait_all, wait_some};
use midplane_via::message::envelope::Peer;
use midplane_via::message::group::NoSuchRank;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::{Failure, Mode};

use super::{ANY, ANY_TAG, World, rank, room, tag, text};

fn lost(peer: u32) -> MessageError {
    MessageError::Failed(Failure::PeerLost(Peer(peer)))
}

/// A message longer than its receive is an error of the receiver alone.
pub(crate) async fn truncmsg1(world: World) {
    for size in [10, 9000] {
        if world.rank().0 == 0 {
            world.send(rank(1), tag(1), text(1, size)).await.unwrap();
            world.send(rank(1), tag(2), text(2, size)).await.unwrap();
        } else {
            let receive = world.ireceive_into(rank(0), tag(1), room(7)).unwrap();
            let (got, result) = receive.outcome().await;
            assert_eq!(result, Err(Failure::Truncated { length: size, room: 7 }));
            assert_eq!(got.bytes, text(1, size)[..7], "its beginning is there");
            assert_eq!(world.receive(rank(0), tag(2)).await.unwrap().bytes, text(2, size));
        }
    }
}

/// The same for posted receives, of which one has no room at all.
pub(crate) async fn truncmsg2(world: World) {
    for size in [10, 9000] {
        if world.rank().0 == 0 {
            world.receive(rank(1), tag(9)).await.unwrap();
            for n in 0..3 {
                let bytes = text(n, size);
                world.send_as(Mode::Synchronous, rank(1), tag(n), bytes).await.unwrap();
            }
        } else {
            let receives =
                [0, 9, size].map(|most| world.ireceive_into(rank(0), ANY_TAG, room(most)).unwrap());
            world.send(rank(0), tag(9), vec![]).await.unwrap();
            for ((n, most), receive) in (0..).zip([0, 9, size]).zip(receives) {
                let (got, result) = receive.outcome().await;
                let failure = Failure::Truncated { length: size, room: most };
                assert_eq!(result, if most < size { Err(failure) } else { Ok(()) });
                assert_eq!((got.tag, &got.bytes[..]), (tag(n), &text(n, size)[..most]));
            }
        }
    }
}

/// The same for a message that a probe has claimed.
pub(crate) async fn truncmsg_mrecv(world: World) {
    for size in [10, 9000] {
        if world.rank().0 == 0 {
            world.send(rank(1), tag(1), text(1, size)).await.unwrap();
        } else {
            let message = world.mprobe(ANY, ANY_TAG).await.unwrap();
            assert_eq!(message.probed().length, size);
            let (_, result) = message.ireceive(room(3)).unwrap().outcome().await;
            assert_eq!(result, Err(Failure::Truncated { length: size, room: 3 }));
        }
    }
}

/// Of two receives, one fails; each has its own result when all are waited for.
pub(crate) async fn errinstatwa(world: World) {
    if world.rank().0 == 0 {
        for n in 0..2 {
            world.send(rank(1), tag(n), text(n, 10)).await.unwrap();
        }
    } else {
        let receives = [(0, 5), (1, 10)]
            .map(|(n, most)| world.ireceive_into(rank(0), tag(n), room(most)).unwrap());
        let results = wait_all(receives).await;
        let short = Failure::Truncated { length: 10, room: 5 };
        assert_eq!(results[0], Err(MessageError::Failed(short)));
        assert_eq!(results[1].as_ref().unwrap().bytes, text(1, 10));
    }
}

/// The same when some receives are waited for.
pub(crate) async fn errinstatws(world: World) {
    if world.rank().0 == 0 {
        for n in 0..2 {
            world.send(rank(1), tag(n), text(n, 10)).await.unwrap();
        }
    } else {
        let mut receives = [(0, 5), (1, 10)]
            .map(|(n, most)| world.ireceive_into(rank(0), tag(n), room(most)).unwrap());
        let mut results = vec![];
        while results.len() < 2 {
            results.extend(wait_some(&mut receives).await);
        }
        results.sort_by_key(|(index, _)| *index);
        assert!(results[0].1.is_err() && results[1].1.is_ok());
    }
}

/// The same with tests of the requests.
pub(crate) async fn errinstatta(world: World) {
    if world.rank().0 == 0 {
        for n in 0..2 {
            world.send(rank(1), tag(n), text(n, 10)).await.unwrap();
        }
        world.send(rank(1), tag(9), vec![]).await.unwrap();
    } else {
        world.receive(rank(0), tag(9)).await.unwrap();
        let mut receives = [(0, 5), (1, 10)]
            .map(|(n, most)| world.ireceive_into(rank(0), tag(n), room(most)).unwrap());
        let first = receives[0].test();
        let result = match first {
            Some(result) => result,
            None => wait_some(&mut receives[..1]).await.remove(0).1,
        };
        assert!(result.is_err());
        assert!(receives[0].test().is_none(), "it is taken once");
        let [_, second] = receives;
        assert_eq!(second.await.unwrap().bytes, text(1, 10));
    }
}

/// Ranks that do not exist.
pub(crate) async fn proberank(world: World) {
    let size = world.size();
    let none = MessageError::Rank(NoSuchRank { rank: rank(size), size });
    assert_eq!(world.probe(rank(size), ANY_TAG).await, Err(none));
    assert_eq!(world.iprobe(rank(size), ANY_TAG), Err(none));
    assert_eq!(world.send(rank(size), tag(1), vec![]).await, Err(none));
    assert_eq!(world.receive(rank(size), tag(1)).await, Err(none));
    assert_eq!(world.broadcast(rank(size), vec![]).await, Err(none));
}

/// Rank 1 ends; probes for its messages report that, and one from any source does so once.
pub(crate) async fn probedead(world: World) {
    match world.rank().0 {
        0 => {
            assert_eq!(world.probe(ANY, ANY_TAG).await, Err(lost(1)));
            assert_eq!(world.probe(rank(1), ANY_TAG).await, Err(lost(1)));
            assert_eq!(world.mprobe(rank(1), ANY_TAG).await.unwrap_err(), lost(1));
            assert_eq!(world.iprobe(rank(1), ANY_TAG), Err(lost(1)));
            world.send(rank(2), tag(2), vec![]).await.unwrap();
            assert_eq!(world.probe(ANY, ANY_TAG).await.unwrap().source, rank(2));
        }
        1 => end(world).await,
        _ => {
            world.receive(rank(0), tag(2)).await.unwrap();
            world.send(rank(0), tag(1), vec![]).await.unwrap();
        }
    }
}

/// Rank 1 ends; receives from it end with an error, and those from others do not.
pub(crate) async fn recvdead(world: World) {
    match world.rank().0 {
        0 => {
            let other = world.ireceive(rank(2), tag(1)).unwrap();
            assert_eq!(world.receive(rank(1), tag(1)).await, Err(lost(1)));
            assert_eq!(world.receive(rank(1), tag(1)).await, Err(lost(1)));
            world.send(rank(2), tag(2), vec![]).await.unwrap();
            other.await.unwrap();
        }
        1 => end(world).await,
        _ => {
            world.receive(rank(0), tag(2)).await.unwrap();
            world.send(rank(0), tag(1), vec![]).await.unwrap();
        }
    }
}

/// Ends a rank on purpose: all its messages are sent first.
async fn end(world: World) {
    world.finalize().await;
}

/// Sends to a rank that has ended.
pub(crate) async fn senddead(world: World) {
    match world.rank().0 {
        0 => {
            assert_eq!(world.receive(rank(1), tag(1)).await, Err(lost(1)));
            for size in [10, 20_000] {
                assert_eq!(world.send(rank(1), tag(1), text(1, size)).await, Err(lost(1)));
            }
        }
        _ => end(world).await,
    }
}

/// A long send is under way when its receiver ends.
pub(crate) async fn isenddead(world: World) {
    match world.rank().0 {
        0 => {
            let send = world.isend(Mode::Synchronous, rank(1), tag(1), text(1, 50_000)).unwrap();
            assert_eq!(send.await, Err(lost(1)));
        }
        _ => end(world).await,
    }
}

/// The last messages of a rank that ends are received; the next receive reports that it has ended.
pub(crate) async fn sendalive(world: World) {
    match world.rank().0 {
        0 => {
            for n in 0..10 {
                assert_eq!(world.receive(rank(1), tag(n)).await.unwrap().bytes, text(n, 100));
            }
            assert_eq!(world.receive(rank(1), ANY_TAG).await, Err(lost(1)));
        }
        _ => {
            for n in 0..10 {
                world.send(rank(0), tag(n), text(n, 100)).await.unwrap();
            }
            end(world).await;
        }
    }
}

/// A receive from any source reports the end of a rank; the next one works.
pub(crate) async fn anysource(world: World) {
    match world.rank().0 {
        0 => {
            assert_eq!(world.receive(ANY, ANY_TAG).await, Err(lost(1)));
            let next = world.ireceive(ANY, ANY_TAG).unwrap();
            world.send(rank(2), tag(1), vec![]).await.unwrap();
            assert_eq!(next.await.unwrap().source, rank(2));
        }
        1 => end(world).await,
        _ => {
            world.receive(rank(0), tag(1)).await.unwrap();
            world.send(rank(0), tag(1), vec![]).await.unwrap();
        }
    }
}

/// A collective operation in which a rank has ended fails, and so do all later ones.
pub(crate) async fn barrier_dead(world: World) {
    match world.rank().0 {
        0 => {
            assert_eq!(world.barrier().await, Err(lost(1)));
            assert_eq!(world.barrier().await, Err(MessageError::Abandoned));
        }
        _ => end(world).await,
    }
}

/// The second rank never joins: no operation waits for it for ever, whichever side began it, and for any length.
#[cfg(target_os = "linux")]
pub(crate) async fn never(world: World) {
    let receive = world.ireceive_into(rank(1), ANY_TAG, room(10)).unwrap();
    assert_eq!(receive.outcome().await.1, Err(Failure::PeerLost(Peer(1))));
    for size in [0, 10, 1 << 20] {
        let sent = world.send(rank(1), tag(1), text(1, size)).await;
        assert_eq!(sent.unwrap_err(), lost(1));
    }
}

/// The same, with sends only.
#[cfg(target_os = "linux")]
pub(crate) async fn never_sent(world: World) {
    let sends = [0, 10, 1 << 20]
        .map(|size| world.isend(Mode::Standard, rank(1), tag(1), text(1, size)).unwrap());
    for send in sends {
        assert_eq!(send.await.unwrap_err(), lost(1));
    }
}
