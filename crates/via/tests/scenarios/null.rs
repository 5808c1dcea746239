//! The null rank, and requests that are not under way: `probenull`, `recvnull`, `inactivereq`, `waitany_null`,
//! `waittestnull`, `rqstatus`, `rqfree*`.

use midplane_via::message::communicator::{wait_all, wait_any, wait_some};
use midplane_via::message::group::Rank;
use midplane_via::message::request::{Load, Mode};

use super::{ANY_TAG, World, rank, tag, text};

/// A probe of the null rank finds a message without bytes at once.
pub(crate) async fn probenull(world: World) {
    let found = world.probe(Rank::NULL, ANY_TAG).await.unwrap();
    assert_eq!((found.source, found.length), (Rank::NULL, 0));
    let message = world.mprobe(Rank::NULL, ANY_TAG).await.unwrap();
    let received = message.receive().await.unwrap();
    assert_eq!((received.source, received.bytes.len()), (Rank::NULL, 0));
}

/// Receives from the null rank and sends to it are done at once, in every mode and form.
pub(crate) async fn recvnull(world: World) {
    let received = world.receive(Rank::NULL, tag(5)).await.unwrap();
    assert_eq!((received.source, received.bytes.len()), (Rank::NULL, 0));
    for mode in [Mode::Standard, Mode::Buffered, Mode::Synchronous, Mode::Ready] {
        world.send_as(mode, Rank::NULL, tag(1), text(1, 100)).await.unwrap();
    }
    let mut receive = world.receive_init(Rank::NULL, ANY_TAG).unwrap();
    for _ in 0..2 {
        receive.start(Load::anything()).unwrap();
        assert_eq!(receive.wait().await.unwrap().0.source, Rank::NULL);
    }
    let both = world.send_receive((Rank::NULL, tag(1)), vec![1], Rank::NULL, tag(1)).await;
    assert!(both.unwrap().bytes.is_empty());
}

/// Requests that were built and not started count as done and empty.
pub(crate) async fn inactivereq(world: World) {
    let scope = world.handle().clone();
    let own = world.rank();
    world.with(|process| {
        let receive = process.receive_init(&scope, Some(own), None).unwrap();
        let send = process.send_init(&scope, Mode::Standard, own, tag(1)).unwrap();
        for _ in 0..2 {
            assert!(process.test(receive).is_none());
            assert!(process.test(send).is_none());
            assert!(process.status(send).is_none());
            process.start(receive, Load::anything()).unwrap();
            process.start(send, Load::Copy(b"x")).unwrap();
            // Then both are inactive again.
            for request in [receive, send] {
                while process.test(request).is_none() {}
            }
        }
        process.free(receive);
        process.free(send);
    });
}

/// Of several receives whose outcomes are taken one by one, none is left in the end.
pub(crate) async fn waitany_null(world: World) {
    if world.rank().0 == 0 {
        let mut receives = [5, 6, 7].map(|n| world.ireceive(rank(1), tag(n)).unwrap());
        let mut seen = vec![];
        while let Some((index, got)) = wait_any(&mut receives).await {
            assert_eq!(got.unwrap().tag, tag(5 + index as u32));
            seen.push(index);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        assert!(wait_some(&mut receives).await.is_empty());
    } else {
        for n in [6, 7, 5] {
            world.send(rank(0), tag(n), vec![]).await.unwrap();
        }
    }
}

/// Lists of no requests.
pub(crate) async fn waittestnull(_: World) {
    assert!(wait_any(&mut []).await.is_none());
    assert!(wait_some(&mut []).await.is_empty());
    assert!(wait_all([]).await.is_empty());
}

/// Reading a status takes nothing away.
pub(crate) async fn rqstatus(world: World) {
    if world.rank().0 == 0 {
        let receive = world.ireceive(rank(1), tag(1)).unwrap();
        assert!(!receive.is_done());
        world.send(rank(1), tag(2), vec![]).await.unwrap();
        world.receive(rank(1), tag(3)).await.unwrap();
        let request = receive.request().unwrap();
        for _ in 0..3 {
            let (status, result) = world.with(|process| process.status(request)).unwrap();
            assert_eq!((status.length, result), (10, Ok(())));
        }
        assert_eq!(receive.await.unwrap().bytes, text(1, 10));
    } else {
        world.receive(rank(0), tag(2)).await.unwrap();
        world.send(rank(0), tag(1), text(1, 10)).await.unwrap();
        world.send(rank(0), tag(3), vec![]).await.unwrap();
    }
}

/// A send and a receive that are freed while they are under way continue.
pub(crate) async fn rqfree(world: World) {
    if world.rank().0 == 0 {
        world.ireceive(rank(1), tag(1)).unwrap().free();
        world.isend(Mode::Synchronous, rank(1), tag(2), text(2, 20_000)).unwrap().free();
        world.receive(rank(1), tag(3)).await.unwrap();
        assert!(world.iprobe(rank(1), tag(1)).unwrap().is_none(), "it was received");
    } else {
        world.send(rank(0), tag(1), text(1, 10)).await.unwrap();
        assert_eq!(world.receive(rank(0), tag(2)).await.unwrap().bytes, text(2, 20_000));
        world.send(rank(0), tag(3), vec![]).await.unwrap();
    }
}

/// The same for a buffered send.
pub(crate) async fn rqfreeb(world: World) {
    if world.rank().0 == 0 {
        world.attach(1 << 16);
        for n in 0..4 {
            world.isend(Mode::Buffered, rank(1), tag(n), text(n, 10_000)).unwrap().free();
        }
        world.detach().await;
    } else {
        for n in (0..4).rev() {
            assert_eq!(world.receive(rank(0), tag(n)).await.unwrap().bytes, text(n, 10_000));
        }
    }
}
