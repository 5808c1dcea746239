//! Messages there and back over the carrier in memory, both sides on one thread, on each layer.

use midplane::via::message::carrier::{Carrier, Event};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};
use midplane::via::message::group::{CommHandle, Rank};
use midplane::via::message::matching::Pattern;
use midplane::via::message::memory::{MemoryCarrier, MemoryConfig, network};
use midplane::via::message::process::{Parker, Process};
use midplane::via::message::request::{Load, Mode, Operation, State};
use midplane::via::message::transport::Wait;

/// Returns a round trip of a message's packets alone: posted, polled, copied out.
pub fn carrier(bytes: &[u8]) -> impl FnMut() + use<> {
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    let (mut a, mut b) = (ends.next().expect("two"), ends.next().expect("two"));
    let envelope = Envelope {
        length: bytes.len() as u32,
        tag: Tag(1),
        kind: Kind::Eager,
        marks: Marks::NONE,
        source: Peer(0),
        context: Context(0),
        sequence: 0,
        to: 0,
        from: 0,
    };
    let (bytes, mut out) = (bytes.to_vec(), vec![0; bytes.len()]);
    let mut side = move |from: &mut MemoryCarrier, to: &mut MemoryCarrier| {
        from.post(to.own(), &envelope, &bytes).expect("it is empty");
        match to.poll() {
            Some(Event::Packet { payload, .. }) => {
                assert_eq!(payload.copy_to(&mut out), bytes.len())
            }
            other => panic!("{other:?}"),
        }
        assert!(to.poll().is_none());
    };
    move || {
        side(&mut a, &mut b);
        side(&mut b, &mut a);
    }
}

/// Returns a round trip with requests and matching.
pub fn engine(bytes: &[u8]) -> impl FnMut() + use<> {
    let mut pair = engines();
    for engine in &mut pair {
        engine.init().expect("it is new");
        engine.add_processes(&[Peer(0), Peer(1)]).expect("there are two");
    }
    // Exchange the windows.
    for engine in &mut pair {
        engine.advance(Wait::Not);
    }
    let (bytes, mut storage) = (bytes.to_vec(), Vec::with_capacity(bytes.len()));
    let context = Context(0);
    let mut side = move |from: &mut Engine, to: &mut Engine, source, target| {
        let pattern = Pattern { context, source: Some(source), tag: Some(Tag(1)) };
        let receive = to.build(Operation::Receive(pattern)).expect("it is known");
        let room = Load::Room { room: bytes.len(), storage: std::mem::take(&mut storage) };
        to.start(receive, room).expect("it is built");
        let mode = Mode::Standard;
        let send = Operation::Send { mode, to: target, context, tag: Tag(1) };
        let send = from.build(send).expect("it is known");
        from.start(send, Load::Copy(&bytes)).expect("it is built");
        assert!(from.requests().take(send).expect("it has left").result.is_ok());
        from.destroy(send, false);
        while to.requests().state(receive) != Some(State::Done) {
            to.advance(Wait::Not);
        }
        storage = to.requests().take(receive).expect("it is here").bytes;
        to.destroy(receive, false);
    };
    let [mut a, mut b] = pair;
    move || {
        side(&mut a, &mut b, Peer(0), Peer(1));
        side(&mut b, &mut a, Peer(1), Peer(0));
    }
}

fn engines() -> [Engine; 2] {
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    [(); 2].map(|()| Engine::new(ends.next().expect("two"), Config::default()))
}

/// Returns a round trip with ranks, modes and communicators, polled.
pub fn process(bytes: &[u8]) -> impl FnMut() + use<> {
    let processes = engines().map(|engine| Process::new(engine, 2).expect("it comes up"));
    let [(mut a, at_a), (mut b, at_b)] = processes;
    let parker = Parker::default();
    let (bytes, mut storage) = (bytes.to_vec(), Vec::with_capacity(bytes.len()));
    let mut side = move |(from, at_from): (&mut Process, &CommHandle),
                         (to, at_to): (&mut Process, &CommHandle)| {
        let room = Load::Room { room: bytes.len(), storage: std::mem::take(&mut storage) };
        let receive = to.ireceive(at_to, Some(at_from.rank()), Some(Tag(1)), room).expect("known");
        from.send(at_from, Mode::Standard, at_to.rank(), Tag(1), &bytes, &parker)
            .expect("it is up");
        loop {
            if let Some(outcome) = to.finish(receive) {
                storage = outcome.bytes;
                break;
            }
        }
    };
    move || {
        side((&mut a, &at_a), (&mut b, &at_b));
        side((&mut b, &at_b), (&mut a, &at_a));
    }
}

/// Returns a round trip with futures that own the received bytes: they allocate, and take a lock.
pub fn futures(bytes: &[u8]) -> impl FnMut() + use<> {
    let [a, b] = engines().map(|engine| Communicator::world(engine, 2).expect("it comes up"));
    let message = bytes::Bytes::copy_from_slice(bytes);
    let side = move |from: &Communicator, to: &Communicator, source: u32, target: u32| {
        let mut receive = to.ireceive(Rank(source), Tag(1)).expect("it is known");
        from.block_on(from.send(Rank(target), Tag(1), message.clone())).expect("it is up");
        while receive.test().is_none() {}
    };
    move || {
        side(&a, &b, 0, 1);
        side(&b, &a, 1, 0);
    }
}
