//! Messages to oneself: `sendself`, `isendself`.

use midplane_via::message::request::Mode;

use super::{ANY, World, tag, text};

/// In every mode, to a posted receive.
pub(crate) async fn sendself(world: World) {
    let own = world.rank();
    world.attach(1 << 18);
    for mode in [Mode::Standard, Mode::Buffered, Mode::Synchronous, Mode::Ready] {
        for (n, size) in (0..).zip([0, 10, 1000, 20_000]) {
            let receive = world.ireceive(own, tag(n)).unwrap();
            world.send_as(mode, own, tag(n), text(n, size)).await.unwrap();
            let got = receive.await.unwrap();
            assert_eq!((got.source, got.bytes), (own, text(n, size)));
        }
    }
    world.detach().await;
}

/// In every mode, sent before the receive is posted.
pub(crate) async fn isendself(world: World) {
    let own = world.rank();
    world.attach(1 << 18);
    for mode in [Mode::Standard, Mode::Buffered, Mode::Synchronous] {
        for (n, size) in (0..).zip([0, 10, 1000, 20_000]) {
            let send = world.isend(mode, own, tag(n), text(n, size)).unwrap();
            let got = world.receive(ANY, tag(n)).await.unwrap();
            assert_eq!((got.source, got.bytes), (own, text(n, size)));
            send.await.unwrap();
        }
    }
    world.detach().await;
}
