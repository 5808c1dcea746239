//! Two sides exchange messages: `sendrecv*`, `isendirecv`, `pingping`, `eagerdt`, `large_tag`, ...

use midplane_via::message::communicator::{Persistent, wait_all};
use midplane_via::message::layout::Strided;
use midplane_via::message::request::{Load, Mode};

use super::{ANY_TAG, World, rank, tag, text};

const SIZES: [usize; 8] = [0, 1, 15, 16, 17, 1000, 8192, 40_000];

/// A message of each size, to a posted receive; and one back, whose receive may not be posted yet.
pub(crate) async fn sendrecv1(world: World) {
    let other = rank(1 - world.rank().0);
    for (number, size) in (0..).zip(SIZES) {
        if world.rank().0 == 0 {
            world.barrier_pair().await;
            world.send(other, tag(number), text(number, size)).await.unwrap();
            let back = world.receive(other, tag(number)).await.unwrap();
            assert_eq!((back.bytes, back.source), (text(number + 1, size), other));
        } else {
            let posted = world.ireceive(other, tag(number)).unwrap();
            world.barrier_pair().await;
            assert_eq!(posted.await.unwrap().bytes, text(number, size));
            world.send(other, tag(number), text(number + 1, size)).await.unwrap();
        }
    }
}

/// A synchronization of the two ranks that leaves no message waiting.
trait Pair {
    async fn barrier_pair(&self);
}

impl Pair for World {
    async fn barrier_pair(&self) {
        let other = rank(1 - self.rank().0);
        let (to, from) = ((other, tag(900)), other);
        self.send_receive(to, Vec::new(), from, tag(900)).await.unwrap();
    }
}

/// A column of a matrix into a row of another, and back.
pub(crate) async fn sendrecv2(world: World) {
    let column = Strided::new(10, 4, 40).unwrap();
    let matrix = text(3, 400);
    if world.rank().0 == 0 {
        world.send(rank(1), tag(1), column.pack(&matrix).unwrap()).await.unwrap();
        let back = world.receive(rank(1), tag(2)).await.unwrap();
        let mut copy = vec![0; 400];
        column.unpack(&back.bytes, &mut copy).unwrap();
        assert_eq!(column.pack(&copy).unwrap(), column.pack(&matrix).unwrap());
        assert!(copy[4..40].iter().all(|byte| *byte == 0), "what lies between is untouched");
    } else {
        let row = world.receive(rank(0), tag(1)).await.unwrap();
        assert_eq!(row.bytes.len(), 40);
        world.send(rank(0), tag(2), row.bytes).await.unwrap();
    }
}

