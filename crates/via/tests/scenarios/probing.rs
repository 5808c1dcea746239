//! Probes: `probe_unexp`, `mprobe*`, `isendselfprobe`, `recv_any`, `precv_anysrc*`.

use midplane_via::message::request::{Load, Mode};

use super::{ANY, ANY_TAG, World, rank, room, tag, text};

/// Probes find unexpected messages of all sizes; receives then get the found messages.
pub(crate) async fn probe_unexp(world: World) {
    let sizes = [0, 1, 100, 1000, 5000, 30_000];
    if world.rank().0 == 0 {
        let sends: Vec<_> = (0..)
            .zip(sizes)
            .map(|(n, size)| world.isend(Mode::Standard, rank(1), tag(n), text(n, size)).unwrap())
            .collect();
        for send in sends {
            send.await.unwrap();
        }
    } else {
        for (n, size) in (0..6).zip(sizes).rev() {
            let found = world.probe(ANY, tag(n)).await.unwrap();
            assert_eq!((found.source, found.length), (rank(0), size));
            let again = world.iprobe(rank(0), ANY_TAG).unwrap().unwrap();
            assert_eq!(again.tag, tag(0), "the first that arrived");
            let got = world.receive(found.source, found.tag).await.unwrap();
            assert_eq!(got.bytes, text(n, size));
        }
    }
}

/// Matched probes: no other receive gets the found message, and it is received once.
pub(crate) async fn mprobe(world: World) {
    for size in [8, 2000] {
        if world.rank().0 == 0 {
            for n in 0..4 {
                world.isend(Mode::Standard, rank(1), tag(5), text(n, size)).unwrap().free();
            }
            world.receive(rank(1), tag(6)).await.unwrap();
        } else {
            let first = world.mprobe(ANY, ANY_TAG).await.unwrap();
            let probed = first.probed();
            assert_eq!((probed.source, probed.tag, probed.length), (rank(0), tag(5), size));
            let second = world.mprobe(rank(0), tag(5)).await.unwrap();
            assert_eq!(world.receive(ANY, ANY_TAG).await.unwrap().bytes, text(2, size));
            assert_eq!(second.receive().await.unwrap().bytes, text(1, size));
            let received = first.ireceive(room(size)).unwrap().await.unwrap();
            assert_eq!(received.bytes, text(0, size));
            let dropped = world.mprobe(ANY, tag(5)).await.unwrap();
            drop(dropped);
            assert_eq!(world.receive(rank(0), tag(5)).await.unwrap().bytes, text(3, size));
            assert!(world.improbe(ANY, ANY_TAG).unwrap().is_none());
            world.send(rank(0), tag(6), vec![]).await.unwrap();
        }
    }
}

/// To oneself, in a communicator of one rank that is dropped before the message is received.
pub(crate) async fn mprobe_self_free(world: World) {
    let alone = world.split(Some(world.rank().0), 0).await.unwrap().unwrap();
    assert_eq!((alone.size(), alone.rank()), (1, rank(0)));
    let send = alone.isend(Mode::Standard, rank(0), tag(1), text(1, 9000)).unwrap();
    let message = alone.mprobe(rank(0), tag(1)).await.unwrap();
    drop(alone);
    assert_eq!(message.receive().await.unwrap().bytes, text(1, 9000));
    send.await.unwrap();
}

/// A probe of oneself finds nothing, and then the sent message, which is received.
pub(crate) async fn isendselfprobe(world: World) {
    let own = world.rank();
    assert!(world.iprobe(own, ANY_TAG).unwrap().is_none());
    let send = world.isend(Mode::Standard, own, tag(4), text(1, 77)).unwrap();
    let found = world.probe(own, ANY_TAG).await.unwrap();
    assert_eq!((found.source, found.tag, found.length), (own, tag(4), 77));
    assert_eq!(world.receive(own, found.tag).await.unwrap().bytes, text(1, 77));
    send.await.unwrap();
}

/// Receives from any source messages that each other rank sends.
pub(crate) async fn recv_any(world: World) {
    if world.rank().0 == 0 {
        let mut from = vec![];
        for _ in 0..2 * (world.size() - 1) {
            let got = world.receive(ANY, tag(1)).await.unwrap();
            assert_eq!(got.bytes, text(got.source.0, 600));
            from.push(got.source.0);
        }
        from.sort_unstable();
        let expected: Vec<_> = (1..world.size()).flat_map(|n| [n, n]).collect();
        assert_eq!(from, expected);
    } else {
        for _ in 0..2 {
            world.send(rank(0), tag(1), text(world.rank().0, 600)).await.unwrap();
        }
    }
}

/// A persistent receive from any source, started before and after its message.
pub(crate) async fn precv_anysrc(world: World) {
    if world.rank().0 == 0 {
        let mut receive = world.receive_init(ANY, tag(1)).unwrap();
        for _ in 1..world.size() {
            receive.start(Load::anything()).unwrap();
            let (got, result) = receive.wait().await.unwrap();
            result.unwrap();
            assert_eq!(got.bytes, text(got.source.0, 700));
        }
        assert!(receive.wait().await.is_none());
    } else {
        world.send(rank(0), tag(1), text(world.rank().0, 700)).await.unwrap();
    }
}

/// The same, always expected, with the same storage each time.
pub(crate) async fn precv_anysrc_exp(world: World) {
    if world.rank().0 == 0 {
        let mut receive = world.receive_init(ANY, tag(1)).unwrap();
        let mut storage = Vec::<u8>::with_capacity(64);
        for n in 0..5 {
            let address = storage.as_ptr().addr();
            receive.start(Load::Room { room: 64, storage }).unwrap();
            world.send(rank(1), tag(2), vec![]).await.unwrap();
            let (got, result) = receive.wait().await.unwrap();
            result.unwrap();
            assert_eq!(got.bytes, text(n, 60));
            assert_eq!(got.bytes.as_ptr().addr(), address, "it is the same memory");
            storage = got.bytes;
        }
    } else {
        for n in 0..5 {
            world.receive(rank(0), tag(2)).await.unwrap();
            world.send(rank(0), tag(1), text(n, 60)).await.unwrap();
        }
    }
}