/// Both sides send many messages before either receives any.
pub(crate) async fn sendrecv3(world: World) {
    let other = rank(1 - world.rank().0);
    let sends: Vec<_> = (0..20)
        .map(|n| world.isend(Mode::Standard, other, tag(n), text(n, 600)).unwrap())
        .collect();
    for n in 0..20 {
        assert_eq!(world.receive(other, tag(n)).await.unwrap().bytes, text(n, 600));
    }
    wait_all(sends).await.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// Both sides start a send, then a receive, then wait for both.
pub(crate) async fn isendirecv(world: World) {
    let other = rank(1 - world.rank().0);
    for size in SIZES {
        let send = world.isend(Mode::Standard, other, tag(0), text(other.0, size)).unwrap();
        let receive = world.ireceive(other, tag(0)).unwrap();
        assert_eq!(receive.await.unwrap().bytes, text(world.rank().0, size));
        send.await.unwrap();
    }
}

/// The same with both in one call; the message is shifted around a ring.
pub(crate) async fn isendrecv(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let (next, before) = (rank((own + 1) % size), rank((own + size - 1) % size));
    for length in SIZES {
        let to = (next, tag(5));
        let got = world.send_receive(to, text(own, length), before, tag(5)).await.unwrap();
        assert_eq!(got.bytes, text(before.0, length));
    }
}

/// The received message replaces the sent one in its buffer.
pub(crate) async fn isendrecv_replace(world: World) {
    let (own, size) = (world.rank().0, world.size());
    let (next, before) = (rank((own + 1) % size), rank((own + size - 1) % size));
    let mut buffer = text(own, 3000);
    for _ in 0..size {
        let to = (next, tag(5));
        world.send_receive_replace(to, &mut buffer, before, ANY_TAG).await.unwrap();
    }
    assert_eq!(buffer, text(own, 3000), "once round");
}

/// Every size in every mode, both ways at once.
pub(crate) async fn pingping(world: World) {
    let other = rank(1 - world.rank().0);
    world.attach(1 << 20);
    for mode in [Mode::Standard, Mode::Buffered, Mode::Synchronous, Mode::Ready] {
        for (number, size) in (0..).zip(SIZES) {
            let receive = world.ireceive(other, tag(number)).unwrap();
            world.barrier_pair().await;
            let send = world.isend(mode, other, tag(number), text(number, size)).unwrap();
            let received = receive.await.unwrap();
            assert_eq!((received.tag, received.bytes), (tag(number), text(number, size)));
            send.await.unwrap();
        }
    }
    assert_eq!(world.detach().await, 1 << 20);
}

/// Strided messages of sizes around the limit of eager ones.
pub(crate) async fn eagerdt(world: World) {
    for blocks in [1, 3, 4, 5, 127, 128, 129, 1023, 1025] {
        let layout = Strided::new(blocks, 8, 24).unwrap();
        let memory = text(1, layout.extent());
        if world.rank().0 == 0 {
            world.send(rank(1), tag(0), layout.pack(&memory).unwrap()).await.unwrap();
        } else {
            let got = world.receive(rank(0), tag(0)).await.unwrap();
            assert_eq!(got.bytes, layout.pack(&memory).unwrap());
        }
    }
}

/// Types of several shapes: the sender's and the receiver's need only have the same bytes.
pub(crate) async fn dtype_send(world: World) {
    let shapes = [(64, 1, 3), (32, 2, 2), (16, 4, 9), (1, 64, 64)];
    for (number, (blocks, length, stride)) in (0..).zip(shapes) {
        let out = Strided::new(blocks, length, stride).unwrap();
        let into = Strided::new(64 / length, length, stride + 1).unwrap();
        let memory = text(number, out.extent());
        if world.rank().0 == 0 {
            world.send(rank(1), tag(number), out.pack(&memory).unwrap()).await.unwrap();
        } else {
            let got = world.receive(rank(0), tag(number)).await.unwrap();
            let mut copy = vec![0; into.extent()];
            into.unpack(&got.bytes, &mut copy).unwrap();
            assert_eq!(into.pack(&copy).unwrap(), out.pack(&memory).unwrap());
        }
    }
}

/// The highest tag, and others that differ from each other in one bit.
pub(crate) async fn large_tag(world: World) {
    let tags = (0..32).map(|bit| 1_u32 << bit).chain([u32::MAX, u32::MAX - 1, 0]);
    if world.rank().0 == 0 {
        for n in tags {
            world.send(rank(1), tag(n), n.to_le_bytes().to_vec()).await.unwrap();
        }
    } else {
        let mut tags: Vec<_> = tags.collect();
        tags.reverse();
        for n in tags {
            let got = world.receive(rank(0), tag(n)).await.unwrap();
            assert_eq!((got.tag, got.bytes), (tag(n), n.to_le_bytes().to_vec()));
        }
    }
}

/// A long message and a short one behind it, with the same tag: they are received in their order.
pub(crate) async fn pipeline(world: World) {
    let sizes = [400_000, 4096];
    if world.rank().0 == 0 {
        let sends = sizes.map(|size| world.isend(Mode::Standard, rank(1), tag(0), text(1, size)));
        let results = wait_all(sends.map(Result::unwrap)).await;
        assert!(results.iter().all(Result::is_ok));
    } else {
        for size in sizes {
            assert!(world.receive(rank(0), tag(0)).await.unwrap().bytes == text(1, size));
        }
    }
}

/// A persistent synchronous send completes each time once its receive has begun.
pub(crate) async fn pssend(world: World) {
    if world.rank().0 == 0 {
        let mut send = world.send_init(Mode::Synchronous, rank(1), tag(1)).unwrap();
        for n in 0..5 {
            send.start(Load::Copy(&text(n, 100))).unwrap();
            assert!(send.is_active());
            send.wait().await.unwrap().1.unwrap();
            world.send(rank(1), tag(2), vec![]).await.unwrap();
        }
    } else {
        for n in 0..5 {
            assert!(world.iprobe(rank(0), tag(2)).unwrap().is_none(), "it waits for its receive");
            assert_eq!(world.receive(rank(0), tag(1)).await.unwrap().bytes, text(n, 100));
            world.receive(rank(0), tag(2)).await.unwrap();
        }
    }
}

/// Persistent strided sends, several under way at once.
pub(crate) async fn multi_psend_derived(world: World) {
    let layout = Strided::new(50, 8, 16).unwrap();
    if world.rank().0 == 0 {
        let mut sends: Vec<_> =
            (0..4).map(|n| world.send_init(Mode::Standard, rank(1), tag(n)).unwrap()).collect();
        for round in 0..3 {
            let memories = (0..4).map(|n| text(round * 10 + n, layout.extent()));
            let loads = memories.map(|memory| Load::Bytes(layout.pack(&memory).unwrap()));
            Persistent::start_all(sends.iter_mut().zip(loads)).unwrap();
            for send in &mut sends {
                send.wait().await.unwrap().1.unwrap();
            }
        }
    } else {
        for round in 0..3 {
            for n in (0..4).rev() {
                let got = world.receive(rank(0), tag(n)).await.unwrap();
                let memory = text(round * 10 + n, layout.extent());
                assert_eq!(got.bytes, layout.pack(&memory).unwrap());
            }
        }
    }
}

/// Standard and synchronous sends, expected and not, with and without each wildcard, short and long.
pub(crate) async fn send_tests(world: World) {
    for to in [1, 2] {
        for size in [4, 40_000] {
            for flags in 0..16 {
                one_send(&world, to, size, [1, 2, 4, 8].map(|flag| flags & flag != 0)).await;
            }
        }
    }
}

async fn one_send(
    world: &World,
    to: u32,
    size: usize,
    [early, any_source, any_tag, synchronous]: [bool; 4],
) {
    if world.rank().0 == 0 {
        let mode = if synchronous { Mode::Synchronous } else { Mode::Standard };
        if !early {
            world.barrier().await.unwrap();
        }
        let send = world.isend(mode, rank(to), tag(1234), text(to, size)).unwrap();
        if early {
            world.barrier().await.unwrap();
        }
        send.await.unwrap();
    } else if world.rank().0 == to {
        if early {
            world.barrier().await.unwrap();
        }
        let source = (!any_source).then_some(rank(0));
        let receive = world.ireceive(source, (!any_tag).then_some(tag(1234))).unwrap();
        if !early {
            world.barrier().await.unwrap();
        }
        let got = receive.await.unwrap();
        assert_eq!((got.source, got.tag), (rank(0), tag(1234)));
        assert!(got.bytes == text(to, size));
    } else {
        world.barrier().await.unwrap();
    }
}
